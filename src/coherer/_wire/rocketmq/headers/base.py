"""What headers have in common, and how text becomes one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, Final, TypeVar, cast, get_type_hints

import msgspec
from msgspec import NODEFAULT, Struct

from coherer._wire.rocketmq.codes import refused
from coherer._wire.rocketmq.command import Int32, Int64
from coherer.errors import RefusedError

_H = TypeVar("_H", bound="Header")

NULL: Final = "null"
"""What Java looks for where it was not told what."""


class Header(Struct, rename="camel"):
    """What the classes below have in common."""

    def fields(self) -> dict[str, str]:
        """Returns the header as text, without what is None.

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
    """Reads a custom header.

    Args:
        kind: which header it is.
        fields: its text, `Command.fields`.

    Raises:
        RefusedError: code 1, a field that nothing works without is missing or no number.

    >>> class QueueHeader(Header):
    ...     topic: str
    ...     queue_id: Int32
    >>> parse(QueueHeader, {"topic": "orders", "queueId": "3"})
    QueueHeader(topic='orders', queue_id=3)
    """
    if any(fields.get(name) == "1" for name in _booleans(kind)):  # false, to Java
        return _parse_patiently(kind, fields)
    try:
        return msgspec.convert(fields, kind, strict=False)
    except msgspec.ValidationError:
        return _parse_patiently(kind, fields)


def _parse_patiently(kind: type[_H], fields: Mapping[str, str]) -> _H:
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
    """Returns the name of a field that is there and is no number where it should be one."""
    for _, name, read, _ in _plan(kind):
        if name in fields and read(fields[name]) is None:
            return name
    return None


def missing(name: str) -> RefusedError:
    """Returns what a request without a necessary field is refused with."""
    return refused(1, f"java.lang.NullPointerException: the field <{name}> is missing or no number")


def negative_count(count: int) -> RefusedError:
    """Returns what a request for a negative number of messages is refused with."""
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


def _same(raw: str) -> str:
    return raw


_READERS: Final[dict[object, Callable[[str], object]]] = {
    Int32: _integer(_INT32),
    Int64: _integer(_INT64),
    bool: _boolean,
    str: _same,
}

_Plan = list[tuple[str, str, Callable[[str], object], object]]


@cache
def _plan(kind: type[Header]) -> _Plan:
    """For each field: attribute, name, how to read it, and what stands for a missing one."""
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
