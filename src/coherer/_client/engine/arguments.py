"""Checks that arguments and options have the annotated types, for all public methods of clients.

The annotations are the table of expected types; no method checks its arguments by itself. A wrong
argument raises a `UsageError` before anything happens, instead of a `TypeError` or `AttributeError`
from the depths of the client.

`checked` is a class decorator. It wraps each public method; the annotations are read at the first
call. Methods that are called once per message are left out (`UNCHECKED`), and sends are checked
only if Python cannot call them with the given arguments (`CHECKED_LATE`): a check costs as much as
a tenth of a send. They check the values of their arguments by themselves.
"""

from __future__ import annotations

import collections.abc
import functools
import inspect
import sys
import types
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Final, Literal, TypeVar, cast, get_args, get_origin, get_type_hints

import msgspec

from coherer._common.renamed import in_new_words
from coherer.errors import UsageError

UNCHECKED: Final = frozenset({"check", "ack", "ready", "flush"})
"""Methods that are called for each message, or have no arguments of interest."""

CHECKED_LATE: Final = frozenset({"send", "send_oneway", "submit"})
"""Methods whose arguments are checked after a call has failed."""

ELEMENTS_CHECKED: Final = 1_000
"""Elements of longer collections are not checked."""

_KAFKA: Final = {
    "auto_offset_reset": "start",
    "bootstrap_servers": "addresses",
    "client_id": "instance",
    "group_id": "group",
    "max_poll_records": "batch_messages",
    "request_timeout_ms": "timeout_ms",
    "sasl_plain_password": "password",
    "sasl_plain_username": "user",
    "security_protocol": "tls",
}
"""Names of options in Kafka's clients, and the option here."""

_FUNCTION: Final = get_origin(Callable[[], object])

_WORDS: Final[Mapping[object, str]] = {
    bool: "True or False",
    bytes: "bytes",
    datetime: "a datetime",
    float: "a number",
    int: "a whole number",
    str: "text",
    timedelta: "a timedelta",
    type(None): "None",
}


def fits(value: object, kind: object) -> bool:
    """Whether a value has an annotated type.

    >>> fits(5, int), fits(True, int), fits(None, int | None), fits([1], str | list[int])
    (True, False, True, True)
    >>> fits("a", Literal["a", "b"]), fits(["a"], Literal["a", "b"])
    (True, False)
    """
    origin = get_origin(kind)
    if origin in (typing.Union, types.UnionType):
        return any(fits(value, one) for one in get_args(kind))
    if origin is Literal:
        return any(value == one and type(value) is type(one) for one in get_args(kind))
    if origin is typing.Annotated:
        return fits(value, get_args(kind)[0])
    if origin is not None:
        return _fits_generic(value, origin, get_args(kind))
    return _fits_class(value, kind)


def _fits_class(value: object, kind: object) -> bool:
    if kind in (None, type(None)):
        return value is None
    if kind is int:
        return hasattr(type(value), "__index__") and not isinstance(value, bool)
    if kind is float:
        return isinstance(value, float) or fits(value, int)
    if kind is bytes:
        return isinstance(value, bytes | bytearray | memoryview)
    if not isinstance(kind, type) or typing.is_typeddict(kind) or kind is object:
        return True  # a type variable, a forward reference, Any
    if getattr(kind, "_is_protocol", False):
        return True
    return isinstance(value, kind)


def _fits_generic(value: object, origin: Any, inner: tuple[object, ...]) -> bool:
    if origin is _FUNCTION:
        return callable(value)
    if not isinstance(origin, type) or not isinstance(value, origin):
        return not isinstance(origin, type)
    if issubclass(origin, Mapping):
        pairs = cast("Mapping[object, object]", value)
        if len(pairs) > ELEMENTS_CHECKED:
            return True
        return all(fits(key, inner[0]) and fits(pairs[key], inner[1]) for key in pairs)
    sized = isinstance(value, collections.abc.Collection)
    few = sized and len(cast("collections.abc.Collection[object]", value)) <= ELEMENTS_CHECKED
    if not few or inner[0] is object or not issubclass(origin, collections.abc.Iterable):
        return True
    elements = list(cast("Iterable[object]", value))
    if issubclass(origin, tuple) and inner[-1] is not ...:
        return len(elements) == len(inner) and all(map(fits, elements, inner))
    return all(fits(one, inner[0]) for one in elements)


