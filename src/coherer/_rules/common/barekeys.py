"""Java's JSON files have bare numbers as keys; strict readers want them in quotes."""

from __future__ import annotations

import re

_STRING_OR_KEY = re.compile(rb'"(?:\\.|[^"\\])*"|-?\d+(?=\s*:)')


def quote_keys(data: bytes) -> bytes:
    """Put keys that are bare numbers into quotes. Strings, which may hold anything, stay.

    >>> quote_keys(b'{"offsetTable":{"1:a":{0:10,1 : 7}}}')
    b'{"offsetTable":{"1:a":{"0":10,"1" : 7}}}'
    """
    return _STRING_OR_KEY.sub(_quoted, data)


def _quoted(found: re.Match[bytes]) -> bytes:
    text = found[0]
    return text if text.startswith(b'"') else b'"' + text + b'"'
