"""Runs a node for `coherer serve`: its signals, its configuration, its console and its output."""

from __future__ import annotations

import asyncio
import logging
import os
import sys
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, AsyncExitStack
from typing import TYPE_CHECKING, Final

import msgspec
import typer

from coherer import _net as net
from coherer._common.logs import Log
from coherer._common.version import __version__
from coherer._server.options.node import NodeOptions
from coherer.cli.console import check_installed
from coherer.cli.output import print_json
from coherer.cli.serve.log_output import LogOutput
from coherer.cli.serve.node_config import (
    ConsoleSettings,
    console_settings,
    log_options,
    node_options,
)
from coherer.cli.serve.options import values_of
from coherer.cli.signals import on_signal, stop_event
from coherer.errors import UsageError

# The supervisor of `--brokers` runs no node, and its process stays small without one.
if TYPE_CHECKING:
    from coherer._server.node.node import Node

_log = Log(logging.getLogger(__name__))

_RECEIPTS: Final = {
    "async": "survive the process; a power cut may lose the last {} ms (--flush sync)",
    "sync": "survive a power cut",
}


class BrokerAddress(msgspec.Struct):
    """A broker of `--brokers`. A port is -1 if the broker does not serve it.

    Args:
        id: its TubeMQ id.
        name: its RocketMQ name.
        admin_port: for the HTTP administration, health checks and metrics.
    """

    id: int
    name: str
    pid: int
    broker_port: int
    rocketmq_port: int
    admin_port: int
    directory: str


