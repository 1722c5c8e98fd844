"""A producer and a consumer of the scripted cluster."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from scripted_cluster import FakeCluster
from tube_clients import consumer_of

from coherer.client.tubemq.cluster import Cluster
from coherer.client.tubemq.consumer import Consumer
from coherer.client.tubemq.producer import Producer


@pytest.fixture
async def consumer(fake: FakeCluster, way: Cluster) -> AsyncIterator[Consumer]:
    async with consumer_of(way) as consumer:
        await consumer.wait_assigned(2_000)
        yield consumer


@pytest.fixture
async def producer(way: Cluster) -> AsyncIterator[Producer]:
    async with Producer(way, ["demo"]) as producer:
        yield producer
