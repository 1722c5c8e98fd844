"""The command line of `coherer serve`, derived from `node_config.FIELDS`.

Every setting with a help panel becomes an option. An option that is not given is None, so that the
struct's default applies. `extras` are the options that are not settings.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Iterable, Mapping
from enum import Enum, StrEnum
from inspect import Parameter, Signature
from pathlib import Path
from typing import Annotated, Any, Final, cast

import typer

from coherer._server.options.node import NETWORK
from coherer._server.options.settings import Field
from coherer.cli.options import Json
from coherer.cli.serve.node_config import (
    FIELDS,
    Values,
    from_command_line,
    from_environment,
    from_file,
    merged,
)

_OPTIONS: Final = {one.key: one for one in FIELDS if one.setting.panel is not None}

_ENUM: Final[Any] = StrEnum
"""Any: the type checkers follow calls with literals only."""

Config = Annotated[
    Path | None,
    typer.Option(
        "--config",
        "-c",
        envvar="COHERER_CONFIG",
        help="TOML file with options; `coherer config example` prints one.",
    ),
]


def extras(
    *,
    config: Config = None,
    admin: Annotated[
        bool | None,
        typer.Option(
            "--admin/--no-admin",
            help="Serve the HTTP administration. Default: on.",
            rich_help_panel=NETWORK,
        ),
    ] = None,
    more: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="NAME=VALUE",
            help="Set any option of a configuration file, such as trace_topic=true or "
            "transaction_timeout_ms=1000; may be repeated.",
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Declares the options of `serve` that are not settings."""
    del config, admin, more, as_json


def signature() -> Signature:
    """The signature of `serve`: all options as keywords, in the order of its help text."""
    extra = inspect.signature(extras, eval_str=True).parameters.values()
    return Signature([*map(_parameter, _OPTIONS.values()), *extra])


def _parameter(one: Field) -> Parameter:
    setting = one.setting
    flags = [one.flag]
    kind: Any = str if one.repeated else one.plain_type
    if one.choices:
        # Enums, since older versions of typer do not know Literal.
        kind = _ENUM(one.key, {choice: choice for choice in one.choices})
    if one.repeated:
        kind = list[kind]
    if kind is bool:
        flags = [f"{one.flag}/--no-{one.flag.removeprefix('--')}"]
    option = typer.Option(
        *flags,
        *([setting.short] if setting.short else []),
        help=one.help,
        metavar=setting.metavar,
        rich_help_panel=setting.panel,
    )
    return Parameter(
        one.key, Parameter.KEYWORD_ONLY, default=None, annotation=Annotated[kind | None, option]
    )


def values_of(given: Mapping[str, object], environment: Mapping[str, str] = os.environ) -> Values:
    """Return all values that the user of `coherer serve` gave, with their sources.

    Raises:
        UsageError: an option is unknown or malformed.
    """
    config = cast("Path | None", given.get("config"))
    return merged(
        from_file(config) if config is not None else {},
        from_environment(environment),
        from_command_line(
            {key: _plain(value) for key, value in given.items()},
            admin=cast("bool | None", given.get("admin")),
            more=cast("Iterable[str] | None", given.get("more")) or (),
        ),
    )


def _plain(value: object) -> object:
    """The value with enum members as their text."""
    if isinstance(value, list):
        return [_plain(one) for one in cast("list[object]", value)]
    return value.value if isinstance(value, Enum) else value
