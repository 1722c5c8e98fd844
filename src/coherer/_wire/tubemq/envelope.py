"""The RPC headers around a message inside a frame (docs/protocol/tubemq.md, sections 1.2 to 1.4).

There are two ways to read. `match_request` and `match_response` recognize the bytes that all known
peers write and return where the message begins, without parsing it; they return None for all other
bytes. `read_request` and `read_response` use protobuf.

Protobuf's own classes read and write whole messages. `sending`, `delivery` and `session`, the hot
paths, assemble bytes by hand with `varint` and `encode_field`; tests compare the results with
protobuf's.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Final

from coherer._wire.tubemq import messages as pb
from coherer._wire.tubemq.frame import encode_frame
from coherer._wire.tubemq.methods import parse
from coherer.errors import ProtocolError

_MASK_64: Final = (1 << 64) - 1
_14_BITS: Final = (1 << 14) - 1
_28_BITS: Final = 1 << 28

_ENDS: Final = [bytes((bits,)) for bits in range(0x80)]
_MORES: Final = [bytes((bits | 0x80,)) for bits in range(0x80)]

CONTINUED: Final[tuple[bytes, ...]] = tuple([low + high for high in _MORES for low in _MORES])
"""The two bytes for 14 bits of a varint that continues."""

VARINTS: Final[tuple[bytes, ...]] = tuple(
    _ENDS + [low + high for high in _ENDS[1:] for low in _MORES]
)
"""The varints of one and two bytes, which include most lengths."""


def varint(number: int) -> bytes:
    """Return a number as protobuf writes an int32, an int64 or a length.

    >>> varint(300).hex(), varint(-1).hex()
    ('ac02', 'ffffffffffffffffff01')
    """
    if 0 <= number < _28_BITS:
        if number <= _14_BITS:
            return VARINTS[number]
        return CONTINUED[number & _14_BITS] + VARINTS[number >> 14]
    number &= _MASK_64
    low = CONTINUED[number & _14_BITS] + CONTINUED[number >> 14 & _14_BITS]
    high = number >> 28
    return low + (VARINTS[high] if high <= _14_BITS else _high(high))


@lru_cache(maxsize=64)
def _high(number: int) -> bytes:
    """Return the upper part of a long number, which successive ids of a broker have in common."""
    return varint(number)


def encode_field(number: int, text: bytes) -> bytes:
    """Return a field of type string, bytes or message with a number below 16.

    >>> encode_field(2, b"demo").hex()
    '120464656d6f'
    """
    return bytes((number << 3 | 2,)) + varint(len(text)) + text


def read_varint(data: bytes, position: int) -> tuple[int, int]:
    """Read a varint of at most five bytes.

    Returns:
        The number, and the position behind it.

    Raises:
        IndexError: it is longer, or the data end too early.

    >>> read_varint(bytes.fromhex("ac02"), 0)
    (300, 2)
    """
    number = shift = 0
    while (byte := data[position]) >= 0x80:
        number |= (byte & 0x7F) << shift
        position += 1
        shift += 7
        if shift > 28:
            raise IndexError
    return number | byte << shift, position + 1


def read_delimited(data: bytes, position: int) -> tuple[bytes, int]:
    """Read bytes that follow their length, a varint.

    Returns:
        The bytes, and the position behind them.

    Raises:
        ProtocolError: the data end too early, or the length is not valid.
    """
    try:
        length, start = read_varint(data, position)
    except IndexError:
        raise ProtocolError("The length of a message is missing or too long.") from None
    end = start + length
    if end > len(data):
        raise ProtocolError(f"A message of {length} bytes is cut off.")
    return data[start:end], end


REQUEST_BEGIN: Final = bytes.fromhex("02080004")  # flag 0; a RequestHeader of four bytes
RESPONSE_BEGIN: Final = bytes.fromhex("0208010408001803")  # flag 1; SUCCESS, version 3
ERROR_BEGIN: Final = bytes.fromhex("0208010408011803")
FATAL_BEGIN: Final = bytes.fromhex("020801020802")

_METHOD, _DATA = 0x08, 0x12
_SERVICE, _VERSION = 0x08, 0x10
_TIMEOUT, _REQUEST = 0x10, 0x1A
_MORE = 0x80
_TIMEOUT_MAX: Final = 1 << 31


def request_head(service: int, method: int, timeout_ms: int, version: int, size: int) -> bytes:
    """Return the bytes before a serialized message of `size` bytes in a request's payload."""
    header = b"\x08%b\x10%b" % (varint(service), varint(version))
    body = b"\x08%b\x10%b\x1a%b" % (varint(method), varint(timeout_ms), varint(size))
    sizes = varint(len(header)), varint(len(body) + size)
    return b"\x02\x08\x00%b%b%b%b" % (sizes[0], header, sizes[1], body)


