"""Members of bodies as Java's library takes them: numbers as text, text as numbers, and so on.

| a member is | and the JSON holds | taken is |
|---|---|---|
| text | a number, a truth value | its text |
| | an object, a list | its JSON |
| a whole number | true, false | 1, 0 |
| | a fraction | what is before the point |
| | text | the number in it, also with commas |
| a number | true, false, text | likewise |
| a truth value | a number | whether it is 1 |
| | text | `true`, `1`, `Y`, `T` and `false`, `0`, `N`, `F` |
| a word of a list (Java: an enum) | a whole number | the word of that place |
| | text | the word, in any case; another one is none |
| any of them but text | empty text, `null` as text | none: the member keeps its default |
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import cache
from typing import Final, TypeAlias, cast

import msgspec
from msgspec import inspect

from coherer._wire.rocketmq import fastjson
from coherer.errors import ProtocolError

Value: TypeAlias = fastjson.Value
Fit: TypeAlias = Callable[[Value], Value]

_WHOLE: Final = re.compile(r"[+-]?[0-9]{1,19}(?=(?:\.0*)?\Z)")
_TRUE: Final = frozenset(("true", "1", "y", "t"))
_FALSE: Final = frozenset(("false", "0", "n", "f"))


def enum_names(*known: str) -> msgspec.Meta:
    """Marks a member as one of some enum_names, in the order of their numbers."""
    return msgspec.Meta(pattern=f"^(?:{'|'.join(known)})$", extra={"enum_names": known})


def fit(value: Value, kind: type[msgspec.Struct]) -> Value:
    """Returns JSON with its members as the members of a struct want them.

    Raises:
        ProtocolError: a value cannot be taken for what it should be, in Java neither.
    """
    return _struct(kind)(value)


@cache
def _struct(kind: type[msgspec.Struct]) -> Fit:
    members: dict[str, Fit] = {}

    def fit_members(value: Value) -> Value:
        if not isinstance(value, dict):
            return value
        if not members:
            members.update((field.encode_name, _fit_of(field.type)) for field in _fields(kind))
        found: dict[fastjson.Key, Value] = {}
        for name, member in value.items():
            fitting = members.get(name) if isinstance(name, str) else None
            try:
                taken = member if fitting is None else fitting(member)
            except ValueError:
                raise ProtocolError(
                    f"This is no {kind.__name__}: {name} cannot be {_shown(member)}."
                ) from None
            if taken is not None:
                found[name] = taken
        return found

    return fit_members


def _fields(kind: type[msgspec.Struct]) -> tuple[inspect.Field, ...]:
    """The members of a struct, with their types."""
    return cast("inspect.StructType", inspect.type_info(kind)).fields


def _fit_of(kind: inspect.Type) -> Fit:
    if isinstance(kind, inspect.Metadata):
        return _word(cast("tuple[str, ...]", msgspec.structs.asdict(kind)["extra"]["enum_names"]))
    if isinstance(kind, inspect.UnionType):
        [some] = [one for one in kind.types if not isinstance(one, inspect.NoneType)]
        return _fit_of(some)
    if isinstance(kind, inspect.StructType):
        return _struct(kind.cls)
    if isinstance(kind, inspect.ListType):
        return _items(_fit_of(kind.item_type))
    if isinstance(kind, inspect.DictType):
        return _entries(isinstance(kind.key_type, inspect.StrType), _fit_of(kind.value_type))
    return _PLAIN.get(type(kind), _as_it_is)


def _items(fit_item: Fit) -> Fit:
    return lambda value: [fit_item(item) for item in value] if isinstance(value, list) else value


def _entries(named: bool, fit_value: Fit) -> Fit:
    def fit_entries(value: Value) -> Value:
        if not isinstance(value, dict):
            return value
        return {
            fastjson.to_text(name) if named else name: fit_value(member)
            for name, member in value.items()
        }

    return fit_entries


def _word(known: tuple[str, ...]) -> Fit:
    by_name = {word.lower(): word for word in known}

    def fit_word(value: Value) -> Value:
        if isinstance(value, str):
            return by_name.get(value.lower())
        if type(value) is int and 0 <= value < len(known):
            return known[value]
        raise ValueError

    return fit_word


def _as_it_is(value: Value) -> Value:
    return value


def _whole(value: Value) -> Value:
    if isinstance(value, float):
        return int(value)
    if not isinstance(value, str):
        return _number(value)
    if _blank(value):
        return None
    found = _WHOLE.match(value.replace(",", ""))
    if found is None:
        raise ValueError
    return int(found.group())


def _number(value: Value) -> Value:
    if isinstance(value, bool):
        return int(value)
    if isinstance(value, str):
        return None if _blank(value) else float(value.replace(",", ""))
    if isinstance(value, int | float):
        return value
    raise ValueError


def _truth(value: Value) -> Value:
    if isinstance(value, bool):
        return value
    if isinstance(value, int | float):
        return int(value) == 1
    if isinstance(value, str):
        if _blank(value):
            return None
        if value.lower() in _TRUE:
            return True
        if value.lower() in _FALSE:
            return False
    raise ValueError


def _blank(value: str) -> bool:
    return value in {"", "null", "NULL"}


def _shown(value: Value) -> str:
    shown = fastjson.to_text(value)
    return shown if len(shown) <= 40 else f"{shown[:40]}…"


_PLAIN: Final[Mapping[type[inspect.Type], Fit]] = {
    inspect.StrType: fastjson.to_text,
    inspect.IntType: _whole,
    inspect.FloatType: _number,
    inspect.BoolType: _truth,
}
