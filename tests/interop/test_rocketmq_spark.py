"""Spark at {our, Java} RocketMQ brokers: exact ranges; exactly once with kills on both sides."""

from __future__ import annotations

import asyncio
import uuid
from bisect import bisect_left
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import coherer
from coherer import Message
from coherer._wire.rocketmq.codes import TopicNotExistError
from coherer._wire.rocketmq.names import Queue
from coherer.blocking.rocketmq import connect as connect_blocking
from coherer.spark.offsets import Bounds, Offsets, bounds_of, canonical, earliest, latest
from coherer.spark.options import Access
from coherer.spark.planning import Range, between, bounded, split
from coherer.spark.reading import ReadSettings, arrow_schema, rows
from coherer.spark.rocketmq import RocketMQQueue
from tests.interop.peers.rocket_clients import Clients
from tests.interop.peers.rocket_site import Cluster, RocketSite, wait_until
from tests.interop.peers.rocketmq import PATIENT, JavaRocketBroker
from tests.spark.beginning import check_unbroken, forget_commits, land, landed
from tests.spark.landing import feed, finish, land_and_kill

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.interop

ROUNDS = [range(40), range(40, 41), range(41, 300)]


@pytest.fixture
def topic() -> str:
    return f"t{uuid.uuid4().hex[:10]}"


@pytest.fixture
def queue(cluster: Cluster) -> Iterator[RocketMQQueue]:
    queue = RocketMQQueue(Access(url=cluster.url))
    yield queue
    queue.close()


def send(queue: RocketMQQueue, topic: str, numbers: range) -> None:
    sent = queue.send((Message(topic, b"%d" % number) for number in numbers), 500)
    assert sent == len(numbers)


async def held(queue: RocketMQQueue, topic: str, count: int) -> Bounds:
    """What the broker holds, when it holds `count`.

    A topic's route and a message's place may both be told later than the message's receipt.
    """

    def all_there() -> bool:
        try:
            bounds = queue.bounds(topic)
        except TopicNotExistError:
            return False
        return sum(end - first for first, end in bounds.values()) == count

    await asyncio.to_thread(wait_until, all_there)
    return bounds_of(topic, await asyncio.to_thread(queue.bounds, topic))


def never(lost: Range) -> None:
    raise AssertionError(lost)


def read(queue: RocketMQQueue, start: Offsets, end: Offsets, topic: str) -> list[bytes]:
    """What the tasks of a micro-batch read, with more of them than there are queues."""
    bounds = bounds_of(topic, queue.bounds(topic))
    ranges, lost = between(start, end, bounds)
    assert lost == []
    pieces = split(ranges, min_shares=9, max_rows=None)
    reading = ReadSettings(
        arrow_schema(include_headers=True), fail_on_data_loss=True, on_loss=never
    )
    return [
        value
        for batch in rows(queue, pieces, reading)
        for value in batch.column("value").to_pylist()
    ]


async def test_ranges_of_spark_hold_each_message_once(
    rocket: RocketSite, cluster: Cluster, queue: RocketMQQueue, topic: str
) -> None:
    """Micro-batches as they come, each cut into more ranges than queues; Java's clients send."""
    async with Clients(rocket, cluster, f"g{topic}") as clients:
        producer = await clients.producer("java")
        await producer.send(topic, "first")
        ends = [earliest(await held(queue, topic, 1))]
        for numbers in ROUNDS:
            await producer.send_many(topic, [f"n{number}" for number in numbers])
            found = await held(queue, topic, 1 + numbers.stop)
            # As with maxOffsetsPerTrigger: an end in the middle, then the whole.
            ends += [canonical(bounded(ends[-1], latest(found), 57)), latest(found)]
    values: list[bytes] = []
    for start, end in pairwise(ends):
        values += await asyncio.to_thread(read, queue, start, end, topic)
    expected = [b"first", *(b"n%d" % number for numbers in ROUNDS for number in numbers)]
    assert Counter(values) == Counter(expected)


async def test_rows_of_what_java_sent(
    rocket: RocketSite, cluster: Cluster, queue: RocketMQQueue, topic: str
) -> None:
    async with Clients(rocket, cluster, f"g{topic}") as clients:
        producer = await clients.producer("java")
        receipt = await producer.send(
            topic, "long " * 4_000, tag="red", keys=["k1", "k2"], properties={"a": "1", "b": "zwei"}
        )
        await producer.batch(topic, ["b1", "b2"])
    bounds = await held(queue, topic, 3)
    ranges, _ = between(earliest(bounds), latest(bounds), bounds)
    reading = ReadSettings(
        arrow_schema(include_headers=True), fail_on_data_loss=True, on_loss=never
    )
    found = await asyncio.to_thread(
        lambda: [row for batch in rows(queue, ranges, reading) for row in batch.to_pylist()]
    )
    assert sorted(row["value"] for row in found)[:2] == [b"b1", b"b2"]
    (row,) = [row for row in found if row["key"] == "k1 k2"]
    assert (row["value"], row["tag"], row["topic"]) == (b"long " * 4_000, "red", topic)
    assert (row["partition"], row["offset"]) == (receipt["queue"], receipt["offset"])
    assert sorted(row["properties"]) == [("a", "1"), ("b", "zwei")]
    assert len({row["id"] for row in found}) == 3