def response_head(method: int, size: int) -> bytes:
    """Return the bytes before a serialized message of `size` bytes in a SUCCESS answer."""
    body = b"\x08%b\x12%b" % (varint(method), varint(size))
    return b"%b%b%b" % (RESPONSE_BEGIN, varint(len(body) + size), body)


def failure(serial: int, begin: bytes, exception: str, text: str) -> bytes:
    """Return the frame of an ERROR or FATAL answer; `begin` selects which."""
    body = pb.RspExceptionBody(exceptionName=exception, stackTrace=text).SerializeToString()
    return encode_frame(serial, b"%b%b%b" % (begin, varint(len(body)), body))


def match_request(head: bytes, size: int) -> tuple[int, int, int, int, int] | None:
    """Recognize a request by its first bytes.

    Args:
        head: the beginning of the payload.
        size: size of the whole payload.

    Returns:
        Service, method, timeout, version, and the position of the message, which extends to the end
        of the payload; or None.

    >>> match_request(request_head(3, 13, 10000, 3, 5), 21)
    (3, 13, 10000, 3, 16)
    """
    if not head.startswith(REQUEST_BEGIN) or head[4:7:2] != b"\x08\x10":
        return None
    try:
        service, version = head[5], head[7]
        length, at = read_varint(head, 8)
        if at + length != size or head[at] != _METHOD or head[at + 2] != _TIMEOUT:
            return None
        method = head[at + 1]
        timeout_ms, at = read_varint(head, at + 3)
        if head[at] != _REQUEST:
            return None
        length, at = read_varint(head, at + 1)
    except IndexError:
        return None
    plain = service < _MORE and version < _MORE and method < _MORE and timeout_ms < _TIMEOUT_MAX
    return (service, method, timeout_ms, version, at) if plain and at + length == size else None


def match_response(head: bytes, size: int) -> tuple[int, int] | None:
    """Recognize a SUCCESS answer by its first bytes.

    Returns:
        Method, and the position of the message, which extends to the end of the payload; or None.

    >>> match_response(response_head(13, 46), 59)
    (13, 13)
    """
    if not head.startswith(RESPONSE_BEGIN):
        return None
    try:
        length, at = read_varint(head, len(RESPONSE_BEGIN))
        if at + length != size or head[at] != _METHOD or head[at + 2] != _DATA:
            return None
        method = head[at + 1]
        length, at = read_varint(head, at + 3)
    except IndexError:
        return None
    return (method, at) if method < _MORE and at + length == size else None


def read_request(payload: bytes) -> tuple[int, int, pb.RequestBody]:
    """Parse service, version and body from the payload of a request frame.

    Raises:
        ProtocolError: the payload is not a request.
    """
    part, position = read_delimited(payload, 0)
    parse(pb.RpcConnHeader, part)
    part, position = read_delimited(payload, position)
    header = parse(pb.RequestHeader, part)
    part, position = read_delimited(payload, position)
    return header.serviceType, header.protocolVer, parse(pb.RequestBody, part)


def read_response(payload: bytes) -> pb.RspResponseBody | tuple[bool, pb.RspExceptionBody]:
    """Parse the body of an answer.

    Returns:
        The body of a SUCCESS answer; otherwise whether the answer is FATAL, and its exception.

    Raises:
        ProtocolError: the payload is not an answer.
    """
    part, position = read_delimited(payload, 0)
    parse(pb.RpcConnHeader, part)
    part, position = read_delimited(payload, position)
    status = parse(pb.ResponseHeader, part).status
    part, position = read_delimited(payload, position)
    if status == pb.ResponseHeader.SUCCESS:
        return parse(pb.RspResponseBody, part)
    return status == pb.ResponseHeader.FATAL, parse(pb.RspExceptionBody, part)
