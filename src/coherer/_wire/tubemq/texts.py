"""What reading the protocol's texts has in common."""

from __future__ import annotations

from typing import Final

from coherer.errors import ProtocolError

_DIGITS_MAX: Final = 20
"""More than a 64-bit number has; Python would take hours over millions of digits."""


def bad(what: str, text: str) -> ProtocolError:
    """Returns the error for a text that is not what it should be."""
    return ProtocolError(f"{text[:200]!r} is no {what}.")


def number(text: str, what: str, whole: str) -> int:
    """Reads a decimal number; blanks around it do not matter.

    Args:
        text: the number.
        what: of what it is a part.
        whole: that, for the error.

    Raises:
        ProtocolError: it is no number.
    """
    stripped = text.strip()
    digits = stripped[1:] if stripped[:1] in ("-", "+") else stripped
    if not (digits.isascii() and digits.isdigit()) or len(digits) > _DIGITS_MAX:
        raise bad(what, whole)
    return int(stripped)


def rows(text: str, width: int, what: str, whole: str) -> list[tuple[int, ...]]:
    """Reads `1:2:3,4:5:6`: rows of so many numbers; empty rows are passed over, as Java does.

    >>> rows("1:2,,3:4", 2, "list", "")
    [(1, 2), (3, 4)]
    """
    found: list[tuple[int, ...]] = []
    for item in text.split(","):
        if not item.strip():
            continue
        parts = item.split(":")
        if len(parts) != width:
            raise bad(what, whole)
        found.append(tuple(number(part, what, whole) for part in parts))
    return found
