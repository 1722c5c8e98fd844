"""Fixtures: a node, brokers that close, workers in this process, and names of queues."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Generator, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager

import dramatiq
import pytest

from coherer.integrations.dramatiq import RocketMQBroker
from coherer.testing import EmbeddedNode, embedded_node

Working = Callable[[dramatiq.Broker], AbstractContextManager[dramatiq.Worker]]
Make = Callable[..., RocketMQBroker]

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
def queue() -> str:
    return f"{os.environ.get('TEST_PREFIX', '')}queue{next(_numbers)}"


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
