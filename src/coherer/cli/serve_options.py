"""The options of `coherer serve`, derived from `NodeOptions`.

Every setting with a help panel becomes an option of the command line. An option that is not given
is None, so the default stays with the struct. `extras` are the options without a field there.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from enum import Enum, StrEnum
from inspect import Parameter, Signature
from pathlib import Path
from typing import Annotated, Any, Final, cast

import msgspec
import typer

from coherer._net import TlsOptions
from coherer._server.node.node_options import NETWORK, ROCKETMQ, SETTINGS, NodeOptions
from coherer._server.node.settings import Field
from coherer.cli.common import Json
from coherer.errors import UsageError

DIRECTORY: Final = Path("coherer-data")
BROKER_ADMIN_PORT: Final = 8081
"""As Java's: a master and a broker on one machine use different ports."""

_OPTIONS: Final = {one.key: one for one in SETTINGS if one.setting.panel is not None}

FLAGS: Final = {one.name.rpartition(".")[2]: one.flag for one in _OPTIONS.values()}
"""How the command line spells each option, by the name that errors use."""


_ENUM: Final[Any] = StrEnum
"""Any: the type checkers follow calls with literals only."""


class Level(StrEnum):
    """The lowest severity that is logged."""

    debug = "debug"
    info = "info"
    warning = "warning"
    error = "error"


def extras(
    *,
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
            help="Any other option of NodeOptions, such as trace_topic=true or "
            "transaction_timeout_ms=1000; may be repeated.",
            rich_help_panel=ROCKETMQ,
        ),
    ] = None,
    log: Annotated[
        Level, typer.Option("--log", help="Lowest severity to log on stderr.")
    ] = Level.warning,
    as_json: Json = False,
) -> None:
    """Declares the options of `serve` that are not fields of `NodeOptions`."""
    del admin, more, log, as_json


def signature() -> Signature:
    """The signature of `serve`: all options as keywords, in the order of its help text."""
    import inspect

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
        envvar=setting.env,
        rich_help_panel=setting.panel,
    )
    return Parameter(
        one.key, Parameter.KEYWORD_ONLY, default=None, annotation=Annotated[kind | None, option]
    )


def node_options(given: Mapping[str, object]) -> NodeOptions:
    """The options of a node from those of the command line, without those that are None.

    Args:
        given: by the names in `signature`.

    Raises:
        UsageError: an option is unknown or malformed, or options contradict each other.
    """
    values: dict[str, Any] = {"directory": DIRECTORY}
    tls: dict[str, Any] = {}
    for key, one in _OPTIONS.items():
        value = given.get(key)
        if value is None:
            continue
        section, _, name = one.name.rpartition(".")
        (tls if section else values)[name] = one.parse(_plain(value))
    if tls:
        values["tls"] = TlsOptions(**tls)
    if values.get("roles") == {"broker"}:
        values.setdefault("admin_port", BROKER_ADMIN_PORT)
    if given.get("admin") is False:
        values["admin_port"] = None
    more = cast("list[str] | None", given.get("more"))
    return NodeOptions(**values | _assignments(more or ()))


def _plain(value: object) -> object:
    """The value with enum members as their text."""
    if isinstance(value, list):
        return [_plain(one) for one in cast("list[object]", value)]
    return value.value if isinstance(value, Enum) else value


def on_command_line(error: UsageError) -> UsageError:
    """The same error, with the options' names as they are spelled on the command line.

    Args:
        error: it names options as `NodeOptions` does, between backticks.

    >>> error = UsageError("`admin_port` is 0.", hint="Set `heartbeat_ms`.")
    >>> print(on_command_line(error))
    --admin-port is 0. Set --heartbeat-ms.
    """

    def flag(found: re.Match[str]) -> str:
        return FLAGS.get(found[1], found[0])

    error.text = _NAME.sub(flag, error.text)
    error.hint = _NAME.sub(flag, error.hint)
    return error


_NAME = re.compile(r"`(\w+)`")


def _assignments(texts: Iterable[str]) -> dict[str, Any]:
    """The values of `--set`.

    Raises:
        UsageError: there is no such option, or the value does not fit its type.
    """
    known = {one.name: one for one in SETTINGS if "." not in one.name}
    found: dict[str, Any] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals:
            raise UsageError(f"--set {name!r} has no value.", hint="Write name=value.")
        if name not in known:
            close = get_close_matches(name, known, n=1)
            raise UsageError(
                f"--set {name!r}: a node has no such option.",
                hint=f"Did you mean {close[0]}?" if close else f"It has {', '.join(known)}.",
            )
        try:
            found[name] = known[name].convert(value)
        except (msgspec.ValidationError, TypeError) as error:
            raise UsageError(f"--set {name!r}: {error}.") from error
    return found
