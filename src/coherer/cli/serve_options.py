"""The options of `coherer serve`: one for each field of `coherer._server.node.node.NodeOptions`.

They are written down a second time so that `coherer --help` need not import a server; a test
compares them. An option that is not given is None, and then the struct's default holds.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer
from msgspec.structs import fields

from coherer.cli.serve_rocketmq import BrokerRole, Door
from coherer.errors import UsageError

if TYPE_CHECKING:
    from coherer._server.node.node import NodeOptions

DIRECTORY = Path("coherer-data")
BROKER_ADMIN_PORT = 8081
"""As Java's: a master and a broker on one machine do not want the same port."""


class Role(StrEnum):
    """What a node is."""

    both = "both"
    master = "master"
    broker = "broker"


class Level(StrEnum):
    """What is logged."""

    debug = "debug"
    info = "info"
    warning = "warning"
    error = "error"


class Flush(StrEnum):
    """When a message is acknowledged."""

    asynchronous = "async"
    sync = "sync"


class Part(StrEnum):
    """What accounts protect."""

    tubemq = "tubemq"
    rocketmq = "rocketmq"
    namesrv = "namesrv"
    replication = "replication"
    admin = "admin"


Directory = Annotated[
    Path | None,
    typer.Option(
        "--directory",
        "-d",
        help="Where the files are; made if missing. Default: coherer-data.",
        rich_help_panel="Node",
        envvar="COHERER_DIRECTORY",
    ),
]
Roles = Annotated[
    Role | None,
    typer.Option(
        "--role",
        help="Master (and name server) and broker in one, or one of them. Default: both.",
        rich_help_panel="Node",
    ),
]
Master = Annotated[
    str | None,
    typer.Option(
        "--master",
        help="The masters of a node that is only a broker: host:port, or several, separated by "
        "commas.",
        rich_help_panel="Node",
    ),
]
BrokerId = Annotated[
    int | None,
    typer.Option(
        "--broker-id",
        help="The broker's number, which no other broker of the cluster has. Default: 1.",
        rich_help_panel="Node",
    ),
]
Host = Annotated[
    str | None,
    typer.Option(
        "--host",
        help="Address to listen on; the default, 127.0.0.1, can only be reached from this machine.",
        rich_help_panel="Network",
    ),
]
AdvertisedHost = Annotated[
    str | None,
    typer.Option(
        "--advertised-host",
        help="Address that clients and brokers are told. Default: that of --host.",
        rich_help_panel="Network",
    ),
]
AdvertisedBrokerPort = Annotated[
    int | None,
    typer.Option(
        "--advertised-broker-port",
        help="Port of the broker that clients are told, where something stands in between. "
        "Default: its own.",
        rich_help_panel="Network",
    ),
]
MasterPort = Annotated[
    int | None,
    typer.Option(
        "--master-port",
        help="The master's port; 0 for any free one. Default: 8715.",
        rich_help_panel="Network",
    ),
]
BrokerPort = Annotated[
    int | None,
    typer.Option(
        "--broker-port",
        help="The broker's port; 0 for any free one. Default: 8123.",
        rich_help_panel="Network",
    ),
]
AdminPort = Annotated[
    int | None,
    typer.Option(
        "--admin-port",
        help="Port of the HTTP administration; 0 for any free one. Default: 8080, of a node that "
        "is only a broker 8081.",
        rich_help_panel="Network",
    ),
]
Admin = Annotated[
    bool | None,
    typer.Option(
        "--admin/--no-admin",
        help="Whether there is an HTTP administration. Default: there is.",
        rich_help_panel="Network",
    ),
]
FlushMode = Annotated[
    Flush | None,
    typer.Option(
        "--flush",
        help="When a message is acknowledged: async, in the log of the process; sync, on the "
        "disk. Default: async.",
        rich_help_panel="Storage",
    ),
]
FlushIntervalMs = Annotated[
    int | None,
    typer.Option(
        "--flush-interval-ms",
        help="With async, how long the disk may be behind. Default: 500.",
        rich_help_panel="Storage",
    ),
]
RetentionHours = Annotated[
    float | None,
    typer.Option(
        "--retention-hours",
        help="How long messages are kept; 0 for ever. Default: 72.",
        rich_help_panel="Storage",
    ),
]
RetentionBytes = Annotated[
    int | None,
    typer.Option(
        "--retention-bytes",
        help="How large the log may become, to within one of its files. Default: no limit.",
        rich_help_panel="Storage",
    ),
]
SegmentBytes = Annotated[
    int | None,
    typer.Option(
        "--segment-bytes",
        help="Size of a file of a new log. Default: 1 GiB, or an eighth of --retention-bytes.",
        rich_help_panel="Storage",
    ),
]
AutoCreateTopics = Annotated[
    bool | None,
    typer.Option(
        "--auto-create-topics/--no-auto-create-topics",
        help="Whether a topic comes into being when it is first named. Default: it does.",
        rich_help_panel="Topics",
    ),
]
DefaultPartitions = Annotated[
    int | None,
    typer.Option(
        "--default-partitions",
        help="How many partitions such a topic has. Default: 8.",
        rich_help_panel="Topics",
    ),
]
MaxMessageBytes = Annotated[
    int | None,
    typer.Option(
        "--max-message-bytes",
        help="The cluster's limit for a message. Default: 1 MiB, or what was set before.",
        rich_help_panel="Topics",
    ),
]
TransferBytes = Annotated[
    int | None,
    typer.Option(
        "--transfer-bytes",
        help="How much one get of a consumer reads. Default: 512 KiB.",
        rich_help_panel="Times and sizes",
    ),
]
HoldMs = Annotated[
    int | None,
    typer.Option(
        "--hold-ms",
        help="How long a get that finds nothing waits. Default: 5,000; with remote masters 500.",
        rich_help_panel="Times and sizes",
    ),
]
BalancePeriodMs = Annotated[
    int | None,
    typer.Option(
        "--balance-period-ms",
        help="How soon a move of partitions that failed is tried again. Default: 1,000.",
        rich_help_panel="Times and sizes",
    ),
]
LeaseTimeoutMs = Annotated[
    int | None,
    typer.Option(
        "--lease-timeout-ms",
        help="When a silent consumer loses its partitions. Default: 30,000.",
        rich_help_panel="Times and sizes",
    ),
]
ClientTimeoutMs = Annotated[
    int | None,
    typer.Option(
        "--client-timeout-ms",
        help="When a silent producer or consumer is forgotten. Default: 30,000.",
        rich_help_panel="Times and sizes",
    ),
]
BrokerTimeoutMs = Annotated[
    int | None,
    typer.Option(
        "--broker-timeout-ms",
        help="When a silent broker is taken out. Default: 30,000.",
        rich_help_panel="Times and sizes",
    ),
]
HeartbeatMs = Annotated[
    int | None,
    typer.Option(
        "--heartbeat-ms",
        help="How often a broker reports to remote masters. Default: 1,000.",
        rich_help_panel="Times and sizes",
    ),
]
Users = Annotated[
    list[str] | None,
    typer.Option(
        "--user",
        help="NAME=PASSWORD of an account; may be repeated. With any, accounts only are served: "
        "TubeMQ, RocketMQ (access key and secret key), and the HTTP administration.",
        rich_help_panel="Security",
        metavar="NAME=PASSWORD",
        envvar="COHERER_USERS",
    ),
]
Unprotected = Annotated[
    list[Part] | None,
    typer.Option(
        "--unprotected",
        help="With accounts: what is served without one nevertheless; may be repeated. namesrv is "
        "for Java's brokers, which do not sign; admin leaves queries over HTTP open.",
        rich_help_panel="Security",
    ),
]
AdminNames = Annotated[
    list[str] | None,
    typer.Option(
        "--admin-name",
        help="A further host name by which the HTTP administration may be called; may be repeated.",
        rich_help_panel="Network",
        metavar="NAME",
    ),
]
BrokerUser = Annotated[
    str | None,
    typer.Option(
        "--broker-user",
        help="Name that brokers authenticate with at the master. Default with accounts: the first "
        "--user.",
        rich_help_panel="Security",
    ),
]
BrokerPassword = Annotated[
    str | None,
    typer.Option(
        "--broker-password",
        help="The password for it.",
        rich_help_panel="Security",
        envvar="COHERER_BROKER_PASSWORD",
    ),
]
VisitTokenCheck = Annotated[
    bool | None,
    typer.Option(
        "--visit-token-check/--no-visit-token-check",
        help="Refuse clients that did not come through a master. Default: only with accounts.",
        rich_help_panel="Security",
    ),
]
AdminToken = Annotated[
    str | None,
    typer.Option(
        "--admin-token",
        help="What changes over HTTP must give. Default: abc, which Java ships; with accounts no "
        "token, an account is needed.",
        rich_help_panel="Security",
        envvar="COHERER_TOKEN",
    ),
]
TlsCertificate = Annotated[
    Path | None,
    typer.Option(
        "--tls-certificate",
        help="PEM file with the certificate chain; then there are ports for TLS too.",
        rich_help_panel="Security",
    ),
]
TlsKey = Annotated[
    Path | None,
    typer.Option(
        "--tls-key",
        help="PEM file with the private key, if it is not with the certificate.",
        rich_help_panel="Security",
    ),
]
TlsKeyPassword = Annotated[
    str | None,
    typer.Option(
        "--tls-key-password",
        help="Opens the private key.",
        rich_help_panel="Security",
        envvar="COHERER_TLS_KEY_PASSWORD",
    ),
]
TlsTrust = Annotated[
    Path | None,
    typer.Option(
        "--tls-trust",
        help="PEM file with authorities; then clients have to show a certificate of one.",
        rich_help_panel="Security",
    ),
]
MasterTlsPort = Annotated[
    int | None,
    typer.Option(
        "--master-tls-port",
        help="The master's port for TLS. Default: 8716.",
        rich_help_panel="Security",
    ),
]
BrokerTlsPort = Annotated[
    int | None,
    typer.Option(
        "--broker-tls-port",
        help="The broker's port for TLS. Default: 8124.",
        rich_help_panel="Security",
    ),
]
Log = Annotated[Level, typer.Option("--log", help="What is logged on stderr.")]


