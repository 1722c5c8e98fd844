"""Spark at {our, Java} RocketMQ brokers: exact ranges; exactly once with kills on both sides.

`python -m tests.spark.struck_sink java 2000` strikes transactions at thousands of random moments.
"""

from __future__ import annotations

import asyncio
import uuid
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

import coherer
from coherer import Message
from coherer._record.packing import Origin
from coherer._wire.rocketmq.codes import TopicNotExistError
from coherer.blocking.rocketmq import connect as connect_blocking
from coherer.rocketmq import StoredMessage, Verdict
from coherer.spark.columns import DEFAULT
from coherer.spark.commits import Coordinator, RocketHalfQueue, answer_broker, note_finished
from coherer.spark.decisions import Decisions, LocalFolder
from coherer.spark.offsets import Bounds, Offsets, bounds_of, canonical, earliest, latest
from coherer.spark.options import FAILFAST, Access, WriteOptions
from coherer.spark.planning import Range, between, bounded, split
from coherer.spark.queue import TopicAwayError
from coherer.spark.reading import BadRecordError, ReadSettings, rows
from coherer.spark.rocketmq import RocketMQQueue
from coherer.spark.rows import SingleRow
from coherer.spark.sending import RowSender
from tests.interop.peers.rocket_clients import Clients
from tests.interop.peers.rocket_site import Cluster, RocketSite, wait_until
from tests.spark.bad_message import send_bad
from tests.spark.beginning import check_unbroken, forget_commits, land, landed
from tests.spark.landing import feed, finish, land_and_kill
from tests.spark.transacting import ROWS, Run, seen, struck, transact

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
    singles = [SingleRow(number, Message(topic, b"%d" % number)) for number in numbers]
    assert queue.send_singles(singles, 500) == []


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


def never(lost: Range, reason: str = "") -> None:
    raise AssertionError(lost, reason)


def read(queue: RocketMQQueue, start: Offsets, end: Offsets, topic: str) -> list[bytes]:
    """What the tasks of a micro-batch read, with more of them than there are queues."""
    bounds = bounds_of(topic, queue.bounds(topic))
    ranges, lost = between(start, end, bounds)
    assert lost == []
    pieces = split(ranges, min_shares=9, max_rows=None)
    reading = ReadSettings((*DEFAULT, "properties"), True, FAILFAST, on_loss=never, on_bad=never)
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
    reading = ReadSettings((*DEFAULT, "properties"), True, FAILFAST, on_loss=never, on_bad=never)
    found = await asyncio.to_thread(
        lambda: [row for batch in rows(queue, ranges, reading) for row in batch.to_pylist()]
    )
    assert sorted(row["value"] for row in found)[:2] == [b"b1", b"b2"]
    (row,) = [row for row in found if row["key"] == "k1 k2"]
    assert (row["value"], row["tag"], row["topic"]) == (b"long " * 4_000, "red", topic)
    assert (row["partition"], row["offset"]) == (receipt["queue"], receipt["offset"])
    assert sorted(row["properties"]) == [("a", "1"), ("b", "zwei")]
    assert len({row["id"] for row in found}) == 3


