"""Sinks against a node, over each protocol: columns, order, delays, repeated tasks, restarts."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from coherer.errors import UsageError
from coherer.spark import deduplicate

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from coherer.testing import EmbeddedNode
    from tests.spark.queues import Endpoint

pytestmark = pytest.mark.spark

WAIT_S = 120


@pytest.fixture
def topic(coherer_node: EmbeddedNode, coherer_topic: str) -> str:
    name = f"{coherer_topic}_sink"
    coherer_node.create_topic(name, 3)
    return name


def read(spark: SparkSession, endpoint: Endpoint, topic: str) -> DataFrame:
    source = spark.read.format(endpoint.format).option("url", endpoint.url)
    return source.option("includeHeaders", True).load(topic)


def write(rows: DataFrame, endpoint: Endpoint, topic: str, **options: object) -> None:
    texts = {name: str(value) for name, value in options.items()}
    sink = rows.write.format(endpoint.format).option("url", endpoint.url).options(**texts)
    sink.mode("append").save(topic)


def test_rows_of_all_sizes_arrive(spark: SparkSession, endpoint: Endpoint, topic: str) -> None:
    """Some are empty but for a byte, some too large for a batch; some have a tag."""
    rows = spark.range(400).selectExpr(
        "concat(id, ':', repeat('x', cast(if(id = 77, 900000, id * 50) as int))) value",
        "if(id % 3 = 0, null, concat('t', id % 5)) tag",
        "if(id % 2 = 0, map('even', cast(id as string)), null) properties",
        "timestamp '2024-01-02 03:04:00' + make_interval(0, 0, 0, 0, 0, 0, id) timestamp",
    )
    write(rows, endpoint, topic)
    found = {int(row.value.split(b":")[0]): row for row in read(spark, endpoint, topic).collect()}
    assert sorted(found) == list(range(400))
    for number, row in found.items():
        length = 900_000 if number == 77 else number * 50
        assert len(row.value) == length + len(f"{number}:")
        assert row.tag == (None if number % 3 == 0 else f"t{number % 5}")
        assert row.properties.get("even") == (str(number) if number % 2 == 0 else None)
        assert (row.timestamp.hour, row.timestamp.minute) == (3, 4 + number // 60)


def test_columns_choose_the_partition(spark: SparkSession, endpoint: Endpoint, topic: str) -> None:
    rows = spark.range(90).selectExpr(
        "cast(id as string) value", "cast(id % 3 as int) partition",
        f"if(id < 45, null, '{endpoint.broker}') broker",
    )  # fmt: skip
    write(rows, endpoint, topic)
    found = read(spark, endpoint, topic).collect()
    assert len(found) == 90
    assert all(int(row.value) % 3 == row.partition for row in found)


def test_rows_with_equal_keys_are_in_order(
    spark: SparkSession, coherer_node: EmbeddedNode, topic: str
) -> None:
    rows = spark.range(0, 3_000, 1, 1).selectExpr(
        "concat(id, repeat('x', 2000)) value", "concat('k', id % 7) key"
    )
    sink = rows.write.format("rocketmq").option("url", coherer_node.rocketmq_url)
    sink.option("orderByKey", True).mode("append").save(topic)
    source = spark.read.format("rocketmq").option("url", coherer_node.rocketmq_url).load(topic)
    rows = source.selectExpr("cast(rtrim('x', cast(value as string)) as int) n", "*").collect()
    places: dict[str, set[int]] = {}
    numbers: dict[str, list[int]] = {}
    for row in sorted(rows, key=lambda row: (row.partition, row.offset)):
        places.setdefault(row.key, set()).add(row.partition)
        numbers.setdefault(row.key, []).append(row.n)
    assert {len(found) for found in places.values()} == {1}
    assert all(found == sorted(found) for found in numbers.values())
    assert sum(map(len, numbers.values())) == 3_000


def test_delayed_rows_arrive_later(
    spark: SparkSession, coherer_node: EmbeddedNode, topic: str
) -> None:
    rows = spark.createDataFrame([("now", None), ("later", "300ms")], "value string, delay string")
    url = coherer_node.rocketmq_url
    rows.write.format("rocketmq").option("url", url).mode("append").save(topic)
    source = spark.readStream.format("rocketmq").option("url", url)
    query = (
        source.option("startingOffsets", "earliest").load(topic)
        .selectExpr("cast(value as string) value").writeStream.format("memory")
        .queryName(f"delayed_{topic}").start()
    )  # fmt: skip
    try:
        for _ in range(600):
            query.processAllAvailable()
            values = [row.value for row in spark.table(f"delayed_{topic}").collect()]
            if len(values) == 2:
                break
    finally:
        query.stop()
    assert sorted(values) == ["later", "now"]


def failing_once() -> Callable[[str], str]:
    """The first attempt of each task fails near its end, when most of its rows have been sent."""

    def same(value: str) -> str:
        from pyspark import TaskContext

        context = TaskContext.get()
        if context is not None and context.attemptNumber() == 0 and int(value) % 1000 == 950:
            raise RuntimeError("the first attempt fails")
        return value

    return same


@pytest.fixture
def small_batches(spark: SparkSession) -> Iterator[None]:
    name = "spark.sql.execution.arrow.maxRecordsPerBatch"
    before = spark.conf.get(name)
    spark.conf.set(name, "50")
    yield
    spark.conf.set(name, str(before))


def numbers_of(rows: DataFrame) -> Counter[int]:
    return Counter(int(row.value) for row in rows.select("value").collect())


@pytest.mark.usefixtures("small_batches")
def test_rows_of_a_repeated_task_are_removed(
    spark: SparkSession, endpoint: Endpoint, topic: str, tmp_path: Path
) -> None:
    """In a batch, and in a stream that reads the copies in other micro-batches than the rows."""
    from pyspark.sql import functions as sf

    rows = spark.range(0, 2000, 1, 2).selectExpr("rpad(cast(id as string), 5000, ' ') value")
    failing = rows.select(sf.udf(failing_once(), useArrow=False)("value").alias("value"))
    write(failing, endpoint, topic)
    write(spark.range(2000, 2010).selectExpr("cast(id as string) value"), endpoint, topic,
          includeOrigin=False)  # fmt: skip
    write(spark.range(2000, 2010).selectExpr("cast(id as string) value"), endpoint, topic,
          includeOrigin=False)  # fmt: skip
    sent = read(spark, endpoint, topic)
    assert max(numbers_of(sent).values()) == 2, "no row was sent twice"
    wanted = Counter(dict.fromkeys(range(2000), 1)) + Counter(dict.fromkeys(range(2000, 2010), 2))
    assert numbers_of(deduplicate(sent)) == wanted

    source = spark.readStream.format(endpoint.format).option("url", endpoint.url)
    source = source.option("startingOffsets", "earliest").option("maxOffsetsPerTrigger", 2500)
    once = deduplicate(source.option("includeHeaders", True).load(topic), within="10 minutes")
    assert once.columns == sent.columns
    query = (
        once.select("value").writeStream.format("parquet")
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True).start(str(tmp_path / "table"))
    )  # fmt: skip
    assert query.awaitTermination(WAIT_S)
    assert len(query.recentProgress) > 1
    assert numbers_of(spark.read.parquet(str(tmp_path / "table"))) == wanted


def test_two_writes_of_a_micro_batch_are_no_copies(
    spark: SparkSession, endpoint: Endpoint, topic: str, coherer_node: EmbeddedNode, tmp_path: Path
) -> None:
    """Spark numbers the rows of both alike, and both again if it runs the micro-batch again."""
    coherer_node.create_topic(f"{topic}_in", 1)
    write(spark.range(10).selectExpr("cast(id as string) value"), endpoint, f"{topic}_in")

    def twice(batch: DataFrame, number: int) -> None:
        for _ in range(2):
            for tag in ("a", "b"):
                write(batch.selectExpr("value", f"'{tag}' tag"), endpoint, topic)

    source = spark.readStream.format(endpoint.format).option("url", endpoint.url)
    rows = source.option("startingOffsets", "earliest").load(f"{topic}_in")
    query = (
        rows.writeStream.foreachBatch(twice)
        .option("checkpointLocation", str(tmp_path)).trigger(availableNow=True).start()
    )  # fmt: skip
    assert query.awaitTermination(WAIT_S)
    sent = read(spark, endpoint, topic)
    assert sent.count() == 40
    once = sorted((row.tag, int(row.value)) for row in deduplicate(sent).collect())
    assert once == [(tag, number) for tag in ("a", "b") for number in range(10)]


def test_a_stream_forgets_origins(
    spark: SparkSession, endpoint: Endpoint, topic: str, tmp_path: Path
) -> None:
    """Its state holds the origins of the last micro-batches only, and copies within it go."""
    write(spark.range(3_000).selectExpr("cast(id as string) value"), endpoint, topic)
    source = spark.readStream.format(endpoint.format).option("url", endpoint.url)
    source = source.option("startingOffsets", "earliest").option("maxOffsetsPerTrigger", 300)
    once = deduplicate(source.option("includeHeaders", True).load(topic), within="1 millisecond")
    query = (
        once.writeStream.format("noop")
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True).start()
    )  # fmt: skip
    assert query.awaitTermination(WAIT_S)
    states = [batch.stateOperators[0] for batch in query.recentProgress]
    assert sum(state.numRowsUpdated for state in states) == 3_000
    assert 0 < max(state.numRowsTotal for state in states) <= 900
    assert sum(state.numRowsRemoved for state in states) >= 2_100


def test_deduplicate_names_what_it_needs(
    spark: SparkSession, endpoint: Endpoint, topic: str
) -> None:
    source = spark.read.format(endpoint.format).option("url", endpoint.url)
    with pytest.raises(UsageError, match="includeHeaders"):
        deduplicate(source.load(topic))
    with pytest.raises(UsageError, match=r"columns partition, offset.*before you drop"):
        deduplicate(read(spark, endpoint, topic).drop("offset", "partition"))


def test_a_node_that_restarts_in_the_middle_loses_no_row(
    spark: SparkSession, tmp_path: Path
) -> None:
    from coherer.testing import embedded_node

    with embedded_node(tmp_path / "node") as node:
        node.create_topic("t", 2)
        rows = spark.range(0, 60_000, 1, 2).selectExpr("concat(id, ':', repeat('x', 500)) value")
        for kind, url in (("rocketmq", node.rocketmq_url), ("tubemq", node.url)):
            done = threading.Event()

            def restart(url: str = url, done: threading.Event = done) -> None:
                from coherer.blocking import connect

                with connect(url) as client:
                    while not done.is_set():
                        ends = sum(end for _, end in client.offsets("t").values())
                        if ends % 60_000 > 5_000:
                            break
                node.restart()

            thread = threading.Thread(target=restart)
            thread.start()
            rows.write.format(kind).option("url", url).mode("append").save("t")
            done.set()
            thread.join()
            source = spark.read.format(kind).option("url", url).option("includeHeaders", True)
            found = source.load("t").selectExpr("split(cast(value as string), ':')[0] value")
            assert found.distinct().count() == 60_000
