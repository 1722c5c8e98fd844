"""Settings: fields of an options struct that users can set, described once for all front ends.

Each field carries a `Setting` in its annotation; the struct is the only list. `settings` reads it
and returns, for every field, its name, type, default and `Setting`. The command line of
`coherer serve`, its configuration file and its environment variables derive from that: a field is
`Field.name` in the file (its dots are tables), `Field.variable` in the environment, and
`Field.flag` on the command line.

>>> class Options(msgspec.Struct):
...     port: Annotated[int, Setting("The port.", panel="Network", port=True)] = 8715
>>> (field,) = settings(Options)
>>> field.name, field.flag, field.default, field.help
('port', '--port', 8715, 'The port. Default: 8715.')
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import msgspec

_UNITS = (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10))


class Setting(msgspec.Struct, frozen=True):
    """How users see a field of an options struct.

    Args:
        help: what it does, in a sentence or two; the default is appended.
        panel: the heading under which help texts list it; None if it has no option on the command
            line (`--set` reaches it).
        flag: the option on the command line, if it is not the field's name with dashes.
        short: a one-letter option.
        metavar: what help texts show for the value.
        env: a short environment variable that sets it, besides `Field.variable`.
        default: the default in words, if the value alone is unclear.
        choices: the words to choose from, if the type does not list them.
        parse: turns text, number or list as the user gives it into the field's value.
        maximum: the upper limit of a number that must be above 0.
        port: it is a port that a node listens on.
        secret: its value must not be shown.
    """

    help: str
    panel: str | None = None
    flag: str = ""
    short: str = ""
    metavar: str | None = None
    env: str | None = None
    default: str = ""
    choices: tuple[str, ...] = ()
    parse: Callable[[Any], object] | None = None
    maximum: int | None = None
    port: bool = False
    secret: bool = False


class Section(msgspec.Struct, frozen=True):
    """Marks a field that is a struct itself, whose fields are settings.

    Args:
        settings: by the name of the field in that struct. The others are not for users.
    """

    settings: Mapping[str, Setting] = {}


class Field(msgspec.Struct, frozen=True):
    """A setting with the name, type and default of its field.

    Args:
        name: of the field; `section.name` in a section.
        type: of the field, without the annotation.
        default: the value if it is not set; `msgspec.NODEFAULT` if it is required.
        setting: how users see it.
    """

    name: str
    type: Any
    default: object
    setting: Setting

    @property
    def key(self) -> str:
        """The name as an identifier."""
        return self.name.replace(".", "_")

    @property
    def flag(self) -> str:
        """The option on the command line."""
        return self.setting.flag or "--" + self.key.replace("_", "-")

    @property
    def variable(self) -> str:
        """The environment variable."""
        return f"COHERER_{self.key.upper()}"

    @property
    def plain_type(self) -> Any:
        """The type without None."""
        if get_origin(self.type) in {Union, UnionType}:
            return next(one for one in get_args(self.type) if one is not NoneType)
        return self.type

    @property
    def repeated(self) -> bool:
        """Whether it holds several values."""
        return get_origin(self.plain_type) in {frozenset, dict} and not self.setting.choices

    @property
    def choices(self) -> tuple[str, ...]:
        """The words to choose from; empty if any value is possible."""
        if self.setting.choices:
            return self.setting.choices
        kind = get_args(self.plain_type)[0] if self.repeated else self.plain_type
        return get_args(kind) if get_origin(kind) is Literal else ()

    @property
    def help(self) -> str:
        """The help text with the default."""
        default = self.setting.default or _in_words(self)
        return f"{self.setting.help} Default: {default}." if default else self.setting.help

    def convert(self, given: object) -> object:
        """Convert a user's text, number, list or table to the field's value.

        If the field may be None, false and "none" mean None.

        Raises:
            msgspec.ValidationError: it does not fit the type.
            UsageError: a name or password is missing in an account.
        """
        if self.optional and (given is False or given == "none"):
            return None
        if self.setting.parse is not None and not isinstance(given, dict):
            if self.repeated:
                given = msgspec.convert(given, list[str])
            words = isinstance(given, str) and given in self.setting.choices
            if words or not self.setting.choices:
                given = self.setting.parse(given)
        found = msgspec.convert(given, self.type, strict=False, dec_hook=_path)
        if isinstance(found, float) and not math.isfinite(found):
            raise msgspec.ValidationError("Expected a finite number")
        return found

    def convert_text(self, text: str) -> object:
        """Convert one text, as in the environment, where spaces separate several values.

        Raises:
            msgspec.ValidationError: it does not fit the type.
            UsageError: a name or password is missing in an account.
        """
        return self.convert(text.split() if self.repeated else text)

    @property
    def optional(self) -> bool:
        """Whether its value may be None."""
        return self.plain_type is not self.type


def settings(options: type[msgspec.Struct]) -> Iterator[Field]:
    """The settings of a struct, in the order of its fields."""
    for one in msgspec.structs.fields(options):
        kind, *marks = get_args(one.type) if get_origin(one.type) is Annotated else (one.type,)
        for mark in marks:
            if isinstance(mark, Setting):
                yield Field(one.name, kind, _default(one), mark)
            elif isinstance(mark, Section):
                inner = Field(one.name, kind, None, Setting("")).plain_type
                for part in msgspec.structs.fields(inner):
                    if part.name in mark.settings:
                        name = f"{one.name}.{part.name}"
                        yield Field(name, part.type, part.default, mark.settings[part.name])


def _path(kind: type, given: object) -> object:
    if kind is Path and isinstance(given, str | Path):
        if given == "":  # Path("") is the current directory
            raise ValueError("Expected a path, got an empty text")
        return Path(given)
    raise TypeError(f"Expected `{kind.__name__}`")


def _default(one: msgspec.structs.FieldInfo) -> object:
    return one.default if one.default_factory is msgspec.NODEFAULT else one.default_factory()


def _in_words(one: Field) -> str:
    """The default as text, or ""."""
    match one.default:
        case bool(on):
            return "on" if on else "off"
        case int(port) if one.setting.port:
            return str(port)
        case int(count):
            if one.name.endswith("_bytes"):
                for unit, size in _UNITS:
                    if count >= size and count % size == 0:
                        return f"{count // size} {unit}"
            return f"{count:,}"
        case str(text):
            return text
        case _:
            return ""
