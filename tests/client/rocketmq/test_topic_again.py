"""A topic that the client deletes and creates again."""

from __future__ import annotations

import asyncio

import pytest

import coherer
from coherer import Message
from coherer.errors import UnavailableError
from coherer.testing import SimulatedNode

TOPIC = "orders"


async def test_a_producer_sends_to_a_topic_that_was_read_only_and_is_created_again(
    coherer_simulated: SimulatedNode,
) -> None:
    async with (
        coherer.connect(coherer_simulated.rocketmq_url) as client,
        client.producer() as producer,
    ):
        topics = client.admin().topics
        await topics.create(TOPIC, 2, wait_ms=10_000)
        await producer.send(Message(TOPIC, b"before"))
        await topics.alter(TOPIC, writable=False)
        await asyncio.sleep(40)  # routes are looked up every 30 s
        with pytest.raises(UnavailableError, match="no writable queue"):
            await producer.send(Message(TOPIC, b"refused"))
        await topics.delete(TOPIC)
        await topics.create(TOPIC, 2, wait_ms=10_000)
        with pytest.raises(UnavailableError, match="no writable queue"):
            await producer.send(Message(TOPIC, b"does not know it yet"))
        receipt = await producer.send(Message(TOPIC, b"after"))
        assert receipt.offset == 0


async def test_a_topic_that_is_created_again_is_read_from_its_beginning(
    coherer_simulated: SimulatedNode,
) -> None:
    """The position in the old one would be in the middle of the new one."""
    async with (
        coherer.connect(coherer_simulated.rocketmq_url) as client,
        client.producer() as producer,
        client.consumer("shop", TOPIC, start="earliest") as consumer,
    ):
        topics = client.admin().topics
        for body in (b"1", b"2"):
            await topics.create(TOPIC, 1, wait_ms=10_000)
            await producer.send(Message(TOPIC, body))
            batch = await consumer.receive(60_000)
            assert batch is not None
            assert batch.bodies() == [body]
            batch.ack()
            await topics.delete(TOPIC)
            await asyncio.sleep(60)
