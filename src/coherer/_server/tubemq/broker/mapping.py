r"""TubeMQ's payload and the stored record: one into the other and back, byte for byte.

A TubeMQ payload is a body, before it perhaps a block of attributes (4 bytes of length, then
`name=value,name=value`). A record has a body and property text (`name \x01 value \x02 name …`). So

* a payload without attributes becomes the record's body, and no property is written;
* a block of attributes becomes properties by replacing two bytes, in its order: `$msgType$`
  becomes `TAGS`, the rest keeps its name. A last property, `TUBE\x01a`, says that the way back is
  the same. The body goes without the block, so that other doors and Spark see what the user sent;
* a block that would not survive that (not UTF-8, empty names or values, names twice, names that
  RocketMQ gives a meaning to, a type that is not first or not the one that the request names) stays
  where it is: the body is the payload as it came, and `TUBE\x01r` says so.

A door that takes messages for others takes out the property `TUBE`.

A record of another door has no such mark; its properties become attributes where TubeMQ can carry
them (no `,` or `=`): `TAGS` becomes `$msgType$`, a time and the keys keep their names, and what
RocketMQ keeps for itself (the unique id, the cluster, …) stays behind.

The check sum of a delivered payload needs no pass over the body: the record's own check sum covers
the body, and CRC-32 is linear, crc(block + body) = crc(body) ^ shift(crc(block), len(body)). What
depends on the block and the body's length only is kept with the block. (Theory: zlib's
`crc32_combine`.) What the disk did to a body therefore shows at the reader, instead of being signed
by us.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from functools import lru_cache
from typing import NamedTuple
from zlib import crc32

from coherer import limits
from coherer._record import compression, properties
from coherer._record.layout import HOSTS_V6, spans
from coherer._record.properties import java_hash, tag_code
from coherer._wire.tubemq.delivery import delivered_head
from coherer._wire.tubemq.payload import checksum as checksum_of
from coherer._wire.tubemq.wire import CONTINUED, VARINTS, varint
from coherer.errors import DamagedStoreError

_MARK = properties.TUBE_MARK
_ATTRIBUTES = b"\x02TUBE\x01a"
_RAW = b"TUBE\x01r"
_TYPE = b"$msgType$="
_TAGS = b"TAGS\x01"
_UNIQUE = properties.UNIQUE_KEY.encode() + b"\x01"
_RESERVED = (properties.RESERVED | {_MARK}) - {properties.KEYS}

# CRC, flag, physical offset, sys flag, length of the body: of a record with IPv4 hosts.
_LOOK: Callable[[memoryview], tuple[int, ...]] = struct.Struct(">8xI4xi8xqi44xI").unpack_from
_BODY = 88
_SYS_FLAG = 39  # its lowest byte
_14_BITS = (1 << 14) - 1
_FLAGS = {0: b"\x20\x00", 1: b"\x20\x01"}
_join = b"".join
_INFLATED_PER_BYTE = 1032  # what zlib makes of one at most
_INFLATED = limits.INFLATED_PER_GET_BYTES
_UNUSUAL = HOSTS_V6 | compression.COMPRESSED
_LENGTH = struct.Struct(">I")

Stored = tuple[bytes, bytes, int, tuple[str, ...]]
"""Body, properties, tag code and index keys of a record to be."""


class Delivery(NamedTuple):
    """Records in their wire form.

    Args:
        chunks: the pieces of delivered messages (field 4 of the answer, repeated), in order.
        taken: how many records were dealt with; the rest waits for the next answer.
        left_out: the places of those among them that cannot be delivered.
    """

    chunks: list[bytes | memoryview]
    taken: int
    left_out: list[int]


class Mapper:
    r"""Translates, and remembers the translations of attribute blocks: few are seen often.

    >>> mapper = Mapper()
    >>> mapper.to_record(b"\0\0\0\x0f$msgType$=A,k=v" + b"hello", 1, "A")
    (b'hello', b'TAGS\x01A\x02k\x01v\x02TUBE\x01a', 65, ())
    """

    def __init__(self, cached_max: int = limits.ATTRIBUTE_BLOCKS_CACHED) -> None:
        self._cached_max = cached_max
        self._blocks: dict[bytes, _Translation] = {}
        self._properties: dict[bytes, _Block] = {b"": _NOTHING}

    def to_record(self, data: bytes, flag: int, tag: str) -> Stored:
        """What to store for a payload.

        Args:
            data: the payload.
            flag: the flag that came with it; bit 0 says that it begins with attributes.
            tag: the type that the request names; "" for none.
        """
        if not flag & 1:
            return self._raw(data, tag) if tag else (data, b"", 0, ())
        end = 4 + int.from_bytes(data[:4], "big")
        block = data[4:end]
        known = self._blocks.get(block)
        if known is None or known.tag != tag:
            if not 4 < end <= len(data):
                return self._raw(data, tag)
            translated = _translate(block, tag)
            if translated is None:
                return self._raw(data, tag)
            known = translated
            if len(self._blocks) >= self._cached_max:
                self._blocks.clear()
            if len(block) <= limits.ATTRIBUTE_BYTES_CACHED:
                self._blocks[block] = known
        if end > len(data):  # as above, for a block that is known from a whole payload
            return self._raw(data, tag)
        return data[end:], known.properties, known.tag_code, known.keys

    def deliver(
        self,
        records: list[memoryview],
        topic_bytes: int,
        first_id: int,
        inflated_max: int = _INFLATED,
    ) -> Delivery:
        """The wire form of records, as far as they can be delivered.

        Args:
            records: whole records, all of one topic.
            topic_bytes: the length of that topic's name in UTF-8.
            first_id: the id of a message at physical offset 0 of this broker.
            inflated_max: after so many bytes of inflated bodies the next one waits.
        """
        chunks: list[bytes | memoryview] = []  # three for each message
        left_out: list[int] = []
        known, between = self._properties, topic_bytes + 3
        for record in records:
            crc, flag, physical, sys_flag, length = _LOOK(record)
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
            if not text and end + between != len(record):  # more body than there is record
                left_out.append(len(chunks) // 3 + len(left_out))
                continue
            entry = known.get(text) or self._learn(text)
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
                before, after = delivered_head(message_id, checksum, size, flag)
                before += entry.block
            chunks += (before, record[_BODY:end], after)
        return Delivery(chunks, len(chunks) // 3 + len(left_out), left_out)

    def _raw(self, data: bytes, tag: str) -> Stored:
        if not tag:
            return data, _RAW, 0, ()
        if "\x01" in tag or "\x02" in tag or len(tag) > limits.PROPERTIES_BYTES_MAX // 8:
            return data, _RAW, java_hash(tag), ()
        return data, _TAGS + tag.encode("utf-8", "replace") + b"\x02" + _RAW, java_hash(tag), ()

    def _learn(self, text: bytes) -> _Block:
        if text.endswith(_RAW) and text[-len(_RAW) - 1 : -len(_RAW)] in {b"", b"\x02"}:
            entry = _Block(b"", -1, 0)
        elif text.endswith(_ATTRIBUTES):
            attributes = text[: -len(_ATTRIBUTES)]
            attributes = attributes.replace(b"\x01", b"=").replace(b"\x02", b",")
            if attributes.startswith(b"TAGS="):
                attributes = _TYPE + attributes[5:]
            entry = _Block(_LENGTH.pack(len(attributes)) + attributes, -1, 0)
        else:
            # Each message of another door has its unique id, which TubeMQ has no use for.
            text = _without_unique_id(text)
            entry = self._properties.get(text) or _foreign_block(text)
        if len(self._properties) >= self._cached_max:
            self._properties = {b"": _NOTHING}
        if len(text) <= limits.ATTRIBUTE_BYTES_CACHED:
            self._properties[text] = entry
        return entry

    def _deliver_unusual(
        self, record: memoryview, crc: int, flag: int, message_id: int
    ) -> tuple[bytes, ...]:
        """A record with what TubeMQ's handlers never write: IPv6 hosts, a compressed body.

        No pieces when it cannot be delivered; three otherwise. The check sum is made anew, so the
        stored one is looked at.
        """
        try:
            found = spans(record)
            body = bytes(record[found.body_begin : found.body_end])
            if checksum_of(body) != crc & 0x7FFFFFFF:
                return ()
            if record[_SYS_FLAG] & compression.COMPRESSED:
                body = compression.decompress(body, limit_bytes=limits.MESSAGE_BYTES_MAX)
        except DamagedStoreError:
            return ()
        text = bytes(record[found.properties_begin : found.properties_end])
        entry = self._properties.get(text) or self._learn(text)
        payload = entry.block + body
        flag = flag & entry.flag_kept | entry.flag_set
        before, after = delivered_head(message_id, checksum_of(payload), len(payload), flag)
        return before + entry.block, body, after


def _tried_bytes(record: memoryview) -> int:
    """What may have been inflated before a body turned out to be undeliverable."""
    size = len(record) - _BODY
    tried = record[_SYS_FLAG] & compression.COMPRESSED and compression.looks_compressed(
        record[_BODY:]
    )
    return min(size * _INFLATED_PER_BYTE, limits.MESSAGE_BYTES_MAX) if tried else 0


class _Translation:
    __slots__ = ("keys", "properties", "tag", "tag_code")

    def __init__(self, tag: str, text: bytes, keys: tuple[str, ...]) -> None:
        self.tag = tag
        self.properties = text
        self.tag_code = tag_code(tag)
        self.keys = keys


_Frame = tuple[int, int, bytes, bytes, tuple[bytes, ...]]
"""For bodies of one length: the upper part of the id, what to xor the body's check sum with, and
the wire form's pieces around the lower parts of id and check sum (see `tubemq.delivery`)."""


