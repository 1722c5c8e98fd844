"""Fixtures: brokers that close, workers in this process, and names that no other test uses."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager

import dramatiq
import pytest

from coherer.integrations.dramatiq import RocketMQBroker

Working = Callable[[dramatiq.Broker], AbstractContextManager[dramatiq.Worker]]
Make = Callable[..., RocketMQBroker]


@pytest.fixture
def queue() -> str:
    return f"queue-{uuid.uuid4().hex}"


@pytest.fixture
def make(url: str) -> Iterator[Make]:
    """Makes brokers, which are closed after the test."""
    with ExitStack() as made:

        def new(*arguments: str, **options: object) -> RocketMQBroker:
            broker = RocketMQBroker(*(arguments or (url,)), **options)  # type: ignore[arg-type]
            made.callback(broker.close)
            return broker

        yield new


@pytest.fixture
def working() -> Working:
    """Runs a worker of a broker, as Dramatiq's command does."""

    @contextmanager
    def work(broker: dramatiq.Broker) -> Iterator[dramatiq.Worker]:
        worker = dramatiq.Worker(broker, worker_timeout=100, worker_threads=4)
        worker.start()
        try:
            yield worker
        finally:
            worker.stop()

    return work