def node_options(given: Mapping[str, object]) -> NodeOptions:
    """The options of a node from those of the command line, without those that are None.

    Raises:
        UsageError: they do not fit together.
    """
    from coherer._server.node.node import NodeOptions

    values: dict[str, Any] = {name: v for name, v in given.items() if v is not None}
    more = values.pop("more", ())
    roles = Role(values.pop("roles", Role.both))
    values["roles"] = frozenset({"master", "broker"} if roles is Role.both else {roles.value})
    protocols = Door(values.pop("protocols", Door.both))
    values["protocols"] = frozenset(
        {"tubemq", "rocketmq"} if protocols is Door.both else {protocols.value}
    )
    if "role" in values:
        values["role"] = BrokerRole(values["role"]).value
    if roles is Role.broker:
        values.setdefault("admin_port", BROKER_ADMIN_PORT)
    if not values.pop("admin", True):
        values["admin_port"] = None
    if values.get("retention_hours") == 0:
        values["retention_hours"] = None
    if "flush" in values:
        values["flush"] = Flush(values["flush"]).value
    if "unprotected" in values:
        values["unprotected"] = frozenset(Part(part).value for part in values["unprotected"])
    if "admin_names" in values:
        values["admin_names"] = frozenset(values["admin_names"])
    if "users" in values:
        values["users"] = dict(map(_user, values["users"]))
    tls = {name: values.pop(f"tls_{name}", None) for name in _TLS}
    if any(value is not None for value in tls.values()):
        from coherer._net import TlsOptions

        values["tls"] = TlsOptions(**tls)
    values.setdefault("directory", DIRECTORY)
    return NodeOptions(**values | _more(more, {f.name: f.type for f in fields(NodeOptions)}))


