r"""Stored records as TubeMQ messages: property texts as attributes, records as payloads.

TubeMQ's attributes are stored as properties (`coherer._server.tubemq.broker.mapping` says how), and
a broker translates them back when it delivers a record. A client that reads records as they are
stored (docs/protocol/tubemq.md, section 8.7.1) does the same, with the functions of this module.

The property text of a record says how its payload was stored:

* The last property is `TUBE\x01a`: the text is the block of attributes, with two bytes replaced and
  `TAGS` instead of `$msgType$`.
* The last property is `TUBE\x01r`: the body is the payload as sent, with its attributes.
* Otherwise another protocol has written the record. Properties that TubeMQ can represent (no `,` or
  `=`) become attributes, and the flag, which has another meaning there, is not delivered.
"""

from __future__ import annotations

from collections.abc import Sequence
from struct import Struct as Layout
from struct import error as struct_error
from typing import Final, NamedTuple, cast

from coherer import limits
from coherer._common.checksum import crc32
from coherer._record import properties
from coherer._record.bad_record import BadRecord
from coherer._record.compression import COMPRESSED, decompress, looks_compressed
from coherer._record.layout import CRC_MASK, HOSTS_V6, MAGIC
from coherer._wire.tubemq.bad_records import flaw_of
from coherer._wire.tubemq.payload import TAG_KEY, checksum, split_payload
from coherer.errors import DamagedStoreError

MARKED_ATTRIBUTES: Final = b"\x02TUBE\x01a"
MARKED_RAW: Final = b"TUBE\x01r"
TYPE: Final = TAG_KEY.encode() + b"="
TAGS: Final = properties.TAGS.encode() + b"\x01"
RESERVED: Final = (properties.RESERVED | {properties.TUBE_MARK}) - {properties.KEYS}
"""Names of properties that are not attributes."""

_BETWEEN: Final = b"\0\n\0"
_TAGS: Final = properties.TAGS.encode()
_TIME: Final = properties.TIME.encode()
_MARK: Final = properties.TUBE_MARK.encode()
_RESERVED: Final = frozenset(name.encode() for name in RESERVED)
_UNIQUE: Final = properties.UNIQUE_KEY.encode() + b"\x01"
_LENGTH: Final = Layout(">I")
_RECORD: Final = Layout(">IIIiiqqi44xI")
"""Size, magic number, checksum, queue, flag, queue offset, physical offset, sys flag and length of
the body, of a record with IPv4 hosts."""
_unpack_record: Final = _RECORD.unpack_from


class StoredAttributes(NamedTuple):
    """The attributes of a record, and what they mean for the message's flag.

    Args:
        block: the bytes before the body in the payload: the length of the attributes, and the
            attributes; empty without attributes, and if the body contains them.
        flag_kept: the bits of the stored flag that are delivered.
        flag_set: the bits that are added to it.
    """

    block: bytes
    flag_kept: int
    flag_set: int

    def flag(self, stored: int) -> int:
        """Return the flag to deliver."""
        return stored & self.flag_kept | self.flag_set


# Bit 0 of the flag is cleared, because it has another meaning in RocketMQ.
NO_ATTRIBUTES: Final = StoredAttributes(b"", ~1, 0)
"""The attributes of a record without properties."""


def is_raw(text: bytes) -> bool:
    """Whether the body of a record with this property text is the payload as sent."""
    return text.endswith(MARKED_RAW) and text[-len(MARKED_RAW) - 1 : -len(MARKED_RAW)] in {
        b"",
        b"\x02",
    }


def attributes_of(text: bytes) -> StoredAttributes:
    r"""Translate the property text of a record.

    >>> attributes_of(b"TAGS\x01UA\x02k\x01v\x02TUBE\x01a").block
    b'\x00\x00\x00\x10$msgType$=UA,k=v'
    """
    if not text:
        return NO_ATTRIBUTES
    if is_raw(text):
        return StoredAttributes(b"", -1, 0)
    if text.endswith(MARKED_ATTRIBUTES):
        attributes = text[: -len(MARKED_ATTRIBUTES)]
        attributes = attributes.replace(b"\x01", b"=").replace(b"\x02", b",")
        if attributes.startswith(b"TAGS="):
            attributes = TYPE + attributes[5:]
        return StoredAttributes(_LENGTH.pack(len(attributes)) + attributes, -1, 0)
    found = properties.decode(text)
    items = [
        (TAG_KEY, found.pop(properties.TAGS, "")),
        (properties.TIME, found.pop(properties.TIME, "")),
        *found.items(),
    ]
    attributes = ",".join(
        f"{name}={value}"
        for name, value in items
        if value and name not in RESERVED and not any(sign in name + value for sign in ",=")
    ).encode()
    block = _LENGTH.pack(len(attributes)) + attributes if attributes else b""
    return StoredAttributes(block, 0, 1 if block else 0)


