"""Missing offsets: counted by what readers saw, once, and None where nobody knows."""

from __future__ import annotations

import os
import pickle
import shutil
import stat
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from pyspark.cloudpickle import dumps
from pyspark.sql import functions as sql

from coherer import Message
from coherer.blocking.rocketmq import connect
from coherer.spark import SourceMetrics, connections, gaps, source_metrics
from coherer.spark.gaps import FOLDER_VARIABLE, RUN_KEPT_S, reports_of
from coherer.spark.source import StreamReader, TubeMQDataSource
from tests.spark.bad_message import send_bad
from tests.spark.landing import WAIT_S, run
from tests.spark.queues import schema_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from coherer.spark.offsets import Offsets
    from coherer.testing import EmbeddedNode
    from tests.conftest import Forked
    from tests.spark.queues import ListQueue

START: Offsets = {"t": {"1:0": 10, "1:1": 5}}
END: Offsets = {"t": {"1:0": 41, "1:1": 25}}


class Task:
    """The context of a task, as Spark gives it."""

    number = 0
    properties: dict[str, str]

    @classmethod
    def get(cls) -> Task:
        return cls()

    def getLocalProperty(self, name: str) -> str | None:  # noqa: N802 - Spark's name
        return self.properties.get(name)

    def partitionId(self) -> int:  # noqa: N802 - Spark's name
        return 0

    def taskAttemptId(self) -> int:  # noqa: N802 - Spark's name
        Task.number += 1
        return Task.number


@pytest.fixture
def reports(
    list_queue: ListQueue, monkeypatch: pytest.MonkeyPatch, forked: Forked, tmp_path: Path
) -> Iterator[Path]:
    monkeypatch.setitem(connections.OPENERS, "tubemq", lambda _access: list_queue)
    monkeypatch.setattr(connections, "freeze_heap", lambda: None)
    monkeypatch.setattr(gaps, "TaskContext", Task)
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path))
    Task.properties = {"spark.jobGroup.id": "run", "streaming.sql.batchId": "3"}
    with forked():
        yield tmp_path


def stream(**options: str) -> StreamReader:
    given = {"url": "tubemq://h:1", "path": "t", "failOnDataLoss": "false", **options}
    data = TubeMQDataSource(given)
    reader = pickle.loads(dumps(data)).streamReader(schema_of(data))
    assert isinstance(reader, StreamReader)
    return reader


def read(reader: StreamReader, batches: int | None = None) -> None:
    """Runs all tasks; each is stopped after so many batches, as `limit` does."""
    for share in reader.partitions(START, END):
        rows = iter(pickle.loads(dumps(reader)).read(share))
        for number, _ in enumerate(rows):
            if number + 1 == batches:
                rows.close()  # type: ignore[attr-defined]


def metrics(start: Offsets = START, end: Offsets = END, batch: int = 3) -> SourceMetrics:
    source = {"startOffset": start, "endOffset": end, "latestOffset": {"t": {"1:0": 100}}}
    (found,) = source_metrics({"runId": "run", "batchId": batch, "sources": [source]})
    return found


# -- without Spark


@pytest.mark.usefixtures("reports")
def test_a_batch_that_is_read_twice_counts_once(list_queue: ListQueue) -> None:
    list_queue.damaged.update({12, 13, 20})
    reader = stream(maxRecordsPerPartition="4")
    read(reader)
    assert metrics().missing == 6  # three in each of two partitions
    read(reader)
    assert metrics().missing == 6


@pytest.mark.usefixtures("reports")
def test_a_gap_that_a_power_cut_left_is_counted_and_is_no_error(list_queue: ListQueue) -> None:
    list_queue.damaged.update({12, 13, 20})
    list_queue.withheld = list_queue.damaged
    list_queue.gaps = [range(11, 14), range(20, 21)]
    read(stream(failOnDataLoss="true"))
    assert metrics().missing == 6


@pytest.mark.usefixtures("reports")
def test_a_second_look_may_find_more(list_queue: ListQueue) -> None:
    """Retention has deleted messages between two reads of a micro-batch."""
    reader = stream()
    shares = reader.partitions(START, END)
    for low in (0, 15, 15):
        list_queue.held["t"]["1", 0] = (low, 100)
        for share in shares:
            list(reader.read(share))
    assert metrics().missing == 5


@pytest.mark.usefixtures("reports")
def test_what_was_lost_before_planning_is_counted(list_queue: ListQueue) -> None:
    list_queue.held["t"]["1", 0] = (30, 100)
    read(stream())
    assert metrics().missing == 20


@pytest.mark.usefixtures("reports")
def test_everything_may_be_lost(list_queue: ListQueue) -> None:
    list_queue.held["t"] = {("1", 0): (200, 200), ("1", 1): (200, 203)}
    read(stream())
    assert metrics().missing == 31 + 20


@pytest.mark.usefixtures("reports")
def test_what_nobody_read_is_unknown(list_queue: ListQueue) -> None:
    assert metrics().missing is None
    list_queue.step = 30_000
    list_queue.held["t"]["1", 0] = (0, 100_000)
    reader = stream()
    end: Offsets = {"t": {"1:0": 50_000, "1:1": 25}}
    for share in reader.partitions(START, end):
        rows = iter(reader.read(share))
        next(rows)
        rows.close()  # type: ignore[attr-defined]
    assert metrics(end=end).missing is None


