"""The dialect of the JSON files that RocketMQ's brokers write: numeric keys and data versions."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TypeVar

import msgspec

from coherer._common.decoding import convert
from coherer.errors import DamagedStoreError, ProtocolError

T = TypeVar("T")

_STRING_OR_KEY = re.compile(rb'"(?:\\.|[^"\\]++)*+"|-?\d+(?=\s*:)')


def quote_keys(data: bytes) -> bytes:
    """Turn Java's JSON into strict JSON: keys that are bare numbers are put into quotes.

    Numbers inside strings stay as they are.

    >>> quote_keys(b'{"offsetTable":{"1:a":{0:10,1 : 7}}}')
    b'{"offsetTable":{"1:a":{"0":10,"1" : 7}}}'
    """
    return _STRING_OR_KEY.sub(_quoted, data)


def _quoted(match: re.Match[bytes]) -> bytes:
    text = match[0]
    return text if text.startswith(b'"') else b'"' + text + b'"'


def parse_file(
    name: str, data: bytes, kind: type[T], loads: Callable[[bytes], object] = msgspec.json.decode
) -> T:
    """Parse a file that Java may have written.

    Args:
        name: the name of the file, for errors.
        data: its content.
        kind: the type of the content.
        loads: a JSON parser; Java's files need one for fastjson's dialect.

    Raises:
        DamagedStoreError: the content is not valid.
    """
    try:
        return convert(loads(data), kind, strict=False)
    except (msgspec.MsgspecError, ProtocolError, ValueError) as error:
        raise DamagedStoreError(f"{name} cannot be read: {error}") from error


class DataVersion(msgspec.Struct, frozen=True):
    """The version of a table that brokers copy: two tables with the same version are equal.

    Args:
        counter: the number of changes.
        timestamp: the time of the last change, ms since 1970.

    >>> DataVersion().next(now_ms=1650000000000)
    DataVersion(counter=1, timestamp=1650000000000)
    """

    counter: int = 0
    timestamp: int = 0

    def next(self, now_ms: int) -> DataVersion:
        """The version after one more change."""
        return DataVersion(self.counter + 1, now_ms)
