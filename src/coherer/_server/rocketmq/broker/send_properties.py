r"""Rewrites the property text of a send into that of a record.

See docs/protocol/rocketmq.md, section 2.4.2, step 9.

The broker adds the cluster's name and removes WAIT, which concerns only the sender. Most property
texts of a producer differ only in the unique id and the keys. Those two are cut out, the rest is
rewritten once and cached, and then they are appended.

TubeMQ's records carry a property of their own (`properties.TUBE_MARK`). A copy of such a message
that is sent over RocketMQ must not carry it, so it is removed, too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple, cast

from coherer import limits
from coherer._record.properties import (
    CLUSTER,
    DELAY,
    KEYS,
    TAGS,
    TIMER_CANCEL,
    TIMER_DELAY_MS,
    TIMER_DELAY_SEC,
    TIMER_DELIVER_MS,
    TUBE_MARK,
    UNIQUE_KEY,
    WAIT,
    aligned_values,
    decode,
    index_keys,
    tag_code,
)

_UNIQUE = UNIQUE_KEY + "\x01"
_KEYS = KEYS + "\x01"
_UNIQUE_BYTES = b"\x02" + _UNIQUE.encode()
_KEYS_BYTES = b"\x02" + _KEYS.encode()
_SPECIAL = frozenset(
    ("TRAN_MSG", DELAY, TIMER_DELAY_SEC, TIMER_DELAY_MS, TIMER_DELIVER_MS, TIMER_CANCEL)
)
_UNIQUE_CHARS = len(_UNIQUE)
_UNIQUE_MARK, _KEYS_MARK, _TUBE = _UNIQUE.encode(), _KEYS.encode(), TUBE_MARK.encode() + b"\x01"
_UNIQUE_MARK_BYTES = len(_UNIQUE_MARK)
_ENDS = frozenset((b"", b"\x02"))
_BATCHES_CACHED = 256
_MANY = 8
"""The least number of messages whose property texts are read as columns."""
_READ = (TAGS, KEYS, UNIQUE_KEY)


class StoredProperties(NamedTuple):
    """The properties of a record.

    Args:
        data: the property text of the record.
        keys: its index keys.
        wait: whether the sender waits until the message is durable.
        plain: whether it is neither delayed nor timed nor part of a transaction.
    """

    data: bytes
    tag_code: int
    keys: tuple[str, ...]
    wait: bool
    plain: bool


_Words = tuple[str, ...]
_Fields = tuple[bytes, int, _Words, bool, bool]
# Twice as fast as calling StoredProperties.
_NEW = cast(
    "Callable[[type[StoredProperties], _Fields], StoredProperties]",
    tuple.__new__,  # pyright: ignore[reportUnknownMemberType]
)


class PropertyRewriter:
    r"""Rewrites property texts, with a cache.

    >>> texts = PropertyRewriter("C")
    >>> texts.stored("KEYS\x01a b\x02UNIQ_KEY\x010F\x02WAIT\x01false\x02TAGS\x01t")[:4]
    (b'TAGS\x01t\x02CLUSTER\x01C\x02UNIQ_KEY\x010F\x02KEYS\x01a b', 116, ('0F', 'a', 'b'), False)
    """

    def __init__(self, cluster: str) -> None:
        self._cluster = cluster
        self._known: dict[str, StoredProperties] = {}
        self._usual: dict[str, tuple[bytes, int, bool]] = {}
        self._items: dict[str, BatchPropertyRewriter] = {}

    def stored(self, text: str) -> StoredProperties:
        """Rewrite a property text."""
        begin = text.find(_UNIQUE) + _UNIQUE_CHARS
        end = text.find("\x02", begin)
        if end < 0:
            end = len(text)
        found = self._usual.get(text[:begin] + text[end:])  # the text without the id
        if found is None or begin >= end:
            return self._stored(text, begin, end)
        before, code, wait = found
        unique = text[begin:end]
        data = before + unique.encode("utf-8", "replace")
        return _NEW(StoredProperties, (data, code, (unique,), wait, True))

    def _stored(self, text: str, begin: int, end: int) -> StoredProperties:
        unique, rest = _cut(text, _UNIQUE)
        keys = ""
        if _KEYS in rest:
            keys, rest = _cut(rest, _KEYS)
        found = self._known.get(rest) or self._learn(rest)
        if not unique:
            if not keys:
                return found
            data, words = found.data, found.keys
        else:
            data = found.data + _UNIQUE_BYTES
            words = (unique, *found.keys) if found.keys else (unique,)
            if not keys and len(words) == 1 and found.plain and _KEYS not in text:
                self._keep(text[:begin] + text[end:], (data, found.tag_code, found.wait))
            data += unique.encode("utf-8", "replace")
        if keys:
            data += _KEYS_BYTES + keys.encode("utf-8", "replace")
            words += tuple([word for word in keys.split(" ") if word])
        return StoredProperties(data, found.tag_code, words, found.wait, found.plain)

    def _keep(self, text: str, usual: tuple[bytes, int, bool]) -> None:
        if len(self._usual) >= limits.ATTRIBUTES_CACHED:
            self._usual.clear()
        if len(text) <= limits.ATTRIBUTE_BYTES_CACHED:
            self._usual[text] = usual

    def items(self, own: str) -> BatchPropertyRewriter:
        """Return the rewriter for the messages of a batch with the properties `own`."""
        found = self._items.get(own)
        if found is None:
            found = BatchPropertyRewriter(own, self._cluster)
            if len(self._items) >= _BATCHES_CACHED:
                self._items.clear()
            self._items[own] = found
        return found

    def _learn(self, text: str) -> StoredProperties:
        properties = decode(text.encode("utf-8", "replace"))
        wait = properties.pop(WAIT, "true").lower() == "true"
        properties.pop(TUBE_MARK, None)
        properties[CLUSTER] = self._cluster
        found = StoredProperties(
            "\x02".join([f"{name}\x01{value}" for name, value in properties.items()]).encode(),
            tag_code(properties.get(TAGS)),
            index_keys(properties),
            wait,
            _SPECIAL.isdisjoint(properties),
        )
        if len(self._known) >= limits.ATTRIBUTES_CACHED:
            self._known.clear()
        if len(text) <= limits.ATTRIBUTE_BYTES_CACHED:
            self._known[text] = found
        return found


class BatchPropertyRewriter:
    r"""Rewrites the property texts of the messages of a batch; they keep WAIT (section 5.9).

    Args:
        own: the property text of the batch, which is appended to that of each message.
        cluster: the cluster's name.

    >>> BatchPropertyRewriter("WAIT\x01true", "C").stored([b"UNIQ_KEY\x010F"])
    ([b'UNIQ_KEY\x010F\x02WAIT\x01true\x02CLUSTER\x01C'], [0], [('0F',)])
    """

    def __init__(self, own: str, cluster: str) -> None:
        own = own.rstrip("\x02")
        suffix = f"{own}\x02{CLUSTER}\x01{cluster}" if own else f"{CLUSTER}\x01{cluster}"
        self._suffix = suffix.encode("utf-8", "replace")
        self._behind = b"\x02" + self._suffix
        self._usual = UNIQUE_KEY not in own and KEYS not in own
        self._columns = self._usual and TAGS not in own
        self._known: dict[bytes, tuple[bytes, int]] = {}

    def stored(self, texts: Sequence[bytes]) -> tuple[list[bytes], list[int], list[_Words]]:
        """Rewrite texts; returns the property texts, tag codes and index keys."""
        if not self._columns or len(texts) < _MANY:
            return self._stored_one_by_one(texts)
        found = self._stored_as_columns(texts)
        if found is not None:
            return found
        # Perhaps only some of the messages have a tag.
        counts = [text.count(b"\x02") for text in texts]
        groups = set(counts)
        if len(groups) == 1 or len(groups) * _MANY > len(texts):
            return self._stored_one_by_one(texts)
        parts: dict[int, Iterator[tuple[bytes, int, _Words]]] = {}
        for group in groups:
            some = [text for text, count in zip(texts, counts, strict=True) if count == group]
            columns = self._stored_as_columns(some) or self._stored_one_by_one(some)
            parts[group] = zip(*columns, strict=True)
        data, codes, keys = zip(*[next(parts[count]) for count in counts], strict=True)
        return list(data), list(codes), list(keys)

    def _stored_as_columns(
        self, texts: Sequence[bytes]
    ) -> tuple[list[bytes], list[int], list[_Words]] | None:
        """Rewrite texts with the same names; None if the names differ."""
        values = aligned_values(texts)
        if values is None or TUBE_MARK.encode() in values:
            return None
        return [text + self._behind for text in texts], *_read_columns(len(texts), values)

    def _stored_one_by_one(
        self, texts: Sequence[bytes]
    ) -> tuple[list[bytes], list[int], list[_Words]]:
        data: list[bytes] = []
        codes: list[int] = []
        keys: list[_Words] = []
        before = after = behind = b""
        begin, stop, code = 0, None, 0
        for text in texts:
            unique = text[begin:stop]
            # Most texts differ from the one before only in the unique id.
            if before and text[:begin] == before and text.endswith(after) and unique.isalnum():
                data.append(text + behind)
                codes.append(code)
                keys.append((unique.decode(),))
                continue
            begin = text.find(_UNIQUE_MARK) + _UNIQUE_MARK_BYTES
            end = text.find(b"\x02", begin)
            if end < 0:
                end = len(text)
            before, after = text[:begin], text[end:]
            stop = -len(after) or None
            found = self._known.get(before + after)
            if found is None or begin >= end:
                stored, code, words = self._learn(text, begin, end)
                before = b""
            else:
                behind, code = found
                stored, words = text + behind, (str(text[begin:end], "utf-8", "replace"),)
            data.append(stored)
            codes.append(code)
            keys.append(words)
        return data, codes, keys

    def _learn(self, text: bytes, begin: int, end: int) -> tuple[bytes, int, _Words]:
        if _TUBE in text:
            text = b"\x02".join(pair for pair in text.split(b"\x02") if not pair.startswith(_TUBE))
            begin = end = 0
        behind = self._suffix if not text or text.endswith(b"\x02") else self._behind
        data = text + behind
        code, keys = _read(data)
        before, after = text[: max(begin - _UNIQUE_MARK_BYTES, 0)], text[end:]
        if (
            self._usual
            and _UNIQUE_MARK_BYTES <= begin < end
            and before[-1:] in _ENDS
            and _KEYS_MARK not in text
            and _UNIQUE_MARK not in after
        ):
            if len(self._known) >= limits.ATTRIBUTES_CACHED:
                self._known.clear()
            rest = text[:begin] + after
            if len(rest) <= limits.ATTRIBUTE_BYTES_CACHED:
                self._known[rest] = behind, code
        return data, code, keys


def _read(data: bytes) -> tuple[int, tuple[str, ...]]:
    properties = decode(data)
    return tag_code(properties.get(TAGS)), index_keys(properties)


def _read_columns(
    size: int, values: Mapping[bytes, Sequence[bytes]]
) -> tuple[list[int], list[_Words]]:
    """Return the tag codes and index keys of messages with these properties."""
    tags, words, unique = (_texts(values.get(name.encode())) for name in _READ)
    codes = [0] * size
    if tags:
        known = {tag: tag_code(tag) for tag in set(tags)}
        codes = [known[tag] for tag in tags]
    keys: list[_Words] = list(zip(unique, strict=True)) if unique else [()] * size
    if words:
        keys = [
            (*key, *[word for word in text.split(" ") if word])
            for key, text in zip(keys, words, strict=True)
        ]
    return codes, keys


def _texts(values: Sequence[bytes] | None) -> list[str]:
    """Decode values, which contain no separator."""
    return str(b"\x02".join(values), "utf-8", "replace").split("\x02") if values else []


def _cut(text: str, mark: str) -> tuple[str, str]:
    """Cut the value of a name out; returns "" and the text unless the name occurs just once."""
    before, found, after = text.partition(mark)
    if not found or (before and before[-1] != "\x02"):
        return "", text
    value, _, rest = after.partition("\x02")
    if mark in rest:
        return "", text
    return value, before + rest
