"""A node in the loop of an async test, in virtual time: what the fixture `coherer_simulated` is."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

from coherer._server.node.node import Node, NodeOptions
from coherer.errors import UsageError
from coherer.testing.clock import WallClock
from coherer.testing.embedded import next_s, node_options, noted_at, with_ports, workspace
from coherer.testing.faults import NodeFaults, Requests, taps_of
from coherer.testing.leftovers import Leftovers
from coherer.testing.received import Received
from coherer.testing.simulation import Process, SimulatedLoop, simulate


class SimulatedNode:
    """A node in virtual time, on a network in memory. Made by the fixture `coherer_simulated`.

    Args:
        directory: the directory of its files; None for a temporary directory that is deleted.
        options: node options, such as `default_partitions`.

    Attributes:
        faults: faults on demand.
        received: records what handlers receive, if they are passed through it.
        leftovers: notes what the test leaves open; the plugin sets it.
    """

    def __init__(self, directory: str | Path | None = None, **options: object) -> None:
        self.faults = NodeFaults()
        self.received = Received()
        self._directory = directory
        self.leftovers: Leftovers | None = None
        self._given = {"admin_port": None, **options}
        self._node: Node | None = None
        self._process = Process("node")
        self._options: NodeOptions
        self._urls: tuple[str, str] | None = None

    def __repr__(self) -> str:
        return f"<SimulatedNode {self.url if self._node is not None else 'stopped'}>"

    @property
    def node(self) -> Node:
        """The node itself.

        Raises:
            UsageError: it is stopped, or the test is not async.
        """
        if self._node is None:
            raise UsageError(
                "The simulated node does not run.",
                hint="Call start(), and use `coherer_simulated` in an async test.",
            )
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
        if self._node is not None:
            return
        self._process = Process("node")
        node = Node(
            self._options,
            message_clock=WallClock(),
            files=taps_of(self.faults).files,
            tap=taps_of(self.faults).tap,
        )
        await self._process.start(node.start())
        self._node, self._options = node, with_ports(self._options, node)
        self._urls = (node.url, node.rocketmq_url)
        taps_of(self.faults).attach(node)

    async def stop(self) -> None:
        """Stop the node cleanly and keep its files. Does nothing if it is stopped.

        Raises:
            StoreError: the disk failed, and no fault of the test made it fail.
        """
        node, self._node = self._node, None
        if node is not None:
            with taps_of(self.faults).own_failures():
                await self._process.start(node.stop())

    def kill(self) -> None:
        """End the node at once, as by SIGKILL: what it has written stays."""
        self._node = None
        self._process.kill()
        taps_of(self.faults).files.close_all()

    @asynccontextmanager
    async def down(self, *, kill: bool = False) -> AsyncGenerator[None]:
        """Let the node be stopped inside the block; afterwards it is where it was.

        Args:
            kill: end it at once instead of cleanly.
        """
        if kill:
            self.kill()
        else:
            await self.stop()
        try:
            yield
        except BaseException as error:
            with noted_at(error):
                await self.start()
            raise
        await self.start()

    def run(self, test: Coroutine[Any, Any, object], *, seed: int = 0) -> None:
        """Run a coroutine in virtual time while the node runs; the plugin runs async tests so."""

        async def main() -> None:
            loop = cast("SimulatedLoop", asyncio.get_running_loop())
            with workspace(self._directory) as path, loop.alarm(lambda: self._next_s(loop)):
                self._options = node_options(path, self._given)
                await self.start()
                before = asyncio.all_tasks()
                try:
                    await test
                    if self.leftovers is not None:
                        self.leftovers.look_at_tasks(asyncio.all_tasks() - before)
                        self.leftovers.look()
                except BaseException as error:
                    with noted_at(error):
                        await self.stop()
                    raise
                else:
                    await self.stop()
                finally:
                    self._urls = None

        try:
            simulate(main(), seed=seed)
        finally:
            test.close()

    def _next_s(self, loop: SimulatedLoop) -> float | None:
        return None if self._node is None else next_s(loop, self._node)

    def fresh(self) -> SimulatedNode:
        """Another node with the same options, in a temporary directory."""
        return SimulatedNode(None, **self._given)
