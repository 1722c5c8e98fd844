"""Sinks with `transactional=true`: consumers see a micro-batch whole or not at all."""

from __future__ import annotations

import errno
import os
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql.types import BinaryType, LongType, StringType, StructField, StructType

from coherer import Message
from coherer.arrow import scan
from coherer.blocking.rocketmq import connect
from coherer.errors import DamagedStoreError, UnavailableError, UsageError
from coherer.rocketmq import HalfMessages, Verdict
from coherer.spark.commits import Coordinator, RocketHalfQueue
from coherer.spark.decisions import FOLDER, Decision, Decisions, LocalFolder
from coherer.spark.options import WriteOptions, write_options
from coherer.spark.transactional import TransactionalBatchSink, TransactionalStreamSink
from tests.spark.landing import WAIT_S, run
from tests.spark.transacting import ROWS, Run, seen, struck, transact
from tests.spark.transactions_job import IN_COMMIT, IN_TASKS, PLACES

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from coherer.testing import EmbeddedNode

URL = "rocketmq://127.0.0.1:9876"
VALUE = StructType([StructField("value", BinaryType())])


def options(**given: str) -> WriteOptions:
    return write_options({"url": URL, "topic": "t", "transactional": "true", **given}, "rocketmq")


@pytest.fixture
def topic(coherer_node: EmbeddedNode, coherer_topic: str) -> str:
    name = f"{coherer_topic}_x"
    coherer_node.create_topic(name, 4)
    return name


# -- options


def test_a_place_for_decisions_is_needed(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="Give option checkpointLocation"):
        TransactionalBatchSink(options(), VALUE, overwrite=False)
    TransactionalBatchSink(options(checkpointLocation=str(tmp_path)), VALUE, overwrite=False)
    TransactionalBatchSink(options(transactionLocation=str(tmp_path)), VALUE, overwrite=False)


def test_a_checkpoint_that_python_cannot_see(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"is not on a disk of the driver.*transactionLocation"):
        TransactionalStreamSink(
            options(checkpointLocation=str(tmp_path / "x")), VALUE, overwrite=False
        )
    (tmp_path / "metadata").touch()
    TransactionalStreamSink(options(checkpointLocation=str(tmp_path)), VALUE, overwrite=False)


def test_what_does_not_fit_is_refused(tmp_path: Path) -> None:
    place = str(tmp_path)
    with pytest.raises(UsageError, match="needs includeOrigin=true"):
        TransactionalBatchSink(
            options(checkpointLocation=place, includeOrigin="false"), VALUE, overwrite=False
        )
    fields = [*VALUE.fields, StructField("nothing", LongType())]
    with pytest.raises(UsageError, match="nothing"):
        TransactionalBatchSink(
            options(checkpointLocation=place), StructType(fields), overwrite=False
        )
    with pytest.raises(UsageError, match="need transactional=true"):
        write_options({"url": URL, "transactionLocation": "x"}, "rocketmq")
    with pytest.raises(UsageError, match="Unknown option 'transactional'"):
        write_options({"url": "tubemq://h:1", "transactional": "true"})
    text = StructType([*VALUE.fields, StructField("tag", StringType())])
    TransactionalBatchSink(options(checkpointLocation=place), text, overwrite=False)


# -- the folder of the decisions


def test_a_full_disk_names_the_folder_and_nothing_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / FOLDER
    decisions = Decisions(LocalFolder(place), str(place))

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", full)
        with pytest.raises(UnavailableError, match=f"{place} cannot be .*No space left on device"):
            decisions.record("7", Decision("me", HalfMessages("g"), ()))
    assert list(tmp_path.rglob("*7*")) == []
    assert decisions.record("7", Decision("me", HalfMessages("g"), ()))


def test_a_folder_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    place = tmp_path / "a file" / FOLDER
    place.parent.touch()
    decisions = Decisions(LocalFolder(place), str(place))
    with pytest.raises(UnavailableError, match=f"decisions in {place} cannot"):
        decisions.find("7")
    with pytest.raises(UnavailableError, match=f"decisions in {place} cannot"):
        decisions.belong_to("query")


@pytest.mark.parametrize("data", [b"", b"7", b"\x81\xa5owner\x01", b"\xc1"])
def test_a_damaged_decision_is_named(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "7.decision").write_bytes(data)
    decisions = Decisions(LocalFolder(tmp_path), str(tmp_path))
    with pytest.raises(DamagedStoreError, match=f"micro-batch 7 in {tmp_path} is damaged.*Delete"):
        decisions.find("7")


# -- with a node