@pytest.fixture
async def impatient(cluster: Cluster) -> AsyncIterator[None]:
    """Java's broker refuses what waits for as long as it does outside of tests."""
    if not isinstance(cluster.broker, JavaRocketBroker):
        yield
        return
    name = "waitTimeMillsInSendQueue"
    async with coherer.rocketmq.connect(cluster.url) as client:
        admin = client.admin()
        await admin.set_broker_config(cluster.broker.name, {name: "200"})
        yield
        await admin.set_broker_config(cluster.broker.name, {name: str(PATIENT[name])})


@pytest.mark.usefixtures("impatient")
async def test_what_was_stored_since(cluster: Cluster, queue: RocketMQQueue, topic: str) -> None:
    """Many messages share a millisecond; none of them may be missed, and none too many be read."""
    await asyncio.to_thread(send, queue, topic, range(500))
    bounds = await held(queue, topic, 500)
    async with coherer.rocketmq.connect(cluster.url) as client:
        stored: dict[tuple[str, int], list[int]] = {}
        for place in await client.offsets(topic):
            stored[place] = []
            async with client.reader(Queue(topic, *place), 0) as reader:
                while batch := await reader.read():
                    stored[place] += [message.stored_ms for message in batch]
    moments = sorted({time_ms for times in stored.values() for time_ms in times})
    assert sum(map(len, stored.values())) == 500
    for time_ms in (0, moments[0], moments[len(moments) // 2], moments[-1], moments[-1] + 1):
        since = await asyncio.to_thread(
            queue.offsets_since, topic, datetime.fromtimestamp(time_ms / 1000, UTC)
        )
        assert since == {place: bisect_left(times, time_ms) for place, times in stored.items()}
    assert latest(bounds)[topic] == {f"{at[0]}:{at[1]}": since[at] for at in sorted(since)}


async def test_a_busy_broker_gets_its_messages_later(
    rocket: RocketSite, queue: RocketMQQueue, topic: str
) -> None:
    """More at a time than Java's broker likes: none is lost, none is sent twice."""
    messages = [Message(topic, b"%d" % number * 50) for number in range(10_000)]
    assert await asyncio.to_thread(queue.send, messages, 5_000) == 10_000
    bounds = await held(queue, topic, 10_000)
    values = await asyncio.to_thread(read, queue, earliest(bounds), latest(bounds), topic)
    assert Counter(values) == Counter(message.body for message in messages)


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.parametrize("kind", ["java", "ours"])
def test_streams_and_brokers_killed_in_the_middle(
    rocket: RocketSite, spark: SparkSession, kind: str, topic: str, tmp_path: Path
) -> None:
    """Driver, workers and then the broker end by SIGKILL; every message lands once."""
    namesrv = rocket.names(kind)
    broker = rocket.broker(kind, namesrv)
    url = f"rocketmq://{namesrv}"
    queue = RocketMQQueue(Access(url=url))
    try:
        send(queue, topic, range(6_000))
        assert land_and_kill("rocketmq", url, topic, tmp_path, 500) < 6_000
        broker.kill()
        broker.start()
        broker.wait()
        send(queue, topic, range(6_000, 6_500))
        assert land_and_kill("rocketmq", url, topic, tmp_path, 1_000) < 6_500
    finally:
        queue.close()
    assert finish(spark, "rocketmq", url, topic, tmp_path) == Counter(range(6_500))


@pytest.mark.spark
@pytest.mark.slow
def test_a_stream_begins_where_it_said_at_first(
    rocket: RocketSite, spark: SparkSession, topic: str, tmp_path: Path
) -> None:
    """The default start on a topic of Java's broker that is being written to."""
    url = rocket.cluster("java").url
    with connect_blocking(url) as client:
        client.admin().create_topic(topic, 4, wait_ms=10_000)
        with feed(client, topic):
            for _ in range(2):
                land(spark, "rocketmq", url, topic, tmp_path)
                forget_commits(tmp_path)
            land(spark, "rocketmq", url, topic, tmp_path)
            land(spark, "rocketmq", url, topic, tmp_path)
    check_unbroken(landed(spark, tmp_path))
