"""The base of headers, and the conversion from and to text."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, Final, TypeVar, cast, get_type_hints

import msgspec
from msgspec import NODEFAULT, Struct

from coherer._common.decoding import decoder
from coherer._wire.rocketmq.codes import refused
from coherer._wire.rocketmq.command import Int32, Int64
from coherer.errors import RefusedError

_H = TypeVar("_H", bound="Header")

NULL: Final = "null"
"""The text that Java uses for a missing value."""


class Header(Struct, rename="camel"):
    """Base class of custom headers."""

    def fields(self) -> dict[str, str]:
        """Return the header as text; members that are None are omitted.

        >>> class DeleteGroupHeader(Header):
        ...     group_name: str
        ...     remove_offset: bool = False
        >>> DeleteGroupHeader("billing", remove_offset=True).fields()
        {'groupName': 'billing', 'removeOffset': 'true'}
        """
        found: dict[str, str] = {}
        for attribute, name, *_ in _plan(type(self)):
            value = getattr(self, attribute)
            if value is not None:
                found[name] = _text(value)
        return found


def parse(kind: type[_H], fields: Mapping[str, str]) -> _H:
    """Parse a custom header.

    Args:
        kind: the class of the header.
        fields: its text, `Command.fields`.

    Raises:
        RefusedError: code 1, a required field is missing or not a number.

    >>> class QueueHeader(Header):
    ...     topic: str
    ...     queue_id: Int32
    >>> parse(QueueHeader, {"topic": "orders", "queueId": "3"})
    QueueHeader(topic='orders', queue_id=3)
    """
    if any(fields.get(name) == "1" for name in _booleans(kind)):  # false, to Java
        return _parse_leniently(kind, fields)
    try:
        return msgspec.convert(fields, kind, strict=False)
    except msgspec.ValidationError:
        return _parse_leniently(kind, fields)


def _parse_leniently(kind: type[_H], fields: Mapping[str, str]) -> _H:
    values: dict[str, object] = {}
    for attribute, name, read, default in _plan(kind):
        raw = fields.get(name)
        value = None if raw is None else read(raw)
        if value is None:
            value = default
            if value is NODEFAULT:
                raise missing(name)
        values[attribute] = value
    return kind(**values)


def unreadable(kind: type[Header], fields: Mapping[str, str]) -> str | None:
    """Return the name of a numeric field whose value is not a number."""
    for _, name, read, _ in _plan(kind):
        if name in fields and read(fields[name]) is None:
            return name
    return None


def missing(name: str) -> RefusedError:
    """Return the error for a request without a required field."""
    return refused(1, f"java.lang.NullPointerException: the field <{name}> is missing or no number")


def negative_count(count: int) -> RefusedError:
    """Return the error for a request for a negative number of messages."""
    return refused(1, f"java.lang.IllegalArgumentException: Illegal Capacity: {count}")


_INT32: Final = 31
_INT64: Final = 63


def _integer(bits: int) -> Callable[[str], int | None]:
    def read(raw: str) -> int | None:
        digits = raw[1:] if raw[:1] in ("-", "+") else raw
        if not digits.isdecimal() or len(digits) > bits:
            return None
        value = int(raw)
        return value if -1 << bits <= value < 1 << bits else None

    return read


def _boolean(raw: str) -> bool:
    return raw.lower() == "true"


def _unchanged(raw: str) -> str:
    return raw


_READERS: Final[dict[object, Callable[[str], object]]] = {
    Int32: _integer(_INT32),
    Int64: _integer(_INT64),
    bool: _boolean,
    str: _unchanged,
}

_Plan = list[tuple[str, str, Callable[[str], object], object]]


@cache
def _plan(kind: type[Header]) -> _Plan:
    """Return attribute, name, parser and default of each field."""
    decoder(kind)  # so that `parse` may convert to it in any thread
    hints = get_type_hints(kind, include_extras=True)
    plan: _Plan = []
    for each in msgspec.structs.fields(kind):
        hint = hints[each.name]
        for option in cast("tuple[Any, ...]", getattr(hint, "__args__", ())):
            hint = option if option in _READERS else hint
        plan.append((each.name, each.encode_name, _READERS[hint], each.default))
    return plan


@cache
def _booleans(kind: type[Header]) -> tuple[str, ...]:
    return tuple(name for _, name, read, _ in _plan(kind) if read is _boolean)


def _text(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return value if isinstance(value, str) else str(value)
