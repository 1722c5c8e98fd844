"""One store, two protocols: a message sent over one is consumed over the other."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

import coherer
from coherer._client.tubemq.client import Client as TubeClient
from coherer._record.compression import compress
from coherer._record.properties import decode, encode_time
from coherer._record.system_topics import HISTORY_TOPIC
from coherer._server.node.node import Node
from coherer._wire.rocketmq.delivery import MessageBatch
from coherer._wire.rocketmq.names import Queue
from coherer.errors import RefusedError
from coherer.message import Message, ReceivedMessage
from coherer.testing import async_embedded_node
from tests.server.rocket_harness import COMMIT, SUBSCRIPTION, SUSPEND, Client, records_of

QUERY_OFFSET, UPDATE_OFFSET = 14, 15
NOON = datetime(2024, 1, 2, 12, 0)  # noqa: DTZ001 - as TubeMQ's clients write it
QUEUE = Queue("demo", "broker-a", 0)


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[Node]:
    async with async_embedded_node(tmp_path) as node:
        node.create_topic("demo", 1)
        yield node


@pytest.fixture
async def tube(node: Node) -> AsyncIterator[TubeClient]:
    async with coherer.connect(node.url) as client:
        assert isinstance(client, TubeClient)
        yield client


@pytest.fixture
async def rocket(node: Node) -> AsyncIterator[Client]:
    client = await Client.dial(node.rocketmq_port)
    assert isinstance(client, Client)
    yield client
    client.connection.close()


async def consumed(client: TubeClient, count: int) -> list[ReceivedMessage]:
    """The next messages of a TubeMQ group, confirmed."""
    found: list[ReceivedMessage] = []
    async with asyncio.timeout(20), client.consumer("g", "demo", start="earliest") as consumer:
        while len(found) < count:
            batch = await consumer.receive()
            assert batch is not None
            found += batch
            await consumer.commit(batch)
    return found


async def test_rocketmq_shows_no_topic_that_is_for_tubemqs_brokers_only(node: Node) -> None:
    """TubeMQ's masters put `__offset_history__` on every broker."""
    await node.ready()
    assert node.core is not None
    assert HISTORY_TOPIC in {topic.name for topic in node.core.topics}
    async with coherer.rocketmq.connect(node.rocketmq_url) as client:
        names = {topic.name for topic in await client.admin().topics.list(system=True)}
        assert "demo" in names
        assert HISTORY_TOPIC not in names
        with pytest.raises(RefusedError):
            await client.partitions(HISTORY_TOPIC)


async def test_rocketmq_to_tubemq(tube: TubeClient, rocket: Client) -> None:
    noon = f"$msgTime$\x01{encode_time(NOON)}"
    texts = [
        f"KEYS\x01k1 k2\x02carrier\x01UA\x02UNIQ_KEY\x010A\x02TAGS\x01flight\x02{noon}",
        "UNIQ_KEY\x010B\x02list\x01a,b=c",
        "",
    ]
    for text in texts:
        await rocket.send(text.encode(), i=text)
    await rocket.send(b"", i="TAGS\x01empty")
    await rocket.send(compress(b"z" * 10_000), i="TAGS\x01long", f=1)
    first, second, third, empty, long = await consumed(tube, 5)
    assert (first.tag, first.time) == ("flight", NOON)
    assert dict(first.properties) == {"carrier": "UA", "KEYS": "k1 k2"}
    assert first.body == texts[0].encode()
    assert (second.tag, dict(second.properties)) == (None, {}), "TubeMQ cannot carry it"
    assert (third.body, third.tag, dict(third.properties)) == (b"", None, {})
    assert (empty.body, empty.tag) == (b"", "empty")
    assert (long.body, long.tag) == (b"z" * 10_000, "long")


async def test_tubemq_to_rocketmq(tube: TubeClient, rocket: Client) -> None:
    messages = [
        Message("demo", b"one", tag="flight", time=NOON, properties={"carrier": "UA", "n": "1"}),
        Message("demo", b"two"),
        Message("demo", b"three", tag="other"),
    ]
    async with tube.producer("demo") as producer:
        for message in messages:
            await producer.send(message)
    answer = await rocket.pull(subscription="flight || other")
    assert [bytes(record.body) for record in records_of(answer)] == [b"one", b"three"]
    properties = decode(records_of(answer)[0].properties)
    assert properties["TAGS"] == "flight"
    assert properties["carrier"] == "UA"
    answer = await rocket.pull()
    batch = MessageBatch(answer.body, QUEUE, tags=None, next_offset=3, min_offset=0, max_offset=3)
    one, two, _ = batch
    assert (one.body, one.tag, one.time) == (b"one", "flight", NOON)
    assert dict(one.properties) == {"carrier": "UA", "n": "1"}
    assert (two.body, two.tag, dict(two.properties)) == (b"two", None, {})
    answer = await rocket.pull(subscription="carrier = 'UA'", expressionType="SQL92")
    assert [bytes(record.body) for record in records_of(answer)] == [b"one"]


async def test_messages_wake_consumers_of_the_other_protocol(
    tube: TubeClient, rocket: Client
) -> None:
    flags = SUSPEND | SUBSCRIPTION
    waits = rocket.begin_pull(sysFlag=flags, subscription="b")
    await rocket.settle()
    async with tube.producer("demo") as producer:
        await producer.send(Message("demo", b"passed over", tag="a"))
        assert not waits.done()
        await producer.send(Message("demo", b"wanted", tag="b"))
    async with asyncio.timeout(10):
        assert [bytes(record.body) for record in records_of(await waits)] == [b"wanted"]
    async with tube.consumer("g", {"demo": ["c"]}, start="earliest") as consumer:
        coming = asyncio.ensure_future(anext(aiter(consumer)))
        async with asyncio.timeout(20):
            await rocket.send(b"ours", i="TAGS\x01c")
            assert (await coming).body == b"ours"


async def test_offsets_of_a_group_are_one(tube: TubeClient, rocket: Client) -> None:
    for number in range(6):
        await rocket.send(b"%d" % number)
    of_group = {"consumerGroup": "g", "topic": "demo", "queueId": "0"}
    assert len(await consumed(tube, 6)) == 6
    answer = await rocket.ask(QUERY_OFFSET, of_group)
    assert answer.fields == {"offset": "6"}
    await rocket.ask(UPDATE_OFFSET, {**of_group, "commitOffset": "4"})
    assert [message.body for message in await consumed(tube, 2)] == [b"4", b"5"]
    await rocket.pull(sysFlag=SUBSCRIPTION | COMMIT, queueOffset=2, commitOffset=5)
    assert [message.body for message in await consumed(tube, 1)] == [b"5"]


async def test_times_with_zones_and_parts_of_minutes(tube: TubeClient, rocket: Client) -> None:
    exact = datetime(2024, 1, 2, 3, 4, 5, 678_000, tzinfo=UTC)
    await rocket.send(b"x", i=f"$msgTime$\x01{encode_time(exact)}")
    [message] = await consumed(tube, 1)
    assert message.time == exact.replace(tzinfo=None)
