"""`coherer serve`: a node until it is told to stop."""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
from collections.abc import Generator
from contextlib import contextmanager
from types import FrameType
from typing import TYPE_CHECKING, get_type_hints

import msgspec
import typer

from coherer import __version__
from coherer.cli import serve_options as o
from coherer.cli import serve_rocketmq as r
from coherer.cli.options import Json
from coherer.cli.output import say_json
from coherer.errors import UsageError

if TYPE_CHECKING:
    import asyncio

    from coherer._server.node.node import Node, NodeOptions

_LOG_FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"
_RECEIPTS = {
    "async": "survive the process; a power cut may take the last {} ms (--flush sync)",
    "sync": "survive a power cut",
}
_NOT_OF_A_NODE = frozenset({"log", "as_json"})
_TLS = {"tls_certificate", "tls_key", "tls_key_password", "tls_trust"}
"""Fields of `TlsOptions` with `tls_` before them."""
_SIGNALS = (signal.SIGINT, signal.SIGTERM)

app = typer.Typer(add_completion=False)


class Ready(msgspec.Struct):
    """What a program is told when the node serves.

    Args:
        url: where TubeMQ's clients connect.
        rocketmq_url: where RocketMQ's clients connect; None if there is no such door.
        admin_url: where the HTTP administration is; None if there is none.
        directory: where the files are.
        master_port: -1 if the node is no TubeMQ master.
        broker_port: -1 if it is no TubeMQ broker.
        namesrv_port: -1 if it is no RocketMQ name server.
        rocketmq_port: -1 if it is no RocketMQ broker.
        pid: of the process.
        version: of Coherer.
    """

    url: str
    rocketmq_url: str | None
    admin_url: str | None
    directory: str
    master_port: int
    broker_port: int
    namesrv_port: int
    rocketmq_port: int
    pid: int
    version: str = __version__


@app.command()
def serve(
    directory: o.Directory = None,
    roles: o.Roles = None,
    protocols: r.Doors = None,
    master: o.Master = None,
    broker_id: o.BrokerId = None,
    host: o.Host = None,
    advertised_host: o.AdvertisedHost = None,
    advertised_broker_port: o.AdvertisedBrokerPort = None,
    master_port: o.MasterPort = None,
    broker_port: o.BrokerPort = None,
    admin_port: o.AdminPort = None,
    admin: o.Admin = None,
    admin_names: o.AdminNames = None,
    flush: o.FlushMode = None,
    flush_interval_ms: o.FlushIntervalMs = None,
    retention_hours: o.RetentionHours = None,
    retention_bytes: o.RetentionBytes = None,
    segment_bytes: o.SegmentBytes = None,
    auto_create_topics: o.AutoCreateTopics = None,
    default_partitions: o.DefaultPartitions = None,
    max_message_bytes: o.MaxMessageBytes = None,
    transfer_bytes: o.TransferBytes = None,
    hold_ms: o.HoldMs = None,
    balance_period_ms: o.BalancePeriodMs = None,
    lease_timeout_ms: o.LeaseTimeoutMs = None,
    client_timeout_ms: o.ClientTimeoutMs = None,
    broker_timeout_ms: o.BrokerTimeoutMs = None,
    heartbeat_ms: o.HeartbeatMs = None,
    users: o.Users = None,
    unprotected: o.Unprotected = None,
    broker_user: o.BrokerUser = None,
    broker_password: o.BrokerPassword = None,
    visit_token_check: o.VisitTokenCheck = None,
    admin_token: o.AdminToken = None,
    tls_certificate: o.TlsCertificate = None,
    tls_key: o.TlsKey = None,
    tls_key_password: o.TlsKeyPassword = None,
    tls_trust: o.TlsTrust = None,
    master_tls_port: o.MasterTlsPort = None,
    broker_tls_port: o.BrokerTlsPort = None,
    rocketmq_port: r.RocketmqPort = None,
    namesrv_port: r.NamesrvPort = None,
    namesrv: r.Namesrv = None,
    cluster: r.Cluster = None,
    broker_name: r.BrokerName = None,
    role: r.Replication = None,
    rocketmq_broker_id: r.RocketmqBrokerId = None,
    ha_port: r.HaPort = None,
    rocketmq_access: r.RocketmqAccess = None,
    tls_required: r.TlsRequired = None,
    more: r.More = None,
    log: o.Log = o.Level.warning,
    as_json: Json = False,
) -> None:
    """Run a node, for TubeMQ and RocketMQ, until Ctrl-C or SIGTERM."""
    given = {n: value for n, value in locals().items() if n not in _NOT_OF_A_NODE}
    _serve(given, log, as_json=as_json)


