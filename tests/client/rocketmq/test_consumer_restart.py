"""Consumers whose broker goes away and comes back."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from coherer import Message
from coherer._wire.rocketmq.names import Queue
from coherer.rocketmq import connect
from coherer.testing import SimulatedNode
from coherer.testing.embedded import embedded_node
from tests.client.rocket_scenario import ids, scenario_at, take, texts, until


async def test_reading_continues_after_a_broker_restart(tmp_path: Path) -> None:
    with embedded_node(tmp_path) as node:
        async with scenario_at(node.rocketmq_url) as place:
            client, orderly = place.client(heartbeat_ms=500), place.client(heartbeat_ms=500)
            await place.make(client, 2)
            await place.send(client, "a", "b", queue=0)
            async with (
                client.consumer(place.group, place.topic, start="earliest") as one,
                orderly.consumer(
                    f"{place.group}o", place.topic, start="earliest", orderly=True
                ) as two,
            ):
                await until(lambda: len(ids(one, place.topic)) == len(ids(two, place.topic)) == 2)
                assert texts(await take(one, 2)) == texts(await take(two, 2)) == ["a", "b"]
                await asyncio.to_thread(node.restart)
                sender = place.client()
                await until(lambda: sender.exists(place.topic))
                await place.send(sender, "c", queue=1)
                assert texts(await take(one, 1)) == ["c"]
                assert texts(await take(two, 1)) == ["c"]
            async with client.reader(Queue(place.topic, "broker-a", 0), 0) as reader:
                batch = await reader.read()
                assert batch is not None
                assert batch.bodies() == [b"a", b"b"]
            again = place.client()
            async with again.consumer(place.group, place.topic, start="earliest") as three:
                await three.wait_assigned(10_000)
                assert await three.receive(200) is None


@pytest.mark.parametrize("down_s", [1, 15, 70])
async def test_an_orderly_consumer_goes_on_as_soon_as_its_broker_is_back(
    coherer_simulated: SimulatedNode, down_s: int
) -> None:
    node = coherer_simulated
    node.create_topic("jobs", 1)
    async with (
        connect(node.rocketmq_url) as client,
        client.producer("jobs") as producer,
        client.consumer("g", "jobs", orderly=True) as consumer,
    ):
        await consumer.wait_assigned()
        await asyncio.sleep(60)
        async with node.down(kill=True):
            await asyncio.sleep(down_s)
        for number in range(30):  # its lock would expire meanwhile
            await producer.send(Message("jobs", b"%d" % number))
            batch = await consumer.receive(timeout_ms=4_000)
            assert batch is not None
            assert batch.bodies() == [b"%d" % number]
            await batch.ack()
            await asyncio.sleep(1)