def all_attributes(texts: Sequence[bytes | None]) -> list[bytes | None]:
    r"""Translate many property texts that are not raw; None for a message without attributes.

    >>> all_attributes([b"TAGS\x01UA\x02TUBE\x01a", b"k\x01v", None])
    [b'$msgType$=UA', b'k=v', None]
    """
    if not texts:
        return []
    if None not in texts and b"" not in texts:
        several = cast("Sequence[bytes]", texts)
        found = _marked_attributes(several) or aligned_attributes(several)
        if found is not None:
            return [text or None for text in found]
    known: dict[bytes, bytes | None] = {}
    values: list[bytes | None] = []
    for stored in texts:
        text = without_unique_id(stored or b"")
        if text not in known:
            known[text] = attributes_of(text).block[_LENGTH.size :] or None
        values.append(known[text])
    return values


def _marked_attributes(texts: Sequence[bytes]) -> list[bytes] | None:
    """Translate texts that are blocks of attributes; None if one is not."""
    end = MARKED_ATTRIBUTES + _BETWEEN
    joined = _BETWEEN.join([*texts, b""])
    if joined.count(_BETWEEN) != len(texts) or joined.count(end) != len(texts):
        return None
    joined = joined.replace(b"\x01", b"=").replace(b"\x02", b",")
    found = joined.split(b",TUBE=a" + _BETWEEN)
    return [TYPE + text[5:] if text.startswith(b"TAGS=") else text for text in found[:-1]]


def aligned_attributes(texts: Sequence[bytes]) -> list[bytes] | None:
    r"""Translate many property texts of another protocol at once, if all have the same names.

    Returns:
        What `attributes_of` puts into the block, without its length; None if only it can tell.

    >>> aligned_attributes([b"k\x011\x02TAGS\x01a", b"k\x012\x02TAGS\x01b"])
    [b'$msgType$=a,k=1', b'$msgType$=b,k=2']
    >>> aligned_attributes([b"k\x011", b"k\x01a,b"])
    """
    found = properties.aligned_values(texts)
    if found is None or _MARK in found:
        return None
    try:
        str(b"".join(texts), "utf-8")
    except UnicodeDecodeError:  # `attributes_of` replaces what is not valid
        return None
    columns = {
        TYPE: found.pop(_TAGS, None),
        _TIME + b"=": found.pop(_TIME, None),
        **{
            name + b"=": values
            for name, values in found.items()
            if name not in _RESERVED and b"," not in name and b"=" not in name
        },
    }
    parts: list[list[bytes]] = []
    for head, values in columns.items():
        if values is not None:
            joined = b"".join(values)
            if b"," in joined or b"=" in joined:
                return None
            parts.append([head + value for value in values])
    return [*map(b",".join, zip(*parts, strict=True))] if parts else [b""] * len(texts)


def without_unique_id(text: bytes) -> bytes:
    """Remove RocketMQ's unique id from a property text, so that texts of messages can be equal."""
    if text.endswith((MARKED_RAW, MARKED_ATTRIBUTES)):
        return text
    before, found, after = text.partition(_UNIQUE)
    if not found or (before and before[-1:] != b"\x02"):
        return text
    return before + after.partition(b"\x02")[2]


class StoredMessages(NamedTuple):
    """The messages of stored records.

    Args:
        ids: the broker's id of each message.
        attributes: the attributes, without their length; None for a message without attributes.
        bodies: the bodies, without attributes.
        bad: the records whose messages cannot be delivered, by their numbers. They are not in the
            lists, and have no offsets.
    """

    ids: list[int]
    attributes: list[bytes | None]
    bodies: list[bytes]
    bad: dict[int, BadRecord]