class _Block:
    """The attribute block of some property text, and what it makes of a body."""

    __slots__ = ("_crc", "block", "flag_kept", "flag_set", "frames")

    def __init__(self, block: bytes, flag_kept: int, flag_set: int) -> None:
        self.block = block
        self.flag_kept = flag_kept
        self.flag_set = flag_set
        self.frames: dict[int, _Frame] = {}
        self._crc = crc32(block)

    def frame(self, length: int, high_id: int) -> _Frame:
        """What to put around bodies of this length, for ids of this upper part."""
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
    """The last byte of a check sum of five bytes, by its value, and the length of the payload."""
    return tuple([VARINTS[high] + b"\x1a" + varint(size) for high in range(8)])


_NOTHING = _Block(b"", ~1, 0)  # no attributes: bit 0 of another door's flag means something else


def _translate(block: bytes, tag: str) -> _Translation | None:
    """The properties of a block, or None when the way back would not give the same block."""
    if len(block) > limits.PROPERTIES_BYTES_MAX + len(_TYPE):
        return None  # before it is looked at: a block may have millions of items
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
    if first != tag or "$msgType$" in names[1:] or not _RESERVED.isdisjoint(names):
        return None
    text = block.replace(b"=", b"\x01").replace(b",", b"\x02") + _ATTRIBUTES
    if tag:
        text = _TAGS + text[len(_TYPE) :]
    if len(text) > limits.PROPERTIES_BYTES_MAX:
        return None
    keys = next((tuple(value.split()) for name, value in items if name == properties.KEYS), ())
    return _Translation(tag, text, keys)


def _without_unique_id(text: bytes) -> bytes:
    before, found, after = text.partition(_UNIQUE)
    if not found or (before and before[-1:] != b"\x02"):
        return text
    return before + after.partition(b"\x02")[2]


def _foreign_block(text: bytes) -> _Block:
    """Attributes for the properties of another door."""
    found = properties.decode(text)
    items = [
        ("$msgType$", found.pop(properties.TAGS, "")),
        (properties.TIME, found.pop(properties.TIME, "")),
        *found.items(),
    ]
    attributes = ",".join(
        f"{name}={value}"
        for name, value in items
        if value and name not in _RESERVED and not any(sign in name + value for sign in ",=")
    ).encode()
    block = _LENGTH.pack(len(attributes)) + attributes if attributes else b""
    return _Block(block, 0, 1 if block else 0)
