"""The ranges that Spark's tasks read, from {our, Java} brokers: each message once."""

from __future__ import annotations

import asyncio
import json
from datetime import UTC, datetime, timedelta
from itertools import count, islice, pairwise

import pyarrow as pa
from pyspark.sql.datasource import InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxBytes, ReadMaxRows
from test_matrix import numbered, until

from coherer import Message
from coherer._record.packing import Origin
from coherer.cli.jobs import Source
from coherer.spark.columns import DEFAULT
from coherer.spark.offsets import Offsets, bounds_of, canonical, earliest, latest
from coherer.spark.options import FAILFAST, Access, WriteOptions, read_options
from coherer.spark.planning import Range, between, bounded, split
from coherer.spark.reading import ReadSettings, rows
from coherer.spark.sending import RowSender
from coherer.spark.source import StreamReader
from coherer.spark.topics import Topics
from coherer.spark.tubemq import TubeMQQueue
from tests.interop.peers.clients import closing
from tests.interop.peers.runs import At, scenario
from tests.interop.peers.site import PAIRS

ROUNDS = [range(40), range(40, 41), range(41, 300)]


def never(lost: Range, reason: str = "") -> None:
    raise AssertionError(lost, reason)


def read(queue: TubeMQQueue, start: Offsets, end: Offsets, topic: str) -> list[bytes]:
    """What the tasks of a micro-batch read, with more of them than there are partitions."""
    bounds = bounds_of(topic, queue.bounds(topic))
    ranges, lost = between(start, end, bounds)
    assert lost == []
    pieces = split(ranges, min_shares=5, max_rows=None)
    reading = ReadSettings((*DEFAULT, "properties"), True, FAILFAST, on_loss=never, on_bad=never)
    return [
        value
        for batch in rows(queue, pieces, reading)
        for value in batch.column("value").to_pylist()
    ]


@scenario(PAIRS, partitions=2)
async def test_ranges_of_spark_hold_each_message_once(at: At) -> None:
    """Micro-batches as they come, each cut into more ranges than partitions."""
    queue = TubeMQQueue(Access(url=f"tubemq://{at.master}"))
    try:
        ends = [earliest(bounds_of(at.topic, await asyncio.to_thread(queue.bounds, at.topic)))]
        producer = await at.clients.producer(at.master, [at.topic])
        async with closing(producer):
            for numbers in ROUNDS:
                for message in numbered(at.topic, numbers):
                    await producer.send(message)
                found = bounds_of(at.topic, await asyncio.to_thread(queue.bounds, at.topic))
                # As with maxOffsetsPerTrigger: an end in the middle, then the whole.
                half = bounded(ends[-1], latest(found), 57)
                ends += [canonical(half), latest(found)]
        values: list[bytes] = []
        for start, end in pairwise(ends):
            values += await asyncio.to_thread(read, queue, start, end, at.topic)
        assert sorted(values) == [b"n%06d" % number for numbers in ROUNDS for number in numbers]
    finally:
        await asyncio.to_thread(queue.close)


@scenario(PAIRS, partitions=2, clients=["ours"])
async def test_spark_reads_a_topic_that_takes_no_messages_any_more(at: At) -> None:
    """Producers are not told of it; whoever reads is, and nothing of it is passed over."""
    producer = await at.clients.producer(at.master, [at.topic])
    async with closing(producer):
        for message in numbered(at.topic, range(20)):
            await producer.send(message)
    number = at.deployed.brokers[0].broker_id
    await asyncio.to_thread(
        at.deployed.web.change, "admin_modify_topic_info",
        topicName=at.topic, brokerId=number, acceptPublish="false",
    )  # fmt: skip
    # Java's master hands changes to its brokers one after the other, each in up to 40 s.
    closed = "it is closed for producers"
    await until(lambda: not at.deployed.web.writable(at.topic), closed, 150)
    queue = TubeMQQueue(Access(url=f"tubemq://{at.master}"))
    try:
        found = bounds_of(at.topic, await asyncio.to_thread(queue.bounds, at.topic))
        assert await asyncio.to_thread(queue.missing_brokers, at.topic) == []
        values = await asyncio.to_thread(read, queue, earliest(found), latest(found), at.topic)
        assert sorted(values) == [b"n%06d" % one for one in range(20)]
    finally:
        await asyncio.to_thread(queue.close)