def read_records(
    data: bytes, offsets: range, partition: int, first_id: int, *, at: int = 0
) -> StoredMessages | None:
    r"""Decode stored records.

    Args:
        data: records as they are in the log, and nothing after them.
        offsets: their offsets in the partition.
        partition: the partition's number.
        first_id: the id of a message at physical offset 0.
        at: where the records begin in `data`.

    Returns:
        The messages; None if these are not the records of the offsets, or if the bodies would take
        more than `limits.FRAME_BYTES_MAX` when they are decompressed.

    >>> from coherer._record import layout
    >>> data = layout.encode("demo", b"hello", b"TAGS\x01UA", queue_id=0, queue_offset=7,
    ...                      physical_offset=100, store_ms=0)
    >>> read_records(data, range(7, 8), 0, 5)
    StoredMessages(ids=[105], attributes=[b'$msgType$=UA'], bodies=[b'hello'], bad={})
    """
    ids: list[int] = []
    texts: list[bytes] = []
    bodies: list[bytes] = []
    unusual: list[tuple[int, int]] = []  # numbers and checksums of the compressed and the damaged
    raw: list[tuple[int, int]] = []  # numbers and flags
    for number, offset in enumerate(offsets):
        try:
            fields = _unpack_record(data, at)
            size, magic, crc, queue, flag, queue_offset, physical, sys_flag, length = fields
            begin = at + _RECORD.size
            if sys_flag & HOSTS_V6:
                begin += 12 * ((sys_flag >> 4 & 1) + (sys_flag >> 5 & 1))
                length = int.from_bytes(data[begin - 4 : begin], "big")
            body_end: int = begin + length
            text_at = body_end + 3 + data[body_end]
            text_bytes = data[text_at - 2] << 8 | data[text_at - 1]
        except (struct_error, IndexError):
            return None
        at += size
        if queue_offset != offset or queue != partition or magic != MAGIC:
            return None
        if text_at + text_bytes != at:
            return None
        body = data[begin:body_end]
        if crc32(body) & CRC_MASK != crc or sys_flag & COMPRESSED:
            unusual.append((number, crc))
        text = data[text_at:at] if text_bytes else b""
        if text and text.endswith(MARKED_RAW) and is_raw(text):
            raw.append((number, flag))
            text = b""
        ids.append(physical + first_id)
        texts.append(text)
        bodies.append(body)
    bad = _restore(ids, bodies, unusual)
    if at != len(data) or bad is None:
        return None
    attributes: list[bytes | None] = all_attributes(texts) if any(texts) else [None] * len(ids)
    return _checked(StoredMessages(ids, attributes, bodies, bad), raw)


def _restore(
    ids: Sequence[int], bodies: list[bytes], unusual: Sequence[tuple[int, int]]
) -> dict[int, BadRecord] | None:
    """Decompress bodies in place; return the damaged ones, None if it takes too much memory."""
    bad: dict[int, BadRecord] = {}
    left = limits.FRAME_BYTES_MAX
    for number, crc in unusual:
        if left <= 0:
            return None
        stored = bodies[number]
        intact = checksum(stored) == crc
        restored = _decompressed(stored) if intact else None
        if restored is None:
            bad[number] = _bad_record(ids[number], crc, stored)
            if intact and looks_compressed(stored):  # it may have failed at its very end
                left -= limits.MESSAGE_BYTES_MAX
        else:
            bodies[number] = restored
            left -= len(restored)
    return bad


def _decompressed(stored: bytes) -> bytes | None:
    try:
        return decompress(stored, limit_bytes=limits.MESSAGE_BYTES_MAX)
    except DamagedStoreError:
        return None


def _checked(found: StoredMessages, raw: Sequence[tuple[int, int]]) -> StoredMessages:
    """Split the bodies that are payloads as sent, and remove bad messages from the lists."""
    ids, attributes, bodies, bad = found
    for number, flag in raw:
        if number in bad:
            continue
        parts = split_payload(bodies[number], flag)
        if parts is None:
            bad[number] = _bad_record(ids[number], checksum(bodies[number]), bodies[number])
        else:
            attributes[number], bodies[number] = parts
    for number in sorted(bad, reverse=True):
        del ids[number], attributes[number], bodies[number]
    return found._replace(bad=dict(sorted(bad.items())))


def _bad_record(message_id: int, crc: int, body: bytes) -> BadRecord:
    return BadRecord(None, str(message_id), flaw_of(body, crc), body)
