"""`spark.read` and `df.write` against a node, by each of its doors."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import pytest

from coherer import Message
from coherer.blocking.rocketmq import Client as RocketClient
from coherer.blocking.tubemq import Client
from coherer.spark.source import QueueDataSource, RocketMQDataSource, TubeMQDataSource

if TYPE_CHECKING:
    from conftest import Door
    from pyspark.sql import DataFrame, SparkSession

    from coherer.testing import EmbeddedNode

pytestmark = pytest.mark.spark

TIME = datetime(2013, 1, 1, 10, tzinfo=UTC)


SOURCES: dict[str, type[QueueDataSource]] = {
    "tubemq": TubeMQDataSource,
    "rocketmq": RocketMQDataSource,
}


@pytest.fixture
def client(door: Door) -> Iterator[Client | RocketClient]:
    with door.connect() as client:
        yield client


@pytest.fixture
def numbers(client: Client | RocketClient, coherer_node: EmbeddedNode, coherer_topic: str) -> str:
    """A topic `…_numbers` with 1,000 messages in 4 partitions."""
    topic = f"{coherer_topic}_n"
    coherer_node.create_topic(topic, 4)
    send(client, topic, range(1000))
    return topic


def send(client: Client | RocketClient, topic: str, numbers: range) -> None:
    with client.producer(topic) as producer:
        producer.send_many(
            Message(topic, b"%d" % number, tag="odd" if number % 2 else "even", time=TIME)
            for number in numbers
        ).check()


def read(spark: SparkSession, door: Door, topic: str, **options: object) -> DataFrame:
    texts = {name: str(value) for name, value in options.items()}
    return spark.read.format(door.format).option("url", door.url).options(**texts).load(topic)


def test_a_topic_that_is_not_there_is_an_error_and_not_made(
    spark: SparkSession, door: Door, coherer_node: EmbeddedNode, coherer_topic: str
) -> None:
    from pyspark.errors import AnalysisException

    missing = f"{coherer_topic}_missing"
    with pytest.raises(AnalysisException, match=missing):
        read(spark, door, missing).count()
    assert missing not in coherer_node.call(coherer_node.node.topics)
    assert read(spark, door, missing, failOnDataLoss="false").count() == 0


def test_every_message_is_a_row(
    spark: SparkSession, door: Door, client: Client | RocketClient, numbers: str
) -> None:
    table = read(spark, door, numbers, includeHeaders="true").toArrow()
    assert sorted(int(value) for value in table["value"].to_pylist()) == list(range(1000))
    rows = table.to_pylist()
    for partition in range(4):
        offsets = [row["offset"] for row in rows if row["partition"] == partition]
        _, high = client.offsets(numbers)[door.broker, partition]
        assert offsets == list(range(high))
    row = rows[0]
    assert (row["topic"], row["broker"], row["key"]) == (numbers, door.broker, None)
    assert row["timestamp"] == TIME
    assert row["tag"] == ("odd" if int(row["value"]) % 2 else "even")
    assert row["properties"] == []
    assert len({row["id"] for row in rows}) == 1000


def test_offsets_cut_exactly(spark: SparkSession, door: Door, numbers: str) -> None:
    start = door.offsets(numbers, q0=10, q1=-1, q2=7)
    end = door.offsets(numbers, q0=25, q2=8, q3=3)
    rows = read(spark, door, numbers, startingOffsets=start, endingOffsets=end)
    found = {(row.partition, row.offset) for row in rows.collect()}
    assert found == {(0, at) for at in range(10, 25)} | {(2, 7)} | {(3, at) for at in range(3)}


def test_the_number_of_tasks_can_be_chosen(spark: SparkSession, door: Door, numbers: str) -> None:
    schema = read(spark, door, numbers).schema

    def shares(**options: str) -> list[list[int]]:
        source = SOURCES[door.format]({"url": door.url, "path": numbers, **options})
        planned = source.reader(schema).partitions()
        return [[one.rows for one in share.ranges] for share in planned]

    assert [len(share) for share in shares()] == [4], "small ranges share a task"
    assert len(shares(minPartitions="6")) >= 6
    assert max(map(sum, shares(maxRecordsPerPartition="50"))) <= 50
    assert sum(map(sum, shares(minPartitions="6", maxPartitions="7"))) == 1000


def test_an_empty_topic_is_an_empty_table(
    spark: SparkSession, door: Door, coherer_topic: str
) -> None:
    assert read(spark, door, coherer_topic).count() == 0


def test_several_topics_and_patterns(
    spark: SparkSession,
    coherer_node: EmbeddedNode,
    door: Door,
    client: Client | RocketClient,
    coherer_topic: str,
) -> None:
    topics = [f"{coherer_topic}_{letter}" for letter in "ab"]
    for topic in topics:
        coherer_node.create_topic(topic)
        send(client, topic, range(5))
    both = read(spark, door, ",".join(topics)).groupBy("topic").count()
    assert {tuple(row) for row in both.collect()} == {(topic, 5) for topic in topics}
    matched = (
        spark.read.format(door.format)
        .option("url", door.url)
        .options(**door.admin)
        .option("topicsPattern", f"{coherer_topic}_.")
        .load()
    )
    assert matched.count() == 10


def test_mistakes_surface_at_load(spark: SparkSession, door: Door) -> None:
    from pyspark.errors import AnalysisException

    with pytest.raises(AnalysisException, match="Did you mean startingOffsets"):
        read(spark, door, "t", startingOffset="latest")


def test_an_unknown_topic_is_named(spark: SparkSession, door: Door) -> None:
    topic = "no_such_topic_1"
    with pytest.raises(Exception, match=topic):
        read(spark, door, topic, startingOffsets=door.offsets(topic, q7=1)).count()


def test_what_was_read_can_be_written_and_tells_where_it_came_from(
    spark: SparkSession, door: Door, coherer_node: EmbeddedNode, numbers: str
) -> None:
    copy = f"{numbers}_copy"
    coherer_node.create_topic(copy, 2)
    rows = read(spark, door, numbers, includeHeaders="true", minPartitions=2)
    rows = rows.drop("topic", "broker", "partition", "offset", "id")
    sink = rows.write.format(door.format).option("url", door.url).mode("append")
    sink.save(copy)
    found = read(spark, door, copy, includeHeaders="true").toArrow().to_pylist()
    assert sorted(int(row["value"]) for row in found) == list(range(1000))
    assert all(row["tag"] == ("odd" if int(row["value"]) % 2 else "even") for row in found)
    assert {row["timestamp"] for row in found} == {TIME}
    origins = [tuple(sorted(row["properties"])) for row in found]
    assert len(set(origins)) == 1000
    assert {name for name, _ in origins[0]} == {
        "spark.batch",
        "spark.part",
        "spark.query",
        "spark.seq",
    }


def test_a_row_that_the_broker_refuses_fails_the_job(
    spark: SparkSession, door: Door, coherer_topic: str
) -> None:
    from pyspark.errors import PySparkException

    rows = spark.createDataFrame([(b"x" * 5_000_000,)], "value binary")
    sink = rows.write.format(door.format).option("url", door.url).mode("append")
    with pytest.raises(PySparkException, match=coherer_topic):
        sink.save(coherer_topic)
