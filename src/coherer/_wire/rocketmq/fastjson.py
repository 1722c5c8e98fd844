r"""The JSON of Java's peers (docs/protocol/rocketmq.md, section 1.8).

Java's library writes map keys other than strings without quotes, even objects, and a reference if
an object occurs again:

>>> loads(b'{"offsetTable":{{"brokerName":"b","queueId":0,"topic":"T"}:5},"t":{3:12}}')
{'offsetTable': {Queue(topic='T', broker='b', id=0): 5}, 't': {3: 12}}
>>> loads(b'{"a":[{"x":1}],"b":{"$ref":"$.a[0]"}}')
{'a': [{'x': 1}], 'b': {'x': 1}}
>>> dumps({"offsetTable": {Queue("T", "b", 0): 5}, "t": {3: 12}})
b'{"offsetTable":{{"brokerName":"b","queueId":0,"topic":"T"}:5},"t":{3:12}}'

msgspec reads strict JSON; all other input falls back to the reader here. It accepts any value as a
key: queues become `Queue`, other objects and lists become tuples. Both limit the depth.
"""

from __future__ import annotations

import json
import json.decoder
import re
from base64 import b64encode
from collections.abc import Callable, Mapping
from decimal import Decimal
from enum import Enum
from functools import cache
from typing import Final, TypeAlias, cast

import msgspec

from coherer._wire.rocketmq.names import Queue
from coherer.errors import ProtocolError
from coherer.limits import JSON_DEPTH_MAX, JSON_VALUES_MAX

Key: TypeAlias = "str | int | float | bool | Queue | tuple[object, ...] | None"
Value: TypeAlias = "bool | int | float | str | list[Value] | dict[Key, Value] | None"

_NODES_MAX: Final = 1_000_000
"""Values of a text after its references are resolved: a small text could expand to 10^9."""
# The standard library's scanner in C: its name is public, but its type stubs lack it.
_scan: Callable[[str, int, bool], tuple[str, int]] = vars(json.decoder)["scanstring"]
_SPACE: Final = re.compile(r"[ \t\r\n\f]*")
_NUMBER: Final = re.compile(r"-?[0-9]+(\.[0-9]+)?([eE][+-]?[0-9]+)?")
_WORD: Final = re.compile(r"[A-Za-z_$][A-Za-z0-9_$]*")
_WORDS: Final[dict[str, Value]] = {"true": True, "false": False, "null": None}
# Possessive: otherwise each character costs 150 bytes of memory until the match ends.
_STEP: Final = re.compile(r"\[([0-9]+)\]|\.((?:\\+.|[^.\[\\]++)++)")
_ESCAPES: Final = re.compile(r"\\+(?=.)")
_QUEUE_MEMBERS: Final = {"topic", "brokerName", "queueId"}
_PLAIN_DOUBLES: Final = (1e-3, 1e7)


def loads(data: bytes | memoryview | str) -> Value:
    """Parse JSON of a peer, of at most `JSON_VALUES_MAX` values.

    Args:
        data: the text, UTF-8.

    Returns:
        The same as msgspec; keys are strings, numbers, `Queue` or tuples.

    Raises:
        ProtocolError: it is not valid, or has or expands to too many values.
    """
    _check_signs(data)
    return _loads(data, JSON_VALUES_MAX)


def loads_unlimited(data: bytes | memoryview | str) -> Value:
    """Parse JSON of any size: files, and a master's answers to its slave.

    Raises:
        ProtocolError: it is not valid, or expands to too many values.
    """
    return _loads(data, _NODES_MAX * 100)


def _check_signs(data: bytes | memoryview | str) -> None:
    """Refuse text with far too many values early: creating millions of lists takes seconds."""
    if len(data) > JSON_VALUES_MAX:
        text = data.encode("utf-8", "replace") if isinstance(data, str) else bytes(data)
        if text.count(b",") + text.count(b"[") + text.count(b"{") > 2 * JSON_VALUES_MAX:
            raise _too_many(JSON_VALUES_MAX)


def _loads(data: bytes | memoryview | str, values_max: int) -> Value:
    try:
        try:
            value: Value = msgspec.json.decode(data)
            _check_size(value, values_max)
        except (msgspec.MsgspecError, UnicodeError):
            source = data if isinstance(data, str) else str(data, "utf-8", "replace")
            value = _Reader(source, values_max).read()
        found = '"$ref"' in data if isinstance(data, str) else b'"$ref"' in bytes(data)
        return _References(value, min(values_max, _NODES_MAX)).resolved() if found else value
    except (RecursionError, ValueError) as error:
        raise ProtocolError(f"Invalid JSON: {error}.") from error


def _check_size(value: Value, values_max: int) -> None:
    """Refuse values that are too deep, since users of the result may recurse, or too large."""
    level: list[Value] = [value]
    for _ in range(JSON_DEPTH_MAX + 1):
        inner: list[Value] = []
        for each in level:
            if isinstance(each, dict | list):
                if len(each) > values_max:
                    raise _too_many(values_max)
                inner += each.values() if isinstance(each, dict) else each
        values_max -= len(inner)
        if values_max < 0:
            raise _too_many(values_max + len(inner))
        if not inner:
            return
        level = inner
    raise ProtocolError(f"JSON is nested more than {JSON_DEPTH_MAX} levels deep.")