def test_a_table_that_another_write_finishes_is_not_to_be_written_again(
    coherer_node: EmbeddedNode, topic: str, tmp_path: Path
) -> None:
    """Two writes with one folder at the same time: one finishes what the other has decided."""

    class Interrupted(Decisions):
        def owner(self, name: str, decision: Decision) -> str:
            with connect(coherer_node.rocketmq_url) as client:
                other = Coordinator(RocketHalfQueue(client), Decisions(LocalFolder(tmp_path)))
                assert other.finish(name)
            return super().owner(name, decision)

    with connect(coherer_node.rocketmq_url) as client:
        queue = RocketHalfQueue(client)
        halves = queue.prepare(f"g{topic}", [Message(topic, b"%d" % n) for n in range(9)], 100)
        coordinator = Coordinator(queue, Interrupted(LocalFolder(tmp_path)))
        with pytest.raises(UsageError, match=r"Do not write these rows again.*checkpointLocation"):
            coordinator.commit("a-table", halves)
    assert seen(coherer_node.rocketmq_url, topic) == Counter(range(9))


def test_repeated_and_late_commits_are_carried_out_once(
    coherer_node: EmbeddedNode, topic: str, tmp_path: Path
) -> None:
    """With Coherer's broker a coordinator neither waits nor looks."""

    def wait(_: float) -> None:
        raise AssertionError

    decisions = Decisions(LocalFolder(tmp_path))
    messages = [Message(topic, b"%d" % number) for number in range(50)]
    with connect(coherer_node.rocketmq_url) as client:
        queue = RocketHalfQueue(client)
        halves = queue.prepare(f"g{topic}", messages, 100)
        assert queue.ends_once(halves)
        some = halves.pick(range(20))
        decisions.record("0", Decision("dead", halves, tuple(queue.ends(halves.queues))))
        assert queue.end(some, Verdict.COMMIT) == []
        assert Coordinator(queue, decisions, sleep=wait).finish("0")
        assert queue.end(halves, Verdict.COMMIT) == []
    assert seen(coherer_node.rocketmq_url, topic) == Counter(range(50))


# -- with Spark


def numbers(spark: SparkSession, rows: int, failing: bool = False) -> DataFrame:
    """Numbers as rows; the last one raises an error if `failing`."""
    bad = rows - 1 if failing else rows
    value = f"if(id < {bad}, cast(id as string), raise_error('struck'))"
    return spark.range(0, rows, 1, 2).selectExpr(f"{value} as value")


def write(rows: DataFrame, url: str, topic: str, place: Path) -> None:
    writer = rows.write.format("rocketmq").option("url", url).option("transactional", "true")
    writer.option("checkpointLocation", str(place)).mode("append").save(topic)


@pytest.mark.spark
def test_a_table_is_seen_whole_or_not_at_all(
    spark: SparkSession, coherer_node: EmbeddedNode, topic: str, tmp_path: Path
) -> None:
    url = coherer_node.rocketmq_url
    with pytest.raises(Exception, match="struck"):
        write(numbers(spark, 20_000, failing=True), url, topic, tmp_path)
    assert not seen(url, topic)
    write(numbers(spark, 2_000), url, topic, tmp_path)
    assert seen(url, topic) == Counter(range(2_000))
    assert list((tmp_path / FOLDER).iterdir()) == []


@pytest.mark.spark
def test_a_micro_batch_that_spark_runs_again_is_not_sent_again(
    spark: SparkSession, coherer_node: EmbeddedNode, topic: str, tmp_path: Path
) -> None:
    """As if the driver had died after the last commit, and before Spark's own."""
    copy, checkpoint = Copy(spark, coherer_node.rocketmq_url, topic, tmp_path), tmp_path / "c"
    copy.run(checkpoint)
    assert copy.seen() == Counter(range(1_000))
    turn_back(checkpoint, "commits", 1)
    copy.run(checkpoint)
    assert copy.seen() == Counter(range(1_000))
    assert [path.name for path in (checkpoint / FOLDER).glob("*.decision")] == ["1.decision"]


@pytest.mark.spark
def test_a_write_in_for_each_batch_is_repeated_as_a_whole(
    spark: SparkSession, coherer_node: EmbeddedNode, topic: str, tmp_path: Path
) -> None:
    """As if the driver had died after the function, and before Spark's own commit."""
    url, rows, deaths = coherer_node.rocketmq_url, 100, iter(["struck"])

    def copy(batch: DataFrame, _: int) -> None:
        write(batch.selectExpr("cast(value as string) value"), url, topic, tmp_path / "decisions")
        for reason in deaths:
            raise RuntimeError(reason)

    def run_once() -> None:
        source = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", rows).load()
        stream = source.writeStream.option("checkpointLocation", str(tmp_path / "checkpoint"))
        stream.trigger(once=True).foreachBatch(copy).start().awaitTermination(WAIT_S)

    with pytest.raises(StreamingQueryException, match="struck"):
        run_once()
    run_once()
    assert seen(url, topic) == Counter(dict.fromkeys(range(rows), 2))
    table = scan(url, topic, columns=["value", "properties"]).read_all().to_pylist()
    origins = {(row["value"], tuple(sorted(dict(row["properties"]).items()))) for row in table}
    assert len(origins) == rows