async def test_what_was_stored_since(cluster: Cluster, queue: RocketMQQueue, topic: str) -> None:
    """Many messages share a millisecond; none of them may be missed, and none too many be read."""
    await asyncio.to_thread(send, queue, topic, range(500))
    bounds = await held(queue, topic, 500)
    async with coherer.rocketmq.connect(cluster.url) as client:
        stored: dict[tuple[str, int], list[int]] = {}
        for partition in await client.offsets(topic):
            times = stored.setdefault((partition.broker, partition.id), [])
            async with client.reader(partition, 0) as reader:
                while batch := await reader.read():
                    times += [message.stored_ms for message in batch]
    moments = sorted({time_ms for times in stored.values() for time_ms in times})
    assert sum(map(len, stored.values())) == 500
    for time_ms in (0, moments[0], moments[len(moments) // 2], moments[-1], moments[-1] + 1):
        since = await asyncio.to_thread(
            queue.offsets_since, topic, datetime.fromtimestamp(time_ms / 1000, UTC)
        )
        assert since == {place: bisect_left(times, time_ms) for place, times in stored.items()}
    assert latest(bounds)[topic] == {f"{at[0]}:{at[1]}": since[at] for at in sorted(since)}


async def test_bad_records_of_a_broker_are_rows(
    cluster: Cluster, queue: RocketMQQueue, topic: str
) -> None:
    """A broker stores what it is sent: here, bodies that say they are compressed and are not."""
    await asyncio.to_thread(send, queue, topic, range(8))
    found = await held(queue, topic, 8)
    for number in range(3):
        await asyncio.to_thread(send_bad, cluster.broker.port, topic, b"no zlib %d" % number)
    bounds = await held(queue, topic, 11)
    ranges, _ = between(earliest(bounds), latest(bounds), bounds)
    columns = ("partition", "offset", "value", "storeTimestamp", "error")
    permissive = ReadSettings(columns, True, "PERMISSIVE", on_loss=never, on_bad=never)
    made = await asyncio.to_thread(
        lambda: [row for batch in rows(queue, ranges, permissive) for row in batch.to_pylist()]
    )
    good, bad = ([row for row in made if (row["error"] is None) == kind] for kind in (True, False))
    assert sorted(row["value"] for row in good) == [b"%d" % number for number in range(8)]
    assert all(row["storeTimestamp"].date() == datetime.now(UTC).date() for row in good)
    assert [row["value"] for row in bad] == [b"no zlib %d" % number for number in range(3)]
    first = found[topic][f"{cluster.broker.name}:0"][1]
    assert [(row["partition"], row["offset"]) for row in bad] == [
        (0, first + number) for number in range(3)
    ]
    assert all("cannot be decompressed" in row["error"] for row in bad)
    strict = ReadSettings(columns, True, FAILFAST, on_loss=never, on_bad=never)
    with pytest.raises(BadRecordError, match=r"mode=PERMISSIVE"):
        await asyncio.to_thread(list, rows(queue, ranges, strict))


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


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["java", "ours"])
def test_a_topic_whose_broker_is_away_is_not_taken_for_deleted(
    rocket: RocketSite, kind: str, topic: str
) -> None:
    """A stream asks so: the name server answers alike, and knows which brokers are there."""
    namesrv = rocket.names(kind)
    broker = rocket.broker(kind, namesrv)
    url, known = f"rocketmq://{namesrv}", {broker.name}
    queue = RocketMQQueue(Access(url=url))

    def is_away() -> bool:
        try:
            queue.bounds(topic, partial=True, known=known)
        except TopicAwayError:
            return True
        return False

    try:
        send(queue, topic, range(40))
        broker.kill()
        wait_until(is_away)
        broker.start()
        broker.wait()
        wait_until(lambda: not is_away())
        found = queue.bounds(topic, partial=True, known=known)
        assert sum(end for _, end in found.values()) == 40
        with connect_blocking(url) as client:
            client.admin().topics.delete(topic)
        with pytest.raises(TopicNotExistError):
            wait_until(is_away)
    finally:
        queue.close()


@pytest.mark.spark
@pytest.mark.slow
def test_a_stream_begins_where_it_said_at_first(
    rocket: RocketSite, spark: SparkSession, topic: str, tmp_path: Path
) -> None:
    """The default start on a topic of Java's broker that is being written to."""
    url = rocket.cluster("java").url
    with connect_blocking(url) as client:
        client.admin().topics.create(topic, 4, wait_ms=10_000)
        with feed(client, topic):
            for _ in range(2):
                land(spark, "rocketmq", url, topic, tmp_path)
                forget_commits(tmp_path)
            land(spark, "rocketmq", url, topic, tmp_path)
            land(spark, "rocketmq", url, topic, tmp_path)
    check_unbroken(landed(spark, tmp_path))


async def test_rows_that_a_sink_sends_reach_java(
    rocket: RocketSite, cluster: Cluster, queue: RocketMQQueue, topic: str
) -> None:
    """Batches (320) of packed rows, a row too large for a batch, one with a delay level."""
    async with coherer.rocketmq.connect(cluster.url) as client:
        await client.admin().topics.create(topic, 4, wait_ms=10_000)
    bodies = [f"n{number}" for number in range(3_000)]
    bodies[7] += "x" * 1_500_000
    numbers = range(len(bodies))
    rows = pa.RecordBatch.from_arrays(
        [
            pa.array(bodies),
            pa.array([None if number % 3 == 0 else f"t{number % 2}" for number in numbers]),
            pa.array([[f"k{number}", "all"] for number in numbers]),
            pa.array(
                [[("a", str(number))] for number in numbers], pa.map_(pa.string(), pa.string())
            ),
            pa.array([1 if number == 5 else None for number in numbers], pa.int32()),
        ],
        names=["value", "tag", "key", "properties", "delay"],
    )
    options = WriteOptions(access=Access(url=cluster.url), topic=topic)
    async with Clients(rocket, cluster, f"g{topic}") as clients:
        consumer = await clients.consumer("java", {topic: "*"}, start="earliest")
        sender = RowSender(queue, options, Origin({"spark.part": "0"}, "spark.seq"))
        assert await asyncio.to_thread(sender.send, rows) == 3_000
        found = {one["body"]: one for one in await consumer.wait_for(3_000)}
    assert sorted(found) == sorted(bodies)
    for number, body in enumerate(bodies):
        one = found[body]
        assert one["tag"] == (None if number % 3 == 0 else f"t{number % 2}")
        assert tuple(one["keys"]) == (f"k{number}", "all")
        wanted = {"a": str(number), "spark.part": "0", "spark.seq": str(number)}
        assert wanted.items() <= one["properties"].items()


@pytest.mark.spark
@pytest.mark.slow
async def test_transactions_and_their_processes_killed_in_the_middle(
    rocket: RocketSite, topic: str, tmp_path: Path
) -> None:
    """A Java consumer sees each row once, although processes and the broker died at the commits."""
    namesrv = rocket.names("java")
    broker = rocket.broker("java", namesrv)
    cluster = Cluster("java", namesrv, broker)

    def restart() -> None:
        broker.kill()
        broker.start()
        broker.wait()

    with connect_blocking(cluster.url) as client:
        client.admin().topics.create(topic, 4, wait_ms=10_000)
    plan = {
        0: ("after sends", "process"),
        1: ("after decision", "process"),
        2: ("in a commit", "broker"),
        3: ("between commits", "process"),
    }
    assert await asyncio.to_thread(transact, cluster.url, topic, tmp_path, Run(5, plan), restart)
    assert sum(struck(tmp_path).values()) == len(plan)
    found = await asyncio.to_thread(seen, cluster.url, topic)
    async with Clients(rocket, cluster, f"g{topic}") as clients:
        consumer = await clients.consumer("java", {topic: "*"})
        await consumer.wait_for(sum(found.values()))
        assert Counter(map(int, consumer.bodies())) == found
    assert set(found.values()) == {1}
    assert set(found) >= set(range(5 * ROWS))


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["java", "ours"])
def test_half_messages_that_a_broker_asks_about(
    rocket: RocketSite, kind: str, topic: str, tmp_path: Path
) -> None:
    """However often it has asked, they are committed once, and the others are rolled back."""
    url, group = rocket.cluster(kind).url, f"g{topic}"
    answers: Counter[Verdict] = Counter()

    def check(message: StoredMessage) -> Verdict:
        verdict = answer_broker(message)
        answers[verdict] += 1
        return verdict

    messages = [Message(topic, b"%d" % one, properties={"spark.batch": "0"}) for one in range(10)]
    with connect_blocking(url) as client:
        client.admin().topics.create(topic, 4, wait_ms=10_000)
        halves = RocketHalfQueue(client, check)
        halves.prepare(group, messages, 100)  # an attempt whose executor died
        prepared = halves.prepare(group, messages, 100)
        wait_until(lambda: answers[Verdict.UNKNOWN] >= 60)
        assert not seen(url, topic)
        Coordinator(halves, Decisions(LocalFolder(tmp_path))).commit("0", prepared)
        wait_until(lambda: seen(url, topic) == Counter(range(10)))
        note_finished(group, 0)
        wait_until(lambda: answers[Verdict.ROLLBACK] >= 10)
    assert seen(url, topic) == Counter(range(10))
