"""A node or a cluster in the loop of an async test, in virtual time.

The fixtures `coherer_simulated` and `coherer_simulated_cluster` are objects of these classes.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any, cast

from coherer._client.engine.tasks import shared
from coherer._server.node.node import Node, NodeOptions
from coherer.errors import UsageError
from coherer.testing.clock import WallClock
from coherer.testing.cluster import LOOK_S, TOPIC_S, Shape, late, urls_of, without_topic
from coherer.testing.embedded import (
    check_plain,
    next_s,
    node_options,
    noted_at,
    with_ports,
    workspace,
)
from coherer.testing.faults import NodeFaults, taps_of
from coherer.testing.leftovers import Leftovers
from coherer.testing.received import Received
from coherer.testing.requests import Requests
from coherer.testing.simulation import Process, SimulatedLoop, simulate
from coherer.testing.simulation.loop import LIMIT_S


class SimulatedNode:
    """A node in virtual time, on a network in memory. Made by the fixture `coherer_simulated`.

    Args:
        directory: the directory of its files; None for a temporary directory that is deleted.
        options: node options, such as `default_partitions`.

    Attributes:
        name: what reports call it: in a cluster, the name of the broker or "the master".
        faults: faults on demand.
        received: records what handlers receive, if they are passed through it.
        leftovers: notes what the test leaves open; the plugin sets it.
        limit_s: how much virtual time a test may take; see `simulate`.
    """

    name = "the broker"
    limit_s = LIMIT_S

    def __init__(self, directory: str | Path | None = None, **options: object) -> None:
        self.faults = NodeFaults()
        self.received = Received()
        self._directory = directory
        self.leftovers: Leftovers | None = None
        self._given = {"admin_port": None, **options}
        self._node: Node | None = None
        self._process = Process("node")
        self._options: NodeOptions
        self._turn: asyncio.Lock | None = None  # while a test runs
        self._urls: tuple[str, str] | None = None
        self._wanted = False  # whether it runs outside of all `down` blocks
        self._downs = 0

    def __repr__(self) -> str:
        return f"<SimulatedNode {self.url if self._node is not None else 'stopped'}>"

    @property
    def is_running(self) -> bool:
        """Whether the node runs."""
        return self._node is not None

    @property
    def nodes(self) -> list[SimulatedNode]:
        """This node, as the list that a cluster has."""
        return [self]

    @property
    def node(self) -> Node:
        """The node itself.

        Raises:
            UsageError: it is stopped, or the test is not async.
        """
        if self._node is None:
            self._turns()
            raise UsageError("The simulated node does not run.", hint="Call start().")
        return self._node

    @property
    def url(self) -> str:
        """The URL for TubeMQ clients. It stays the same while the node is stopped."""
        return self._urls[0] if self._urls else self.node.url

    @property
    def rocketmq_url(self) -> str:
        """The URL for RocketMQ clients. It stays the same while the node is stopped."""
        return self._urls[1] if self._urls else self.node.rocketmq_url

    @property
    def requests(self) -> Requests:
        """The requests that the node has received."""
        return taps_of(self.faults).requests

    def create_topic(self, name: str, partitions: int = 1) -> None:
        """Create a topic."""
        self.node.create_topic(name, partitions)

    async def start(self) -> None:
        """Start the node; after `stop` and `kill`, start it again on the same files and ports."""
        self._wanted = True
        await self._start()

    async def stop(self) -> None:
        """Stop the node cleanly and keep its files. Does nothing if it is stopped.

        Raises:
            StoreError: the disk failed, and no fault of the test made it fail.
        """
        self._wanted = False
        await self._stop()

    def kill(self) -> None:
        """End the node at once, as by SIGKILL: what it has written stays."""
        self._wanted = False
        self._kill()

    @asynccontextmanager
    async def down(self, *, kill: bool = False) -> AsyncGenerator[None]:
        """Let the node be stopped inside the block; afterwards it is where it was.

        Blocks may overlap, such as one of the test and a fault of `explore`: the node runs again
        when the last one has ended. A node that the test stops in the meantime stays stopped.

        Args:
            kill: end it at once instead of cleanly.
        """
        self._downs += 1
        try:
            if kill:
                self._kill()
            else:
                await self._stop()
            yield
        except BaseException as error:
            with noted_at(error):
                await self._up()
            raise
        await self._up()

    async def _up(self) -> None:
        self._downs -= 1
        if self._wanted and not self._downs:
            await self._start()

    def _turns(self) -> asyncio.Lock:
        if self._turn is None:
            raise UsageError(
                "The simulated node does not run: it runs while an async test function does.",
                hint="Use `coherer_node` in plain tests, in fixtures, and in classes of unittest.",
            )
        return self._turn

    async def _start(self) -> None:
        await self._in_turn(self._begin)

    async def _stop(self) -> None:
        await self._in_turn(self._end)

    async def _in_turn(self, step: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Start or stop the node when the last start or stop has ended; `kill` ends each of them.

        A caller that is cancelled does not wait, and the step goes on.
        """
        turn = self._turns()

        async def taken() -> None:
            async with turn:
                await step()

        await asyncio.shield(shared(taken(), "a start or stop of the node"))

    async def _begin(self) -> None:
        if self._node is not None or not self._wanted:  # it may have been killed before its turn
            return
        self._process = Process("node")
        check_plain(self._options)
        node = Node(
            self._options,
            message_clock=WallClock(),
            files=taps_of(self.faults).files,
            tap=taps_of(self.faults).tap,
        )
        if await self._has_done(node.start()):
            self._node, self._options = node, with_ports(self._options, node)
            self._urls = urls_of(node)
            taps_of(self.faults).attach(node)

    async def _end(self) -> None:
        node, self._node = self._node, None
        if node is not None:
            with taps_of(self.faults).own_failures():
                await self._has_done(node.stop())

    async def _has_done(self, work: Coroutine[Any, Any, None]) -> bool:
        """Let the node's process do something; return False if it is killed meanwhile."""
        killed = asyncio.Event()
        self._process.at_kill(killed.set)
        doing = self._process.start(work)
        waiting = asyncio.create_task(killed.wait())
        await asyncio.wait({doing, waiting}, return_when=asyncio.FIRST_COMPLETED)
        self._process.not_at_kill(killed.set)
        waiting.cancel()
        if killed.is_set():  # also if it was done a moment before
            return False
        await doing
        return True

    def _kill(self) -> None:
        self._node = None
        self._process.kill()
        taps_of(self.faults).files.close_all()

    def run(self, test: Coroutine[Any, Any, object], *, seed: int = 0) -> None:
        """Run a coroutine in virtual time while the node runs; the plugin runs async tests so."""

        @asynccontextmanager
        async def opened() -> AsyncGenerator[None]:
            with workspace(self._directory) as path:
                async with self._running(node_options(path, self._given)):
                    yield

        _run(opened(), test, self.leftovers, seed, self.limit_s)

    @asynccontextmanager
    async def _running(self, options: NodeOptions) -> AsyncGenerator[None]:
        loop = cast("SimulatedLoop", asyncio.get_running_loop())
        self._options, self._turn = options, asyncio.Lock()
        with loop.alarm(partial(self._next_s, loop)):
            await self.start()
            try:
                yield
            except BaseException as error:
                with noted_at(error):
                    await self.stop()
                raise
            else:
                await self.stop()
            finally:
                self._urls = self._turn = None

    def _next_s(self, loop: SimulatedLoop) -> float | None:
        return None if self._node is None else next_s(loop, self._node)

    def fresh(self) -> SimulatedNode:
        """Another node with the same options, in a temporary directory."""
        other = SimulatedNode(None, **self._given)
        other.limit_s = self.limit_s
        return other


