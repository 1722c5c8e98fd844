"""InLongMsg: the envelope in which Apache InLong's agents and proxies put messages into TubeMQ.

One TubeMQ body then holds many messages, each with attributes, in blocks that may be compressed.
Java's class is `org.apache.inlong.common.msg.InLongMsg`. An envelope begins and ends with the same
two bytes, which give its version; all numbers are big-endian:

```
envelope 0-3  magic | time of creation, 8 bytes (from 1) | number of messages, 4 (from 2) |
              number of groups, 4 | groups | magic
group 0-2     length, 2 | attributes | number of messages, 4 (only 2) | length, 4 | block
group 3       length, 2 | common attributes | length, 4 | block
block         compression, 1 | messages: (length, 4 | body)...
block of 3    compression, 1 | sets: length, 4 | (length, 4 | body | length, 4 | attributes)...
envelope 4    magic | length, 4 | type and compression, 1 | group id, 2 | stream id, 2 | flags, 2 |
              seconds since 1970, 4 | number of messages, 2 | sequence number, 4 |
              length, 4 | messages | length, 2 | common attributes | EE 01 | magic
```

Attributes are text: `groupId=g&streamId=s`. Compression is Snappy's block format, which pyarrow
decompresses.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from struct import Struct, error
from typing import Final, NamedTuple

import msgspec

from coherer.errors import ProtocolError, UsageError

_MAGIC: Final = {bytes((15, version)): version for version in range(5)}
_MIXED: Final = 3
_BINARY: Final = 4

_SHORT: Final = Struct(">H")
_INT: Final = Struct(">I")
_LONG: Final = Struct(">q")
_BINARY_HEAD: Final = Struct(">IBHHHIHII")
_BINARY_MAGIC: Final = b"\xee\x01"
_BINARY_EXTRA: Final = 29 - 4
"""The bytes that the total length of version 4 counts besides body and attributes."""

_OWN_ATTRIBUTES: Final = 0x1
_TEXT_IDS: Final = 0x4
"""Flags of version 4: messages have attributes of their own; the ids are attributes."""

_PLAIN: Final = 0
_SNAPPY: Final = 1
_SNAPPY_RATIO: Final = 22
"""The densest element of Snappy encodes 64 bytes in 3."""


class InLongMessage(NamedTuple):
    """A message of an envelope.

    Args:
        attributes: among them `groupId`, `streamId`, and `dt`, the time in ms since 1970.
        body: the message.
    """

    attributes: dict[str, str]
    body: bytes


class Envelope(msgspec.Struct, frozen=True):
    """A decoded InLongMsg.

    Args:
        version: 0 to 4; 4 is binary.
        created_ms: time of creation in ms since 1970; None in version 0.
        count: the number of messages that the header states; None in versions 0 and 1. InLong
            counts differently in some versions, so `len(messages)` may differ.
        messages: in the order in which they were added, group by group.
    """

    version: int
    created_ms: int | None
    count: int | None
    messages: list[InLongMessage]


def is_envelope(data: bytes | bytearray | memoryview) -> bool:
    """Whether bytes begin and end like an InLongMsg.

    >>> is_envelope(b"hello")
    False
    """
    return len(data) >= 4 and bytes(data[:2]) in _MAGIC and data[:2] == data[-2:]


def decode(data: bytes | bytearray | memoryview) -> Envelope:
    """Decode an InLongMsg, any version.

    Args:
        data: the body of a TubeMQ message.

    Raises:
        ProtocolError: it is not an InLongMsg, or it is damaged. None of its messages is returned.
        UsageError: a block is compressed, and pyarrow is not installed.

    >>> head = bytes.fromhex("0f01 0000013e1026d400 00000001")
    >>> group = bytes.fromhex("0003 613d62 00000007 00 00000002 6869")
    >>> envelope = decode(head + group + head[:2])
    >>> envelope.version, envelope.created_ms
    (1, 1366070580224)
    >>> envelope.messages
    [InLongMessage(attributes={'a': 'b'}, body=b'hi')]
    """
    if not is_envelope(data):
        raise ProtocolError(
            "The body is not an InLongMsg: it does not begin and end with 0F 00 to 0F 04.",
            hint="Does InLong write this topic?",
        )
    version = _MAGIC[bytes(data[:2])]
    source = _Source(memoryview(data)[2:-2])
    try:
        envelope = _binary(source) if version == _BINARY else _grouped(source, version)
    except (error, UnicodeDecodeError) as damage:
        raise ProtocolError(f"The InLongMsg of version {version} is damaged: {damage}.") from damage
    if source.left:
        raise ProtocolError(
            f"The InLongMsg of version {version} has {source.left} bytes after its end."
        )
    return envelope


class _Source:
    """Takes numbers and bytes from the front of a buffer; raises `struct.error` at its end."""

    def __init__(self, data: memoryview) -> None:
        self._data = data
        self._at = 0

    @property
    def left(self) -> int:
        return len(self._data) - self._at

    def numbers(self, form: Struct) -> tuple[int, ...]:
        values = form.unpack_from(self._data, self._at)
        self._at += form.size
        return values

    def number(self, form: Struct) -> int:
        return self.numbers(form)[0]

    def bytes(self, length: int) -> memoryview:
        if length > self.left:
            raise error(f"{length} bytes are announced, {self.left} are left")
        self._at += length
        return self._data[self._at - length : self._at]


def _grouped(source: _Source, version: int) -> Envelope:
    created_ms = source.number(_LONG) if version >= 1 else None
    count = source.number(_INT) if version >= 2 else None
    messages: list[InLongMessage] = []
    for _ in range(source.number(_INT)):
        text = _java_text(source.bytes(source.number(_SHORT)))
        if version == 2:
            source.number(_INT)
        block = _Source(source.bytes(source.number(_INT)))
        kind = bytes(block.bytes(1))[0]
        plain = _Source(_decompressed(kind, block.bytes(block.left)))
        read = _mixed if version == _MIXED else _same
        messages += read(plain, text)
    return Envelope(version, created_ms, count, messages)


def _same(block: _Source, text: str) -> Iterator[InLongMessage]:
    """Messages that have the same attributes."""
    attributes = _attributes(text)
    while block.left:
        yield InLongMessage(dict(attributes), bytes(block.bytes(block.number(_INT))))


def _own(block: _Source, whole: Callable[[str], dict[str, str]]) -> Iterator[InLongMessage]:
    """Messages with their own attributes, which `whole` joins with the common ones."""
    while block.left:
        body = bytes(block.bytes(block.number(_INT)))
        text = str(block.bytes(block.number(_INT)), "utf-8")
        yield InLongMessage(whole(text), body)


def _mixed(block: _Source, text: str) -> Iterator[InLongMessage]:
    while block.left:
        yield from _own(
            _Source(block.bytes(block.number(_INT))), lambda own: _attributes(f"{text}&{own}")
        )


def _binary(source: _Source) -> Envelope:
    total, kind, group, stream, flags, seconds, count, _, length = source.numbers(_BINARY_HEAD)
    packed = source.bytes(length)
    text = source.bytes(source.number(_SHORT))
    if total != length + len(text) + _BINARY_EXTRA:
        raise error(f"its length is {total}, its parts have {length + len(text) + _BINARY_EXTRA}")
    if bytes(source.bytes(2)) != _BINARY_MAGIC:
        raise error("EE 01 is missing after its attributes")
    common = _attributes(str(text, "utf-8"))
    common["dt"] = str(seconds * 1000)
    if not flags & _TEXT_IDS:
        common |= {"groupId": str(group), "streamId": str(stream)}
    common["cnt"] = str(count)
    block = _Source(_decompressed(kind >> 5, packed))
    if flags & _OWN_ATTRIBUTES:
        messages = list(_own(block, lambda own: _attributes(own) | common))
    else:
        messages = [InLongMessage(dict(common), body) for _, body in _same(block, "")]
    return Envelope(_BINARY, seconds * 1000, count, messages)


def _attributes(text: str) -> dict[str, str]:
    """Parse `a=1&b=2` as InLong does: a value may contain `=`, and `&&` stands for a literal `&`.

    >>> _attributes("a=1&b==2&c=")
    {'a': '1', 'b': '=2', 'c': ''}
    >>> _attributes("a=x&&b=2")
    {'a': 'x&', 'b': '2'}
    """
    found: dict[str, str] = {}
    while text:
        key, equals, rest = text.partition("=")
        if not equals:
            raise ProtocolError(f"The InLongMsg has the attribute {key!r} without a value.")
        end = rest.find("&")
        while end >= 0 and rest[end + 1 : end + 2] == "&":
            end += 1
            end = rest.find("&", end)
        found[key] = rest if end < 0 else rest[:end]
        text = "" if end < 0 else rest[end + 1 :]
    return found


def _java_text(data: memoryview) -> str:
    """Decode the format of Java's `writeUTF`: NUL in two bytes, and surrogates one by one."""
    text = str(bytes(data).replace(b"\xc0\x80", b"\0"), "utf-8", "surrogatepass")
    return text if text.isascii() else text.encode("utf-16", "surrogatepass").decode("utf-16")


def _decompressed(kind: int, data: memoryview) -> memoryview:
    if kind == _PLAIN:
        return data
    if kind != _SNAPPY:
        raise ProtocolError(f"The InLongMsg has a block of unknown compression {kind}.")
    size = _snappy_size(data)
    if size > _SNAPPY_RATIO * len(data):
        raise error(f"a Snappy block of {len(data)} bytes announces {size}")
    try:
        import pyarrow as pa  # an extra
    except ImportError as missing:
        raise UsageError(
            "This InLongMsg is compressed, and pyarrow, which decompresses it, is not installed.",
            hint="Try: pip install pyarrow.",
        ) from missing
    try:
        plain = pa.decompress(data, decompressed_size=size, codec="snappy", asbytes=True)
    except OSError as damage:
        raise error(f"a Snappy block: {damage}") from damage
    return memoryview(plain)


def _snappy_size(data: memoryview) -> int:
    """Return the decompressed size: 7 bits per byte, the lowest first."""
    size = 0
    for place, byte in enumerate(data[:5]):
        size |= (byte & 0x7F) << 7 * place
        if byte < 0x80:
            return size
    raise error("a Snappy block has no size")
