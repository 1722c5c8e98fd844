"""Fixtures: names that no other test uses, and workers in this process."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager

import pytest
from taskiq import AsyncBroker
from taskiq.receiver import Receiver

Working = Callable[[AsyncBroker], AbstractAsyncContextManager[None]]


@pytest.fixture
def topic() -> str:
    return f"tasks-{uuid.uuid4().hex}"


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