@pytest.mark.spark
@pytest.mark.parametrize(("begin", "says"), [(0, "sent micro-batch 1"), (1, "sent other rows")])
def test_a_checkpoint_that_was_turned_back(
    spark: SparkSession,
    coherer_node: EmbeddedNode,
    topic: str,
    tmp_path: Path,
    begin: int,
    says: str,
) -> None:
    """Spark plans micro-batches again whose numbers have decisions: none is taken as sent."""
    copy, checkpoint = Copy(spark, coherer_node.rocketmq_url, topic, tmp_path), tmp_path / "c"
    copy.run(checkpoint)
    turn_back(checkpoint, "commits", begin)
    turn_back(checkpoint, "offsets", begin)
    turn_back(checkpoint, "sources/0", begin)
    with pytest.raises(
        StreamingQueryException, match=f"turned back: .*micro-batch {begin}.*{says}"
    ):
        copy.run(checkpoint)
    assert copy.seen() == Counter(range(1_000))


@pytest.mark.spark
def test_two_queries_need_two_folders(
    spark: SparkSession, coherer_node: EmbeddedNode, topic: str, tmp_path: Path
) -> None:
    copy = Copy(spark, coherer_node.rocketmq_url, topic, tmp_path)
    copy.run(tmp_path / "c", transactionLocation=str(tmp_path / "decisions"))
    with pytest.raises(StreamingQueryException, match=r"are those of query .*transactionLocation"):
        copy.run(tmp_path / "d", transactionLocation=str(tmp_path / "decisions"))
    assert copy.seen() == Counter(range(1_000))


class Copy:
    """A query that copies two files of 500 lines into a topic, each in a micro-batch."""

    def __init__(self, spark: SparkSession, url: str, topic: str, home: Path) -> None:
        self.spark, self.url, self.topic = spark, url, topic
        self.source = home / "in"
        self.source.mkdir()
        for first in (0, 500):
            text = "\n".join(map(str, range(first, first + 500)))
            (self.source / f"{first}.txt").write_text(text)

    def run(self, checkpoint: Path, **options: str) -> None:
        rows = self.spark.readStream.option("maxFilesPerTrigger", "1").text(str(self.source))
        writer = rows.writeStream.format("rocketmq").options(**options).option("url", self.url)
        writer = writer.option("topic", self.topic).option("transactional", "true")
        writer = writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True)
        run(writer.start, lambda query: query.awaitTermination(WAIT_S))

    def seen(self) -> Counter[int]:
        return seen(self.url, self.topic)


def turn_back(checkpoint: Path, log: str, begin: int) -> None:
    """Deletes what Spark has written about micro-batches from a number on, with checksums."""
    for path in (checkpoint / log).iterdir():
        if int(path.name.removeprefix(".").partition(".")[0]) >= begin:
            path.unlink()


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="finds processes in /proc")
def test_processes_killed_at_each_place(
    coherer_node: EmbeddedNode, topic: str, tmp_path: Path
) -> None:
    """Workers and committing processes die at each place; and the driver, between two commits."""
    victims = dict.fromkeys(PLACES, "process") | {"between commits": "driver"}
    plan = dict(enumerate(victims.items()))
    batches = len(plan) + 1
    url = coherer_node.rocketmq_url
    assert transact(url, topic, tmp_path, Run(batches, plan)) >= 2
    assert sum(struck(tmp_path).values()) == len(plan)
    assert set(IN_COMMIT) < set(victims)
    check_whole(seen(url, topic), batches)


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="finds processes in /proc")
def test_executors_and_the_drivers_java_killed(
    coherer_node: EmbeddedNode, topic: str, tmp_path: Path
) -> None:
    """On a local cluster an executor dies at each place of a task, the driver's JVM in a commit."""
    plan = dict(enumerate((place, "jvm") for place in (*IN_TASKS, "between commits")))
    url = coherer_node.rocketmq_url
    run = Run(len(plan) + 1, plan, master="local-cluster[2,1,1024]")
    assert transact(url, topic, tmp_path, run) >= 2
    assert sum(struck(tmp_path).values()) == len(plan)
    check_whole(seen(url, topic), run.batches)


def check_whole(found: Counter[int], batches: int) -> None:
    """Each number once. The job may have been stopped in further micro-batches."""
    assert {number for number, count in found.items() if count > 1} == set()
    assert set(found) >= set(range(batches * ROWS))
    later = [number for number in found if number >= batches * ROWS]
    assert len(later) < 2 * ROWS
