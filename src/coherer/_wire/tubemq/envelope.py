"""What stands around a message inside a frame (sections 1.2 to 1.4): writing and reading it.

Reading is done in two ways. `match_request` and `match_response` recognize the bytes that every known
peer writes, and say where the message begins, without touching it; they return None for anything
else. `read_request` and `read_response` let protobuf read whatever protobuf can.
"""

from __future__ import annotations

from typing import Final

from coherer._wire.tubemq import messages as pb
from coherer._wire.tubemq.envelope import read_delimited, read_varint, varint
from coherer._wire.tubemq.frame import encode_frame
from coherer._wire.tubemq.methods import parse

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
    """Returns what stands before a serialized message of `size` bytes in a request's payload."""
    header = b"\x08%b\x10%b" % (varint(service), varint(version))
    body = b"\x08%b\x10%b\x1a%b" % (varint(method), varint(timeout_ms), varint(size))
    sizes = varint(len(header)), varint(len(body) + size)
    return b"\x02\x08\x00%b%b%b%b" % (sizes[0], header, sizes[1], body)


def response_head(method: int, size: int) -> bytes:
    """Returns what stands before a serialized message of `size` bytes in a SUCCESS answer."""
    body = b"\x08%b\x12%b" % (varint(method), varint(size))
    return b"%b%b%b" % (RESPONSE_BEGIN, varint(len(body) + size), body)


def failure(serial: int, begin: bytes, exception: str, text: str) -> bytes:
    """Returns the frame of an answer that is no SUCCESS; `begin` says which."""
    body = pb.RspExceptionBody(exceptionName=exception, stackTrace=text).SerializeToString()
    return encode_frame(serial, b"%b%b%b" % (begin, varint(len(body)), body))


def match_request(head: bytes, size: int) -> tuple[int, int, int, int, int] | None:
    """Recognizes a request by its first bytes.

    Args:
        head: the beginning of the payload.
        size: of the whole payload.

    Returns:
        Service, method, timeout, version, and where the message begins, which goes on to the end of
        the payload; or None.

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
    """Recognizes a SUCCESS answer by its first bytes.

    Returns:
        Method, and where the message begins, which goes on to the end of the payload; or None.

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
    """Reads service, version and body out of the payload of a request frame.

    Raises:
        ProtocolError: it is none.
    """
    part, position = read_delimited(payload, 0)
    parse(pb.RpcConnHeader, part)
    part, position = read_delimited(payload, position)
    header = parse(pb.RequestHeader, part)
    part, position = read_delimited(payload, position)
    return header.serviceType, header.protocolVer, parse(pb.RequestBody, part)


def read_response(payload: bytes) -> pb.RspResponseBody | tuple[bool, pb.RspExceptionBody]:
    """Reads the body of an answer; in front of an exception, whether it is FATAL.

    Raises:
        ProtocolError: it is none.
    """
    part, position = read_delimited(payload, 0)
    parse(pb.RpcConnHeader, part)
    part, position = read_delimited(payload, position)
    status = parse(pb.ResponseHeader, part).status
    part, position = read_delimited(payload, position)
    if status == pb.ResponseHeader.SUCCESS:
        return parse(pb.RspResponseBody, part)
    return status == pb.ResponseHeader.FATAL, parse(pb.RspExceptionBody, part)
