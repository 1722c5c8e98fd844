"""What `coherer status` and `coherer top` read from clusters of Java and of ours."""

from __future__ import annotations

import asyncio
import uuid

import pytest
from test_matrix import until

from coherer._administration.access import opened
from coherer._administration.overview import overview
from coherer._client.tubemq.administration.admin import Admin
from coherer.cli.target import AnyAdmin
from coherer.cli.top import Sort, TopicRate, rates, take_snapshot
from coherer.message import Message
from coherer.rocketmq import connect
from tests.interop.peers.clients import closing
from tests.interop.peers.java import HOST
from tests.interop.peers.rocket_site import RocketSite
from tests.interop.peers.runs import At, scenario
from tests.interop.peers.site import PAIRS

pytestmark = pytest.mark.interop


async def row_of(admin: AnyAdmin, topic: str) -> TopicRate:
    found = rates(await take_snapshot(admin), await take_snapshot(admin), Sort.NAME)
    (row,) = [one for one in found.topics if one.topic == topic]
    return row


async def test_a_cluster_of_javas_rocketmq(rocket: RocketSite) -> None:
    cluster = await asyncio.to_thread(rocket.cluster, "java")
    topic = f"t{uuid.uuid4().hex[:10]}"
    async with connect(cluster.url) as client:
        admin = client.admin()
        await admin.topics.create(topic, 2)
        async with client.producer(topic) as producer:
            (await producer.send_many([Message(topic, b"x")] * 10)).check()
        async with opened(cluster.url) as looked_at:
            found = await overview(looked_at)
        assert found.node is None, "Java's brokers report less"
        # Java's broker cannot describe itself in the first seconds.
        assert {broker.status for broker in found.brokers} <= {"running", "silent"}

        async def all_are_counted() -> bool:
            return await row_of(admin, topic) == TopicRate(topic, 0, 10)

        await until(all_are_counted, "top shows the messages")


async def test_javas_broker_helps_to_name_what_is_wrong(rocket: RocketSite) -> None:
    """It relays the questions to members, and knows when messages were stored."""
    cluster = await asyncio.to_thread(rocket.cluster, "java")
    topic, other = (f"t{uuid.uuid4().hex[:10]}" for _ in range(2))
    group = f"g{topic}"
    async with opened(cluster.url) as one, opened(cluster.url) as two:
        for name in (topic, other):
            await one.admin.topics.create(name, 1)
            await one.admin.topics.wait_usable(name, timeout_ms=60_000)
        async with one.client.producer(topic) as producer:
            (await producer.send_many([Message(topic, b"x")] * 3)).check()
            async with one.client.consumer(group, [topic], start="earliest") as consumer:
                async for batch in consumer.batches():
                    await consumer.commit(batch)
                    break
            (await producer.send_many([Message(topic, b"x")] * 3)).check()

        async def is_shown() -> bool:
            rows = [row for row in (await overview(one)).behind if row.group == group]
            return bool(rows) and rows[0].lag >= 3 and rows[0].oldest_ms is not None

        await until(is_shown, "the age of the oldest unread message is known")
        async with (
            one.client.consumer(group, [topic], start="latest"),
            two.client.consumer(group, [other], start="latest"),
        ):

            async def is_named() -> bool:
                texts = [found.text for found in (await overview(one)).problems]
                return any(
                    f"group {group} have different topics" in text
                    and f"has {topic}" in text
                    and f"has {other}" in text
                    for text in texts
                )

            await until(is_named, "both members and their topics are named")


@scenario(PAIRS, partitions=2)
async def test_a_cluster_of_tubemq(at: At) -> None:
    """A store of Java's broker counts once, though its partitions share an index."""
    producer = await at.clients.producer(at.master, [at.topic])
    async with closing(producer):
        for number in range(6):
            await producer.send(Message(at.topic, b"n%d" % number))
    web = f"http://{HOST}:{at.deployed.web.port}"
    admin = Admin(web, at.deployed.web.token)
    async with opened(f"tubemq://{at.master}", admin=web) as cluster:
        found = await overview(cluster)
    assert found.topics
    assert {broker.name for broker in found.brokers} >= {
        str(broker.broker_id) for broker in at.deployed.brokers
    }

    async def all_are_counted() -> bool:
        return await row_of(admin, at.topic) == TopicRate(at.topic, 0, 6)

    await until(all_are_counted, "top shows the messages")
