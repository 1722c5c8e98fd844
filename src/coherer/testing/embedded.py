"""A node in the process of a test: both protocols and the administration on free ports.

The node runs in its own event loop in its own thread, so a test may block, run another event loop,
or stop the node while its own code runs.
"""

from __future__ import annotations

import asyncio
import atexit
import tempfile
import weakref
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator, Iterable, Mapping
from contextlib import ExitStack, asynccontextmanager, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeVar, cast

import msgspec

from coherer import _net as net
from coherer._client.engine.options import options_of
from coherer._common import clock as machine_clock
from coherer._common.opened import opened
from coherer._server.node.node import Node, NodeOptions
from coherer._server.options.node import PORTS
from coherer.blocking._portal import Portal
from coherer.errors import CohererError, UsageError
from coherer.testing.clock import ManualClock, WallClock, call_in
from coherer.testing.faults import NodeFaults, taps_of
from coherer.testing.requests import Requests
from coherer.testing.simulation.loop import SimulatedLoop

T = TypeVar("T")

_FREE_PORTS: Final = dict.fromkeys((name for name in PORTS if name != "ha_port"), 0)
"""Any free ports for a node, without the one for slaves, which is closed by default."""

_COLLECTIONS: Final = ("roles", "protocols")
"""Options whose names may come in a list, too."""