def stream_reader(at: At) -> StreamReader:
    """What Spark makes of a stream without a `startingOffsets`, once per run of a query."""
    return StreamReader(read_options({"url": f"tubemq://{at.master}", "topic": at.topic}))


def as_told(offsets: Offsets) -> Offsets:
    """Spark keeps offsets as text, and hands out what it reads back."""
    told: Offsets = json.loads(json.dumps(offsets))
    return told


def rows_between(reader: StreamReader, start: Offsets, end: Offsets) -> list[bytes]:
    shares: list[InputPartition] = list(reader.partitions(start, end))
    return sorted(
        value
        for share in shares
        for batch in reader.read(share)
        for value in batch.column("value").to_pylist()
    )


@scenario(PAIRS, partitions=2, clients=["ours"])
async def test_a_stream_of_spark_begins_where_it_said_at_first(at: At) -> None:
    """Messages come between any two of Spark's questions; batch 0 runs again after a restart."""
    producer = await at.clients.producer(at.master, [at.topic])
    messages = (message for n in count() for message in numbered(at.topic, range(n, n + 1)))

    async def send(number: int) -> None:
        for message in islice(messages, number):
            await producer.send(message)

    def bodies(numbers: range) -> list[bytes]:
        return [b"n%06d" % number for number in numbers]

    async with closing(producer):
        await send(10)
        reader = stream_reader(at)
        start = as_told(await asyncio.to_thread(reader.initialOffset))
        await send(10)
        end = as_told(await asyncio.to_thread(reader.latestOffset, start, ReadAllAvailable()))
        await send(10)
        again = as_told(await asyncio.to_thread(reader.initialOffset))
        first = await asyncio.to_thread(rows_between, reader, again, end)
        assert first == bodies(range(10, 20))
        for _ in range(2):
            await send(10)
            reader = stream_reader(at)
            again = as_told(await asyncio.to_thread(reader.initialOffset))
            assert await asyncio.to_thread(rows_between, reader, again, end) == first
        last = as_told(await asyncio.to_thread(reader.latestOffset, end, ReadAllAvailable()))
        assert await asyncio.to_thread(rows_between, reader, end, last) == bodies(range(20, 50))


BEGAN = datetime(2024, 1, 1, tzinfo=UTC)


def is_java(at: At) -> bool:
    return at.deployed.topology.brokers == ("java",)


@scenario(PAIRS, partitions=2, clients=["ours"])
async def test_spark_finds_the_offsets_of_a_time(at: At) -> None:
    """Java's broker by bisection over message times, ours by the time of storing."""
    producer = await at.clients.producer(at.master, [at.topic])
    async with closing(producer):
        for number in range(200):
            time = BEGAN + timedelta(minutes=number)
            await producer.send(Message(at.topic, b"n%06d" % number, time=time))
    queue = TubeMQQueue(Access(url=f"tubemq://{at.master}"))
    topics = Topics(read_options({"url": f"tubemq://{at.master}", "topic": at.topic}), lambda: 0)
    try:
        ends = latest(bounds_of(at.topic, await asyncio.to_thread(queue.bounds, at.topic)))
        for minutes in (0, 1, 57, 150, 199, 200):
            time = BEGAN + timedelta(minutes=minutes, seconds=30)
            start = await asyncio.to_thread(topics.offsets_since, queue, time)
            values = await asyncio.to_thread(read, queue, start, ends, at.topic)
            first = minutes if is_java(at) else 0  # a minute is found as a whole
            assert sorted(values) == [b"n%06d" % number for number in range(first, 200)]
        later = datetime.now(UTC) + timedelta(days=1)
        assert await asyncio.to_thread(topics.offsets_since, queue, later) == ends
    finally:
        await asyncio.to_thread(queue.close)


