"""What a read chooses: partitions, times, columns, filters, limits; over each protocol."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader, NumberDataPoint

from coherer import Message
from coherer.spark import StreamMetrics, measured, source_metrics

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.listener import QueryTerminatedEvent

    from coherer.testing import EmbeddedNode
    from tests.spark.queues import Endpoint

pytestmark = pytest.mark.spark

WAIT_S = 120
TIME = datetime(2013, 1, 1, 10, tzinfo=UTC)


@pytest.fixture
def halves(
    endpoint: Endpoint, coherer_node: EmbeddedNode, coherer_topic: str
) -> Iterator[tuple[str, int]]:
    """A topic with 100 messages in 2 partitions, and the time (ms) between its halves."""
    topic = f"{coherer_topic}_c"
    coherer_node.create_topic(topic, 2)
    with endpoint.connect() as client, client.producer(topic) as producer:
        for number in range(50):
            producer.send(Message(topic, b"%d" % number, time=TIME))
        then = time.time_ns() // 1_000_000 + 2
        while time.time_ns() // 1_000_000 <= then:
            pass
        producer.send_many(Message(topic, b"%d" % number) for number in range(50, 100)).check()
        yield topic, then


def read(spark: SparkSession, endpoint: Endpoint, topic: str, **options: object) -> DataFrame:
    texts = {name: str(value) for name, value in options.items()}
    rows = spark.read.format(endpoint.format).option("url", endpoint.url).options(**texts)
    return rows.load(topic) if topic else rows.load()


def numbers(rows: DataFrame) -> list[int]:
    return sorted(int(value) for value in rows.select("value").toArrow()["value"].to_pylist())


def test_assigned_partitions_only(
    spark: SparkSession, endpoint: Endpoint, halves: tuple[str, int]
) -> None:
    topic, _ = halves
    whole = read(spark, endpoint, topic).groupBy("partition").count().toArrow().to_pylist()
    counts = {row["partition"]: row["count"] for row in whole}
    for one in (1, f"{endpoint.broker}:1"):
        rows = read(spark, endpoint, "", assign=json.dumps({topic: [one]}))
        assert rows.count() == counts[1]
    missing = read(spark, endpoint, "", assign=json.dumps({topic: [7]}))
    with pytest.raises(Exception, match="names partition 7, which does not exist"):
        missing.count()


def test_times_are_those_of_storing_over_both_protocols(
    spark: SparkSession, endpoint: Endpoint, halves: tuple[str, int]
) -> None:
    topic, then = halves
    assert numbers(read(spark, endpoint, topic, startingTimestamp=then)) == list(range(50, 100))
    assert numbers(read(spark, endpoint, topic, endingTimestamp=then)) == list(range(50))
    first = json.dumps({topic: {f"{endpoint.broker}:0": then}})
    rows = read(spark, endpoint, topic, startingOffsetsByTimestamp=first)
    assert set(range(50, 100)) < set(numbers(rows)) < set(range(100)), "the other one is whole"
    late = json.dumps({topic: then + 86_400_000})
    with pytest.raises(Exception, match=r"no message at its starting time.*Strategy=latest"):
        read(spark, endpoint, topic, startingOffsetsByTimestamp=late).count()
    strategy = {"startingOffsetsByTimestampStrategy": "latest"}
    rows = read(spark, endpoint, topic, startingOffsetsByTimestamp=late, **strategy)
    assert rows.count() == 0
    assert read(spark, endpoint, topic, endingOffsets="earliest").count() == 0


def test_chosen_columns(spark: SparkSession, endpoint: Endpoint, halves: tuple[str, int]) -> None:
    topic, then = halves
    names = "offset, value, timestampType, bornTimestamp, storeTimestamp"
    table = read(spark, endpoint, topic, columns=names).toArrow()
    assert table.schema.names == names.split(", ")
    rows = {int(row["value"]): row for row in table.to_pylist()}
    if endpoint.format == "rocketmq":
        stored = [rows[number]["storeTimestamp"].timestamp() * 1000 < then for number in range(100)]
        assert stored == [True] * 50 + [False] * 50
        assert rows[0]["bornTimestamp"].date() == datetime.now(UTC).date()
        assert {row["timestampType"] for row in rows.values()} == {0}
    else:
        assert [rows[0]["timestampType"], rows[99]["timestampType"]] == [0, -1]


def tasks(rows: DataFrame) -> int:
    return rows.rdd.getNumPartitions()


@pytest.fixture
def pushing(spark: SparkSession) -> Iterator[None]:
    setting = "spark.sql.python.filterPushdown.enabled"
    spark.conf.set(setting, "true")
    yield
    spark.conf.unset(setting)


@pytest.mark.usefixtures("pushing")
def test_filters_prune_what_is_read(
    spark: SparkSession, endpoint: Endpoint, halves: tuple[str, int]
) -> None:
    topic, then = halves

    def rows(*columns: str) -> DataFrame:
        options = {"columns": ",".join(columns), "maxRecordsPerPartition": 10, "pushdown": "true"}
        return read(spark, endpoint, topic, **options)

    few = rows("partition", "offset").filter("partition = 1 and offset >= 3 and offset < 13")
    assert few.count() == 10
    assert tasks(few) == 1
    assert rows("topic").filter("topic = 'other'").count() == 0
    when = f"storeTimestamp >= timestamp_millis({then})"
    young = rows("value", "storeTimestamp").filter(when)
    if endpoint.format == "rocketmq":
        assert numbers(young) == list(range(50, 100))
        assert tasks(young) <= 6 < tasks(rows("value"))
        old = rows("value", "storeTimestamp").filter(f"not {when}")
        assert numbers(old) == list(range(50))
    else:
        assert young.count() == 0


@pytest.mark.usefixtures("pushing")
def test_spark_confuses_filters_of_one_dataframe(
    spark: SparkSession, endpoint: Endpoint, halves: tuple[str, int]
) -> None:
    """The reason for the option `pushdown`. If Spark mends it, the option can go."""
    for pushdown, wanted in (("false", 100), ("true", 10)):
        rows = read(spark, endpoint, halves[0], pushdown=pushdown)
        assert rows.filter("partition = 1 and offset < 10").count() == 10
        assert rows.count() == wanted


class Followed(StreamMetrics):
    """Notes the end of a query, after which no progress comes."""

    def __init__(self, provider: MeterProvider) -> None:
        super().__init__(provider=provider)
        self.ended = threading.Event()

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:  # noqa: N802
        self.ended.set()


def sums(reader: InMemoryMetricReader) -> dict[str, float]:
    """The counters that OpenTelemetry has."""
    data = reader.get_metrics_data()
    assert data is not None
    return {
        metric.name: point.value
        for resource in data.resource_metrics
        for scope in resource.scope_metrics
        for metric in scope.metrics
        for point in metric.data.data_points
        if isinstance(point, NumberDataPoint)
    }


def test_a_stream_keeps_its_limit_of_bytes_and_is_measured(
    spark: SparkSession, endpoint: Endpoint, coherer_node: EmbeddedNode, coherer_topic: str,
    tmp_path: Path,
) -> None:  # fmt: skip
    topic = f"{coherer_topic}_b"
    coherer_node.create_topic(topic, 2)
    with endpoint.connect() as client, client.producer(topic) as producer:
        producer.send_many(Message(topic, b"x" * 1000) for _ in range(100)).check()
    options = {"startingOffsets": "earliest", "maxBytesPerTrigger": "40k"}
    rows = spark.readStream.format(endpoint.format).option("url", endpoint.url)
    reader = InMemoryMetricReader()
    metrics = Followed(provider=MeterProvider([reader]))
    spark.streams.addListener(metrics)
    try:
        query = (
            measured(rows.options(**options).load(topic))
            .writeStream.format("noop")
            .queryName(topic)
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        assert query.awaitTermination(WAIT_S)
        batches = [progress for progress in query.recentProgress if progress.numInputRows]
        assert sum(progress.numInputRows for progress in batches) == 100
        assert all(30 <= progress.numInputRows <= 41 for progress in batches[:-1])
        (first,) = source_metrics(batches[0])
        assert first.behind_max * 2 == 100 - first.rows
        assert (first.missing, first.bytes, first.bad) == (0, 1000 * first.rows, 0)
        assert first.rows_per_second > 0
        assert first.bytes_per_second == pytest.approx(1000 * first.rows_per_second)
        (followed,) = metrics.wait(topic)
        assert followed.topics == (topic,)
        assert metrics.ended.wait(WAIT_S)
        counted = {"coherer.spark.rows": 100, "coherer.spark.bytes": 100_000}
        assert counted.items() <= sums(reader).items()
    finally:
        spark.streams.removeListener(metrics)
