"""`coherer serve`: runs a node until a signal stops it."""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
from collections.abc import Generator
from contextlib import contextmanager
from types import FrameType
from typing import TYPE_CHECKING, Final

import msgspec
import typer

from coherer import __version__
from coherer.cli.common import STOP_SIGNALS, let_signals_kill, print_json
from coherer.cli.serve_options import Level, node_options, on_command_line, signature
from coherer.errors import UsageError

if TYPE_CHECKING:
    import asyncio

    from coherer._server.node.node import Node
    from coherer._server.node.node_options import NodeOptions

_LOG_FORMAT: Final = "%(asctime)s %(levelname)s %(name)s: %(message)s"
_RECEIPTS: Final = {
    "async": "survive the process; a power cut may lose the last {} ms (--flush sync)",
    "sync": "survive a power cut",
}

app = typer.Typer(add_completion=False)


class Ready(msgspec.Struct):
    """Where the node serves; printed for programs once it does.

    Args:
        url: for TubeMQ's clients.
        rocketmq_url: for RocketMQ's clients; None if the node does not serve RocketMQ.
        admin_url: of the HTTP administration; None without one.
        directory: of the node's files.
        master_port: of the TubeMQ master; -1 without one.
        broker_port: of the TubeMQ broker; -1 without one.
        namesrv_port: of the RocketMQ name server; -1 without one.
        rocketmq_port: of the RocketMQ broker; -1 without one.
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


def serve(*, log: Level = Level.warning, as_json: bool = False, **given: object) -> None:
    """Run a node, for TubeMQ and RocketMQ, until Ctrl-C or SIGTERM."""
    from coherer import _net as net

    try:
        options = node_options(given)
        logging.basicConfig(level=log.name.upper(), format=_LOG_FORMAT)
        net.run(run(options, as_json=as_json))
    except UsageError as error:
        raise on_command_line(error) from error


vars(serve)["__signature__"] = signature()
app.command()(serve)


async def run(options: NodeOptions, *, as_json: bool) -> None:
    """Run a node until a signal, and print where it serves once it does."""
    import asyncio

    from coherer import _net as net
    from coherer._server.node.node import Node

    net.raise_open_files_limit()
    with _stop_event() as stopped:
        async with Node(options) as node:
            waiting = [asyncio.ensure_future(work) for work in (node.ready(), stopped.wait())]
            await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            if not stopped.is_set():
                announce(node, as_json=as_json)
            await waiting[1]
            waiting[0].cancel()
        if not as_json:
            typer.echo("Stopped.", err=True)


def announce(node: Node, *, as_json: bool) -> None:
    """Print where a node serves."""
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
        print_json(Ready(node.url, rocketmq_url, admin_url, directory, *ports, os.getpid()))
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
    typer.echo("Press Ctrl-C to stop.")
    sys.stdout.flush()


def _also_tls(node: Node) -> str:
    """The ports for RocketMQ accept plain connections and TLS."""
    options = node.options
    both = options.tls is not None and not options.tls_required and node.namesrv_port >= 0
    return ", or rocketmqs:// on the same ports" if both else ""


@contextmanager
def _stop_event() -> Generator[asyncio.Event]:
    """An event that the first SIGINT or SIGTERM sets; a second one ends the process at once.

    The second one is for a stop that takes too long, for example because a disk does not answer.
    The system then ends the process, and the next start recovers.
    """
    import asyncio

    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    before = {number: signal.getsignal(number) for number in STOP_SIGNALS}

    def stop(number: int, frame: FrameType | None) -> None:
        del number, frame
        let_signals_kill()
        loop.call_soon_threadsafe(stopped.set)

    if threading.current_thread() is threading.main_thread():
        for number in STOP_SIGNALS:
            signal.signal(number, stop)
    try:
        yield stopped
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
