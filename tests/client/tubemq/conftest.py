"""A producer and a consumer of the scripted cluster."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from coherer._client.tubemq.cluster import Cluster
from coherer._client.tubemq.consumer import Consumer
from coherer._client.tubemq.producer import Producer
from tests.client.scripted_cluster import FakeCluster
from tests.client.tube_clients import consumer_of


@pytest.fixture
async def consumer(fake: FakeCluster, way: Cluster) -> AsyncIterator[Consumer]:
    """A consumer with partitions, from which the master wants a heartbeat every 10 ms."""
    fake.extra = {"heartbeatMs": 10}
    async with consumer_of(way) as consumer:
        await consumer.wait_assigned(2_000)
        yield consumer


@pytest.fixture
async def producer(way: Cluster) -> AsyncIterator[Producer]:
    async with Producer(way, ["demo"]) as producer:
        yield producer
