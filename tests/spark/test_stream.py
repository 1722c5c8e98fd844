"""`spark.readStream` and `df.writeStream` against a node, over each protocol."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from coherer import Message
from coherer.blocking import connect
from coherer.blocking.rocketmq import Client as RocketClient
from coherer.blocking.tubemq import Client
from coherer.spark import lag

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from coherer.testing import EmbeddedNode
    from tests.spark.queues import Endpoint

pytestmark = pytest.mark.spark

WAIT_S = 120


@pytest.fixture
def client(endpoint: Endpoint) -> Iterator[Client | RocketClient]:
    with endpoint.connect() as client:
        yield client


@pytest.fixture
def topic(coherer_node: EmbeddedNode, coherer_topic: str) -> str:
    name = f"{coherer_topic}_s"
    coherer_node.create_topic(name, 3)
    return name


def send(client: Client | RocketClient, topic: str, numbers: range) -> None:
    with client.producer(topic) as producer:
        producer.send_many(Message(topic, b"%d" % number) for number in numbers).check()


def stream(spark: SparkSession, endpoint: Endpoint, topic: str, **options: object) -> DataFrame:
    given = {"startingOffsets": "earliest", **options}
    texts = {name: str(value) for name, value in given.items()}
    rows = spark.readStream.format(endpoint.format).option("url", endpoint.url)
    return rows.options(**texts).load(topic)


def land(rows: DataFrame, home: Path) -> StreamingQuery:
    """Lands the present messages in a table, continuing where the last call ended."""
    query = (
        rows.selectExpr("cast(value as string) number", "broker", "partition", "offset")
        .writeStream.format("parquet")
        .option("path", str(home / "table"))
        .option("checkpointLocation", str(home / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(WAIT_S)
    return query


def landed(spark: SparkSession, home: Path) -> Counter[int]:
    rows = spark.read.parquet(str(home / "table")).select("number").toArrow()
    return Counter(int(number) for number in rows["number"].to_pylist())


def once(numbers: range) -> Counter[int]:
    return Counter(numbers)


def forget_last_commit(home: Path) -> None:
    """Restore the state after a crash between the end of the last batch and its commit."""
    commits = home / "checkpoint" / "commits"
    last = max(
        (file for file in commits.iterdir() if file.name.isdigit()), key=lambda f: int(f.name)
    )
    last.unlink()
    (commits / f".{last.name}.crc").unlink(missing_ok=True)


def test_available_now_reads_in_bounded_batches(
    spark: SparkSession,
    endpoint: Endpoint,
    client: Client | RocketClient,
    topic: str,
    tmp_path: Path,
) -> None:
    send(client, topic, range(1000))
    query = land(stream(spark, endpoint, topic, maxOffsetsPerTrigger=400), tmp_path)
    assert landed(spark, tmp_path) == once(range(1000))
    progress = [one for one in query.recentProgress if one["numInputRows"]]
    assert [one["numInputRows"] for one in progress] == [400, 400, 200]
    assert [lag(one).total for one in progress] == [600, 200, 0]


def test_the_trigger_once_does_not_wait_for_more(
    spark: SparkSession,
    endpoint: Endpoint,
    client: Client | RocketClient,
    topic: str,
    tmp_path: Path,
) -> None:
    send(client, topic, range(100))
    for limits in ({}, {"maxOffsetsPerTrigger": 2000}):
        home = tmp_path / f"{len(limits)}"
        rows = stream(spark, endpoint, topic, minOffsetsPerTrigger=1000, **limits)
        query = (
            rows.selectExpr("cast(value as string) number")
            .writeStream.format("parquet")
            .option("path", str(home / "table"))
            .option("checkpointLocation", str(home / "checkpoint"))
            .trigger(once=True)
            .start()
        )
        assert query.awaitTermination(WAIT_S)
        assert landed(spark, home) == once(range(100))


def test_a_stream_continues_from_its_checkpoint(
    spark: SparkSession,
    endpoint: Endpoint,
    client: Client | RocketClient,
    topic: str,
    tmp_path: Path,
) -> None:
    send(client, topic, range(100))
    land(stream(spark, endpoint, topic), tmp_path)
    send(client, topic, range(100, 150))
    land(stream(spark, endpoint, topic), tmp_path)
    assert landed(spark, tmp_path) == once(range(150))


@pytest.mark.parametrize("planned", [False, True], ids=["done", "planned"])
def test_a_checkpoint_of_another_topic_is_refused(
    spark: SparkSession,
    endpoint: Endpoint,
    client: Client | RocketClient,
    topic: str,
    tmp_path: Path,
    planned: bool,
) -> None:
    from pyspark.errors import StreamingQueryException

    other = f"{topic}_other"
    for one in (topic, other):
        send(client, one, range(10))
    land(stream(spark, endpoint, topic), tmp_path)
    if planned:
        forget_last_commit(tmp_path)
    with pytest.raises(
        StreamingQueryException, match=f"checkpoint is for {topic}, and the stream reads {other}"
    ):
        land(stream(spark, endpoint, other), tmp_path)
    assert landed(spark, tmp_path) == once(range(10))


def test_a_batch_that_was_planned_but_not_committed_is_read_again_exactly(
    spark: SparkSession,
    endpoint: Endpoint,
    client: Client | RocketClient,
    topic: str,
    tmp_path: Path,
) -> None:
    send(client, topic, range(100))
    land(stream(spark, endpoint, topic, maxOffsetsPerTrigger=60), tmp_path)
    send(client, topic, range(100, 120))
    forget_last_commit(tmp_path)
    land(stream(spark, endpoint, topic), tmp_path)
    assert landed(spark, tmp_path) == once(range(120))


def test_a_running_stream_reads_messages_soon_and_idles_quietly(
    spark: SparkSession,
    endpoint: Endpoint,
    client: Client | RocketClient,
    topic: str,
    tmp_path: Path,
) -> None:
    query = (
        stream(spark, endpoint, topic)
        .selectExpr("cast(value as string) number")
        .writeStream.format("memory")
        .queryName("seen")
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .start()
    )
    try:
        for numbers in (range(50), range(50, 80)):
            send(client, topic, numbers)
            query.processAllAvailable()
            seen = Counter(int(row.number) for row in spark.table("seen").collect())
            assert seen == once(range(numbers.stop))
        assert len([one for one in query.recentProgress if one["numInputRows"]]) <= 4
    finally:
        query.stop()


def test_a_topic_is_copied_into_another(
    spark: SparkSession,
    coherer_node: EmbeddedNode,
    endpoint: Endpoint,
    client: Client | RocketClient,
    topic: str,
    tmp_path: Path,
) -> None:
    copy = f"{topic}_copy"
    coherer_node.create_topic(copy, 2)
    send(client, topic, range(300))
    query = (
        stream(spark, endpoint, topic)
        .drop("topic", "broker", "partition", "offset", "id")
        .writeStream.format(endpoint.format)
        .option("url", endpoint.url)
        .option("topic", copy)
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(WAIT_S)
    rows = spark.read.format(endpoint.format).options(url=endpoint.url, includeHeaders="true")
    found = rows.load(copy).toArrow().to_pylist()
    assert Counter(int(row["value"]) for row in found) == once(range(300))
    (name,) = {dict(row["properties"])["spark.query"] for row in found}
    assert name == str(query.id)


def test_lost_messages_stop_the_stream_by_default(
    spark: SparkSession,
    coherer_node: EmbeddedNode,
    endpoint: Endpoint,
    client: Client | RocketClient,
    topic: str,
    tmp_path: Path,
) -> None:
    from pyspark.errors import StreamingQueryException

    send(client, topic, range(90))
    land(stream(spark, endpoint, topic), tmp_path)
    coherer_node.call(lambda: coherer_node.node.delete_topic(topic))
    coherer_node.create_topic(topic, 3)
    send(client, topic, range(1000, 1030))
    with pytest.raises(StreamingQueryException, match=r"Messages were lost.*failOnDataLoss=false"):
        land(stream(spark, endpoint, topic), tmp_path)
    land(stream(spark, endpoint, topic, failOnDataLoss="false"), tmp_path)
    send(client, topic, range(90, 120))
    land(stream(spark, endpoint, topic), tmp_path)
    assert landed(spark, tmp_path) == once(range(120)), "it goes on from the new end"


def test_progress_is_committed_to_the_broker(
    spark: SparkSession,
    coherer_node: EmbeddedNode,
    endpoint: Endpoint,
    client: Client | RocketClient,
    topic: str,
    tmp_path: Path,
) -> None:
    send(client, topic, range(90))
    group = f"shown_{endpoint.format}"
    options = {**endpoint.admin, "group": group, "commitOffsets": "true"}
    land(stream(spark, endpoint, topic, **options), tmp_path)
    # Whichever endpoint set them: the offsets of a group are one.
    with connect(coherer_node.url, admin=coherer_node.admin_url) as admin_client:
        (found,) = admin_client.admin().groups.list(group)
    assert found.lag == 0
