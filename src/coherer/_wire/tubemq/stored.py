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

from collections.abc import Iterator, Sequence
from struct import Struct as Layout
from typing import Final, NamedTuple, cast

from coherer import limits
from coherer._common.checksum import crc32
from coherer._record import compression, properties
from coherer._record.layout import CRC_MASK, peek, spans
from coherer._wire.tubemq.payload import TAG_KEY, split_payload
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


class StoredMessage(NamedTuple):
    """The part of a record that is delivered.

    Args:
        physical_offset: its position in the log.
        attributes: the attributes without their length; None for a message without attributes.
        body: the body without attributes.
    """

    physical_offset: int
    attributes: bytes | None
    body: bytes


def messages_of(data: memoryview) -> Iterator[StoredMessage | None]:
    """Decode records one by one; None for a record whose message cannot be delivered.

    Args:
        data: whole records; everything except their bodies has been verified.
    """
    known: dict[bytes, StoredAttributes] = {}
    at = 0
    while at < len(data):
        head = peek(data, at)
        record = data[at : at + head.size]
        at += head.size
        found = spans(record)
        text = without_unique_id(bytes(record[found.properties_begin : found.properties_end]))
        entry = known.get(text)
        if entry is None:
            entry = known[text] = attributes_of(text)
        body = _body(record[found.body_begin : found.body_end], head.crc, head.sys_flag)
        parts = None if body is None else split_payload(entry.block + body, entry.flag(head.flag))
        yield None if parts is None else StoredMessage(head.physical_offset, *parts)


def _body(stored: memoryview, crc: int, sys_flag: int) -> bytes | None:
    """Verify and decompress a body; None if it is damaged."""
    if crc32(stored) & CRC_MASK != crc:
        return None
    if not sys_flag & compression.COMPRESSED:
        return bytes(stored)
    try:
        return compression.decompress(stored, limit_bytes=limits.MESSAGE_BYTES_MAX)
    except DamagedStoreError:
        return None
