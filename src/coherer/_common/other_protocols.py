"""Recognizes peers that speak another protocol by the first bytes that they send."""

from __future__ import annotations

from typing import Final

_BEGINNINGS: Final = (
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


def guess(beginning: bytes) -> str:
    r"""What some bytes begin, in words; "" if it is not known.

    Beginnings of which the end has not arrived yet count: four bytes have to do.

    >>> guess(b"HTTP/1.1 400 Bad Request"), guess(b"\x16\x03\x01\x02\x00"), guess(b"")
    ('an HTTP answer', 'TLS', '')
    """
    if len(beginning) < 2:
        return ""
    for known, name in _BEGINNINGS:
        if beginning.startswith(known) or known.startswith(beginning[:9]):
            return name
    if beginning[8:9] == b"{" and beginning.startswith(b"\0"):
        return "RocketMQ"
    return ""


def not_a_frame(protocol: str, beginning: bytes) -> str:
    """The text of the error for bytes that are not a frame of a protocol.

    >>> not_a_frame("RocketMQ", b"HTTP/1.1 200 OK")
    "This is not a frame of RocketMQ: it begins with b'HTTP/1.1', which looks like an HTTP answer."
    """
    what = guess(beginning)
    text = f"This is not a frame of {protocol}: it begins with {bytes(beginning[:8])!r}"
    return f"{text}, which looks like {what}." if what else f"{text}."
