"""What a consumer takes of a topic: words of a tag, or an SQL92 expression (7.1).

>>> Subscription.of("flights", "UA || AA", version_ms=1).codes
(2700, 2080)
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final, TypeAlias

import msgspec

from coherer._record.properties import java_hash
from coherer.errors import UsageError

ALL: Final = "*"
TAG: Final = "TAG"
SQL92: Final = "SQL92"


class Tags(msgspec.Struct, frozen=True):
    """Messages with one of these tags.

    Args:
        text: tags with `||` between them; `*` for all messages.

    >>> Tags.any("UA", "AA")
    Tags(text='UA || AA')
    """

    text: str = ALL

    @classmethod
    def any(cls, *tags: str) -> Tags:
        """Tags one by one."""
        return cls(" || ".join(tags))


class Sql92(msgspec.Struct, frozen=True):
    """Messages whose properties make an expression true.

    Args:
        text: for example `carrier = 'UA' AND delay > 15`. See `coherer._wire.rocketmq.selector`.
    """

    text: str


Selector: TypeAlias = "Tags | Sql92 | str | None"
"""What users give: text is tags, None is all messages."""


class Subscription(msgspec.Struct, frozen=True):
    """A topic, and what is taken of it.

    Args:
        topic: the topic.
        text: as the user wrote it.
        kind: `TAG` or `SQL92`.
        tags: the tags, in their order; empty takes all.
        version_ms: when it was made: of two, brokers believe the newer.
    """

    topic: str
    text: str = ALL
    kind: str = TAG
    tags: tuple[str, ...] = ()
    version_ms: int = 0

    @classmethod
    def of(cls, topic: str, selector: Selector, *, version_ms: int = 0) -> Subscription:
        """Makes a subscription of what users give.

        Raises:
            UsageError: the selector is no selector.
        """
        if isinstance(selector, Sql92):
            return cls.parse(topic, selector.text, SQL92, version_ms=version_ms)
        text = selector.text if isinstance(selector, Tags) else selector
        return cls.parse(topic, text, TAG, version_ms=version_ms)

    @classmethod
    def parse(
        cls, topic: str, text: str | None, kind: str | None, *, version_ms: int = 0
    ) -> Subscription:
        """Makes a subscription of what stands in a request, as Java's clients and brokers do.

        Args:
            topic: the topic.
            text: the expression.
            kind: its type; None is `TAG`.
            version_ms: when it was made.

        Raises:
            UsageError: the text says nothing. Whether an SQL92 expression is one, only the
                compiler knows (`coherer._wire.rocketmq.selector`).
        """
        if kind is None or kind == TAG:
            tags = split_tags(text)
            return cls(topic, text or ALL, TAG, tags, version_ms)
        if not text:
            raise UsageError("Expression can't be null! " + kind, topic=topic)
        return cls(topic, text, kind, (), version_ms)

    @property
    def codes(self) -> tuple[int, ...]:
        """The hash of each tag, by which brokers filter."""
        return tuple(dict.fromkeys(map(java_hash, self.tags)))

    @property
    def accepted(self) -> frozenset[str] | None:
        """The tags for `MessageBatch`; None when the broker's filter is all there is."""
        return frozenset(self.tags) or None


def split_tags(text: str | None) -> tuple[str, ...]:
    """Give the tags of an expression, in their order and each once; none means all messages.

    Raises:
        UsageError: the expression is nothing but `||`.

    >>> split_tags("UA ||AA|| UA"), split_tags(" * "), split_tags("*"), split_tags("a|b")
    (('UA', 'AA'), ('*',), (), ('a|b',))
    """
    if text is None or text in {"", ALL}:
        return ()
    parts = text.split("||")
    while parts and not parts[-1]:
        parts.pop()
    if not parts:
        raise UsageError("subString split error", hint="Name tags, or * for all messages.")
    words = (part.strip(_JAVA_SPACE) for part in parts)
    return tuple(dict.fromkeys(word for word in words if word))


_JAVA_SPACE: Final = "".join(map(chr, range(33)))
"""What Java's `trim` takes off: every character up to the space."""


def matches_code(text: str, codes: Collection[int], tag_code: int | None) -> bool:
    """Tell whether a broker gives a message to a consumer, by the code of its tag.

    Args:
        text: the consumer's expression.
        codes: its code set. As Java's broker, we look at these and not at the text.
        tag_code: from the consume queue; None when it is not known.

    >>> matches_code("UA", [2700], 2700), matches_code("UA", [], 2700), matches_code("*", [], 0)
    (True, False, True)
    """
    if tag_code is None or text == ALL:
        return True
    code = tag_code & 0xFFFFFFFF
    return (code - ((code & 0x80000000) << 1)) in codes
