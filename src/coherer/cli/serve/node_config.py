"""The configuration of `coherer serve`: a file, the environment and the command line.

Each layer sets some options. If several layers set an option, the last one takes precedence: the
file, then the environment, then the command line. A value keeps its source, so that
`coherer config show` can name it, and errors name the option as the user wrote it.

All layers, the template of `coherer config example` and the help texts derive from one table,
`FIELDS`: the settings of `NodeOptions`, and those of the log and of the console.
"""

from __future__ import annotations

import ipaddress
import logging
import os
import re
import textwrap
import tomllib
from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any, Final, Literal, NamedTuple, TypeAlias, cast

import msgspec

from coherer._common.logs import Log
from coherer._common.masking import MASK
from coherer._common.regular_files import read_regular
from coherer._net import TlsOptions
from coherer._server.options.node import NETWORK, NODE, SETTINGS, NodeOptions
from coherer._server.options.settings import Field, Setting, settings
from coherer._server.options.siblings import check
from coherer._wire.rocketmq import java_properties
from coherer.errors import UsageError

DIRECTORY: Final = Path("coherer-data")
BROKER_ADMIN_PORT: Final = 8081
"""The default ports, as in Java: a master and a broker on one machine use different ports."""

_EVERY_ADDRESS: Final = frozenset({"", "0.0.0.0", "::", "[::]"})  # noqa: S104 - compared

LOG: Final = "Log"
_WIDTH: Final = 100


def _levels(texts: Iterable[str]) -> dict[str, str]:
    """Return levels by package, from texts `PACKAGE=LEVEL`."""
    return {package: level for text in texts for package, _, level in [text.partition("=")]}


class LogOptions(msgspec.Struct, frozen=True):
    """The log of `coherer serve`; the `Setting` of each field documents it."""

    # fmt: off
    level: Annotated[Literal["debug", "info", "warning", "error"], Setting(
        "Lowest severity to log.", panel=LOG, flag="--log",
    )] = "warning"
    levels: Annotated[dict[str, str], Setting(
        "PACKAGE=LEVEL, the lowest severity of one package, such as coherer._store=debug; may be "
        "repeated.", panel=LOG, metavar="PACKAGE=LEVEL", parse=_levels,
    )] = {}
    format: Annotated[Literal["text", "json"], Setting(
        "Lines for people, or one JSON object per line.", panel=LOG,
    )] = "text"
    file: Annotated[Path | None, Setting(
        "File to append to; SIGHUP reopens it, for log rotation.", panel=LOG, default="stderr",
    )] = None
    # fmt: on


CONSOLE: Final = "Console"


class ConsoleSettings(msgspec.Struct, frozen=True):
    """The console that `coherer serve` serves; the `Setting` of each field documents it."""

    # fmt: off
    enabled: Annotated[bool, Setting(
        "Serve the console, pages for a browser; needs the extra `console`.", panel=CONSOLE,
        flag="--console",
    )] = False
    host: Annotated[str, Setting(
        "Address that the console listens on. If other machines can reach it, set a password.",
        panel=CONSOLE,
    )] = "127.0.0.1"
    port: Annotated[int, Setting(
        "Port of the console; 0 for any free port.", panel=CONSOLE, port=True,
    )] = 8790
    allow_changes: Annotated[bool, Setting(
        "Whether the console may change anything; otherwise it is read-only.", panel=CONSOLE,
    )] = False
    password: Annotated[str | None, Setting(
        "Password of the console's account admin.", secret=True, default="none",
    )] = None
    accounts: Annotated[Path | None, Setting(
        "File of the console's accounts; `coherer console --hash-password` prints its lines.",
        panel=CONSOLE, default="none",
    )] = None
    cluster_user: Annotated[str | None, Setting(
        "Account of the node that the console uses, if the node has accounts.", env="COHERER_USER",
        default="none",
    )] = None
    cluster_password: Annotated[str | None, Setting(
        "Password of that account.", env="COHERER_PASSWORD", secret=True, default="none",
    )] = None
    # fmt: on


_SECTION: Final = "log"
_CONSOLE_SECTION: Final = "console"


def _in_section(section: str, options: type[msgspec.Struct]) -> Iterable[Field]:
    for one in settings(options):
        yield Field(f"{section}.{one.name}", one.type, one.default, one.setting)


_SERVICE_LINK: Final = re.compile(r"(tcp|udp|sctp)://[^\s/]+:\d+\Z")
"""The values that Kubernetes gives to `NAME_PORT` for each service; no option has such a value."""

_log = Log(logging.getLogger(__name__))

FIELDS: Final = (
    *SETTINGS,
    *_in_section(_SECTION, LogOptions),
    *_in_section(_CONSOLE_SECTION, ConsoleSettings),
)
"""All options of `coherer serve` that a file can set, in the order of help texts."""

