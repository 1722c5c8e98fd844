"""Recognizes peers that speak another protocol by the first bytes they send."""

from __future__ import annotations

from typing import Final

_PREFIXES: Final = (
    (b"HTTP/", "an HTTP answer"),
    (b"GET ", "an HTTP request"),
    (b"POST ", "an HTTP request"),
    (b"HEAD ", "an HTTP request"),
    (b"PUT ", "an HTTP request"),
    (b"<!DOCTYPE", "an HTML page"),
    (b"SSH-", "SSH"),
    (b"\x16\x03", "TLS"),
    (b"\x15\x03", "TLS"),
    (b"\xff\x7f\xf4\xfe", "TubeMQ"),
)


def protocol_of(data: bytes) -> str:
    r"""Name what some bytes are the beginning of; "" if it is unknown.

    `data` may be shorter than the prefix of the protocol, but not shorter than two bytes.

    >>> protocol_of(b"HTTP/1.1 400 Bad"), protocol_of(b"\x16\x03\x01\x02"), protocol_of(b"")
    ('an HTTP answer', 'TLS', '')
    """
    if len(data) < 2:
        return ""
    for known, name in _PREFIXES:
        if data.startswith(known) or known.startswith(data[:9]):
            return name
    if data[8:9] == b"{" and data.startswith(b"\0"):
        return "RocketMQ"
    return ""


def not_a_frame(protocol: str, data: bytes) -> str:
    """Return the text of the error for bytes that are not a frame of a protocol.

    >>> not_a_frame("RocketMQ", b"HTTP/1.1 200 OK")
    "This is not a frame of RocketMQ: it begins with b'HTTP/1.1', which looks like an HTTP answer."
    """
    what = protocol_of(data)
    text = f"This is not a frame of {protocol}: it begins with {bytes(data[:8])!r}"
    return f"{text}, which looks like {what}." if what else f"{text}."