class EmbeddedNode:
    """A running node in a thread. Made by `embedded_node` and by the fixture `coherer_node`.

    Attributes:
        directory: the directory of its files.
        options: its options; after the start they hold the ports that it listens on.
        faults: faults on demand.
    """

    def __init__(self, options: NodeOptions, clock: ManualClock | None = None) -> None:
        self.faults = NodeFaults()
        self.directory = options.directory
        self._clock = clock
        self._end_watch: Callable[[], None] | None = None
        self._wanted = False  # whether it runs outside of all `down` blocks
        self._downs = 0
        self.options = options
        self._portal: Portal | None = None
        self._node: Node | None = None

    def __repr__(self) -> str:
        state = self.url if self._node is not None else "stopped"
        return f"<EmbeddedNode {state} in {self.directory}>"

    @property
    def node(self) -> Node:
        """The node itself. It runs in another thread: call it through `run` or `call`.

        Raises:
            UsageError: the node is stopped.
        """
        if self._node is None:
            raise _stopped()
        return self._node

    @property
    def is_running(self) -> bool:
        """Whether the node runs."""
        return self._node is not None

    @property
    def clock(self) -> ManualClock:
        """The clock of the node's messages: `node.clock.advance(hours=1)` makes them older.

        Delayed and timed messages, retries, checks of transactions and retention follow it.
        Connections, leases and timeouts keep the machine's time. A message that becomes due is
        delivered at once; a new delay that its handler asks for begins at the new time.

        Clients keep the machine's clock: `deliver_at` names a time of that clock. If the node's
        clock was moved by days, a new transaction is days old for the broker. So start a node for
        each test that moves time.

        Raises:
            UsageError: the node was started without a clock.
        """
        if self._clock is None:
            raise UsageError(
                "The embedded node follows the machine's clock.",
                hint="Start it with embedded_node(clock=ManualClock()).",
            )
        return self._clock

    @property
    def url(self) -> str:
        """The URL for TubeMQ clients: `tubemq://127.0.0.1:<port>`."""
        return self.node.url

    @property
    def rocketmq_url(self) -> str:
        """The URL for RocketMQ clients: `rocketmq://127.0.0.1:<port>`."""
        return self.node.rocketmq_url

    @property
    def admin_url(self) -> str:
        """The URL of the HTTP administration.

        Raises:
            UsageError: the node was started without it.
        """
        if self.node.admin_port < 0:
            raise UsageError("The embedded node has no administration.")
        return f"http://{self.options.host}:{self.node.admin_port}"

    def start(self) -> None:
        """Start the node; after `stop`, start it again on the same files and ports."""
        self._wanted = True
        if self._node is None:
            self._start()

    def _start(self) -> None:
        opened(self, lambda one: one._node is not None)
        self._portal = Portal()
        try:
            self._node = self._portal.call(lambda: _started(self.options, self._clock, self.faults))
        except BaseException:
            self._portal.close()
            self._portal = None
            raise
        taps_of(self.faults).attach(
            self._node, self._portal.do, partial(_call_anywhere, self._portal)
        )
        if self._clock is not None:
            self._end_watch = self._clock.watch(
                partial(self._clock_moved, self._portal, self._node)
            )
        self.options = with_ports(self.options, self._node)
        _running.add(self)

    def stop(self) -> None:
        """Stop the node cleanly and keep its files. Does nothing if it is stopped.

        Raises:
            StoreError: the disk failed, and no fault of the test made it fail.
        """
        self._wanted = False
        self._stop()

    def _stop(self) -> None:
        if (ending := self._end()) is None:
            return
        node, portal = ending
        try:
            with taps_of(self.faults).own_failures():
                portal.call(node.stop)
        finally:
            portal.close()

    def kill(self) -> None:
        """End the node at once, as by SIGKILL: what it has written stays.

        Connections are reset, requests are not answered, and offsets that were committed in the
        last seconds may be lost. Masters and name servers hear nothing from it. Does nothing if the
        node is stopped.
        """
        self._wanted = False
        self._kill()

    def _kill(self) -> None:
        if (ending := self._end()) is None:
            return
        node, portal = ending
        with taps_of(self.faults).killed(portal.do):
            try:
                portal.call(partial(node.stop, unregister=False))
            finally:
                portal.close()

    def _end(self) -> tuple[Node, Portal] | None:
        if self._node is None or self._portal is None:
            return None
        if self._end_watch is not None:
            self._end_watch()
            self._end_watch = None
        _running.discard(self)
        node, portal = self._node, self._portal
        self._node = self._portal = None
        return node, portal

    def restart(self) -> None:
        """Stop and start the node: connections break, stored messages are kept."""
        with self.down():
            pass
        self.start()

    @contextmanager
    def down(self, *, kill: bool = False) -> Generator[None]:
        """Let the node be stopped inside the block; afterwards it is where it was.

        Blocks may overlap: the node runs again when the last one has ended. A node that the test
        stops in the meantime stays stopped. On Linux, the system gives its ports to nobody else
        meanwhile.

        Args:
            kill: end it at once instead of cleanly.
        """
        ports = [] if self._node is None else [*self._node.ports().values()]
        self._downs += 1
        with ExitStack() as kept:
            try:
                if kill:
                    self._kill()
                else:
                    self._stop()
                kept.enter_context(net.kept_ports(self.options.host, ports))
                yield
            except BaseException as error:
                with noted_at(error):
                    self._up()
                raise
            self._up()

    def _up(self) -> None:
        self._downs -= 1
        if self._wanted and not self._downs and self._node is None:
            self._start()

    @property
    def requests(self) -> Requests:
        """The requests that the node has received."""
        return taps_of(self.faults).requests

    def create_topic(self, name: str, partitions: int = 1) -> None:
        """Create a topic."""
        node = self.node
        self.call(lambda: node.create_topic(name, partitions))

    def run(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Run a coroutine function in the node's event loop and return its result."""
        return self._running.call(work)

    def call(self, function: Callable[[], T]) -> T:
        """Call a function in the node's thread and return its result."""
        return self._running.do(function)

    @staticmethod
    def _clock_moved(portal: Portal, node: Node) -> None:
        portal.post_if_usable(node.rocketmq.tick)

    @property
    def _running(self) -> Portal:
        if self._portal is None:
            raise _stopped()
        return self._portal


def _call_anywhere(portal: Portal, function: Callable[[], None]) -> None:
    if portal.usable:
        portal.do(function)
    else:  # this is its thread, or it has ended
        function()


_running: Final[weakref.WeakSet[EmbeddedNode]] = weakref.WeakSet()


@atexit.register
def stop_all() -> None:
    """Stop what was left running: later, its thread cannot run any more, and `stop` would hang."""
    for node in list(_running):
        with suppress(Exception):
            node.stop()


def _stopped() -> UsageError:
    return UsageError("The embedded node is stopped.", hint="Call start().")


async def _started(options: NodeOptions, clock: ManualClock | None, faults: NodeFaults) -> Node:
    node = Node(options, message_clock=clock, files=taps_of(faults).files, tap=taps_of(faults).tap)
    await node.start()
    return node


def with_ports(options: NodeOptions, node: Node) -> NodeOptions:
    """The options with the ports that a node has opened, so that the next start opens them."""
    return msgspec.structs.replace(options, **node.ports())


def node_options(directory: Path, given: Mapping[str, object]) -> NodeOptions:
    """The options of a node on free ports."""
    named = {
        name: frozenset(cast("Iterable[object]", value))
        for name, value in given.items()
        if name in _COLLECTIONS and isinstance(value, list | tuple | set)
    }
    return options_of(NodeOptions, {**_FREE_PORTS, "directory": directory, **given, **named})


@contextmanager
def embedded_node(
    directory: str | Path | None = None, *, clock: ManualClock | None = None, **options: object
) -> Generator[EmbeddedNode]:
    """Run a node inside a `with` block, on free ports of the loopback interface.

    Args:
        directory: the directory of its files; None for a temporary directory that is deleted.
        clock: moves the time of messages, see `EmbeddedNode.clock`; None for the machine's clock.
            A clock that is behind the time of day is set to it.
        options: node options, such as `host` or `admin_port`.

    ```python
    with embedded_node() as node, coherer.blocking.connect(node.url) as client:
        ...
    ```
    """
    catch_up(clock)
    with workspace(directory) as path:
        node = EmbeddedNode(node_options(path, options), clock)
        with running(node):
            yield node


@contextmanager
def running(node: EmbeddedNode) -> Generator[None]:
    """Run a node inside the block."""
    node.start()
    try:
        yield
    except BaseException as error:
        with noted_at(error):
            node.stop()
        raise
    node.stop()


@asynccontextmanager
async def async_embedded_node(
    directory: str | Path | None = None, *, clock: ManualClock | None = None, **options: object
) -> AsyncGenerator[Node]:
    """Run a node in the current event loop inside an `async with` block.

    Args:
        directory: the directory of its files; None for a temporary directory that is deleted.
        clock: moves the time of messages; see `embedded_node`.
        options: node options, such as `host` or `admin_port`.
    """
    catch_up(clock)
    loop = asyncio.get_running_loop()
    simulated = isinstance(loop, SimulatedLoop) and clock is None
    message_clock = WallClock() if simulated else clock
    with workspace(directory) as path:
        checked = node_options(path, options)
        if isinstance(loop, SimulatedLoop):
            check_plain(checked)
        node = Node(checked, message_clock=message_clock)
        await node.start()
        try:
            with ExitStack() as stack:
                if simulated and isinstance(loop, SimulatedLoop):
                    stack.enter_context(loop.alarm(partial(next_s, loop, node)))
                elif clock is not None:
                    stack.callback(clock.watch(partial(call_in, loop, node.rocketmq.tick)))
                yield node
        except BaseException as error:
            with noted_at(error):
                await node.stop()
            raise
        await node.stop()


@contextmanager
def noted_at(error: BaseException) -> Generator[None]:
    """Add an error of the block to an earlier one as a note, instead of raising it."""
    try:
        yield
    except CohererError as later:
        error.add_note(f"The node failed afterwards: {later}")


def next_s(loop: SimulatedLoop, node: Node) -> float | None:
    """When a message of a node is due, in the loop's time."""
    broker = node.rocketmq.broker
    due_ms = None if broker is None else broker.next_ms()
    return None if due_ms is None else loop.now_s + (due_ms - machine_clock.wall_ms()) / 1000


def check_plain(options: NodeOptions) -> None:
    """Check that a node in virtual time has no TLS.

    Raises:
        UsageError: it has.
    """
    if options.tls is not None:
        raise UsageError(
            "TLS does not work in virtual time.", hint="Use embedded_node, which has real sockets."
        )


def catch_up(clock: ManualClock | None) -> None:
    """Set a clock that is behind the time of day to it."""
    if clock is not None:  # clients name times by the machine's clock
        clock.set(max(clock.now_ms(), machine_clock.wall_ms()))


@contextmanager
def workspace(directory: str | Path | None) -> Generator[Path]:
    """Use a directory, or a temporary one for None."""
    if directory is not None:
        yield Path(directory)
        return
    with tempfile.TemporaryDirectory(prefix="coherer-") as name:
        yield Path(name)
