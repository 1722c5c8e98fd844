"""Groups that are reset, and topics that are created again, while members run."""

from __future__ import annotations

import asyncio

import coherer
from coherer.message import Message
from coherer.testing import SimulatedNode


async def test_a_group_that_has_just_begun_reads_again(coherer_simulated: SimulatedNode) -> None:
    """It has no position at the broker yet, which then refuses to reset its members."""
    async with (
        coherer.connect(coherer_simulated.rocketmq_url) as client,
        client.producer() as producer,
        client.consumer("shop", "orders", start="earliest") as consumer,
    ):
        await producer.send(Message("orders", b"42"))
        batch = await consumer.receive()
        assert batch is not None
        batch.ack()
        await client.admin().groups.reset_offsets("shop", "orders", "earliest")
        again = await consumer.receive(10_000)
        assert again is not None
        assert again.bodies() == [b"42"]


async def test_a_topic_that_is_created_again_is_read_from_its_beginning(
    coherer_simulated: SimulatedNode,
) -> None:
    """The position in the old one would be in the middle of the new one."""
    async with (
        coherer.connect(coherer_simulated.rocketmq_url) as client,
        client.producer() as producer,
        client.consumer("shop", "orders", start="earliest") as consumer,
    ):
        topics = client.admin().topics
        for body in (b"1", b"2"):
            await topics.create("orders", 1, wait_ms=10_000)
            await producer.send(Message("orders", body))
            batch = await consumer.receive(60_000)
            assert batch is not None
            assert batch.bodies() == [body]
            batch.ack()
            await topics.delete("orders")
            await asyncio.sleep(60)
