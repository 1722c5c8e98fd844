"""Fixtures: a node, names that no other test uses, and workers in this process."""

from __future__ import annotations

import asyncio
import itertools
import os
from collections.abc import AsyncIterator, Callable, Generator
from contextlib import AbstractAsyncContextManager, asynccontextmanager

import pytest
from taskiq import AsyncBroker
from taskiq.receiver import Receiver

from coherer.testing import EmbeddedNode, embedded_node

Working = Callable[[AsyncBroker], AbstractAsyncContextManager[None]]

_numbers = itertools.count()


@pytest.fixture(scope="session")
def node() -> Generator[EmbeddedNode]:
    with embedded_node() as running:
        yield running


@pytest.fixture
def url(node: EmbeddedNode) -> str:
    """The node's, or that of another cluster, to run these tests against it by hand."""
    return os.environ.get("TEST_BROKER", node.rocketmq_url)


@pytest.fixture
def topic() -> str:
    return f"tasks{next(_numbers)}"


@pytest.fixture
def working() -> Working:
    """Runs a worker of a broker, as Taskiq's command does."""

    @asynccontextmanager
    async def work(broker: AsyncBroker) -> AsyncIterator[None]:
        broker.is_worker_process = True
        await broker.startup()
        finish = asyncio.Event()
        receiver = Receiver(broker, max_async_tasks=10, run_startup=False)
        listening = asyncio.create_task(receiver.listen(finish))
        try:
            yield
        finally:
            finish.set()
            await listening
            await broker.shutdown()

    return work
