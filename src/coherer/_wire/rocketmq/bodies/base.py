"""What bodies have in common: typed structs in and out of Java's JSON (protocol page, 1.8).

Reading is as patient as Java: members that nobody knows are skipped, missing ones keep their
defaults, null stands for a missing one, maps of queues may have their keys as text, and numbers,
texts, truth values and enum_names may stand for each other (`fitting`).
"""

from __future__ import annotations

import functools
from typing import ClassVar, Final, Self, TypeAlias, TypeVar, cast

import msgspec

from coherer._wire.rocketmq import fastjson
from coherer._wire.rocketmq.bodies.base import fit
from coherer._wire.rocketmq.names import Queue
from coherer.errors import ProtocolError
from coherer.limits import JSON_OBJECTS_MAX

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

        >>> DataVersion.decode_or_none(b"[]"), DataVersion.decode_or_none(b"{}")
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
