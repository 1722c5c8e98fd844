r"""Translation between TubeMQ payloads and stored records, byte for byte in both directions.

A TubeMQ payload is a body, optionally preceded by a block of attributes (4 bytes of length, then
`name=value,name=value`). A record has a body and a property text (`name \x01 value \x02 name …`).

* A payload without attributes becomes the body of the record, without properties.
* A block of attributes becomes properties by replacing two bytes, in the same order: `$msgType$`
  becomes `TAGS`, other names stay. A last property, `TUBE\x01a`, marks it as reversible. The body
  is stored without the block, so that RocketMQ's clients and Spark see what the user sent.
* A block that would not survive the translation is left in the body, which is then the original
  payload, and `TUBE\x01r` marks that. Such blocks are not UTF-8, have empty or repeated names,
  empty values, or names with a meaning in RocketMQ, or a type that is not first or differs from the
  one in the request.

Other protocols remove the property `TUBE` when they accept messages of their clients.

A record that another protocol has written has no such mark. Its properties become attributes if
TubeMQ can represent them (no `,` or `=`): `TAGS` becomes `$msgType$`, time and keys keep their
names, and RocketMQ's internal properties (unique id, cluster, …) are left out.

The check sum of a delivered payload is computed without reading the body: the check sum of the
record covers the body, and CRC-32 is linear, crc(block + body) = crc(body) ^ shift(crc(block),
len(body)), as in zlib's `crc32_combine`. The part that depends only on the block and the length of
the body is cached with the block. A body that was damaged on disk is therefore detected by the
reader.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from typing import NamedTuple

from coherer import limits
from coherer._common.checksum import crc32
from coherer._record import compression, properties
from coherer._record.layout import HOSTS_V6, spans
from coherer._record.properties import java_hash, tag_code
from coherer._wire.tubemq.delivery import message_envelope
from coherer._wire.tubemq.envelope import CONTINUED, VARINTS, varint
from coherer._wire.tubemq.payload import checksum as checksum_of
from coherer._wire.tubemq.stored import (
    MARKED_ATTRIBUTES,
    MARKED_RAW,
    NO_ATTRIBUTES,
    RESERVED,
    TAGS,
    TYPE,
    attributes_of,
    without_unique_id,
)
from coherer.errors import DamagedStoreError

# CRC, flag, physical offset, sys flag, length of the body: of a record with IPv4 hosts.
_HEAD: Callable[[memoryview], tuple[int, ...]] = struct.Struct(">8xI4xi8xqi44xI").unpack_from
_BODY = 88
_SYS_FLAG = 39  # its lowest byte
_14_BITS = (1 << 14) - 1
_FLAGS = {0: b"\x20\x00", 1: b"\x20\x01"}
_join = b"".join
_INFLATED = limits.DECOMPRESSED_BYTES_PER_GET
_UNUSUAL = HOSTS_V6 | compression.COMPRESSED
_TEXT_BYTES_MAX = limits.PROPERTIES_BYTES_MAX - len(MARKED_ATTRIBUTES)

Stored = tuple[bytes, bytes, int, tuple[str, ...]]
"""Body, properties, tag code and index keys of a record."""


class Delivery(NamedTuple):
    """Records in their wire form.

    Args:
        chunks: the encoded messages (field 4 of the answer, repeated), in order.
        taken: the number of processed records; the rest is left for the next answer.
        left_out: the indexes of processed records that cannot be delivered.
    """

    chunks: list[bytes | memoryview]
    taken: int
    left_out: list[int]


class Mapper:
    r"""Translates payloads and records, and caches the translations of attribute blocks.

    >>> mapper = Mapper()
    >>> mapper.to_record(b"\0\0\0\x0f$msgType$=A,k=v" + b"hello", 1, "A")
    (b'hello', b'TAGS\x01A\x02k\x01v\x02TUBE\x01a', 65, ())
    """

    def __init__(self, cached_max: int = limits.ATTRIBUTES_CACHED) -> None:
        self._cached_max = cached_max
        self._blocks: dict[bytes, _StoredBlock] = {}
        self._properties: dict[bytes, _AttributeBlock] = {b"": _NO_ATTRIBUTES}

    def to_record(self, data: bytes, flag: int, tag: str) -> Stored:
        """Translate a payload to a record.

        Args:
            flag: the flag of the message; bit 0 means that the payload begins with attributes.
            tag: the type in the request; "" without one.
        """
        if not flag & 1:
            return self._raw(data, tag) if tag else (data, b"", 0, ())
        end = 4 + int.from_bytes(data[:4], "big")
        block = data[4:end]
        known = self._blocks.get(block)
        if known is None or known.tag != tag:
            if not 4 < end <= len(data):
                return self._raw(data, tag)
            translated = _stored_block(block, tag)
            if translated is None:
                return self._raw(data, tag)
            known = translated
            if len(self._blocks) >= self._cached_max:
                self._blocks.clear()
            if len(block) <= limits.ATTRIBUTE_BYTES_CACHED:
                self._blocks[block] = known
        if end > len(data):  # the block is cached, but this payload is truncated
            return self._raw(data, tag)
        return data[end:], known.properties, known.tag_code, known.keys

    def to_records(
        self, texts: Sequence[bytes]
    ) -> tuple[list[bytes], list[int], list[tuple[str, ...]]] | None:
        r"""Translate the property texts of a batch, and mark them as attributes.

        Returns:
            Properties, tag code and index keys of each record; None if a text cannot be attributes.

        >>> Mapper().to_records([b"TAGS\x01A\x02k\x01v"])
        ([b'TAGS\x01A\x02k\x01v\x02TUBE\x01a'], [65], [()])
        """
        groups: dict[int, list[bytes]] = {}
        counts = [text.count(b"\x02") if text else -1 for text in texts]
        for text, count in zip(texts, counts, strict=True):
            groups.setdefault(count, []).append(text)
        parts: dict[int, Iterator[tuple[bytes, int, tuple[str, ...]]]] = {}
        for count, some in groups.items():
            found = [(b"", 0, ())] * len(some) if count < 0 else _stored_texts(some)
            if found is None:
                return None
            parts[count] = iter(found)
        properties, codes, keys = zip(*[next(parts[count]) for count in counts], strict=True)
        return list(properties), list(codes), list(keys)

    def deliver(
        self,
        records: list[memoryview],
        topic_bytes: int,
        first_id: int,
        inflated_max: int = _INFLATED,
    ) -> Delivery:
        """Encode records for delivery.

        Args:
            records: whole records of one topic.
            topic_bytes: the length of the topic's name in UTF-8.
            first_id: the id of a message at physical offset 0 of this broker.
            inflated_max: no further body is decompressed after this many decompressed bytes.
        """
        chunks: list[bytes | memoryview] = []  # three for each message
        left_out: list[int] = []
        known, between = self._properties, topic_bytes + 3
        for record in records:
            crc, flag, physical, sys_flag, length = _HEAD(record)
            if sys_flag & _UNUSUAL:
                if inflated_max <= 0:
                    break
                pieces = self._deliver_unusual(record, crc, flag, physical + first_id)
                inflated_max -= len(pieces[1]) if pieces else _tried_bytes(record)
                chunks += pieces
                left_out += [] if pieces else [len(chunks) // 3 + len(left_out)]
                continue
            end = _BODY + length
            text = bytes(record[end + between :])
            if not text and end + between != len(record):  # the body exceeds the record
                left_out.append(len(chunks) // 3 + len(left_out))
                continue
            entry = known.get(text) or self._add_properties(text)
            message_id, frame = physical + first_id, entry.frames.get(length)
            if frame is None or frame[0] != message_id >> 28:
                frame = entry.frame(length, message_id >> 28)
            _, shift, begin, id_end, middles = frame
            checksum = crc ^ shift
            flag = flag & entry.flag_kept | entry.flag_set
            after = _FLAGS.get(flag)
            if checksum >> 28 and after is not None:
                before = _join(
                    (
                        begin,
                        CONTINUED[message_id & _14_BITS],
                        CONTINUED[message_id >> 14 & _14_BITS],
                        id_end,
                        CONTINUED[checksum & _14_BITS],
                        CONTINUED[checksum >> 14 & _14_BITS],
                        middles[checksum >> 28],
                        entry.block,
                    )
                )
            else:
                size = len(entry.block) + length
                before, after = message_envelope(message_id, checksum, size, flag)
                before += entry.block
            chunks += (before, record[_BODY:end], after)
        return Delivery(chunks, len(chunks) // 3 + len(left_out), left_out)

    def _raw(self, data: bytes, tag: str) -> Stored:
        if not tag:
            return data, MARKED_RAW, 0, ()
        if "\x01" in tag or "\x02" in tag or len(tag) > limits.PROPERTIES_BYTES_MAX // 8:
            return data, MARKED_RAW, java_hash(tag), ()
        text = TAGS + tag.encode("utf-8", "replace") + b"\x02" + MARKED_RAW
        return data, text, java_hash(tag), ()

    def _add_properties(self, text: bytes) -> _AttributeBlock:
        # Every message of RocketMQ has a unique id, which would make caching useless.
        text = without_unique_id(text)
        entry = self._properties.get(text) or _AttributeBlock(*attributes_of(text))
        if len(self._properties) >= self._cached_max:
            self._properties = {b"": _NO_ATTRIBUTES}
        if len(text) <= limits.ATTRIBUTE_BYTES_CACHED:
            self._properties[text] = entry
        return entry

    def _deliver_unusual(
        self, record: memoryview, crc: int, flag: int, message_id: int
    ) -> tuple[bytes, ...]:
        """Encode a record with IPv6 hosts or a compressed body, which TubeMQ's broker never writes.

        Returns three pieces, or none if the record cannot be delivered.
        """
        try:
            found = spans(record)
            body = bytes(record[found.body_begin : found.body_end])
            # The check sum of the payload is computed from the body, so the stored one is verified
            # first.
            if checksum_of(body) != crc & 0x7FFFFFFF:
                return ()
            if record[_SYS_FLAG] & compression.COMPRESSED:
                body = compression.decompress(body, limit_bytes=limits.MESSAGE_BYTES_MAX)
        except DamagedStoreError:
            return ()
        text = bytes(record[found.properties_begin : found.properties_end])
        entry = self._properties.get(text) or self._add_properties(text)
        payload = entry.block + body
        flag = flag & entry.flag_kept | entry.flag_set
        before, after = message_envelope(message_id, checksum_of(payload), len(payload), flag)
        return before + entry.block, body, after


def _tried_bytes(record: memoryview) -> int:
    """The bytes that may have been decompressed before a body turned out to be undeliverable."""
    size = len(record) - _BODY
    tried = record[_SYS_FLAG] & compression.COMPRESSED and compression.looks_compressed(
        record[_BODY:]
    )
    return min(size * compression.RATIO_MAX, limits.MESSAGE_BYTES_MAX) if tried else 0


class _StoredBlock:
    __slots__ = ("keys", "properties", "tag", "tag_code")

    def __init__(self, tag: str, text: bytes, keys: tuple[str, ...]) -> None:
        self.tag = tag
        self.properties = text
        self.tag_code = tag_code(tag)
        self.keys = keys


_Frame = tuple[int, int, bytes, bytes, tuple[bytes, ...]]
"""For bodies of one length: the upper part of the id, the value to xor the body's check sum with,
and the encoded pieces around the lower parts of id and check sum (see `_wire.tubemq.delivery`)."""


class _AttributeBlock:
    """The attribute block of a property text, and the encoding of bodies after it."""

    __slots__ = ("_crc", "block", "flag_kept", "flag_set", "frames")

    def __init__(self, block: bytes, flag_kept: int, flag_set: int) -> None:
        self.block = block
        self.flag_kept = flag_kept
        self.flag_set = flag_set
        self.frames: dict[int, _Frame] = {}
        self._crc = crc32(block)

    def frame(self, length: int, high_id: int) -> _Frame:
        """The encoding around bodies of this length, for ids with this upper part."""
        zeros = bytes(length)
        shift = (crc32(zeros, self._crc) ^ crc32(zeros)) & 0x7FFFFFFF if self.block else 0
        size = len(self.block) + length
        id_end, middles = varint(high_id) + b"\x10", _middles(size)
        begin = b"\x22" + varint(11 + len(id_end) + len(middles[0]) + size) + b"\x08"
        if len(self.frames) >= limits.FRAMES_CACHED:
            self.frames.clear()
        frame = self.frames[length] = high_id, shift, begin, id_end, middles
        return frame


@lru_cache(maxsize=1024)
def _middles(size: int) -> tuple[bytes, ...]:
    """The last byte of a five-byte check sum, by value, followed by the length of the payload."""
    return tuple([VARINTS[high] + b"\x1a" + varint(size) for high in range(8)])


_NO_ATTRIBUTES = _AttributeBlock(*NO_ATTRIBUTES)


def _stored_block(block: bytes, tag: str) -> _StoredBlock | None:
    """The properties for a block, or None if they would not translate back to the same block."""
    if len(block) > limits.PROPERTIES_BYTES_MAX + len(TYPE):
        return None  # checked first, because a block may have millions of items
    try:
        items = [item.split("=") for item in block.decode().split(",")]
    except UnicodeDecodeError:
        return None
    if b"\x01" in block or b"\x02" in block or not all(len(item) == 2 for item in items):
        return None
    names = [name for name, _ in items]
    if not all(name and value for name, value in items) or len(set(names)) < len(names):
        return None
    first = items[0][1] if names[0] == "$msgType$" else ""
    if first != tag or "$msgType$" in names[1:] or not RESERVED.isdisjoint(names):
        return None
    text = block.replace(b"=", b"\x01").replace(b",", b"\x02") + MARKED_ATTRIBUTES
    if tag:
        text = TAGS + text[len(TYPE) :]
    if len(text) > limits.PROPERTIES_BYTES_MAX:
        return None
    keys = next((tuple(value.split()) for name, value in items if name == properties.KEYS), ())
    return _StoredBlock(tag, text, keys)


def _stored_texts(texts: list[bytes]) -> list[tuple[bytes, int, tuple[str, ...]]] | None:
    """Return properties, tag codes and keys; None if one of the texts cannot be attributes."""
    values = properties.aligned_values(texts)
    joined = b"".join(texts)
    if values is None or b"KEYS" in values or b"=" in joined or b"," in joined:
        each = [_stored_text(text) for text in texts]
        return None if None in each else [one for one in each if one is not None]
    if _stored_text(texts[0]) is None or max(map(len, texts)) > _TEXT_BYTES_MAX:
        return None
    tags = values.get(b"TAGS")
    codes = [0] * len(texts)
    if tags is not None:
        known = {tag: tag_code(str(tag, "utf-8", "replace")) for tag in set(tags)}
        codes = [known[tag] for tag in tags]
    return [(text + MARKED_ATTRIBUTES, code, ()) for text, code in zip(texts, codes, strict=True)]


def _stored_text(text: bytes) -> tuple[bytes, int, tuple[str, ...]] | None:
    if b"=" in text or b"," in text:
        return None
    block, tag = text.replace(b"\x01", b"=").replace(b"\x02", b","), ""
    if text.startswith(TAGS):
        block = TYPE + block[len(TAGS) :]
        tag = str(text[len(TAGS) :].partition(b"\x02")[0], "utf-8", "replace")
    stored = _stored_block(block, tag)
    return None if stored is None else (stored.properties, stored.tag_code, stored.keys)
