"""A node in the loop of an async test, in virtual time: what the fixture `coherer_simulated` is."""

from __future__ import annotations

from collections.abc import Coroutine
from pathlib import Path
from typing import Any

from coherer._server.node.node import Node
from coherer.errors import UsageError
from coherer.testing.embedded import async_embedded_node
from coherer.testing.simulation import simulate


class SimulatedNode:
    """A node in virtual time, on a network in memory. Made by the fixture `coherer_simulated`.

    Args:
        directory: the directory of its files.
        options: node options, such as `default_partitions`.
    """

    def __init__(self, directory: str | Path | None = None, **options: object) -> None:
        self._directory = directory
        self._options = {"admin_port": None, **options}
        self._node: Node | None = None

    def __repr__(self) -> str:
        return f"<SimulatedNode {self.url if self._node is not None else 'stopped'}>"

    @property
    def node(self) -> Node:
        """The node itself.

        Raises:
            UsageError: the test is not async.
        """
        if self._node is None:
            raise UsageError(
                "The simulated node runs only inside an async test.",
                hint="Write `async def test_...(coherer_simulated)`.",
            )
        return self._node

    @property
    def url(self) -> str:
        """The URL for TubeMQ clients."""
        return self.node.url

    @property
    def rocketmq_url(self) -> str:
        """The URL for RocketMQ clients."""
        return self.node.rocketmq_url

    def create_topic(self, name: str, partitions: int = 1) -> None:
        """Create a topic."""
        self.node.create_topic(name, partitions)

    def run(self, test: Coroutine[Any, Any, object], *, seed: int = 0) -> None:
        """Run a coroutine in virtual time while the node runs; the plugin runs async tests so."""

        async def main() -> None:
            try:
                async with async_embedded_node(
                    self._directory, clock=None, **self._options
                ) as self._node:
                    await test
            finally:
                self._node = None
                test.close()

        simulate(main(), seed=seed)
