"""The languages that a peer may name in a header (protocol page, 1.6)."""

from __future__ import annotations

from typing import Final

LANGUAGES: Final = (
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

LANGUAGE_NUMBERS: Final = {name: number for number, name in enumerate(LANGUAGES)}

PYTHON: Final = "PYTHON"
JAVA: Final = "JAVA"
CPP: Final = "CPP"
"""The one that servers treat differently: reset offset has another body for it (4.4)."""


def language_name(value: str | int | None) -> str | None:
    """Returns the name for a name or number; None for one that nobody knows, as Java does.

    >>> language_name("go"), language_name(9), language_name("COBOL"), language_name(99)
    ('GO', 'GO', None, None)
    """
    if isinstance(value, str):
        return value.upper() if value.upper() in LANGUAGE_NUMBERS else None
    if value is None or not 0 <= value < len(LANGUAGES):
        return None
    return LANGUAGES[value]
