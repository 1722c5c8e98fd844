"""`seek` is the same on every consumer, against a node."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

import coherer
from coherer import Message
from coherer.errors import UsageError
from coherer.testing import EmbeddedNode


@pytest.mark.parametrize("kind", ["tubemq", "rocketmq", "pull"])
async def test_every_position(coherer_node: EmbeddedNode, coherer_topic: str, kind: str) -> None:
    url = coherer_node.url if kind == "tubemq" else coherer_node.rocketmq_url
    async with coherer.connect(url) as cluster:
        client: Any = cluster
        async with client.producer(coherer_topic) as producer:
            report = await producer.send_many(Message(coherer_topic, b"x") for _ in range(40))
            report.check()
        make = client.pull_consumer if kind == "pull" else client.consumer
        async with make(f"seeking-{kind}", coherer_topic) as consumer:
            [partition, *_] = sorted(await consumer.wait_assigned(10_000), key=str)
            ends = await client.offsets(coherer_topic)
            [end] = [high for one, (_, high) in ends.items() if one == partition]
            assert await consumer.seek(partition, 1) == 1
            assert await consumer.seek(partition, "earliest") == 0
            assert await consumer.seek(partition, "latest") == end > 0
            now = datetime.now(UTC)
            assert await consumer.seek(partition, now - timedelta(hours=1)) == 0
            # RocketMQ's brokers return the newest message if all are older.
            newest = end if kind == "tubemq" else end - 1
            assert await consumer.seek(partition, now + timedelta(hours=1)) == newest
            with pytest.raises(UsageError):
                await consumer.seek(partition, "newest")
            with pytest.raises(UsageError):
                await consumer.seek(partition, -1)