_BY_NAME: Final = {one.name: one for one in FIELDS}
_VARIABLES: Final = [one.variable for one in FIELDS]

CLIENT_VARIABLES: Final = frozenset(
    f"COHERER_{name}"
    for name in ("URL", "ADMIN", "TOKEN", "USER", "PASSWORD", "CONFIG", "CONSOLE_PASSWORD")
)
"""Variables that the client commands read, and that of the file."""

_BY_KEY: Final = {one.key: one for one in FIELDS}


class Given(NamedTuple):
    """A value that a user gave.

    Args:
        value: the value, in the field's type.
        option: the option as the user wrote it.
        place: where the user wrote it; "" for the command line.
    """

    value: object
    option: str
    place: str

    @property
    def source(self) -> str:
        """Where the value comes from, in words."""
        return f"{self.option} in {self.place}" if self.place else self.option


Values: TypeAlias = dict[str, Given]
"""Values by the name of their field."""


def from_file(path: Path) -> Values:
    """Read the values in a TOML file.

    Raises:
        UsageError: it cannot be read, or options are unknown or malformed; it lists all of them.
    """
    try:
        content = tomllib.loads(read_regular(path).decode("utf-8"))
    except OSError as error:
        raise UsageError(f"Cannot read {path}: {error.strerror}.") from error
    except RecursionError as error:
        raise UsageError(
            f"{path} is nested too deeply.", hint="See `coherer config example`."
        ) from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UsageError(
            f"{path} is not TOML: {error}.", hint="See `coherer config example`."
        ) from error
    found: Values = {}
    errors: list[UsageError] = []
    for name, value in _flat(content):
        given = Given(None, name, str(path))
        try:
            if name not in _BY_NAME:
                raise _unknown(f"{name!r} in {path}", name)
            found[name] = given._replace(value=_converted(_BY_NAME[name], value, given))
        except UsageError as error:
            errors.append(error)
    if len(errors) > 1:
        lines = "".join(f" [{number}] {one}" for number, one in enumerate(errors, 1))
        raise UsageError(f"{path} has {len(errors)} wrong options.{lines}")
    if errors:
        raise errors[0]
    return found


def from_environment(environment: Mapping[str, str] = os.environ) -> Values:
    """Read the environment variables: `COHERER_` and the option's name in capitals."""
    found: Values = {}
    for one in FIELDS:
        for variable in (one.setting.env, one.variable):
            if variable is not None and environment.get(variable):
                if _SERVICE_LINK.match(environment[variable]):
                    _log.plain.warning(
                        "Ignored %s=%s: Kubernetes sets it for a service of that name. Set "
                        "enableServiceLinks: false in the pod to avoid this.",
                        variable,
                        environment[variable],
                    )
                    continue
                given = Given(None, variable, "the environment")
                value = _converted(one, environment[variable], given, text=True)
                found[one.name] = given._replace(value=value)
    return found


def unknown_variables(environment: Mapping[str, str] = os.environ) -> list[str]:
    """A warning for each environment variable whose name is close to that of an option.

    Others that begin with `COHERER_` may belong to clients, or to services of Kubernetes.

    >>> unknown_variables({"COHERER_FLSH": "sync", "COHERER_URL": "tubemq://a"})
    ['COHERER_FLSH is ignored: no option has this name. Did you mean COHERER_FLUSH?']
    """
    known = (
        {one.variable for one in FIELDS} | {one.setting.env for one in FIELDS} | CLIENT_VARIABLES
    )
    return [
        f"{name} is ignored: no option has this name. Did you mean {close[0]}?"
        for name, value in environment.items()
        if name.startswith("COHERER_") and name not in known and not _SERVICE_LINK.match(value)
        if (close := get_close_matches(name, _VARIABLES, n=1, cutoff=0.88))
    ]


def from_command_line(
    given: Mapping[str, object], *, admin: bool | None = None, more: Iterable[str] = ()
) -> Values:
    """Convert the values on the command line.

    Args:
        given: the values by `Field.key`; None if an option was not given.
        admin: whether to serve the HTTP administration.
        more: the texts `NAME=VALUE` of `--set`, for any option.

    Raises:
        UsageError: an option is unknown or malformed.
    """
    found: Values = {}
    for key, value in given.items():
        if value is not None and key in _BY_KEY:
            one = _BY_KEY[key]
            place = Given(None, one.flag, "")
            found[one.name] = place._replace(value=_converted(one, value, place))
    if admin is False:
        found["admin_port"] = Given(None, "--no-admin", "")
    for text in more:
        name, equals, value = text.partition("=")
        if not equals:
            raise UsageError(f"--set {name!r} has no value.", hint="Write name=value.")
        if name not in _BY_NAME:
            raise _unknown(f"--set {name!r}", name)
        place = Given(None, f"--set {name}", "")
        found[name] = place._replace(value=_converted(_BY_NAME[name], value, place, text=True))
    return found