@pytest.mark.usefixtures("reports")
def test_a_micro_batch_without_data_misses_nothing() -> None:
    assert metrics(end=START).missing == 0
    first = {":start": {"t:1:0": 4, "t:1:1": 0}, **START}
    assert metrics(start=first, end=first).missing == 0


@pytest.mark.usefixtures("reports")
def test_index_offsets_do_not_count_rows(list_queue: ListQueue) -> None:
    list_queue.exact = False
    read(stream())
    assert metrics().missing is None


@pytest.mark.usefixtures("reports")
def test_two_sources_of_one_topic_are_told_apart(list_queue: ListQueue) -> None:
    """If they differ, nobody knows whose progress it is."""
    list_queue.damaged.add(12)
    read(stream(mode="DROP"))
    read(stream(mode="DROP"))
    assert metrics().missing == 2
    read(stream(mode="PERMISSIVE"))
    assert metrics().missing is None


def test_batches_and_other_job_groups_report_nothing(reports: Path) -> None:
    for properties in ({}, {"spark.jobGroup.id": "run"}, {"streaming.sql.batchId": "3"}):
        Task.properties = properties
        read(stream())
    assert list(reports.iterdir()) == []
    Task.properties = {"spark.jobGroup.id": "../run", "streaming.sql.batchId": "3"}
    read(stream())
    assert [path for path in reports.parent.iterdir() if path.name == "run"] == []


def test_reports_do_not_pile_up(reports: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gaps, "BATCHES_KEPT", 2)
    (reports / "old").mkdir()
    os.utime(reports / "old", (0, gaps.time.time() - RUN_KEPT_S - 60))
    (reports / "recent").mkdir()
    for batch in range(6):
        Task.properties["streaming.sql.batchId"] = str(batch)
        read(stream())
    assert {path.name for path in reports.iterdir()} == {"recent", "run"}
    kept = {path.name.partition("-")[0] for path in (reports / "run").iterdir()}
    assert kept == {"3", "4", "5"}


def test_a_report_that_cannot_be_written_or_read(
    reports: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (reports / "run").write_text("a file, not a folder")
    read(stream())
    assert metrics().missing is None
    (reports / "run").unlink()
    read(stream())
    (one, *_) = (reports / "run").iterdir()
    one.write_bytes(one.read_bytes()[:-3])
    assert metrics().missing is None
    monkeypatch.delenv(FOLDER_VARIABLE)
    assert reports_of("../..", 3) == []


def test_a_folder_that_was_cleaned_is_made_again(reports: Path) -> None:
    read(stream())
    shutil.rmtree(reports / "run")
    read(stream())
    read(stream())
    assert metrics().missing == 0


def test_the_folder_is_private(monkeypatch: pytest.MonkeyPatch, reports: Path) -> None:
    monkeypatch.delenv(FOLDER_VARIABLE)
    monkeypatch.setattr(tempfile, "tempdir", str(reports))
    read(stream())
    assert metrics().missing == 0
    (made,) = reports.iterdir()
    assert stat.S_IMODE(made.stat().st_mode) == 0o700
    made.chmod(0o777)
    assert metrics().missing is None
    read(stream())


# -- with Spark


@pytest.fixture
def topic(coherer_node: EmbeddedNode, coherer_topic: str) -> str:
    """Good messages at offsets 0, 1, 3; bad ones at 2 and 4."""
    name = f"{coherer_topic}_gaps"
    coherer_node.create_topic(name, 1)
    with connect(coherer_node.rocketmq_url) as client, client.producer(name) as producer:
        for number in range(5):
            if number in (2, 4):
                send_bad(coherer_node.node.rocketmq_port, name, b"no zlib %d" % number)
            else:
                producer.send(Message(name, b"%d" % number))
    return name


@pytest.mark.spark
def test_no_wolf_and_no_hidden_gap(
    spark: SparkSession, coherer_node: EmbeddedNode, topic: str, tmp_path: Path
) -> None:
    def missing(name: str, make: Callable[[DataFrame], DataFrame], each: object = None) -> object:
        rows = spark.readStream.format("rocketmq").option("url", coherer_node.rocketmq_url)
        rows = rows.option("startingOffsets", "earliest").option("mode", "DROP")
        writer = make(rows.load(topic)).writeStream.trigger(availableNow=True)
        writer = writer.option("checkpointLocation", str(tmp_path / name))
        writer = writer.format("noop") if each is None else writer.foreachBatch(each)
        found: list[int | None] = []

        def wait(query: StreamingQuery) -> bool | None:
            done = query.awaitTermination(WAIT_S)
            found.extend(source_metrics(one)[0].missing for one in query.recentProgress)
            return done

        run(writer.start, wait)
        return found

    def twice(rows: DataFrame, _: int) -> None:
        assert (rows.count(), rows.count()) == (3, 3)

    def plain(rows: DataFrame) -> DataFrame:
        return rows

    def counted(rows: DataFrame) -> DataFrame:
        window = sql.window("timestamp", "1 second")
        return rows.withWatermark("timestamp", "0 seconds").groupBy(window).count()

    assert missing("plain", plain) == [2]
    assert missing("twice", plain, twice) == [2]
    assert missing("not read", plain, lambda rows, number: None) == [None]
    assert missing("limit", lambda rows: rows.limit(1)) in ([2], [None])
    assert missing("no data", counted)[:2] == [2, 0]  # type: ignore[index]
