"""Decoders of typed JSON that several threads may use first.

msgspec inspects a struct type when it first decodes one, and keeps what it found in the type. If
two threads do so at once, one of them may use a half-filled table, and the process crashes (seen
with msgspec 0.22). A program has several threads that decode: blocking clients and an embedded node
have an event loop each. So decoders of structs are made here, by one thread at a time.
"""

from __future__ import annotations

import threading
from typing import Any, Final, TypeVar, cast

import msgspec

T = TypeVar("T")

_making: Final = threading.Lock()
_made: Final[dict[tuple[object, bool], msgspec.json.Decoder[Any]]] = {}


def decoder(kind: type[T], *, strict: bool = True) -> msgspec.json.Decoder[T]:
    """The decoder of a type, which is made by the first call.

    Args:
        strict: False for numbers that may be texts.

    >>> class Flight(msgspec.Struct):
    ...     number: int
    >>> decoder(Flight, strict=False).decode(b'{"number": "1545"}')
    Flight(number=1545)
    """
    found = _made.get((kind, strict))
    if found is None:
        with _making:
            found = _made.setdefault((kind, strict), msgspec.json.Decoder(kind, strict=strict))
    return cast("msgspec.json.Decoder[T]", found)


def convert(value: object, kind: type[T], *, strict: bool = True) -> T:
    """`msgspec.convert`, for types that several threads may use first."""
    decoder(kind)
    return msgspec.convert(value, kind, strict=strict)
