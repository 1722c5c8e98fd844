"""Formats numbers, times and payloads for people. None stands for an unknown value."""

from __future__ import annotations

import json
import time
from typing import Final

import msgspec
from markupsafe import Markup, escape

from coherer._common.moments import moment

UNKNOWN: Final = Markup('<span class="unknown">unknown</span>')

SHOWN_CHARS: Final = 64 * 1024
"""The maximum size of a payload on a page; the download has the rest."""

_UNITS: Final = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
_AGES: Final = ((86_400, "d"), (3_600, "h"), (60, "min"))


def number(value: float | None) -> str:
    """Format a count with separators.

    >>> str(number(1234567)), number(None) is UNKNOWN
    ('1,234,567', True)
    """
    return UNKNOWN if value is None else f"{value:,.0f}"


def rate(value: float | None) -> str:
    """Format a rate per second.

    >>> [str(rate(one)) for one in (0.0, 0.25, 12.34, 4321.0)]
    ['0/s', '0.25/s', '12.3/s', '4,321/s']
    """
    if value is None:
        return UNKNOWN
    if value == 0:
        return "0/s"
    digits = 2 if value < 1 else 1 if value < 100 else 0
    return f"{value:,.{digits}f}/s"


def size(value: float | None) -> str:
    """Format a number of bytes.

    >>> [str(size(one)) for one in (0, 1023, 1536, 5 << 30)]
    ['0 B', '1,023 B', '1.5 KiB', '5.0 GiB']
    """
    if value is None:
        return UNKNOWN
    for unit in _UNITS:
        if value < 1024 or unit == _UNITS[-1]:
            return f"{value:,.0f} B" if unit == "B" else f"{value:,.1f} {unit}"
        value /= 1024
    return UNKNOWN


def share(value: float | None) -> str:
    """Format a share of 1 in percent.

    >>> str(share(0.256))
    '26 %'
    """
    return UNKNOWN if value is None else f"{value:.0%}".replace("%", " %")


def when(time_ms: float | None) -> str:
    """Format a time to the second, in UTC.

    >>> str(when(0))
    '<time datetime="1970-01-01T00:00:00Z">1970-01-01 00:00:00</time>'
    """
    if time_ms is None:
        return UNKNOWN
    text = moment(time_ms).strftime("%Y-%m-%d %H:%M:%S")
    return Markup('<time datetime="{}Z">{}</time>').format(text.replace(" ", "T"), text)


def ago(time_ms: float | None, now_s: float | None = None) -> str:
    """Format the time that has passed since a time; the time itself is the title.

    >>> str(ago(0, 7_300))
    '<time datetime="1970-01-01T00:00:00Z" title="1970-01-01 00:00:00 UTC">2 h ago</time>'
    """
    if time_ms is None:
        return UNKNOWN
    text = moment(time_ms).strftime("%Y-%m-%d %H:%M:%S")
    seconds = (time.time() if now_s is None else now_s) - time_ms / 1000
    age = next((f"{seconds // unit:.0f} {name}" for unit, name in _AGES if seconds >= unit), None)
    words = f"{age} ago" if age else "just now"
    form = Markup('<time datetime="{}Z" title="{} UTC">{}</time>')
    return form.format(text.replace(" ", "T"), text, words)


def age(age_ms: float | None) -> str:
    """Format an age in ms.

    >>> str(age(7_300_000)), str(age(40_000)), age(None) is UNKNOWN
    ('2 h', '40 s', True)
    """
    if age_ms is None:
        return UNKNOWN
    seconds = age_ms / 1000
    found = (f"{seconds // unit:.0f} {name}" for unit, name in _AGES if seconds >= unit)
    return next(found, f"{seconds:.0f} s")


class Payload(msgspec.Struct, frozen=True):
    """The decoded body of a message; `kind` is its format, `cut` whether the text was shortened."""

    kind: str
    text: str
    cut: bool
    size_bytes: int


def payload(body: bytes) -> Payload:
    r"""Decode a body: JSON is indented, other text stays, and bytes are shown in hexadecimal.

    >>> payload(b'{"a":1}').text
    '{\n  "a": 1\n}'
    >>> payload(b"plain").kind, payload(b"\xff\x00").text
    ('text', '00000000  ff 00                                             ..')
    """
    try:
        text = body.decode()
    except UnicodeDecodeError:
        rows = (body[at : at + 16] for at in range(0, min(len(body), SHOWN_CHARS // 5), 16))
        lines = (_hex_line(at, row) for at, row in enumerate(rows))
        return Payload("bytes", "\n".join(lines), len(body) > SHOWN_CHARS // 5, len(body))
    kind = "text"
    if text[:1] in {"{", "["} and len(text) <= SHOWN_CHARS:
        try:
            text = json.dumps(json.loads(text), indent=2, ensure_ascii=False)
            kind = "JSON"
        except (ValueError, RecursionError):
            pass
    return Payload(kind, text[:SHOWN_CHARS], len(text) > SHOWN_CHARS, len(body))


def preview(body: bytes, length: int = 90) -> str:
    r"""Format the beginning of a body on one line.

    >>> preview(b'{"a":\n 1}'), preview(b"\xff\x00")
    ('{"a": 1}', 'ff 00')
    """
    try:
        text = " ".join(
            body[: 4 * length].decode(errors="strict" if len(body) <= length else "ignore").split()
        )
    except UnicodeDecodeError:
        text = body[: length // 3].hex(" ")
    return text[:length] + ("…" if len(text) > length or len(body) > 4 * length else "")


def _hex_line(row: int, part: bytes) -> str:
    letters = "".join(chr(one) if 32 <= one < 127 else "." for one in part)
    return f"{row * 16:08x}  {part.hex(' '):48}  {letters}"


def yes_no(value: bool | None) -> str:
    """Format a truth value."""
    return UNKNOWN if value is None else "yes" if value else "no"


def or_unknown(value: object) -> str:
    """Format a text, or the mark of an unknown value."""
    return UNKNOWN if value is None or value == "" else escape(value)
