"""The options of `coherer serve` about RocketMQ's door; the others stand in `serve_options`."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Final

import typer

PANEL: Final = "RocketMQ"


class Door(StrEnum):
    """Which protocols a node speaks."""

    both = "both"
    tubemq = "tubemq"
    rocketmq = "rocketmq"


class BrokerRole(StrEnum):
    """What a RocketMQ broker is to the others of its name; Java's words."""

    async_master = "ASYNC_MASTER"
    sync_master = "SYNC_MASTER"
    slave = "SLAVE"


Doors = Annotated[
    Door | None,
    typer.Option(
        "--door",
        help="Which protocols are spoken. Default: both.",
        rich_help_panel="Node",
    ),
]
RocketmqPort = Annotated[
    int | None,
    typer.Option(
        "--rocketmq-port",
        help="The broker's port; 0 for any free one. Default: 10911.",
        rich_help_panel=PANEL,
    ),
]
NamesrvPort = Annotated[
    int | None,
    typer.Option(
        "--namesrv-port",
        help="The name server's port; 0 for any free one. Default: 9876.",
        rich_help_panel=PANEL,
    ),
]
Namesrv = Annotated[
    str | None,
    typer.Option(
        "--namesrv",
        help="Name servers elsewhere: host:port, or several, separated by semicolons. Then there "
        "is none here.",
        rich_help_panel=PANEL,
    ),
]
Cluster = Annotated[
    str | None,
    typer.Option(
        "--cluster",
        help="The cluster's name. Default: DefaultCluster.",
        rich_help_panel=PANEL,
    ),
]
BrokerName = Annotated[
    str | None,
    typer.Option(
        "--broker-name",
        help="The broker's name, the same for a master and its slaves. Default: broker-a.",
        rich_help_panel=PANEL,
    ),
]
Replication = Annotated[
    BrokerRole | None,
    typer.Option(
        "--broker-role",
        help="A master, one whose sends wait for a slave, or a slave. Default: ASYNC_MASTER.",
        rich_help_panel=PANEL,
    ),
]
RocketmqBrokerId = Annotated[
    int | None,
    typer.Option(
        "--rocketmq-broker-id",
        help="0 for a master, above that for a slave. Default: 0.",
        rich_help_panel=PANEL,
    ),
]
HaPort = Annotated[
    int | None,
    typer.Option(
        "--ha-port",
        help="Where slaves fetch the log, all of it. Default: nowhere.",
        rich_help_panel=PANEL,
    ),
]
More = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="NAME=VALUE",
        help="Any other option of NodeOptions, such as trace_topic=true or "
        "transaction_timeout_ms=1000; may be repeated.",
        rich_help_panel=PANEL,
    ),
]
RocketmqAccess = Annotated[
    bool | None,
    typer.Option(
        "--rocketmq-access/--no-rocketmq-access",
        help="Serve accounts only, without --user too: others stand in conf/plain_acl.yml of the "
        "directory, with what each may do. Default: with --user, otherwise everybody is served.",
        rich_help_panel=PANEL,
    ),
]
TlsRequired = Annotated[
    bool | None,
    typer.Option(
        "--tls-required/--no-tls-required",
        help="With a certificate: whether plain connections are refused. Default: they are not.",
        rich_help_panel=PANEL,
    ),
]
