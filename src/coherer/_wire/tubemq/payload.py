"""The bytes of a user's message: attributes, body and checksum.

See docs/protocol/tubemq.md, sections 3.6 and 4.8.1. A payload with attributes is
`length (4 bytes, big-endian) | attributes (UTF-8) | body`, marked by bit 0 of the flag; a payload
without attributes is the body. Attributes are `key=value` pairs joined by commas: first
`$msgType$` (the tag) and `$msgTime$` (minutes, no zone), then the sender's properties.

A user's keys and values must not be blank, nor contain a separator or a reserved name (section
3.6), since a receiver could not distinguish them; sending them is a `UsageError`. Receiving is
lenient: malformed attributes are kept as far as they can be separated.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from functools import lru_cache
from typing import Final

from coherer._common.checksum import crc32
from coherer._record.properties import decode_time
from coherer.errors import UsageError

TAG_KEY: Final = "$msgType$"
TIME_KEY: Final = "$msgTime$"
HAS_ATTRIBUTES: Final = 1
"""Bit of the flag: the payload begins with an attribute block."""

_LENGTH_BYTES: Final = 4


def checksum(data: bytes | memoryview) -> int:
    """Return the checksum of a payload: CRC-32 without its highest bit.

    >>> checksum(b"plain")
    421552847
    """
    return crc32(data) & 0x7FFFFFFF


@lru_cache(maxsize=1024)
def encode_time(time: datetime) -> str:
    """Return a time as TubeMQ writes it: minutes, no zone. Aware times are converted to UTC.

    >>> encode_time(datetime(2024, 1, 2, 3, 4, 59))
    '202401020304'
    """
    if time.tzinfo is not None:
        time = time.astimezone(UTC)
    return f"{time.year:04}{time.month:02}{time.day:02}{time.hour:02}{time.minute:02}"


def encode_attributes(tag: str | None, time: datetime | None, properties: Mapping[str, str]) -> str:
    """Return the attribute text of a message; empty without attributes.

    Args:
        tag: the tag by which consumers filter.
        time: the time that the message is about.
        properties: other names and values.

    Raises:
        UsageError: a name or value is blank, or contains `,`, `=` or a reserved name.

    >>> encode_attributes("UA", None, {"flight": "1545"})
    '$msgType$=UA,flight=1545'
    """
    items: list[str] = []
    if tag is not None:
        items.append(f"{TAG_KEY}={_checked('tag', tag)}")
    if time is not None:
        items.append(f"{TIME_KEY}={encode_time(time)}")
    for key, value in properties.items():
        items.append(f"{_checked('name of a property', key)}={_checked(key, value)}")
    return ",".join(items)


def _checked(what: str, text: str) -> str:
    if not text or text.isspace():
        raise UsageError(f"The {what} is blank.", hint="TubeMQ cannot carry blank values; omit it.")
    if "," in text or "=" in text or TAG_KEY in text or TIME_KEY in text:
        raise UsageError(
            f"The {what} {text!r} contains ',', '=' or a reserved name.",
            hint="TubeMQ's attributes cannot carry these; put the value into the body.",
        )
    return text


def decode_attributes(text: str) -> tuple[str | None, datetime | None, dict[str, str]]:
    """Return tag, time and properties of an attribute text; never fails.

    An item without `=` becomes a property with an empty value, the last of several items with one
    name wins, and an invalid time remains a property.

    >>> decode_attributes("$msgType$=UA,$msgTime$=202401020304,flight=1545")
    ('UA', datetime.datetime(2024, 1, 2, 3, 4), {'flight': '1545'})
    """
    tag, written, properties = split_attributes(text)
    if written is None:
        return tag, None, properties
    time = decode_time(written)
    if time is None:
        properties[TIME_KEY] = written
    return tag, time, properties


def split_attributes(text: str) -> tuple[str | None, str | None, dict[str, str]]:
    """Return tag, time as text, and properties of an attribute text.

    >>> split_attributes("a=1,b,$msgTime$=noon,a=2")
    (None, 'noon', {'a': '2', 'b': ''})
    """
    properties = read_attributes(text)
    return properties.pop(TAG_KEY, None), properties.pop(TIME_KEY, None), properties


def read_attributes(text: str) -> dict[str, str]:
    """Return all names and values of an attribute text, including tag and time.

    >>> read_attributes("$msgType$=UA,b")
    {'$msgType$': 'UA', 'b': ''}
    """
    found: dict[str, str] = {}
    for item in text.split(","):
        if item:
            key, _, value = item.partition("=")
            found[key] = value
    return found


def encode_payload(body: bytes, attributes: str | None) -> tuple[bytes, int]:
    r"""Return the payload and its flag.

    If the attributes are empty, Java's clients set the bit without writing a length, and brokers
    then lose the message (section 3.6). This function does not set the bit.

    Raises:
        UsageError: the attributes contain unpaired surrogates.

    >>> encode_payload(b"hi", "a=b")
    (b'\x00\x00\x00\x03a=bhi', 1)
    """
    if not attributes:
        return body, 0
    try:
        text = attributes.encode()
    except UnicodeEncodeError as error:
        raise UsageError(f"The attributes cannot be written as UTF-8: {error}.") from error
    return len(text).to_bytes(_LENGTH_BYTES, "big") + text + body, HAS_ATTRIBUTES


def split_payload(data: bytes, flag: int) -> tuple[bytes | None, bytes] | None:
    r"""Return the attributes, or None without attributes, and the body.

    The result is None if Java's clients would skip the message: the flag announces attributes, and
    their length does not fit (section 4.8.1).

    >>> split_payload(b"\x00\x00\x00\x03a=bhi", 1)
    (b'a=b', b'hi')
    """
    if not flag & HAS_ATTRIBUTES:
        return None, data
    if len(data) < _LENGTH_BYTES:
        return None
    length = int.from_bytes(data[:_LENGTH_BYTES], "big", signed=True)
    if length <= 0:
        return None, data[_LENGTH_BYTES:]
    end = _LENGTH_BYTES + length
    if end > len(data):
        return None
    return data[_LENGTH_BYTES:end], data[end:]