class Ready(msgspec.Struct):
    """The addresses of a node, printed for programs when it is ready.

    A port is -1, and a URL None, if the node does not serve it.

    Args:
        url: for TubeMQ's clients.
        pid: the id of the process; with --brokers, of the supervisor.
        brokers: with --brokers, all brokers, in the order of their ids.
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
    console_url: str | None = None
    version: str = __version__
    brokers: list[BrokerAddress] = []


def reload(
    given: Mapping[str, object], log: LogOutput, console: ConsoleSettings | None = None
) -> NodeOptions:
    """Read the configuration again, apply the options of the log, and return those of the node.

    Args:
        given: the command line.
        log: the log.
        console: the settings that the process has started with; the log names those that differ.
            None in a process that does not serve the console.

    Raises:
        UsageError: an option is malformed; nothing changes, but the log file is reopened.
    """
    try:
        values = values_of(given)
        options, logs = node_options(values), log_options(values)
    except UsageError:
        log.change(log.options)
        raise
    log.change(logs)
    if console is not None:
        now = console_settings(values)
        waiting = [
            f"console.{name}"
            for name in now.__struct_fields__
            if getattr(now, name) != getattr(console, name)
        ]
        if waiting:
            _log.plain.warning("A restart is needed for %s", ", ".join(waiting))
    return options


def log_place(log: LogOutput) -> str | None:
    """The file of the log; None for stderr."""
    return None if log.options.file is None else str(log.options.file.resolve())


class Host:
    """Connects a node to the user or program that has started it: signals, and printed output.

    A broker of `--brokers` is connected to the supervisor instead (`broker_process`).

    Args:
        as_json: print JSON for programs.
        log_file: of the node; None for stderr.

    Attributes:
        node: the node, once it is open.
        console_url: the URL of the console; None without one.
    """

    node: Node
    console_url: str | None = None

    def __init__(self, *, as_json: bool = False, log_file: str | None = None) -> None:
        self.as_json = as_json
        self.log_file = log_file

    def stopping(self) -> AbstractContextManager[asyncio.Event]:
        """Yield an event that is set when the node has to stop."""
        return stop_event()

    def reloading(self, action: Callable[[], None]) -> AbstractContextManager[None]:
        """Call `action` when the configuration has to be reloaded."""
        return on_signal("SIGHUP", action)

    def opened(self) -> None:
        """Called when the ports of the node are open."""

    def ready(self) -> None:
        """Called when the node is ready; prints its addresses."""
        announce(
            self.node,
            as_json=self.as_json,
            console_url=self.console_url,
            log_file=self.log_file,
        )

    def drained(self) -> None:
        """Called when the node is drained, before it stops."""

    def stopped(self) -> None:
        """Called when the node has stopped."""
        if not self.as_json:
            typer.echo("Stopped.", err=True)


async def run(
    options: NodeOptions,
    reload: Callable[[], NodeOptions],
    *,
    as_json: bool,
    host: Host | None = None,
    console: ConsoleSettings | None = None,
) -> None:
    """Run a node until it has to stop.

    Args:
        options: the options of the node.
        reload: returns the new options after SIGHUP.
        as_json: print JSON for programs.
        host: None for signals and standard output.
        console: None without a console.
    """
    from coherer._server.node.node import Node  # see above

    host = host or Host(as_json=as_json)
    net.raise_open_files_limit()
    manager = net.ServiceManager()
    with host.stopping() as stopped:
        async with Node(options) as node, AsyncExitStack() as stack:
            host.node = node
            alive = asyncio.create_task(manager.stay_alive())
            with (
                host.reloading(lambda: _reconfigure(node, reload, manager)),
                on_signal("SIGUSR1", lambda: drain(node)),
            ):
                host.opened()
                ready = asyncio.ensure_future(node.ready())
                ends = [
                    asyncio.ensure_future(work)
                    for work in (stopped.wait(), node.drain.finished.wait())
                ]
                await asyncio.wait([ready, *ends], return_when=asyncio.FIRST_COMPLETED)
                if not any(one.done() for one in ends):
                    if console is not None and console.enabled:
                        url = node.rocketmq_url if node.namesrv_port >= 0 else node.url
                        host.console_url = await open_console(console, options, url, stack)
                    host.ready()
                    manager.ready(node.describe())
                await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
                for one in (ready, *ends):
                    one.cancel()
                if not stopped.is_set():
                    host.drained()
            manager.stopping()
            alive.cancel()
        host.stopped()


async def open_console(
    settings: ConsoleSettings, node: NodeOptions, url: str, stack: AsyncExitStack
) -> str:
    """Serve the console of a node until the stack closes; return the console's URL.

    Args:
        settings: the settings of the console.
        node: the options of the node.
        url: the URL for the node's clients; with a RocketMQ URL the console shows more, including
            messages that were sent over TubeMQ.
        stack: closes the console.
    """
    check_installed()
    # A node without a console loads no web framework.
    from coherer.console.options import ConsoleOptions
    from coherer.console.serving import served

    options = ConsoleOptions(
        url=url,
        token=node.admin_token,
        user=settings.cluster_user,
        password=settings.cluster_password,
        host=settings.host,
        port=settings.port,
        allow_changes=settings.allow_changes,
        console_password=settings.password,
        accounts=settings.accounts,
    )
    return (await stack.enter_async_context(served(options))).url


def _reconfigure(
    node: Node, reload: Callable[[], NodeOptions], manager: net.ServiceManager
) -> None:
    """Apply the options that can change in a running node; log the others, and errors."""
    before = node.options
    with manager.reloading():
        try:
            waiting = node.change(reload())
        except UsageError as error:
            _log.plain.error("The configuration is unchanged: %s", error)
            return
    taken = [
        name
        for name in before.__struct_fields__
        if getattr(before, name) != getattr(node.options, name)
    ]
    _log.plain.warning(
        "Read the configuration again%s%s",
        f"; in effect now: {', '.join(taken)}" if taken else "",
        f"; a restart is needed for {', '.join(waiting)}" if waiting else "",
    )


def drain(node: Node) -> None:
    """Drain a node; it stops when consumers have finished."""
    try:
        node.drain.start()
    except UsageError as error:
        _log.plain.error("%s", error)


def announce(
    node: Node, *, as_json: bool, console_url: str | None = None, log_file: str | None = None
) -> None:
    """Print the addresses of a node and its console, and the file of its log."""
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
        pid = os.getpid()
        print_json(Ready(node.url, rocketmq_url, admin_url, directory, *ports, pid, console_url))
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
        "console": console_url,
        "files": directory,
        "log": log_file,
        "process": str(os.getpid()),
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
