"""The languages that a peer may name in a header (protocol page, 1.6)."""

from __future__ import annotations

from typing import Final

NAMES: Final = (
    "JAVA",
    "CPP",
    "DOTNET",
    "PYTHON",
    "DELPHI",
    "ERLANG",
    "RUBY",
    "OTHER",
    "HTTP",
    "GO",
    "PHP",
    "OMS",
)
"""A language's place here is its number in the binary header."""

NUMBERS: Final = {name: number for number, name in enumerate(NAMES)}

PYTHON: Final = "PYTHON"
JAVA: Final = "JAVA"
CPP: Final = "CPP"
"""The one that servers treat differently: reset offset has another body for it (4.4)."""


def name_of(value: str | int | None) -> str | None:
    """Returns the name for a name or number; None for one that nobody knows, as Java does.

    >>> name_of("go"), name_of(9), name_of("COBOL"), name_of(99)
    ('GO', 'GO', None, None)
    """
    if isinstance(value, str):
        return value.upper() if value.upper() in NUMBERS else None
    if value is None or not 0 <= value < len(NAMES):
        return None
    return NAMES[value]