def _too_many(values_max: int) -> ProtocolError:
    return ProtocolError(f"JSON has more than {values_max} values.")


class _Reader:
    """Recursive descent parser; methods take a position and return the next one."""

    def __init__(self, source: str, values_max: int) -> None:
        self._source = source
        self._values_max = values_max
        self._values_left = values_max

    def read(self) -> Value:
        value, at = self._value(0, 0)
        if self._skip(at) != len(self._source):
            raise ProtocolError(f"Invalid JSON: unexpected text after the value at {at}.")
        return value

    def _skip(self, at: int) -> int:
        found = _SPACE.match(self._source, at)
        return found.end() if found else at

    def _value(self, at: int, depth: int) -> tuple[Value, int]:
        self._values_left -= 1
        if self._values_left < 0:
            raise _too_many(self._values_max)
        at = self._skip(at)
        first = self._source[at : at + 1]
        if first == '"':
            return self._string(at)
        if first == "{":
            return self._object(at, depth + 1)
        if first == "[":
            return self._list(at, depth + 1)
        number = _NUMBER.match(self._source, at)
        if number:
            whole = number.group()
            return (float(whole) if number.lastindex else int(whole)), number.end()
        word = _WORD.match(self._source, at)
        if word and word.group() in _WORDS:
            return _WORDS[word.group()], word.end()
        raise ProtocolError(f"Invalid JSON: unexpected {first!r} at {at}.")

    def _string(self, at: int) -> tuple[str, int]:
        found, end = _scan(self._source, at + 1, False)
        return (found if found.isascii() else utf8(found).decode()), end

    def _object(self, at: int, depth: int) -> tuple[Value, int]:
        self._check(depth)
        members: dict[Key, Value] = {}
        at = self._skip(at + 1)
        if self._source[at : at + 1] == "}":
            return members, at + 1
        while True:
            at = self._skip(at)
            word = _WORD.match(self._source, at)
            key: Value
            if word and word.group() not in _WORDS:
                key, at = word.group(), word.end()
            else:
                key, at = self._value(at, depth)
            at = self._expect(at, ":")
            members[_key(key)], at = self._value(at, depth)
            at = self._skip(at)
            if self._source[at : at + 1] == "}":
                return members, at + 1
            at = self._expect(at, ",")

    def _list(self, at: int, depth: int) -> tuple[Value, int]:
        self._check(depth)
        items: list[Value] = []
        at = self._skip(at + 1)
        if self._source[at : at + 1] == "]":
            return items, at + 1
        while True:
            item, at = self._value(at, depth)
            items.append(item)
            at = self._skip(at)
            if self._source[at : at + 1] == "]":
                return items, at + 1
            at = self._expect(at, ",")

    def _expect(self, at: int, mark: str) -> int:
        at = self._skip(at)
        if self._source[at : at + 1] != mark:
            raise ProtocolError(f"Invalid JSON: {mark!r} is missing at {at}.")
        return at + 1

    def _check(self, depth: int) -> None:
        if depth > JSON_DEPTH_MAX:
            raise ProtocolError(f"JSON is nested more than {JSON_DEPTH_MAX} levels deep.")


def _key(value: Value) -> Key:
    """Convert a value to a hashable key."""
    if isinstance(value, list):
        return tuple(_key(item) for item in value)
    if not isinstance(value, dict):
        return value
    if set(value) == _QUEUE_MEMBERS:
        topic, broker, number = value["topic"], value["brokerName"], value["queueId"]
        if isinstance(topic, str) and isinstance(broker, str) and isinstance(number, int):
            return Queue(topic, broker, number)
    return tuple((name, _key(item)) for name, item in value.items())


class _References:
    """Replaces each `{"$ref": path}` by the value at its path.

    Circular references are refused: no body of the protocol has any.
    """

    def __init__(self, root: Value, nodes_max: int) -> None:
        self._root = root
        self._open: set[int] = set()
        self._nodes = 0
        self._nodes_max = nodes_max

    def resolved(self) -> Value:
        return self._expand(self._root)

    def _expand(self, value: Value) -> Value:
        self._nodes += 1
        if self._nodes > self._nodes_max:
            most = self._nodes_max
            raise ProtocolError(f"JSON expands to more than {most} values.")
        if not isinstance(value, dict | list):
            return value
        mark = id(value)
        if mark in self._open or len(self._open) > 2 * JSON_DEPTH_MAX:
            raise ProtocolError("JSON contains a circular reference.")
        self._open.add(mark)
        try:
            if isinstance(value, list):
                return [self._expand(item) for item in value]
            path = value.get("$ref")
            if len(value) == 1 and isinstance(path, str):
                return self._expand(self._find(path))
            return {name: self._expand(item) for name, item in value.items()}
        finally:
            self._open.discard(mark)

    def _find(self, path: str) -> Value:
        value, at = self._root, 1
        self._nodes += len(path)
        if not path.startswith("$"):
            raise ProtocolError(f"JSON refers to {path!r}, which is not an absolute path.")
        while at < len(path):
            step = _STEP.match(path, at)
            if step is None:
                raise ProtocolError(f"JSON refers to {path!r}, which is not a valid path.")
            value, at = _child(value, step), step.end()
        return value


