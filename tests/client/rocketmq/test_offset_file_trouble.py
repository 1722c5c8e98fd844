"""Broadcast consumers whose file of offsets cannot be read or written."""

from __future__ import annotations

from pathlib import Path

import pytest

from coherer import rocketmq
from coherer.errors import StoreError
from coherer.message import Message
from coherer.rocketmq import Client, Consumer
from coherer.testing import SimulatedNode

TOPIC, WAIT_MS = "news", 60_000


def broadcast(client: Client, offsets: Path) -> Consumer:
    return client.consumer("all", TOPIC, model="broadcast", start="latest", offsets=offsets)


async def test_messages_arrive_while_offsets_cannot_be_written(
    coherer_simulated: SimulatedNode, tmp_path: Path
) -> None:
    coherer_simulated.create_topic(TOPIC, 1)
    in_the_way = tmp_path / "offsets.json.tmp"
    in_the_way.mkdir()
    async with rocketmq.connect(coherer_simulated.rocketmq_url) as client:
        async with client.producer() as producer, broadcast(client, tmp_path) as consumer:
            await consumer.wait_assigned(WAIT_MS)
            await producer.send(Message(TOPIC, b"one"))
            batch = await consumer.receive(WAIT_MS)
            assert batch is not None
            assert batch.bodies() == [b"one"]
            with pytest.raises(StoreError, match="cannot be stored"):
                await consumer.commit(batch)
            in_the_way.rmdir()
            await consumer.commit()
        async with broadcast(client, tmp_path) as consumer:
            assert await consumer.receive(WAIT_MS) is None


async def test_a_consumer_leaves_whose_offsets_cannot_be_written(
    coherer_simulated: SimulatedNode, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    coherer_simulated.create_topic(TOPIC, 1)
    async with (
        rocketmq.connect(coherer_simulated.rocketmq_url) as client,
        client.producer() as producer,
        broadcast(client, tmp_path) as consumer,
    ):
        await producer.send(Message(TOPIC, b"one"))
        batch = await consumer.receive(WAIT_MS)
        assert batch is not None
        batch.ack()
        (tmp_path / "offsets.json.tmp").mkdir()
    assert "The offsets cannot be stored" in caplog.text


async def test_offsets_that_cannot_be_read(
    coherer_simulated: SimulatedNode, tmp_path: Path
) -> None:
    coherer_simulated.create_topic(TOPIC, 1)
    (tmp_path / "offsets.json").mkdir()
    async with rocketmq.connect(coherer_simulated.rocketmq_url) as client:
        with pytest.raises(StoreError, match="cannot be read"):
            await broadcast(client, tmp_path).start()
