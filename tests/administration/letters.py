"""Dead letters for tests."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from coherer._administration.access import RocketCluster
from coherer.message import Message

TOPIC: Final = "orders"
GROUP: Final = "billing"
KEY: Final = "k"


async def made_dead(cluster: RocketCluster, bodies: Sequence[bytes], *, brokers: int = 1) -> None:
    """Have a group give up messages with these bodies on each broker."""
    await cluster.admin.topics.create(TOPIC, 1, wait_ms=10_000)
    async with cluster.client.producer() as producer:
        for queue in await cluster.client.partitions(TOPIC):
            for body in bodies:
                await producer.send(Message(TOPIC, body, keys=(KEY,)), queue=queue)
    left = brokers * len(bodies)
    async with cluster.client.consumer(GROUP, TOPIC, start="earliest") as consumer:
        async for message in consumer:
            await message.dead_letter()
            left -= 1
            if not left:
                return
