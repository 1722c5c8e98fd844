"""A topic that the client deletes and creates again."""

from __future__ import annotations

import asyncio

import pytest

import coherer
from coherer import Message
from coherer.errors import RefusedError, UnavailableError
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


async def created_with_fewer_queues(url: str) -> None:
    async with coherer.connect(url) as other:
        topics = other.admin().topics
        await topics.delete(TOPIC)
        await topics.create(TOPIC, 1, wait_ms=10_000)


@pytest.mark.parametrize("kind", ["send", "batch", "many"])
async def test_a_topic_that_another_client_creates_again_with_fewer_queues(
    coherer_simulated: SimulatedNode, kind: str
) -> None:
    """The producer looks it up as soon as a broker says that there is no such queue."""
    coherer_simulated.create_topic(TOPIC, 8)
    async with (
        coherer.rocketmq.connect(coherer_simulated.rocketmq_url) as client,
        client.producer(TOPIC) as producer,
    ):
        await created_with_fewer_queues(coherer_simulated.rocketmq_url)
        messages = [Message(TOPIC, b"%d" % number) for number in range(16)]
        if kind == "send":
            for message in messages:
                await producer.send(message)
        elif kind == "batch":
            for message in messages:
                await producer.send_batch([message])
        else:
            (await producer.send_many(messages)).check()
        assert list((await client.offsets(TOPIC)).values()) == [(0, 16)]


async def test_a_queue_that_is_gone_is_an_error_once(coherer_simulated: SimulatedNode) -> None:
    """A message with a key may not go to another queue than those before it; the next one may."""
    coherer_simulated.create_topic(TOPIC, 8)
    async with (
        coherer.rocketmq.connect(coherer_simulated.rocketmq_url) as client,
        client.producer(TOPIC) as producer,
    ):
        await created_with_fewer_queues(coherer_simulated.rocketmq_url)
        with pytest.raises(RefusedError, match="queueId"):
            await producer.send(Message(TOPIC, b"1"), order_by=7)
        assert (await producer.send(Message(TOPIC, b"2"), order_by=7)).partition == 0


async def test_a_producer_that_is_closed_while_it_looks_a_topic_up(
    coherer_simulated: SimulatedNode,
) -> None:
    coherer_simulated.create_topic(TOPIC, 8)
    async with (
        coherer.rocketmq.connect(coherer_simulated.rocketmq_url) as client,
        client.producer(TOPIC) as producer,
    ):
        await created_with_fewer_queues(coherer_simulated.rocketmq_url)
        with coherer_simulated.faults.lose("route"):
            sent = producer.submit(Message(TOPIC, b"1"), order_by=7)
            await asyncio.sleep(1)
            closing = asyncio.create_task(producer.close())
            await asyncio.sleep(0)
            closing.cancel()
            with pytest.raises(RefusedError, match="queueId"):
                await sent
