"""The base of bodies: typed structs to and from Java's JSON.

See docs/protocol/rocketmq.md, section 1.8.

Reading is as lenient as Java: unknown members are skipped, missing ones keep their defaults, null
counts as missing, and maps of queues may have their keys as text. Values are coerced as by Java's
library:

| type of the member | value in the JSON | result |
|---|---|---|
| text | a number, a boolean | its text |
| | an object, a list | its JSON |
| an integer | true, false | 1, 0 |
| | a fraction | its integer part |
| | text | the number in it; commas are ignored |
| a float | true, false, text | likewise |
| a boolean | a number | whether it is 1 |
| | text | `true`, `1`, `Y`, `T` and `false`, `0`, `N`, `F` |
| an enum | an integer | the name with that number |
| | text | the name, in any case; None for an unknown name |
| any of them but text | the text "" or "null" | the member keeps its default |
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import cache
from typing import ClassVar, Final, Self, TypeAlias, cast

import msgspec
from msgspec import inspect

from coherer._common.decoding import convert, decoder
from coherer._wire.rocketmq import fastjson
from coherer._wire.rocketmq.names import Queue
from coherer.errors import ProtocolError
from coherer.limits import JSON_OBJECTS_MAX

Value: TypeAlias = fastjson.Value
Coercion: TypeAlias = Callable[[Value], Value]

_INTEGER: Final = re.compile(r"[+-]?[0-9]{1,19}(?=(?:\.0*)?\Z)")
_TRUE: Final = frozenset(("true", "1", "y", "t"))
_FALSE: Final = frozenset(("false", "0", "n", "f"))


def enum_names(*names: str) -> msgspec.Meta:
    """Mark a member as an enum with these names, in the order of their numbers."""
    return msgspec.Meta(pattern=f"^(?:{'|'.join(names)})$", extra={"enum_names": names})


def coerce(value: Value, kind: type[msgspec.Struct]) -> Value:
    """Return JSON with its members coerced to the types of a struct's members.

    Raises:
        ProtocolError: a value cannot be coerced, as in Java.
    """
    return _struct_coercion(kind)(value)


@cache
def _struct_coercion(kind: type[msgspec.Struct]) -> Coercion:
    members: dict[str, Coercion] = {}

    def coerce_members(value: Value) -> Value:
        if not isinstance(value, dict):
            return value
        if not members:
            members.update((field.encode_name, _coercion_of(field.type)) for field in _fields(kind))
        found: dict[fastjson.Key, Value] = {}
        for name, member in value.items():
            coercion = members.get(name) if isinstance(name, str) else None
            try:
                coerced = member if coercion is None else coercion(member)
            except ValueError:
                raise ProtocolError(
                    f"Not a valid {kind.__name__}: {name} cannot be {_shorten(member)}."
                ) from None
            if coerced is not None:
                found[name] = coerced
        return found

    return coerce_members


def _fields(kind: type[msgspec.Struct]) -> tuple[inspect.Field, ...]:
    """Return the members of a struct, with their types."""
    return cast("inspect.StructType", inspect.type_info(kind)).fields


def _coercion_of(kind: inspect.Type) -> Coercion:
    if isinstance(kind, inspect.Metadata):
        return _enum(cast("tuple[str, ...]", msgspec.structs.asdict(kind)["extra"]["enum_names"]))
    if isinstance(kind, inspect.UnionType):
        [some] = [one for one in kind.types if not isinstance(one, inspect.NoneType)]
        return _coercion_of(some)
    if isinstance(kind, inspect.StructType):
        return _struct_coercion(kind.cls)
    if isinstance(kind, inspect.ListType):
        return _list_coercion(_coercion_of(kind.item_type))
    if isinstance(kind, inspect.DictType):
        return _dict_coercion(
            isinstance(kind.key_type, inspect.StrType), _coercion_of(kind.value_type)
        )
    return _SCALARS.get(type(kind), _unchanged)


def _list_coercion(coerce_item: Coercion) -> Coercion:
    return lambda value: [coerce_item(item) for item in value] if isinstance(value, list) else value


def _dict_coercion(named: bool, coerce_value: Coercion) -> Coercion:
    def coerce_entries(value: Value) -> Value:
        if not isinstance(value, dict):
            return value
        return {
            fastjson.to_text(name) if named else name: coerce_value(member)
            for name, member in value.items()
        }

    return coerce_entries


def _enum(names: tuple[str, ...]) -> Coercion:
    by_name = {name.lower(): name for name in names}

    def coerce_name(value: Value) -> Value:
        if isinstance(value, str):
            return by_name.get(value.lower())
        if type(value) is int and 0 <= value < len(names):
            return names[value]
        raise ValueError

    return coerce_name


def _unchanged(value: Value) -> Value:
    return value


def _integer(value: Value) -> Value:
    if isinstance(value, float):
        return int(value)
    if not isinstance(value, str):
        return _float(value)
    if _blank(value):
        return None
    found = _INTEGER.match(value.replace(",", ""))
    if found is None:
        raise ValueError
    return int(found.group())


def _float(value: Value) -> Value:
    if isinstance(value, bool):
        return int(value)
    if isinstance(value, str):
        return None if _blank(value) else float(value.replace(",", ""))
    if isinstance(value, int | float):
        return value
    raise ValueError


def _boolean(value: Value) -> Value:
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


def _shorten(value: Value) -> str:
    text = fastjson.to_text(value)
    return text if len(text) <= 40 else f"{text[:40]}…"


_SCALARS: Final[Mapping[type[inspect.Type], Coercion]] = {
    inspect.StrType: fastjson.to_text,
    inspect.IntType: _integer,
    inspect.FloatType: _float,
    inspect.BoolType: _boolean,
}


Offsets: TypeAlias = dict[Queue, int]
"""Queue → offset."""


class Body(msgspec.Struct, rename="camel", kw_only=True, frozen=True):
    """Base class of bodies.

    >>> DataVersion(counter=4, timestamp=1650000000000).encode()
    b'{"counter":4,"timestamp":1650000000000}'
    >>> DataVersion.decode(b'{"counter":"4","timestamp":null,"x":{0:1}}')
    DataVersion(counter=4, timestamp=0)
    """

    objects_max: ClassVar[int] = JSON_OBJECTS_MAX

    def encode(self) -> bytes:
        """Return the body as Java writes it: compact, members sorted by name, no nulls."""
        return fastjson.dumps(self)

    @classmethod
    def decode(cls, data: bytes | memoryview) -> Self:
        """Decode a body of at most `objects_max` objects.

        Raises:
            ProtocolError: the body is not valid.
        """
        data = bytes(data)
        if data.count(b"{") + data.count(b"[") > cls.objects_max:
            raise ProtocolError(f"A {cls.__name__} has more than {cls.objects_max} objects.")
        if _REFERENCE not in data:
            try:
                return decoder(cls).decode(data)
            except (msgspec.MsgspecError, UnicodeError, RecursionError):
                pass  # the lenient reader may accept it
        return cls.from_json(fastjson.loads(data))

    @classmethod
    def decode_or_none(cls, data: bytes | memoryview) -> Self | None:
        """Decode a body; None if Java reads null, which it also does for an empty list.

        Raises:
            ProtocolError: the body is not valid.

        >>> DataVersion.decode_or_none(b"[]"), DataVersion.decode_or_none(b"{}")
        (None, DataVersion(counter=0, timestamp=0))
        """
        return None if bytes(data) in _NULLS else cls.decode(data)

    @classmethod
    def from_json(cls, value: fastjson.Value) -> Self:
        """Create a body from parsed JSON.

        Raises:
            ProtocolError: the value is not valid.
        """
        try:
            return convert(coerce(_normalize(value), cls), cls, strict=False)
        except (msgspec.ValidationError, RecursionError) as error:
            raise ProtocolError(f"Not a valid {cls.__name__}: {error}.") from error


class DataVersion(Body, frozen=True):
    """Version of a server's data; two versions are equal if both members are.

    Args:
        counter: incremented with each change.
        timestamp: time of the change, ms since 1970.
    """

    counter: int = 0
    timestamp: int = 0


_REFERENCE: Final = b'"$ref"'
_NULLS: Final = frozenset((b"null", b"[]"))


def _normalize(value: fastjson.Value) -> fastjson.Value:
    """Remove nulls, and turn keys that are the JSON of a queue into queues."""
    if isinstance(value, list):
        return [_normalize(item) for item in value if item is not None]
    if isinstance(value, dict):
        return {
            _queue(name): _normalize(member) for name, member in value.items() if member is not None
        }
    return value


def _queue(name: fastjson.Key) -> fastjson.Key:
    if isinstance(name, str) and name.startswith("{"):
        try:
            found = fastjson.loads("{" + name + ":0}")
        except ProtocolError:
            return name
        return next(iter(cast("dict[fastjson.Key, object]", found)))
    return name