class _Member(SimulatedNode):
    """A node of a cluster; `on_restart` is called when it has started again."""

    on_restart: Callable[[], object] | None = None

    @property
    def options(self) -> NodeOptions:
        """Its options."""
        return self._options

    def running(self, options: NodeOptions) -> AbstractAsyncContextManager[None]:
        """Run it inside the block."""
        return self._running(options)

    async def _begin(self) -> None:
        restarted = self._urls is not None and not self.is_running
        await super()._begin()
        if restarted and self.is_running and self.on_restart is not None:
            self.on_restart()


class SimulatedCluster:
    """A cluster in virtual time. Made by the fixture `coherer_simulated_cluster`.

    Each node is a `SimulatedNode`, with its own faults and requests.

    Args:
        directory: the directory of all files; None for a temporary directory that is deleted.
        brokers: the number of brokers.
        slaves: whether each broker has a slave, which serves RocketMQ.
        apart: whether the master and the name server have a node of their own.
        options: node options for all nodes, such as `flush`.

    Attributes:
        brokers: the brokers.
        slaves: the slave of each broker; empty without slaves.
        master: the node with TubeMQ's master and the name server: the first broker, unless it is
            apart.
        received: records what handlers receive, if they are passed through it.
        leftovers: notes what the test leaves open; the plugin sets it.
        limit_s: how much virtual time a test may take; see `simulate`.
    """

    limit_s = LIMIT_S

    def __init__(
        self,
        directory: str | Path | None = None,
        *,
        brokers: int = 2,
        slaves: bool = False,
        apart: bool = False,
        **options: object,
    ) -> None:
        self._master, self._others = _Member(), [_Member() for _ in range(brokers - (not apart))]
        self._slaves = [_Member() for _ in range(brokers if slaves else 0)]
        self._brokers = self._others if apart else [self._master, *self._others]
        self.master: SimulatedNode = self._master
        self.brokers: list[SimulatedNode] = [*self._brokers]
        self.slaves: list[SimulatedNode] = [*self._slaves]
        self.received = Received()
        self.leftovers: Leftovers | None = None
        self._directory = directory
        self._shape = Shape(brokers, slaves, apart)
        self._given = {"admin_port": None, **options}

    def __repr__(self) -> str:
        where = self.url if self.master.is_running else "stopped"
        return f"<SimulatedCluster {where}, {len(self.brokers)} brokers>"

    @property
    def nodes(self) -> list[SimulatedNode]:
        """All nodes, in the order in which they start."""
        return [self._master, *self._others, *self._slaves]

    @property
    def url(self) -> str:
        """The URL for TubeMQ clients. It stays the same while the master is stopped."""
        return self.master.url

    @property
    def rocketmq_url(self) -> str:
        """The URL for RocketMQ clients. It stays the same while the name server is stopped."""
        return self.master.rocketmq_url

    async def create_topic(self, name: str, partitions: int = 1) -> None:
        """Create a topic on all brokers, and wait until clients find it on those that run.

        Args:
            name: its name.
            partitions: how many on each broker.

        Raises:
            UsageError: the master is stopped.
            RequestTimeoutError: a broker did not report the topic within 30 s.
        """
        self.master.create_topic(name, partitions)
        up = [one.options for one in self._brokers if one.is_running]
        loop = asyncio.get_running_loop()
        until_s = loop.time() + TOPIC_S
        while missing := without_topic(self.master.node, up, name):
            if loop.time() > until_s:
                raise late(name, missing)
            await asyncio.sleep(LOOK_S)

    def run(self, test: Coroutine[Any, Any, object], *, seed: int = 0) -> None:
        """Run a coroutine in virtual time while the cluster runs."""
        _run(self._opened(), test, self.leftovers, seed, self.limit_s)

    @asynccontextmanager
    async def _opened(self) -> AsyncGenerator[None]:
        async with AsyncExitStack() as stack:

            async def start(node: _Member, options: NodeOptions, name: str = "") -> None:
                node.name = name or options.broker_name
                await stack.enter_async_context(node.running(options))
                await node.node.ready()

            shape, master = self._shape, self._master
            first = shape.first(stack.enter_context(workspace(self._directory)), self._given)
            await start(master, first, "the master" if shape.apart else "")
            for node, options in zip(self._others, shape.others(first, master.node), strict=True):
                await start(node, options)
            for node, options in zip(self._slaves, shape.slaves(first, master.node), strict=True):
                await start(node, options, f"the slave of {options.broker_name}")
            master.on_restart = self._register_again
            yield

    def fresh(self) -> SimulatedCluster:
        """Another cluster with the same shape and options, in a temporary directory."""
        shape = self._shape
        other = SimulatedCluster(
            None,
            brokers=shape.brokers,
            slaves=shape.with_slaves,
            apart=shape.apart,
            **self._given,
        )
        other.limit_s = self.limit_s
        return other

    def _register_again(self) -> None:
        # At once: the name server has forgotten them, and they register every 30 s.
        for node in (*self._others, *self._slaves):
            if node.is_running:
                node.node.rocketmq.announce()


def _run(
    opened: AbstractAsyncContextManager[None],
    test: Coroutine[Any, Any, object],
    leftovers: Leftovers | None,
    seed: int,
    limit_s: float,
) -> None:
    async def main() -> None:
        async with opened:
            before = asyncio.all_tasks()
            await test
            if leftovers is not None:
                leftovers.look_at_tasks(asyncio.all_tasks() - before)
                leftovers.look()

    try:
        simulate(main(), seed=seed, limit_s=limit_s)
    finally:
        if inspect.getcoroutinestate(test) == inspect.CORO_CREATED:
            test.close()