def merged(*layers: Values) -> Values:
    """Merge layers; the last layer that sets an option takes precedence."""
    return {name: given for layer in layers for name, given in layer.items()}


def node_options(values: Values) -> NodeOptions:
    """The options of a node.

    Raises:
        UsageError: options contradict each other; the error names them as the user wrote them.
    """
    fields: dict[str, Any] = {"directory": DIRECTORY}
    sections: dict[str, dict[str, Any]] = {}
    for name, given in values.items():
        section, _, part = name.rpartition(".")
        (sections.setdefault(section, {}) if section else fields)[part] = given.value
    if "tls" in sections:
        fields["tls"] = TlsOptions(**sections["tls"])
    if fields.get("roles") == {"broker"}:
        fields.setdefault("admin_port", BROKER_ADMIN_PORT)
    try:
        return NodeOptions(**fields)
    except UsageError as error:
        raise named(error, values) from error


def log_options(values: Values) -> LogOptions:
    """The options of the log.

    Raises:
        UsageError: a level is unknown.
    """
    options = LogOptions(**_section(values, _SECTION))
    for package, level in options.levels.items():
        if level not in {"debug", "info", "warning", "error"}:
            raise UsageError(
                f"{values['log.levels'].source}: {level!r} is not a level ({package}).",
                hint="The levels are debug, info, warning and error.",
            )
    return options


def console_settings(values: Values) -> ConsoleSettings:
    """The settings of the console."""
    return ConsoleSettings(**_section(values, _CONSOLE_SECTION))


def console_warnings(console: ConsoleSettings, node: NodeOptions) -> list[str]:
    """Warnings about a console that does not fit its node, or the network."""
    if not console.enabled:
        return []
    found: list[str] = []
    if node.has_accounts and console.cluster_user is None:
        found.append(
            "The node requires accounts, and its console has none, so it can show nothing. Set "
            "console.cluster_user and console.cluster_password, or COHERER_USER and "
            "COHERER_PASSWORD."
        )
    if not (_is_local(console.host) or console.password or console.accounts is not None):
        found.append(
            f"The console does not start at {console.host} without a password, since other "
            "machines can reach it. Set COHERER_CONSOLE_PASSWORD or console.accounts."
        )
    return found


def check_node(options: NodeOptions, console: ConsoleSettings) -> None:
    """Check that a node and its console can be started with their directory, ports and accounts.

    Raises:
        UsageError: they cannot; the error names options between backticks.
    """
    # Different addresses may have the same port.
    shared = console.host == options.host or {console.host, options.host} & _EVERY_ADDRESS
    check(options, console_port=console.port if console.enabled and shared else 0)
    if console.enabled and console.accounts is not None:
        from coherer.console.passwords import read  # only a console needs it

        read(console.accounts)


def _is_local(host: str) -> bool:
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"


def _section(values: Values, wanted: str) -> dict[str, Any]:
    """The values of a section, by the names of the fields in it."""
    return {
        part: one.value
        for name, one in values.items()
        for section, _, part in [name.partition(".")]
        if section == wanted
    }


def named(error: UsageError, values: Values | None = None) -> UsageError:
    """Rewrite an error so that it names options as the user wrote them, or as flags.

    Args:
        error: an error that names fields of `NodeOptions` between backticks.
        values: what the user gave.

    >>> error = UsageError("`admin_port` is 0.", hint="Set `heartbeat_ms`.")
    >>> print(named(error, {"admin_port": Given(0, "admin_port", "node.toml")}))
    admin_port in node.toml is 0. Set --heartbeat-ms.
    """

    def spelled(found: re.Match[str]) -> str:
        for one in FIELDS:
            if one.name.rpartition(".")[2] == found[1]:
                given = (values or {}).get(one.name)
                return given.source if given is not None else one.flag
        return found[0]

    error.text = _NAME.sub(spelled, error.text)
    error.hint = _NAME.sub(spelled, error.hint)
    return error


_NAME: Final = re.compile(r"`(\w+)`")


def shown(values: Values) -> list[tuple[str, str, str]]:
    """Return name, value and source of every option; secrets are masked."""
    rows: list[tuple[str, str, str]] = []
    for one in FIELDS:
        given = values.get(one.name)
        value = one.default if given is None else given.value
        if one.setting.secret and value:
            value = dict.fromkeys(cast("dict[str, str]", value), MASK) if one.repeated else MASK
        if value is msgspec.NODEFAULT:
            value = DIRECTORY
        text = one.setting.default if given is None and value is None else _toml(value)
        rows.append((one.name, text, "default" if given is None else given.source))
    return rows


