"""A node with topics and dead letters, and visitors of its console."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator

import pytest

from coherer._administration.access import opened
from coherer.testing import EmbeddedNode, embedded_node
from tests.console import filling
from tests.console.visitor import Visitor, visiting


@pytest.fixture(scope="module")
def node() -> Iterator[EmbeddedNode]:
    """A node with topics, groups and dead letters."""

    async def prepare(url: str) -> None:
        await filling.fill(url)
        async with opened(url) as cluster:
            await filling.wait_dead(cluster)

    with embedded_node() as running:
        asyncio.run(prepare(running.rocketmq_url))
        yield running


@pytest.fixture
async def visitor(node: EmbeddedNode) -> AsyncIterator[Visitor]:
    """A user of a console over RocketMQ, with changes allowed."""
    async with visiting(node.rocketmq_url) as one:
        yield one


@pytest.fixture
async def tube_visitor(node: EmbeddedNode) -> AsyncIterator[Visitor]:
    """A user of a console over TubeMQ, with changes allowed."""
    async with visiting(node.url) as one:
        yield one