def on_command_line(error: UsageError, flags: Mapping[str, str]) -> UsageError:
    """The same error with the options' names as they are written on the command line.

    Args:
        error: it names options as `NodeOptions` does, between backticks.
        flags: the options of the command line by their names there.

    >>> error = UsageError("`admin_port` is 0.", hint="Set `heartbeat_ms`.")
    >>> print(on_command_line(error, {"admin_port": "--admin-port"}))
    --admin-port is 0. Set `heartbeat_ms`.
    """
    error.text = _NAME.sub(lambda found: flags.get(found[1], found[0]), error.text)
    error.hint = _NAME.sub(lambda found: flags.get(found[1], found[0]), error.hint)
    return error


_NAME = re.compile(r"`(\w+)`")


def _more(texts: Iterable[str], types: Mapping[str, Any]) -> dict[str, Any]:
    """What `--set` says.

    Raises:
        UsageError: there is no such option, or it is no such value.
    """
    found: dict[str, Any] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals:
            raise UsageError(f"--set {name!r} has no value.", hint="It looks like name=value.")
        if name not in types:
            close = get_close_matches(name, types, n=1)
            raise UsageError(
                f"--set {name!r}: there is no such option of a node.",
                hint=f"Did you mean {close[0]}?" if close else f"There are {', '.join(types)}.",
            )
        try:
            found[name] = msgspec.convert(value, types[name], strict=False)
        except (msgspec.ValidationError, TypeError) as error:
            raise UsageError(f"--set {name!r}: {error}.") from error
    return found


_TLS = ("certificate", "key", "key_password", "trust")


def _user(text: str) -> tuple[str, str]:
    name, equals, password = text.partition("=")
    if not (name and equals and password):
        raise UsageError("--user is NAME=PASSWORD.")
    return name, password