def _child(value: Value, step: re.Match[str]) -> Value:
    if isinstance(value, list) and step.group(1):
        index = int(step.group(1))
        if index < len(value):
            return value[index]
    elif isinstance(value, dict):
        name = step.group(1) or _ESCAPES.sub("", step.group(2))
        if name in value:
            return value[name]
        if name.isdecimal() and int(name) in value:
            return value[int(name)]
    raise ProtocolError(f"JSON refers to {step.group()!r}, which does not exist.")


def dumps(value: object, *, text_keys: bool = False) -> bytes:
    """Serialize JSON as Java's library does.

    Args:
        value: None, bool, int, float, str, bytes, enum, mapping, list, tuple, set or msgspec
            Struct; a Struct's members are sorted by name, and None is omitted.
        text_keys: write keys that are no strings as strings, as the JSON standard wants it. Java's
            library does this only on demand.

    Raises:
        TypeError: it contains another type.

    >>> dumps({0: "a"}), dumps({0: "a"}, text_keys=True)
    (b'{0:"a"}', b'{"0":"a"}')
    """
    parts: list[str] = []
    _write(value, parts, text_keys)
    return utf8("".join(parts))


def dumps_strict(members: Mapping[str, object] | msgspec.Struct) -> bytes:
    """Serialize strings and numbers to strict JSON; unpaired surrogates become question marks."""
    try:
        return msgspec.json.encode(members)
    except UnicodeEncodeError:
        return dumps(members)


def utf8(text: str) -> bytes:
    """Encode text; unpaired surrogates become question marks, as in Java."""
    try:
        return text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-8", "replace")


def to_text(value: object) -> str:
    """Return the text of a value in a map of strings.

    >>> to_text(True), to_text(1650000000000), to_text("a"), to_text([1])
    ('true', '1650000000000', 'a', '[1]')
    """
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value) if isinstance(value, int) else dumps(value).decode()


def _write(value: object, parts: list[str], text_keys: bool) -> None:
    if value is None:
        parts.append("null")
    elif isinstance(value, Enum):
        parts.append(_quoted(value.name))
    elif isinstance(value, str):
        parts.append(_quoted(value))
    elif isinstance(value, bool | int):
        parts.append(to_text(value))
    elif isinstance(value, float):
        parts.append(_double(value))
    elif isinstance(value, bytes):
        parts.append(f'"{b64encode(value).decode()}"')
    elif isinstance(value, msgspec.Struct):
        present = [(name, getattr(value, attribute)) for attribute, name in _members(type(value))]
        _write_members(present, parts, text_keys)
    else:
        _write_many(value, parts, text_keys)


def _write_many(value: object, parts: list[str], text_keys: bool) -> None:
    if isinstance(value, Mapping):
        mapping = cast("Mapping[object, object]", value)
        _write_members(list(mapping.items()), parts, text_keys)
        return
    if not isinstance(value, list | tuple | set | frozenset):
        raise TypeError(f"{value!r} cannot be written as JSON.")
    parts.append("[")
    for number, item in enumerate(cast("list[object]", value)):
        if number:
            parts.append(",")
        _write(item, parts, text_keys)
    parts.append("]")


def _write_members(
    members: list[tuple[str, object]] | list[tuple[object, object]],
    parts: list[str],
    text_keys: bool,
) -> None:
    mark = "{"
    for name, value in members:
        if value is not None:
            parts.append(mark)
            mark = ","
            _write(to_text(name) if text_keys else name, parts, text_keys)
            parts.append(":")
            _write(value, parts, text_keys)
    parts.append("{}" if mark == "{" else "}")


@cache
def _members(kind: type[msgspec.Struct]) -> list[tuple[str, str]]:
    """Return attribute and JSON name of each member, sorted by the latter as in Java."""
    found = [(each.name, each.encode_name) for each in msgspec.structs.fields(kind)]
    return sorted(found, key=lambda names: names[1])


_quoted = json.JSONEncoder(ensure_ascii=False).encode


def _double(value: float) -> str:
    """Return a number as Java's `Double.toString` does.

    >>> [_double(value) for value in (0.0, 12.5, 1e10, -2.5e-7, float("nan"))]
    ['0.0', '12.5', '1.0E10', '-2.5E-7', 'null']
    """
    if value != value or value in (float("inf"), float("-inf")):
        return "null"
    low, high = _PLAIN_DOUBLES
    if value == 0 or low <= abs(value) < high:
        return repr(value)
    sign, digits, _ = Decimal(repr(value)).normalize().as_tuple()
    shown = "".join(map(str, digits))
    exponent = Decimal(repr(value)).adjusted()
    return f"{'-' if sign else ''}{shown[0]}.{shown[1:] or '0'}E{exponent}"
