"""A `FaultProxy` before Java's name server or master catches what is sent to Java's brokers."""

from __future__ import annotations

import asyncio
import os
import uuid

import pytest

import coherer
from coherer.errors import CohererError
from coherer.testing import FaultProxy
from tests.interop.peers.rocket_site import RocketSite
from tests.interop.peers.runs import At, scenario
from tests.interop.peers.site import PAIRS

pytestmark = pytest.mark.interop

BODY = os.urandom(10_000)  # incompressible


async def check(url: str, topic: str) -> None:
    async with (
        FaultProxy.before(url) as proxy,
        coherer.connect(proxy.url, timeout_ms=10_000) as client,
        client.producer(topic) as producer,
    ):
        await producer.send(coherer.Message(topic, BODY))
        assert proxy.requests.passed_bytes > len(BODY)
        async with client.consumer(f"g{topic}", topic, start="earliest") as consumer:
            batch = await consumer.receive(timeout_ms=60_000)
            assert batch is not None
            assert batch.bodies() == [BODY]
            await consumer.commit(batch)
        assert proxy.answers.passed_bytes > len(BODY)
        await proxy.refuse()
        with pytest.raises(CohererError):
            await producer.send(coherer.Message(topic, b"away"))
        await proxy.heal()


async def test_before_javas_name_server(rocket: RocketSite) -> None:
    cluster = await asyncio.to_thread(rocket.cluster, "java")
    topic = f"t{uuid.uuid4().hex[:10]}"
    async with coherer.connect(cluster.url) as client:
        await client.admin().topics.create(topic, 1)
    await check(cluster.url, topic)


@scenario(PAIRS, partitions=1, clients=("ours",))
async def test_before_javas_master(at: At) -> None:
    await check(f"tubemq://{at.master}", at.topic)
