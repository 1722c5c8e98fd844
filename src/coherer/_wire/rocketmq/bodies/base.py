"""What bodies have in common: typed structs in and out of Java's JSON (protocol page, 1.8).

Reading is as patient as Java: members that nobody knows are skipped, missing ones keep their
defaults, null stands for a missing one, maps of queues may have their keys as text, and numbers,
texts, truth values and words may stand for each other (`fitting`).
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Mapping
from functools import cache
from typing import ClassVar, Final, Self, TypeAlias, TypeVar, cast

import msgspec
from msgspec import inspect

from coherer._wire.rocketmq import fastjson
from coherer._wire.rocketmq.names import Queue
from coherer.errors import ProtocolError
from coherer.limits import JSON_OBJECTS_MAX

Value: TypeAlias = fastjson.Value
Fit: TypeAlias = Callable[[Value], Value]

_WHOLE: Final = re.compile(r"[+-]?[0-9]{1,19}(?=(?:\.0*)?\Z)")
_TRUE: Final = frozenset(("true", "1", "y", "t"))
_FALSE: Final = frozenset(("false", "0", "n", "f"))


def words(*known: str) -> msgspec.Meta:
    """Marks a member as one of some words, in the order of their numbers."""
    return msgspec.Meta(pattern=f"^(?:{'|'.join(known)})$", extra={"words": known})


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
        return _word(cast("tuple[str, ...]", msgspec.structs.asdict(kind)["extra"]["words"]))
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
            fastjson.text(name) if named else name: fit_value(member)
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
    shown = fastjson.text(value)
    return shown if len(shown) <= 40 else f"{shown[:40]}…"


_PLAIN: Final[Mapping[type[inspect.Type], Fit]] = {
    inspect.StrType: fastjson.text,
    inspect.IntType: _whole,
    inspect.FloatType: _number,
    inspect.BoolType: _truth,
}


Offsets: TypeAlias = dict[Queue, int]
"""Queue → offset."""


_B = TypeVar("_B", bound="Body")


class Body(msgspec.Struct, rename="camel", kw_only=True, frozen=True):
    """What the classes of bodies have in common.

    >>> DataVersion(counter=4, timestamp=1650000000000).encode()
    b'{"counter":4,"timestamp":1650000000000}'
    >>> DataVersion.decode(b'{"counter":"4","timestamp":null,"x":{0:1}}')
    DataVersion(counter=4, timestamp=0)
    """

    objects_max: ClassVar[int] = JSON_OBJECTS_MAX

    def encode(self) -> bytes:
        """Returns the body as Java writes it: compact, members by name, no nulls."""
        return fastjson.dumps(self)

    @classmethod
    def decode(cls, data: bytes | memoryview) -> Self:
        """Reads a body of `objects_max` objects at most.

        Raises:
            ProtocolError: it is none.
        """
        data = bytes(data)
        if data.count(b"{") + data.count(b"[") > cls.objects_max:
            raise ProtocolError(
                f"A {cls.__name__} of more than {cls.objects_max} objects is not read."
            )
        if _REFERENCE not in data:
            try:
                decoder: msgspec.json.Decoder[Self] = _strict(cls)
                return decoder.decode(data)
            except (msgspec.MsgspecError, UnicodeError, RecursionError):
                pass  # what follows is more patient
        return cls.of(fastjson.loads(data))

    @classmethod
    def find(cls, data: bytes | memoryview) -> Self | None:
        """Reads a body; None where Java reads null, which it does of an empty list, too.

        Raises:
            ProtocolError: it is none.

        >>> DataVersion.find(b"[]"), DataVersion.find(b"{}")
        (None, DataVersion(counter=0, timestamp=0))
        """
        return None if bytes(data) in _NULLS else cls.decode(data)

    @classmethod
    def of(cls, value: fastjson.Value) -> Self:
        """Makes a body of JSON that has been read already.

        Raises:
            ProtocolError: it is none.
        """
        try:
            return msgspec.convert(fit(_tidy(value), cls), cls, strict=False)
        except (msgspec.ValidationError, RecursionError) as error:
            raise ProtocolError(f"This is no {cls.__name__}: {error}.") from error


class DataVersion(Body, frozen=True):
    """Which of two states is the newer: equal only when both members are.

    Args:
        counter: grows by one with each change.
        timestamp: when that was, ms since 1970.
    """

    counter: int = 0
    timestamp: int = 0


_REFERENCE: Final = b'"$ref"'
_NULLS: Final = frozenset((b"null", b"[]"))


@functools.cache
def _strict(kind: type[_B]) -> msgspec.json.Decoder[_B]:
    """Returns what reads strict JSON that has neither nulls nor queues as keys."""
    return msgspec.json.Decoder(kind)


def _tidy(value: fastjson.Value) -> fastjson.Value:
    """Leaves out nulls, and makes queues of keys that are the JSON of one."""
    if isinstance(value, list):
        return [_tidy(item) for item in value if item is not None]
    if isinstance(value, dict):
        return {_queue(name): _tidy(member) for name, member in value.items() if member is not None}
    return value


def _queue(name: fastjson.Key) -> fastjson.Key:
    if isinstance(name, str) and name.startswith("{"):
        try:
            found = fastjson.loads("{" + name + ":0}")
        except ProtocolError:
            return name
        return next(iter(cast("dict[fastjson.Key, object]", found)))
    return name