def _serve(given: dict[str, object], log: o.Level, *, as_json: bool) -> None:
    from coherer import _net as net

    try:
        options = o.node_options(given)
        logging.basicConfig(level=log.name.upper(), format=_LOG_FORMAT)
        net.run(run(options, as_json=as_json))
    except UsageError as error:
        raise o.on_command_line(error, _flags()) from error


def _flags() -> dict[str, str]:
    """How each option of a node is written on the command line."""
    flags: dict[str, str] = {}
    for name, hint in get_type_hints(serve, include_extras=True).items():
        for about in getattr(hint, "__metadata__", ()):
            # In `Annotated`, typer keeps the first name of an option where its default would be.
            flag = about.default
            flags[name.removeprefix("tls_") if name in _TLS else name] = str(flag).split("/")[0]
    return flags


async def run(options: NodeOptions, *, as_json: bool) -> None:
    """Run a node until a signal; say where it is when it serves."""
    import asyncio

    from coherer import _net as net
    from coherer._server.node.node import Node

    net.allow_files()
    with _stop_event() as stopped:
        async with Node(options) as node:
            waiting = [asyncio.ensure_future(work) for work in (node.ready(), stopped.wait())]
            await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            if not stopped.is_set():
                _announce(node, as_json=as_json)
            await waiting[1]
            waiting[0].cancel()
        if not as_json:
            typer.echo("Stopped.", err=True)


def _announce(node: Node, *, as_json: bool) -> None:
    options = node.options
    directory = str(options.directory.resolve())
    admin_url = None
    if node.admin_port >= 0:
        port = options.advertised_admin_port or node.admin_port
        admin_url = f"http://{options.reachable_host}:{port}"
    has_rocketmq = node.namesrv_port >= 0 or node.rocketmq_port >= 0
    rocketmq_url = node.rocketmq_url if has_rocketmq else None
    if as_json:
        ports = (node.master_port, node.broker_port, node.namesrv_port, node.rocketmq_port)
        say_json(Ready(node.url, rocketmq_url, admin_url, directory, *ports, os.getpid()))
        return
    host = options.reachable_host
    lines = {
        "clients": node.url if options.has_tubemq else None,
        "with TLS": f"tubemqs://{host}:{node.master_tls_port}"
        if node.master_tls_port >= 0
        else None,
        "broker": f"{host}:{node.broker_port}, number {options.broker_id}"
        if node.broker is not None
        else None,
        "rocketmq": f"{rocketmq_url}{_also_tls(node)}" if rocketmq_url else None,
        "its broker": f"{host}:{node.rocketmq_port}, {options.broker_name}"
        if node.rocketmq_port >= 0
        else None,
        "admin": admin_url or "none",
        "files": directory,
        "receipts": _RECEIPTS[options.flush].format(options.flush_interval_ms)
        if node.core is not None
        else None,
    }
    typer.echo(f"coherer {__version__}")
    for name, value in lines.items():
        if value is not None:
            typer.echo(f"  {name:11}{value}")
    typer.echo("Ctrl-C stops it.")
    sys.stdout.flush()


def _also_tls(node: Node) -> str:
    """The ports of RocketMQ's door serve both kinds of connections."""
    options = node.options
    both = options.tls is not None and not options.tls_required and node.namesrv_port >= 0
    return ", or rocketmqs:// there" if both else ""


@contextmanager
def _stop_event() -> Generator[asyncio.Event]:
    """An event that the first SIGINT or SIGTERM sets; the second ends the process at once.

    For a stop that takes too long, as with a disk that does not answer: the system itself ends the
    process then, whatever it is doing, and the next start recovers.
    """
    import asyncio

    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    before = {number: signal.getsignal(number) for number in _SIGNALS}

    def restore() -> None:
        for number, handler in before.items():
            signal.signal(number, handler)

    def stop(number: int, frame: FrameType | None) -> None:
        del number, frame
        for second in _SIGNALS:
            signal.signal(second, signal.SIG_DFL)
        loop.call_soon_threadsafe(stopped.set)

    if threading.current_thread() is threading.main_thread():
        for number in _SIGNALS:
            signal.signal(number, stop)
    try:
        yield stopped
    finally:
        restore()