@scenario(PAIRS, partitions=2, clients=["ours"])
async def test_a_trigger_of_spark_counts_rows_and_bytes(at: At) -> None:
    """Also where offsets are positions in an index that two partitions share."""
    producer = await at.clients.producer(at.master, [at.topic])
    async with closing(producer):
        for number in range(400):
            await producer.send(Message(at.topic, b"%1000d" % number))
    for options, limit in (({"maxOffsetsPerTrigger": "100"}, ReadMaxRows(100)),
                           ({"maxBytesPerTrigger": "100k"}, ReadMaxBytes(102_400))):  # fmt: skip
        given = {"url": f"tubemq://{at.master}", "topic": at.topic, "startingOffsets": "earliest"}
        reader = StreamReader(read_options({**given, **options}))
        start = as_told(await asyncio.to_thread(reader.initialOffset))
        counts: list[int] = []
        while (end := as_told(await asyncio.to_thread(reader.latestOffset, start, limit))) != start:
            counts.append(len(await asyncio.to_thread(rows_between, reader, start, end)))
            start = end
        assert sum(counts) == 400
        assert max(counts) <= 110
        assert len(counts) <= 6


@scenario(PAIRS, partitions=2, clients=["ours"])
async def test_jobs_know_whether_offsets_count_messages(at: At) -> None:
    """Otherwise an audit would report most of an index as missing."""
    producer = await at.clients.producer(at.master, [at.topic])
    async with closing(producer):
        for message in numbered(at.topic, range(30)):
            await producer.send(message)
    source = Source(topic=at.topic, url=f"tubemq://{at.master}")
    parts = await asyncio.to_thread(source.preview)
    assert await asyncio.to_thread(source.is_counted, parts) == (not is_java(at))
    if not is_java(at):
        assert sum(part.rows for part in parts) == 30


@scenario(PAIRS, partitions=2)
async def test_rows_that_a_sink_sends(at: At) -> None:
    """Coherer's broker takes batches; Java's refuses the first, and gets messages one by one."""
    numbers = range(2_000)
    table = pa.RecordBatch.from_arrays(
        [
            pa.array([f"n{number}" for number in numbers]),
            pa.array([None if number % 3 == 0 else f"t{number % 2}" for number in numbers]),
            pa.array(
                [[("a", str(number))] for number in numbers], pa.map_(pa.string(), pa.string())
            ),
        ],
        names=["value", "tag", "properties"],
    )
    access = Access(url=f"tubemq://{at.master}")
    queue = TubeMQQueue(access)
    try:
        sender = RowSender(
            queue, WriteOptions(access=access, topic=at.topic), Origin({}, "spark.seq")
        )
        assert await asyncio.to_thread(sender.send, table) == 2_000
        ends = bounds_of(at.topic, await asyncio.to_thread(queue.bounds, at.topic))
        reading = ReadSettings(
            (*DEFAULT, "properties"), True, FAILFAST, on_loss=never, on_bad=never
        )
        ranges, _ = between(earliest(ends), latest(ends), ends)
        found = await asyncio.to_thread(
            lambda: [row for batch in rows(queue, ranges, reading) for row in batch.to_pylist()]
        )
    finally:
        await asyncio.to_thread(queue.close)
    assert sorted(row["value"] for row in found) == sorted(b"n%d" % number for number in numbers)
    for row in found:
        number = int(row["value"][1:])
        assert row["tag"] == (None if number % 3 == 0 else f"t{number % 2}")
        assert dict(row["properties"]) == {"a": str(number), "spark.seq": str(number)}
