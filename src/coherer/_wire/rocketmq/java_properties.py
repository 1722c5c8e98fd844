"""Java's `.properties` format, the form of servers' settings.

See docs/protocol/rocketmq.md, section 9.7.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from coherer.errors import DamagedStoreError

_ESCAPE: Final = re.compile(r"\\(u[0-9A-Fa-f]{4}|.)", re.DOTALL)
_SPLIT: Final = re.compile(r"((?:\\.|[^\\=:\s]++)*+)\s*[=:]?\s*(.*)", re.DOTALL)
_SPECIAL: Final = re.compile(r"[\\\s=:#!]")
_NAMED: Final = {"n": "\n", "r": "\r", "t": "\t", "f": "\f"}


def parse(text: str) -> dict[str, str]:
    r"""Parse keys and values; the last of several values of a key wins.

    Raises:
        ValueError: `\u` is not followed by four hex digits.

    >>> parse("# a comment\nlistenPort = 9876\nempty=\nlong=a\\\n  b\npath=c\\:\\\\x\\u0041")
    {'listenPort': '9876', 'empty': '', 'long': 'ab', 'path': 'c:\\xA'}
    """
    found: dict[str, str] = {}
    for line in _lines(text):
        match = _SPLIT.fullmatch(line)
        if match is not None and line:
            found[_plain(match[1])] = _plain(match[2])
    return found


def parse_file(name: str, data: bytes) -> dict[str, str]:
    """Parse a file.

    Raises:
        DamagedStoreError: the file is not valid.
    """
    try:
        return parse(data.decode())
    except ValueError as error:
        raise DamagedStoreError(f"{name} cannot be read: {error}") from error


def compose(values: Mapping[str, str]) -> str:
    r"""Return the text of Java's servers: a line for each key, without escapes.

    >>> compose({"listenPort": "9876", "clusterTest": "false"})
    'listenPort=9876\nclusterTest=false\n'
    """
    return "".join(f"{key}={value}\n" for key, value in values.items())


def compose_file(values: Mapping[str, str]) -> str:
    r"""Return a text that `parse` reads as these values, with escapes.

    >>> parse(compose_file({"a b": " x\\u1\n"})) == {"a b": " x\\u1\n"}
    True
    """
    return "".join(f"{_escaped(key)}={_escaped(value)}\n" for key, value in values.items())


def _escaped(text: str) -> str:
    return _SPECIAL.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def _lines(text: str) -> list[str]:
    """Return logical lines: a line with an odd number of trailing backslashes continues."""
    lines: list[str] = []
    going_on = False
    for line in text.splitlines():
        stripped = line.lstrip()
        if not going_on and (not stripped or stripped[0] in "#!"):
            continue
        goes_on = (len(stripped) - len(stripped.rstrip("\\"))) % 2 == 1
        part = stripped[:-1] if goes_on else stripped
        if going_on:
            lines[-1] += part
        else:
            lines.append(part)
        going_on = goes_on
    return lines


def _plain(text: str) -> str:
    def one(match: re.Match[str]) -> str:
        escaped = match[1]
        if len(escaped) == 5:
            return chr(int(escaped[1:], 16))
        if escaped == "u":
            raise ValueError("Malformed \\uxxxx encoding.")
        return _NAMED.get(escaped, escaped)

    return _ESCAPE.sub(one, text)
