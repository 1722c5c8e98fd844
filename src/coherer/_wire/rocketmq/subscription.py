"""Subscriptions: the messages of a topic that a consumer wants, by tags or an SQL92 expression.

See docs/protocol/rocketmq.md, section 7.1, and section 3.11 for `BloomFilter`.

>>> Subscription.of("flights", "UA || AA", version_ms=1).codes
(2700, 2080)
"""

from __future__ import annotations

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
        text: for example `carrier = 'UA' AND delay > 15`. It means what Java's brokers make of it:
            `NOT a = 3` is `(NOT a) = 3`, and `3.5` is not greater than `3`, but than `3.0`.
    """

    text: str


Selector: TypeAlias = "Tags | Sql92 | str | None"
"""A user's selector: text means tags, None means all messages."""


class Subscription(msgspec.Struct, frozen=True):
    """A topic and a filter.

    Args:
        text: the expression as written.
        kind: `TAG` or `SQL92`.
        tags: the tags, in order; empty for all messages.
        version_ms: time of creation; brokers prefer the newer of two subscriptions.
    """

    topic: str
    text: str = ALL
    kind: str = TAG
    tags: tuple[str, ...] = ()
    version_ms: int = 0

    @classmethod
    def of(cls, topic: str, selector: Selector, *, version_ms: int = 0) -> Subscription:
        """Create a subscription from a user's selector.

        Raises:
            UsageError: the selector is not valid.
        """
        if isinstance(selector, Sql92):
            return cls.parse(topic, selector.text, SQL92, version_ms=version_ms)
        text = selector.text if isinstance(selector, Tags) else selector
        return cls.parse(topic, text, TAG, version_ms=version_ms)

    @classmethod
    def parse(
        cls, topic: str, text: str | None, kind: str | None, *, version_ms: int = 0
    ) -> Subscription:
        """Create a subscription from the fields of a request, as Java's clients and brokers do.

        Args:
            text: the expression.
            kind: its type; None means `TAG`.
            version_ms: time of creation.

        Raises:
            UsageError: the expression is empty. SQL92 expressions are checked only when they are
                compiled (`coherer._wire.rocketmq.selector`).
        """
        if kind is None or kind == TAG:
            tags = split_tags(text)
            return cls(topic, text or ALL, TAG, tags, version_ms)
        if not text:
            raise UsageError("Expression can't be null! " + kind, topic=topic)
        return cls(topic, text, kind, (), version_ms)

    @property
    def codes(self) -> tuple[int, ...]:
        """The hashes of the tags, by which brokers filter."""
        return tuple(dict.fromkeys(map(java_hash, self.tags)))

    @property
    def accepted(self) -> frozenset[str] | None:
        """The tags for `MessageBatch`; None if only the broker filters."""
        return frozenset(self.tags) or None


def split_tags(text: str | None) -> tuple[str, ...]:
    """Return the distinct tags of an expression, in order; none means all messages.

    Raises:
        UsageError: the expression contains nothing but `||`.

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
"""The characters that Java's `trim` removes: all up to the space."""


BLOOM_BITS: Final = 112
"""The bits that Java's bloom filter has by default, for 32 consumers and 20 % errors."""
_BLOOM_HASHES: Final = 3


def bloom_positions(text: str) -> tuple[int, ...]:
    """Return the bits of a text in a bloom filter of Java's broker; some may be equal.

    Each pair of group and topic has such bits. A broker that calculates bitmaps when it stores
    messages can skip messages without evaluating the expression. Coherer evaluates, but writes the
    same `bloomFilterData` into consumerFilter.json, because Java's broker discards all filters if
    it finds other numbers.

    >>> bloom_positions("GID_PY#T1"), bloom_positions("group#topic")
    ((5, 12, 92), (79, 21, 21))
    """
    import mmh3  # only consumers that filter with SQL need it

    low64 = mmh3.hash64(text.encode(), 0, True, signed=False)[0]
    first, second = low64 & 0xFFFFFFFF, low64 >> 32
    found: list[int] = []
    for number in range(1, _BLOOM_HASHES + 1):
        combined = first + number * second & 0xFFFFFFFF
        if combined & 0x80000000:  # negative in Java, which turns all bits then
            combined ^= 0xFFFFFFFF
        found.append(combined % BLOOM_BITS)
    return tuple(found)
