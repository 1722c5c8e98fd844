"""`coherer serve --brokers N`: starts a process for each broker, and keeps them running.

This process, the supervisor, serves no clients. It starts broker 0, which has the master and the
name server, then the others, and prints their addresses when all have registered. It copies their
logs to its own. It restarts a broker that ends unexpectedly on the same ports, after a pause that
doubles each time, and reports this to broker 0 for its health check and metrics. It does not
restart a drained broker. Broker 0 is drained last; then the supervisor stops. SIGUSR1 drains all of
them in this order.

A broker whose event loop hangs does not end by itself. So the supervisor asks each broker whether
it is alive, at regular intervals, and kills one that has not answered `ASKS_MAX` times in a row. It
counts questions, not seconds: after a pause of the supervisor or of the machine, the brokers can
still answer.

The first SIGINT or SIGTERM stops the other brokers, then broker 0. A second one kills all of them.
If the supervisor itself is killed, the brokers read the end of their input, and stop cleanly.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import secrets
import signal
import subprocess
import sys
from collections.abc import Awaitable, Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from enum import Enum
from types import FrameType
from typing import Any, Final, cast

import msgspec
import typer

from coherer import _net as net
from coherer._common.logs import Log
from coherer._common.upkeep import Upkeep
from coherer._common.version import __version__
from coherer._server.options.node import NodeOptions
from coherer._server.options.siblings import SiblingState, directory_of, names, servers_of
from coherer.cli.output import print_json
from coherer.cli.serve.broker_messages import (
    Alive,
    Announce,
    Ask,
    Begin,
    Drain,
    Drained,
    Failed,
    FromBroker,
    Registered,
    Reload,
    Serving,
    Siblings,
    ToBroker,
    line_of,
)
from coherer.cli.serve.log_output import LogOutput
from coherer.cli.serve.node_config import ConsoleSettings
from coherer.cli.serve.running import (
    BrokerAddress,
    Ready,
    log_place,
    open_console,
    reload,
)
from coherer.cli.signals import on_signal, on_stop_signals
from coherer.errors import CohererError, UsageError

_log = Log(logging.getLogger(__name__))

PAUSE_S: Final = 0.2
"""The shortest pause before a restart."""
PAUSE_MAX_S: Final = 10.0
STEADY_S: Final = 60.0
"""After a broker has run for this long, the pause is the shortest one again."""

ASKS_MAX: Final = 10
"""The number of questions in `hang_timeout_ms`; a broker that answers none of them is killed."""

_LINE_BYTES_MAX: Final = 1 << 20
_PRIVATE_ACCOUNT: Final = "%COHERER_BROKERS%"


class Process:
    """A broker process, and its restarts.

    Args:
        number: its number; 0 for the first.
        state: the state of the process at the start.

    Attributes:
        state: the current state.
        serving: its addresses; None before its first start.
        failed: the failure that the current process has reported; None without one.
        drained: whether it stopped because it was drained.
        unanswered: how many times in a row the current process was asked and did not answer.
    """

    def __init__(self, number: int, state: SiblingState) -> None:
        self.number = number
        self.state = state
        self.serving: Serving | None = None
        self.failed: Failed | None = None
        self.drained = False
        self.unanswered = 0
        self._process: asyncio.subprocess.Process | None = None
        self._stopped = False

    @property
    def pid(self) -> int:
        """The id of the process; -1 without one."""
        return -1 if self._process is None else self._process.pid

    def change(self, **changes: Any) -> None:
        """Change the state."""
        self.state = msgspec.structs.replace(self.state, **changes)

    def send(self, message: ToBroker) -> None:
        """Send a message, if the process runs."""
        process = self._process
        if process is not None and process.stdin is not None and not process.stdin.is_closing():
            process.stdin.write(line_of(message))

    def stop(self) -> None:
        """Have the process stop cleanly, also one that is being created."""
        self._stopped = True
        if self._process is not None and self._process.stdin is not None:
            self._process.stdin.close()

    def kill(self) -> None:
        """Kill the process."""
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()

    async def run(
        self,
        begin: Begin,
        log: Callable[[str], None],
        received: Callable[[FromBroker], None],
    ) -> int:
        """Start the process, wait until it has ended, and return its exit code.

        Args:
            begin: the first message for it.
            log: called with each line of its log.
            received: called with each of its messages.

        Raises:
            OSError: the process cannot be started now.
        """
        self.failed, self.unanswered = None, 0
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "coherer.cli.serve.broker_process"),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            limit=_LINE_BYTES_MAX,
            env={name: value for name, value in os.environ.items() if name != "NOTIFY_SOCKET"},
            **_OWN_SESSION,
        )
        self._process = process
        try:
            if self._stopped:
                self.stop()  # it reads the end of its input, and ends
            self.send(begin)
            await asyncio.gather(
                _lines(process.stdout, lambda line: _take(line, received, log)),
                _lines(process.stderr, lambda line: log(line.decode(errors="replace"))),
            )
            return await process.wait()
        finally:
            self.kill()
            self._process = None


_OWN_SESSION: Final[dict[str, Any]] = (
    {"creationflags": getattr(subprocess, "CREATE_NEW_PROCESS_GROUP", 0)}
    if sys.platform == "win32"
    else {"start_new_session": True}
)
"""Options that keep Ctrl-C in the terminal from the brokers."""


async def _lines(stream: asyncio.StreamReader | None, take: Callable[[bytes], None]) -> None:
    while stream is not None:
        try:
            line = await stream.readline()
        except ValueError:  # longer than the limit; asyncio has dropped what it had read
            continue
        if not line:
            return
        take(line.rstrip(b"\r\n"))


def _take(line: bytes, received: Callable[[FromBroker], None], log: Callable[[str], None]) -> None:
    """Pass a message on. Other lines, which a library may print, belong to the log."""
    try:
        message: FromBroker = msgspec.json.decode(line, type=FromBroker)
    except (msgspec.DecodeError, UnicodeDecodeError):
        log(line.decode(errors="replace"))
    else:
        received(message)


class Supervisor:
    """Starts the brokers, and restarts them until it has to stop.

    Args:
        options: the options that the user gave.
        given: the command line.
        log: the log of all processes.
    """

    def __init__(self, options: NodeOptions, given: Mapping[str, object], log: LogOutput) -> None:
        self._options = options
        self._given = {name: _plain(value) for name, value in given.items()}
        self._log = log
        self._processes = [
            Process(number, SiblingState(broker_id, name))
            for number, (broker_id, name) in enumerate(names(options).items())
        ]
        self._changed = asyncio.Event()
        self._stopping = asyncio.Event()
        self._upkeep = Upkeep()
        self._draining = False
        self._tasks: list[asyncio.Task[None]] = []
        self._account = _own_account(options)

    async def run(
        self, stopped: asyncio.Event, ready: Callable[[list[Process]], Awaitable[None]]
    ) -> None:
        """Run the brokers until `stopped` is set.

        Args:
            stopped: set to stop the brokers.
            ready: called with the processes when all have registered.

        Raises:
            UsageError: a broker cannot start with these options.
            CohererError: a broker cannot start, or could not stop cleanly.
        """
        waiting = asyncio.ensure_future(stopped.wait())
        watching = asyncio.create_task(self._watch())
        try:
            first, *others = self._processes
            self._start(first)
            await self._until(lambda: first.serving is not None, waiting)
            for one in others if not stopped.is_set() else ():
                self._start(one)
            await self._until(lambda: all(one.state.ready for one in self._processes), waiting)
            if not stopped.is_set():
                await ready(self._processes)
            await self._until(lambda: first.drained and not first.state.running, waiting)
        finally:
            waiting.cancel()
            watching.cancel()
            await self._stop()
        failed = [one.failed for one in self._processes if one.failed is not None]
        if failed:
            raise _error(failed[0])

    def reload(self) -> None:
        """Have all brokers read the configuration again."""
        for one in self._processes:
            one.send(Reload())

    def drain(self) -> None:
        """Drain the other brokers, then broker 0, which they need."""
        self._draining = True
        for one in self._processes:
            self._drain(one)

    def _drain(self, one: Process) -> None:
        others = self._processes[1:]
        first = not one.number
        if self._draining and one.state.ready and (not first or all(map(_is_away, others))):
            one.send(Drain())

    def kill(self) -> None:
        """Kill all brokers."""
        for one in self._processes:
            one.kill()

    def _start(self, one: Process) -> None:
        self._tasks.append(asyncio.create_task(self._keep_running(one)))

    async def _until(self, holds: Callable[[], bool], stopped: asyncio.Future[Any]) -> None:
        """Wait for a condition, or until `stopped`; raise an error of a first start."""
        while not holds() and not stopped.done():
            for one in self._processes:
                if one.failed is not None and one.serving is None:
                    raise _error(one.failed)
            for task in self._tasks:
                if task.done():
                    await task  # only an error of the supervisor itself ends it
            self._changed.clear()
            changed = asyncio.ensure_future(self._changed.wait())
            running = [task for task in self._tasks if not task.done()]
            await asyncio.wait([changed, stopped, *running], return_when=asyncio.FIRST_COMPLETED)
            changed.cancel()

    async def _stop(self) -> None:
        """Stop the other brokers, then broker 0, from which they unregister."""
        errors: list[BaseException] = []
        self._stopping.set()
        for tasks, processes in (
            (self._tasks[1:], self._processes[1:]),
            (self._tasks[:1], self._processes[:1]),
        ):
            for one in processes:
                one.stop()
            ended = await asyncio.gather(*tasks, return_exceptions=True)
            errors += [error for error in ended if error is not None]
        if errors:
            raise errors[0]

    async def _keep_running(self, one: Process) -> None:
        """Run a broker, and restart it whenever it ends unexpectedly."""
        loop, pause_s = asyncio.get_running_loop(), PAUSE_S
        while True:
            began_s = loop.time()
            one.change(running=True, ready=False)
            broker = one.state.broker_id

            def log(line: str, broker: int = broker) -> None:
                self._log.copy(line, broker)

            try:
                begin = self._begin(one)
                code = await one.run(begin, log, lambda message: self._handle(one, message))
            except OSError as error:  # there is no memory, or there are too many processes
                text = f"Its process could not be started: {error.strerror}."
                code, one.failed = 1, Failed(text, "Free memory, or end other processes.")
            one.change(running=False, ready=False, note=_end(code, one.failed))
            self._report_states()
            if self._stopping.is_set() and code and one.failed is None:
                one.failed = Failed(f"Broker {broker} did not stop cleanly. {one.state.note}")
            if self._stopping.is_set() or (one.failed is not None and one.serving is None):
                return
            if one.drained:
                _log.plain.warning("Broker %d is drained", broker, extra={"broker": broker})
                self._drain(self._processes[0])
                return
            if loop.time() - began_s > STEADY_S:
                pause_s = PAUSE_S
            _log.plain.error(
                "Broker %d ended: %s It restarts in %.1f s",
                *(broker, one.state.note, pause_s),
                extra={"broker": broker},
            )
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause_s):
                    await self._stopping.wait()
            if self._stopping.is_set():
                return
            pause_s = min(2 * pause_s, PAUSE_MAX_S)
            one.change(restarts=one.state.restarts + 1)

    async def _watch(self) -> None:
        """Kill brokers that do not answer; `_keep_running` restarts them."""
        timeout_s = self._options.hang_timeout_ms / 1000
        while timeout_s:
            await asyncio.sleep(timeout_s / ASKS_MAX)
            with self._upkeep.guard("watching brokers"):
                self._ask(timeout_s)

    def _ask(self, timeout_s: float) -> None:
        for one in self._processes:
            if not one.state.ready:
                continue
            if one.unanswered == ASKS_MAX:
                _log.plain.error(
                    "Broker %d has not responded for %g s, so it is killed",
                    *(one.state.broker_id, timeout_s),
                    extra={"broker": one.state.broker_id},
                )
                one.kill()
            one.unanswered += 1
            one.send(Ask())

    def _begin(self, one: Process) -> Begin:
        fixed: dict[str, Any] = dict(self._account)
        if one.serving is not None:
            fixed |= one.serving.ports
        first = self._processes[0].serving
        servers: dict[str, str] = {}
        if first is not None and one.number:
            ports = (first.ports.get(name, -1) for name in ("master_port", "namesrv_port"))
            servers = servers_of(self._options, *ports)
        return Begin(one.number, self._given, servers, fixed)

    def _handle(self, one: Process, message: FromBroker) -> None:
        match message:
            case Serving():
                if one.serving is not None and not one.number:
                    for other in self._processes[1:]:
                        other.send(Announce())
                one.serving = message
            case Registered():
                one.change(ready=True)
                self._drain(one)
                if one.state.restarts:
                    _log.plain.warning(
                        "Broker %d is ready again",
                        one.state.broker_id,
                        extra={"broker": one.state.broker_id},
                    )
            case Alive():
                one.unanswered = 0
                return
            case Drained():
                one.drained = True
                one.change(drained=True)
            case Failed():
                one.failed = message
        self._report_states()

    def _report_states(self) -> None:
        self._changed.set()
        self._processes[0].send(Siblings([one.state for one in self._processes]))


def _is_away(one: Process) -> bool:
    """Whether a process is drained and has ended."""
    return one.drained and not one.state.running


def _own_account(options: NodeOptions) -> dict[str, str]:
    """Generate an account for the brokers if the user requires accounts but has given them none."""
    if not options.has_accounts or options.account is not None:
        return {}
    return {"broker_user": _PRIVATE_ACCOUNT, "broker_password": secrets.token_hex(16)}


def _plain(value: object) -> object:
    """Convert a value of the command line for JSON."""
    if isinstance(value, list | tuple):
        return [_plain(one) for one in cast("Sequence[object]", value)]
    return value.value if isinstance(value, Enum) else value


def _error(failed: Failed) -> CohererError:
    return (UsageError if failed.usage else CohererError)(failed.text, hint=failed.hint)


def _end(code: int, failed: Failed | None) -> str:
    """Describe how a process ended, in a sentence.

    >>> _end(-9, None), _end(0, None), _end(3, None)
    ('It was ended by SIGKILL.', 'It was stopped.', 'Its exit code was 3.')
    """
    if failed is not None:
        return f"{failed.text} {failed.hint}".strip()
    if code < 0:
        return f"It was ended by {signal.Signals(-code).name}."
    return f"Its exit code was {code}." if code else "It was stopped."


@contextmanager
def _stop_signals(kill: Callable[[], None]) -> Generator[asyncio.Event]:
    """Yield an event that the first SIGINT or SIGTERM sets; a second one kills all processes."""
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()

    def stop(number: int, frame: FrameType | None) -> None:
        del frame
        if not stopped.is_set():
            stopped.set()
            loop.call_soon_threadsafe(lambda: None)  # wakes the loop
            return
        kill()
        signal.signal(number, signal.SIG_DFL)
        signal.raise_signal(number)

    with on_stop_signals(stop):
        yield stopped


async def supervise(
    options: NodeOptions,
    given: Mapping[str, object],
    log: LogOutput,
    *,
    as_json: bool,
    console: ConsoleSettings | None = None,
) -> None:
    """Run the brokers of `--brokers` until a signal.

    Raises:
        CohererError: a broker cannot start, or could not stop cleanly.
    """
    net.raise_open_files_limit()
    supervisor = Supervisor(options, given, log)
    manager = net.ServiceManager()

    async def ready(found: list[Process]) -> None:
        console_url, first = None, found[0].serving
        if console is not None and console.enabled and first is not None:
            url = first.rocketmq_url or first.url
            console_url = await open_console(console, options, url, stack)
        place = log_place(log)
        announce(options, found, as_json=as_json, console_url=console_url, log_file=place)
        manager.ready(f"{len(found)} brokers")

    def reload_all() -> None:
        with manager.reloading():
            _reload(supervisor, given, log, console)

    async with contextlib.AsyncExitStack() as stack:
        stopped = stack.enter_context(_stop_signals(supervisor.kill))
        stack.enter_context(on_signal("SIGHUP", reload_all))
        stack.enter_context(on_signal("SIGUSR1", supervisor.drain))
        alive = asyncio.create_task(manager.stay_alive())
        try:
            await supervisor.run(stopped, ready)
        finally:
            manager.stopping()
            alive.cancel()
    if not as_json:
        typer.echo("Stopped.", err=True)


def _reload(
    supervisor: Supervisor,
    given: Mapping[str, object],
    log: LogOutput,
    console: ConsoleSettings | None,
) -> None:
    try:
        reload(given, log, console)
    except UsageError as error:
        _log.plain.error("The configuration is unchanged: %s", error)
        return
    supervisor.reload()


def announce(
    options: NodeOptions,
    processes: list[Process],
    *,
    as_json: bool,
    console_url: str | None = None,
    log_file: str | None = None,
) -> None:
    """Print the addresses of the brokers and the console, and the file of their log."""
    brokers = [_address(options, one) for one in processes]
    first = processes[0].serving
    if first is None:
        return
    has_tubemq = any(one.broker_port >= 0 for one in brokers)
    admin_url = None
    if brokers[0].admin_port >= 0:
        port = options.advertised_admin_port or brokers[0].admin_port
        admin_url = f"http://{options.reachable_host}:{port}"
    directory = str(options.directory.resolve())
    if as_json:
        print_json(
            Ready(
                url=first.url,
                rocketmq_url=first.rocketmq_url,
                admin_url=admin_url,
                directory=directory,
                master_port=first.ports.get("master_port", -1),
                broker_port=brokers[0].broker_port,
                namesrv_port=first.ports.get("namesrv_port", -1),
                rocketmq_port=brokers[0].rocketmq_port,
                pid=os.getpid(),
                console_url=console_url,
                brokers=brokers,
            )
        )
        return
    lines = {
        "clients": first.url if has_tubemq else None,
        "rocketmq": first.rocketmq_url,
        "admin": admin_url or "none",
        "console": console_url,
        "files": directory,
        "log": log_file,
        "process": str(os.getpid()),
    }
    typer.echo(f"coherer {__version__}, {len(brokers)} brokers")
    for name, value in lines.items():
        if value is not None:
            typer.echo(f"  {name:11}{value}")
    for one in brokers:
        ports = {"port": one.broker_port, "RocketMQ": one.rocketmq_port, "admin": one.admin_port}
        text = ", ".join(f"{name} {port}" for name, port in ports.items() if port >= 0)
        typer.echo(f"  broker {one.id:<4}{one.name}, {text}, process {one.pid}")
    typer.echo("Press Ctrl-C to stop.")
    sys.stdout.flush()


def _address(options: NodeOptions, one: Process) -> BrokerAddress:
    ports = {} if one.serving is None else one.serving.ports
    return BrokerAddress(
        one.state.broker_id,
        one.state.name,
        one.pid,
        ports.get("broker_port", -1),
        ports.get("rocketmq_port", -1),
        ports.get("admin_port", -1),
        str(directory_of(options, one.number).resolve()),
    )