def described(kind: object) -> str:
    """An annotated type in words.

    >>> described(int | None), described(Literal["a", "b"]), described(list[str])
    ('a whole number or None', "'a' or 'b'", 'a list')
    """
    return " or ".join(dict.fromkeys(_described(kind)))


def _described(kind: object) -> Iterator[str]:
    origin = get_origin(kind)
    if origin in (typing.Union, types.UnionType):
        for one in get_args(kind):
            yield from _described(one)
    elif origin is Literal:
        yield from map(repr, get_args(kind))
    elif origin is _FUNCTION:
        yield "a function"
    elif origin is typing.Annotated:
        yield from _described(get_args(kind)[0])
    elif issubclass(origin, Mapping) if isinstance(origin, type) else False:
        yield "a mapping"
    elif origin is not None:
        yield _COLLECTIONS.get(origin) or f"a {getattr(origin, '__name__', origin)}"
    else:
        yield _WORDS.get(kind, f"a {getattr(kind, '__name__', kind)}")


_COLLECTIONS: Final[Mapping[object, str]] = {
    collections.abc.Collection: "a list",
    collections.abc.Iterable: "a list",
    collections.abc.Sequence: "a list",
    frozenset: "a set",
    list: "a list",
    set: "a set",
    tuple: "a list",
}


OFFSET_MAX: Final = 2**63 - 1


def check_offset(offset: int, topic: str) -> None:
    """Check an offset; both protocols have 63 bits for it.

    Raises:
        UsageError: it is out of range.
    """
    if not 0 <= offset <= OFFSET_MAX:
        raise UsageError(f"An offset is 0 to {OFFSET_MAX}, not {offset}.", topic=topic)


def check_value(name: str, value: object, kind: object) -> None:
    """Check that an argument has the annotated type.

    Raises:
        UsageError: it has not.

    >>> check_value("delay", 5, timedelta | None)
    Traceback (most recent call last):
    coherer.errors.UsageError: `delay` is a timedelta or None, not 5. Write timedelta(seconds=5).
    """
    if fits(value, kind):
        return
    hint = ""
    if isinstance(value, int | float) and timedelta in (kind, *get_args(kind)):
        hint = f"Write timedelta(seconds={value})."
    elif value is True and any(
        getattr(one, "__name__", "") == "TlsOptions" for one in get_args(kind)
    ):
        hint = "Write TlsOptions(), or use a URL with rocketmqs:// or tubemqs://."
    elif isinstance(value, str) and Path in (kind, *get_args(kind)):
        hint = f"Write Path({value!r})."
    raise UsageError(f"`{name}` is {described(kind)}, not {value!r:.100}.", hint=hint)


def check_fields(kind: type[msgspec.Struct], given: Mapping[str, object]) -> None:
    """Check the values of a struct's fields.

    Raises:
        UsageError: a name is unknown, or a value has another type.
    """
    hints = _hints_of(kind)
    for name, value in given.items():
        if name not in hints:
            raise unknown_name(name, kind.__struct_fields__)
        check_value(name, value, hints[name])


@functools.cache
def _hints_of(kind: type[msgspec.Struct]) -> dict[str, object]:
    return get_type_hints(kind)


def unknown_name(name: str, known: Iterable[str], what: str = "option") -> UsageError:
    """The error for an option or argument that does not exist.

    >>> unknown_name("auto_offset_reset", ["start"]).hint
    "Kafka's auto_offset_reset is called start here."
    """
    from difflib import get_close_matches  # only for an error

    known = list(known)
    here = _KAFKA.get(name)
    close = get_close_matches(name, known, n=1)
    hint = f"There are {', '.join(known)}." if known else ""
    if here in known:
        hint = f"Kafka's {name} is called {here} here."
    elif close:
        hint = f"Did you mean {close[0]}?"
    return UsageError(f"Unknown {what} {name!r}.", hint=hint)


