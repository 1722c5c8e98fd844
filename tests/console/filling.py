"""Fills a cluster: topics, groups with lag, members, dead letters."""

from __future__ import annotations

import json
from collections.abc import Sequence

from coherer import rocketmq, tubemq
from coherer._administration.access import Cluster, RocketCluster, opened
from coherer.message import Message
from tests.waiting import until

TOPICS = ("orders", "payments")
GROUP, IDLE_GROUP = "billing", "warehouse"
DEAD = 3
SENT = 12
WAIT_MS = 120_000
"""Java's brokers of TubeMQ need 41 s for a new topic."""


def order(number: int) -> bytes:
    """The body of a message."""
    return json.dumps({"order": number, "amount": 19.9 * number, "customer": "Ann"}).encode()


async def fill(
    url: str,
    *,
    admin: str | None = None,
    token: str | None = None,
    brokers: Sequence[int] | None = None,
) -> None:
    """Create topics, send messages, and consume some of them.

    Args:
        url: the cluster.
        admin: the HTTP administration of a Java master of TubeMQ.
        token: for changes there.
        brokers: those that hold the topics, with TubeMQ; all if None.
    """
    async with opened(url, admin=admin, token=token) as cluster:
        for topic in TOPICS:
            if isinstance(cluster, RocketCluster):
                await cluster.admin.topics.create(topic, 2, exist_ok=True)
            else:
                await cluster.admin.topics.create(topic, 2, brokers, exist_ok=True)
        for topic in TOPICS:
            await cluster.admin.topics.wait_usable(topic, timeout_ms=WAIT_MS)
        if isinstance(cluster, RocketCluster):
            await _fill_rocketmq(cluster.client)
        else:
            await _fill_tubemq(cluster.client)


async def _fill_rocketmq(client: rocketmq.Client) -> None:
    messages = [
        Message("orders", order(n), tag="new", keys=(f"order-{n}",), properties={"shop": "web"})
        for n in range(SENT)
    ]
    async with client.producer("orders", group="shop") as producer:
        await producer.send_many(messages)
        await producer.send(Message("payments", b"\x00\x01\xff not text", tag="raw"))
    async with client.consumer(GROUP, "orders", start="earliest") as consumer:
        seen = 0
        async for message in consumer:
            if seen < DEAD:
                reason = "PaymentError: the card was declined" if seen else None
                await message.dead_letter(reason=reason)
            seen += 1
            if seen == SENT // 2:
                break
        await consumer.commit()


async def _fill_tubemq(client: tubemq.Client) -> None:
    async with client.producer("orders") as producer:
        await producer.send_many([Message("orders", order(n), tag="new") for n in range(SENT)])
    async with client.consumer(GROUP, ["orders"], start="earliest") as consumer:
        async for _ in consumer.batches():
            break
        await consumer.commit()


async def wait_dead(cluster: Cluster) -> None:
    """Wait until the group has its dead letters."""
    from coherer._administration import dead_letters

    async def there() -> bool:
        queue = await dead_letters.queue(cluster, GROUP)
        return queue is not None and queue.count >= DEAD

    await until(there, 60)
