"""Options that several commands share, and what their values mean."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection
from datetime import UTC, datetime
from functools import wraps
from inspect import Parameter
from math import nan
from typing import Annotated, Any, Concatenate, Final, ParamSpec, TypeVar, cast, get_type_hints

import msgspec
import typer

P = ParamSpec("P")
S = TypeVar("S", bound=msgspec.Struct)

SECONDS_MAX: Final = 366 * 86_400
"""The largest number of seconds that an option accepts; event loops cannot wait for any time."""

_DIGITS_MAX: Final = 18
"""The most digits of an offset."""

Json = Annotated[bool, typer.Option("--json", help="Print JSON on stdout, for programs.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")]
Limit = Annotated[int, typer.Option("--limit", "-n", min=1, help="The maximum number.")]


def with_options(
    options: type[S],
    command: Callable[Concatenate[S, P], None],
    *,
    without: Collection[str] = (),
    **types: object,
) -> Callable[..., None]:
    """Replace the first parameter of a command, a struct, by an option for each of its fields.

    Args:
        options: the struct; the types of its fields declare the options, as Typer wants them.
        command: the command.
        without: fields that are no options of this command.
        types: fields that have another type here.
    """
    shared = get_type_hints(options, include_extras=True) | types
    fields = [one for one in msgspec.structs.fields(options) if one.name not in without]
    first, *own = inspect.signature(command, eval_str=True).parameters.values()

    @wraps(command)
    def run(**given: Any) -> None:  # Any: Typer calls it with the values of the options
        one = options(**{field.name: given.pop(field.name) for field in fields})
        cast("Callable[..., None]", command)(**{first.name: one}, **given)

    parameters = [
        *(one.replace(kind=Parameter.KEYWORD_ONLY) for one in own),
        *(
            Parameter(
                one.name,
                Parameter.KEYWORD_ONLY,
                default=one.default,
                annotation=shared[one.name],
            )
            for one in fields
        ),
    ]
    # All help texts show `--json` last.
    parameters.sort(key=lambda one: one.name == "as_json")
    vars(run)["__signature__"] = inspect.Signature(parameters)
    return run


def seconds_option(*names: str, least: float = 0, about: str) -> Any:
    """Create an option for a number of seconds; without `names` it is called as its parameter."""

    # `min` of typer's own type accepts `nan`.
    def parse(given: str | float) -> float:
        try:
            found = float(given)
        except ValueError:
            found = nan
        if not least <= found <= SECONDS_MAX:
            text = f"{given!r} is not a number of seconds from {least:g} to {SECONDS_MAX}."
            raise typer.BadParameter(text)
        return found

    return typer.Option(*names, parser=parse, metavar="SECONDS", help=about)


def parse_number(text: str) -> int | None:
    """Parse an offset or a partition; None if the text is not a number of at most 18 digits.

    >>> parse_number("17"), parse_number("-1"), parse_number("9" * 19)
    (17, None, None)
    """
    return int(text) if text.isdecimal() and len(text) <= _DIGITS_MAX else None


def parse_moment(text: str) -> datetime | None:
    """Parse a time such as 2026-01-31T18:30, local without a zone; None if it is malformed.

    >>> parse_moment("0001-01-01"), parse_moment("now")
    (datetime.datetime(1, 1, 1, 0, 0, tzinfo=datetime.timezone.utc), None)
    """
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        return None
    try:
        found.timestamp()
    except (ValueError, OverflowError, OSError):
        # Local time cannot be computed near the years 1 and 9999; the zone does not matter there.
        return found.replace(tzinfo=UTC)
    return found