class _Checks:
    """The annotated types of a method's parameters.

    Args:
        function: the method.
    """

    def __init__(self, function: Callable[..., object]) -> None:
        self._name = function.__name__
        self._positional: list[tuple[str, object, frozenset[object]]] = []
        self._named: dict[str, object] = {}
        self._rest: object = None
        self._any_name = False
        scope = vars(sys.modules[function.__module__])
        parameters = list(inspect.signature(function).parameters.values())[1:]
        for one in parameters:
            kind = _resolved(one.annotation, scope)
            if one.kind is one.VAR_POSITIONAL:
                self._rest = kind
            elif one.kind is one.VAR_KEYWORD:
                self._any_name = True
            else:
                if one.kind is not one.KEYWORD_ONLY:
                    self._positional.append((one.name, kind, _plain_types(kind)))
                if one.kind is not one.POSITIONAL_ONLY:
                    self._named[one.name] = kind

    def check(self, args: tuple[object, ...], kwargs: Mapping[str, object]) -> None:
        for (name, kind, plain), value in zip(self._positional, args, strict=False):
            if type(value) not in plain:
                check_value(name, value, kind)
        extra = args[len(self._positional) :]
        if extra and self._rest is None:
            raise self._too_many(len(args))
        for value in extra:
            check_value("topics" if self._rest is str else self._name, value, self._rest)
        for name, value in kwargs.items():
            if name in self._named:
                check_value(name, value, self._named[name])
            elif not self._any_name:
                raise unknown_name(name, self._named, f"argument of `{self._name}`")

    def _too_many(self, count: int) -> UsageError:
        names = [name for name, *_ in self._positional]
        hint = f"Name the others: {', '.join(self._named)}." if len(self._named) > 1 else ""
        if names == ["message"]:
            hint = 'Write Message("topic", b"body").'
        return UsageError(
            f"`{self._name}` was called with {count} arguments without a name. "
            f"It takes {' and '.join(names) or 'none'}.",
            hint=hint,
        )


def _plain_types(kind: object) -> frozenset[object]:
    """The classes whose own instances always have an annotated type: there is nothing to check."""
    origin = get_origin(kind)
    if origin in (typing.Union, types.UnionType):
        return frozenset[object]().union(*map(_plain_types, get_args(kind)))
    if origin is collections.abc.Sequence and get_args(kind) == (object,):
        return frozenset((list, tuple))
    return frozenset((kind,)) if origin is None else frozenset()


def _resolved(annotation: object, scope: dict[str, Any]) -> object:
    """The type of an annotation; `object` if its names are only known to type checkers."""
    if not isinstance(annotation, str):
        return object if annotation is inspect.Parameter.empty else annotation
    try:
        # Producers themselves refuse other types, with a text that shows how to write a Message.
        return eval(annotation, {**scope, "Message": object})  # noqa: S307 - our own source
    except (NameError, AttributeError, TypeError):
        return object


def _wrapped(function: Callable[..., Any]) -> Callable[..., Any]:
    checks: _Checks | None = None
    is_renamed = "old_keywords" in vars(function)

    def check(args: tuple[object, ...], kwargs: Mapping[str, object]) -> None:
        nonlocal checks
        if checks is None:
            checks = _Checks(function)
        checks.check(args, kwargs)

    @functools.wraps(function)
    def call(self: object, *args: object, **kwargs: object) -> object:
        kwargs = in_new_words(function, kwargs) if is_renamed else kwargs
        if args or kwargs:
            check(args, kwargs)
        return function(self, *args, **kwargs)

    @functools.wraps(function)
    async def call_async(self: object, *args: object, **kwargs: object) -> object:
        kwargs = in_new_words(function, kwargs) if is_renamed else kwargs
        if args or kwargs:
            check(args, kwargs)
        return await function(self, *args, **kwargs)

    @functools.wraps(function)
    def call_first(self: object, message: object, *args: object, **kwargs: object) -> object:
        try:
            # Passing empty ones on would double the cost.
            more = args or kwargs
            return function(self, message, *args, **kwargs) if more else function(self, message)
        except TypeError:
            check((message, *args), kwargs)
            raise

    # Frameworks ask whether a method is a coroutine function.
    wrapper: Callable[..., Any] = call_async if inspect.iscoroutinefunction(function) else call
    if function.__name__ in CHECKED_LATE:
        wrapper = call_first
    vars(wrapper)["__checked__"] = True
    return wrapper


T = TypeVar("T")


def checked(kind: type[T]) -> type[T]:
    """Check the arguments of a class's public methods, and of its bases'; a class decorator."""
    for base in kind.__mro__:
        if not base.__module__.startswith("coherer."):
            continue
        for name, member in list(vars(base).items()):
            public = isinstance(member, types.FunctionType) and not name.startswith("_")
            if public and name not in UNCHECKED and "__checked__" not in vars(member):
                setattr(base, name, _wrapped(member))
    return kind