def changed_over_rocketmq(values: Values) -> list[tuple[str, str, str]]:
    """Return name, value and source of the settings that RocketMQ's administration has changed.

    They are in the directory of the node, under Java's names, and take precedence over its options.

    Raises:
        DamagedStoreError: the file is invalid.
    """
    # Only `config show` needs RocketMQ's broker.
    from coherer._server.rocketmq.broker.admin_settings import OPTIONS, SETTINGS_FILE

    given = values.get("directory")
    path = cast("Path", DIRECTORY if given is None else given.value) / "config" / SETTINGS_FILE
    if not path.is_file():
        return []
    found = java_properties.parse_file(str(path), read_regular(path))
    return [
        (
            f"rocketmq:{name}",
            _toml(value),
            f"{path}, changed over RocketMQ"
            + (f"; overrides {OPTIONS[name]}" if name in OPTIONS else ""),
        )
        for name, value in sorted(found.items())
    ]


def example() -> str:
    """Return a configuration file with all options, their help and defaults, commented out."""
    lines = [
        "# Options of `coherer serve --config FILE`. Environment variables can set them, too:",
        "# COHERER_ and the name in capitals. The command line takes precedence over both.",
    ]
    sections: dict[str, list[Field]] = {}
    for one in FIELDS:
        sections.setdefault(one.name.rpartition(".")[0], []).append(one)
    for section, fields in sections.items():
        if section:
            lines += ["", f"[{section}]"]
        panel = None
        for one in sorted(fields, key=_panel_order) if not section else fields:
            if not section and _panel(one) != panel:
                panel = _panel(one)
                lines += ["", f"# ---- {panel}"]
            lines += ["", *_comment(one.help), f"# {one.name.rpartition('.')[2]} = {_sample(one)}"]
    return "\n".join(lines) + "\n"


def _panel(one: Field) -> str:
    return one.setting.panel or "Others"


def _panel_order(one: Field) -> int:
    panels = [NODE, NETWORK, *(each.setting.panel for each in SETTINGS if each.setting.panel), None]
    return panels.index(one.setting.panel)


def _comment(text: str) -> list[str]:
    return textwrap.wrap(
        text, _WIDTH, initial_indent="# ", subsequent_indent="# ", break_on_hyphens=False
    )


def _sample(one: Field) -> str:
    if one.default is msgspec.NODEFAULT:
        return _toml(DIRECTORY)
    if one.default is not None:
        return _toml(one.default)
    return "0" if int in (one.plain_type, float) else '""'


def _toml(value: object) -> str:
    """Format a value as TOML; None becomes `false`, which switches an option off."""
    if isinstance(value, dict):
        pairs = [f"{_toml(name)} = {_toml(one)}" for name, one in cast("Any", value).items()]
        return f"{{ {', '.join(pairs)} }}" if pairs else "{}"
    if isinstance(value, frozenset):
        return f"[{', '.join(sorted(map(_toml, cast('Any', value))))}]"
    if value is None:
        return "false"
    # TOML accepts JSON's numbers, booleans and strings.
    return msgspec.json.encode(str(value) if isinstance(value, Path) else value).decode()


def _flat(table: Mapping[str, object], prefix: str = "") -> Iterable[tuple[str, object]]:
    """Flatten a table to dotted names; a table that is the value of an option stays a table."""
    for name, value in table.items():
        whole = prefix + name
        if isinstance(value, dict) and whole not in _BY_NAME:
            yield from _flat(cast("dict[str, object]", value), f"{whole}.")
        else:
            yield whole, value


def _converted(one: Field, value: object, given: Given, *, text: bool = False) -> object:
    try:
        return one.convert_text(cast("str", value)) if text else one.convert(value)
    except msgspec.ValidationError as error:
        raise UsageError(
            f"{given.source}: {_wrong(one, value)}",
            hint=f"{one.help} Choose from {', '.join(one.choices)}." if one.choices else one.help,
        ) from error
    except UsageError as error:
        error.text = f"{given.source}: {error.text}"
        raise


_KINDS: Final[Mapping[Any, str]] = {
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    str: "text",
    Path: "a path",
}


def _wrong(one: Field, value: object) -> str:
    """The reason why a value is refused, without the names of types."""
    shown = "this" if one.setting.secret else repr(value)
    if one.choices:
        return f"{shown} is not possible."
    if kind := _KINDS.get(one.plain_type):
        return f"{shown} is not {kind}."
    return f"{shown} does not fit."


def _unknown(what: str, name: str) -> UsageError:
    flag = "--" + name.replace("_", "-")  # as on the command line, such as `log` for log.level
    close = [one.name for one in FIELDS if one.flag == flag]
    close = close or get_close_matches(name, _BY_NAME, n=1)
    hint = f"Did you mean {close[0]}?" if close else "`coherer config example` lists all options."
    return UsageError(f"{what}: this option does not exist.", hint=hint)
