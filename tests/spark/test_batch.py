"""`spark.read` and `df.write` against a node, over each protocol."""

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
    from pyspark.sql import DataFrame, SparkSession

    from coherer.testing import EmbeddedNode
    from tests.spark.queues import Endpoint

pytestmark = pytest.mark.spark

TIME = datetime(2013, 1, 1, 10, tzinfo=UTC)


SOURCES: dict[str, type[QueueDataSource]] = {
    "tubemq": TubeMQDataSource,
    "rocketmq": RocketMQDataSource,
}


@pytest.fixture
def client(endpoint: Endpoint) -> Iterator[Client | RocketClient]:
    with endpoint.connect() as client:
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


def read(spark: SparkSession, endpoint: Endpoint, topic: str, **options: object) -> DataFrame:
    texts = {name: str(value) for name, value in options.items()}
    return (
        spark.read.format(endpoint.format).option("url", endpoint.url).options(**texts).load(topic)
    )


def test_a_missing_topic_is_an_error_and_is_not_created(
    spark: SparkSession, endpoint: Endpoint, coherer_node: EmbeddedNode, coherer_topic: str
) -> None:
    from pyspark.errors import AnalysisException

    missing = f"{coherer_topic}_missing"
    with pytest.raises(AnalysisException, match=missing):
        read(spark, endpoint, missing).count()
    assert missing not in coherer_node.call(coherer_node.node.topics)
    assert read(spark, endpoint, missing, failOnDataLoss="false").count() == 0


def test_every_message_is_a_row(
    spark: SparkSession, endpoint: Endpoint, client: Client | RocketClient, numbers: str
) -> None:
    table = read(spark, endpoint, numbers, includeHeaders="true").toArrow()
    assert sorted(int(value) for value in table["value"].to_pylist()) == list(range(1000))
    rows = table.to_pylist()
    for partition in range(4):
        offsets = [row["offset"] for row in rows if row["partition"] == partition]
        [high] = [end for one, (_, end) in client.offsets(numbers).items() if one.id == partition]
        assert offsets == list(range(high))
    row = rows[0]
    assert (row["topic"], row["broker"], row["key"]) == (numbers, endpoint.broker, None)
    assert row["timestamp"] == TIME
    assert row["tag"] == ("odd" if int(row["value"]) % 2 else "even")
    assert row["properties"] == []
    assert len({row["id"] for row in rows}) == 1000


def test_offsets_limit_a_read_exactly(
    spark: SparkSession, endpoint: Endpoint, numbers: str
) -> None:
    start = endpoint.offsets(numbers, q0=10, q1=-1, q2=7)
    end = endpoint.offsets(numbers, q0=25, q2=8, q3=3)
    rows = read(spark, endpoint, numbers, startingOffsets=start, endingOffsets=end)
    found = {(row.partition, row.offset) for row in rows.collect()}
    assert found == {(0, at) for at in range(10, 25)} | {(2, 7)} | {(3, at) for at in range(3)}


def test_options_set_the_number_of_tasks(
    spark: SparkSession, endpoint: Endpoint, numbers: str
) -> None:
    schema = read(spark, endpoint, numbers).schema

    def shares(**options: str) -> list[list[int]]:
        source = SOURCES[endpoint.format]({"url": endpoint.url, "path": numbers, **options})
        planned = source.reader(schema).partitions()
        return [[one.rows for one in share.ranges] for share in planned]

    assert [len(share) for share in shares()] == [4], "small ranges share a task"
    assert len(shares(minPartitions="6")) >= 6
    assert max(map(sum, shares(maxRecordsPerPartition="50"))) <= 50
    assert sum(map(sum, shares(minPartitions="6", maxPartitions="7"))) == 1000


def test_an_empty_topic_is_an_empty_table(
    spark: SparkSession, endpoint: Endpoint, coherer_topic: str
) -> None:
    assert read(spark, endpoint, coherer_topic).count() == 0


def test_several_topics_and_patterns(
    spark: SparkSession,
    coherer_node: EmbeddedNode,
    endpoint: Endpoint,
    client: Client | RocketClient,
    coherer_topic: str,
) -> None:
    topics = [f"{coherer_topic}_{letter}" for letter in "ab"]
    for topic in topics:
        coherer_node.create_topic(topic)
        send(client, topic, range(5))
    both = read(spark, endpoint, ",".join(topics)).groupBy("topic").count()
    assert {tuple(row) for row in both.collect()} == {(topic, 5) for topic in topics}
    matched = (
        spark.read.format(endpoint.format)
        .option("url", endpoint.url)
        .options(**endpoint.admin)
        .option("topicsPattern", f"{coherer_topic}_.")
        .load()
    )
    assert matched.count() == 10


def test_mistakes_surface_at_load(spark: SparkSession, endpoint: Endpoint) -> None:
    from pyspark.errors import AnalysisException

    with pytest.raises(AnalysisException, match="Did you mean startingOffsets"):
        read(spark, endpoint, "t", startingOffset="latest")


def test_an_unknown_topic_is_named(spark: SparkSession, endpoint: Endpoint) -> None:
    topic = "no_such_topic_1"
    with pytest.raises(Exception, match=topic):
        read(spark, endpoint, topic, startingOffsets=endpoint.offsets(topic, q7=1)).count()


def test_rows_that_were_read_can_be_written_with_their_origin(
    spark: SparkSession, endpoint: Endpoint, coherer_node: EmbeddedNode, numbers: str
) -> None:
    copy = f"{numbers}_copy"
    coherer_node.create_topic(copy, 2)
    rows = read(spark, endpoint, numbers, includeHeaders="true", minPartitions=2)
    rows = rows.drop("topic", "broker", "partition", "offset", "id")
    sink = rows.write.format(endpoint.format).option("url", endpoint.url).mode("append")
    sink.save(copy)
    found = read(spark, endpoint, copy, includeHeaders="true").toArrow().to_pylist()
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
    spark: SparkSession, endpoint: Endpoint, coherer_topic: str
) -> None:
    from pyspark.errors import PySparkException

    rows = spark.createDataFrame([(b"x" * 5_000_000,)], "value binary")
    sink = rows.write.format(endpoint.format).option("url", endpoint.url).mode("append")
    with pytest.raises(PySparkException, match=coherer_topic):
        sink.save(coherer_topic)
