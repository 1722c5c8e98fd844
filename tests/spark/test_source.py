"""The data sources without Spark, on a queue that is a list."""

from __future__ import annotations

import json
import pickle
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.cloudpickle import dumps
from pyspark.sql.datasource import InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows, ReadMinRows
from pyspark.sql.types import StructType

from coherer.errors import UnavailableError, UsageError
from coherer.spark import connections, source
from coherer.spark.offsets import split_start, with_start
from coherer.spark.planning import DataLossError, Range
from coherer.spark.source import (
    BatchReader,
    QueueDataSource,
    RocketMQDataSource,
    StreamReader,
    TubeMQDataSource,
)
from tests.spark.queues import schema_of

if TYPE_CHECKING:
    from coherer.spark.offsets import Offsets
    from tests.conftest import Forked
    from tests.spark.queues import ListQueue


@pytest.fixture(autouse=True)
def opened(
    list_queue: ListQueue, monkeypatch: pytest.MonkeyPatch, forked: Forked
) -> Iterator[None]:
    for protocol in ("tubemq", "rocketmq"):
        monkeypatch.setitem(connections.OPENERS, protocol, lambda _access: list_queue)
    monkeypatch.setattr(connections, "freeze_heap", lambda: None)
    monkeypatch.setattr(source, "POLL_MS", (0, 0))
    with forked():  # a process without connections
        yield


def made(**options: str) -> tuple[QueueDataSource, StructType]:
    rocket = options.get("url", "").startswith("rocketmq")
    kind = RocketMQDataSource if rocket else TubeMQDataSource
    named = {} if "topicsPattern" in options else {"path": "t"}
    data = kind({"url": "tubemq://h:1", **named, **options})
    return data, schema_of(data)


def batch(**options: str) -> BatchReader:
    data, schema = made(**options)
    reader = data.reader(schema)
    assert isinstance(reader, BatchReader)
    return reader


def stream(**options: str) -> StreamReader:
    data, schema = made(**options)
    reader = data.streamReader(schema)
    assert isinstance(reader, StreamReader)
    return reader


def rows_of(reader: BatchReader | StreamReader, shares: list[InputPartition]) -> set[object]:
    """Reads as workers do, with a pickled copy of the reader and its share."""
    found = [
        (row["partition"], row["offset"])
        for share in shares
        for arrow in pickle.loads(dumps(reader)).read(pickle.loads(dumps(share)))
        for row in arrow.to_pylist()
    ]
    assert len(found) == len(set(found))
    return set(found)


def test_a_batch_reads_everything() -> None:
    reader = batch(minPartitions="3")
    found = rows_of(reader, list(reader.partitions()))
    assert found == {(0, at) for at in range(100)} | {(1, at) for at in range(5, 25)}


def test_a_read_between_two_times() -> None:
    url = "rocketmq://h:1"
    times = {"startingTimestamp": "1970-01-01T00:00:20Z", "endingTimestamp": "22500"}
    reader = batch(url=url, **times)
    assert rows_of(reader, list(reader.partitions())) == {
        (p, at) for p in (0, 1) for at in (20, 21, 22)
    }
    reader = batch(url=url, startingTimestamp="99000")
    assert rows_of(reader, list(reader.partitions())) == {(0, 99)}
    reader = batch(url=url, startingTimestamp="1970-01-02T00:00:00+01:00")
    assert rows_of(reader, list(reader.partitions())) == set()
    assert stream(url=url, startingTimestamp="24000").initialOffset() == {
        "t": {"1:0": 24, "1:1": 24}
    }
    with pytest.raises(UsageError, match="endingTimestamp is for batches only"):
        stream(url=url, endingTimestamp="24000").initialOffset()


def test_reads_do_not_start_while_a_broker_is_down(list_queue: ListQueue) -> None:
    list_queue.down = ["2"]
    with pytest.raises(
        UnavailableError, match=r"brokers 2 are down.*topic t.*failOnDataLoss=false"
    ):
        batch().partitions()
    with pytest.raises(UnavailableError, match="brokers 2 are down"):
        stream().initialOffset()
    assert len(batch(failOnDataLoss="false").partitions()) == 1
    assert stream(failOnDataLoss="false").initialOffset() == {"t": {"1:0": 100, "1:1": 25}}
    # A stream that has begun waits for its brokers.
    start: Offsets = {"t": {"1:0": 100, "1:1": 25}}
    assert stream().latestOffset(start, ReadAllAvailable()) == start


def test_sparks_partition_for_an_empty_plan_is_empty() -> None:
    assert rows_of(batch(), [InputPartition(None)]) == set()


def test_a_stream_continues_batch_by_batch(list_queue: ListQueue) -> None:
    reader = stream(startingOffsets="earliest", maxOffsetsPerTrigger="50")
    assert reader.getDefaultReadLimit() == ReadMaxRows(50)
    at = reader.initialOffset()
    found: set[object] = set()
    for _ in range(3):
        end = reader.latestOffset(at, ReadMaxRows(50))
        # Spark keeps offsets as text, and hands out what it reads back.
        end = json.loads(json.dumps(end))
        found |= rows_of(reader, list(reader.partitions(at, end)))
        at = end
    assert found == {(0, at) for at in range(100)} | {(1, at) for at in range(5, 25)}
    assert reader.latestOffset(at, ReadMaxRows(50)) == at
    assert reader.reportLatestOffset() == {"t": {"1:0": 100, "1:1": 25}}
    list_queue.held["t"]["1", 0] = (0, 101)
    assert reader.latestOffset(at, ReadAllAvailable()) == {"t": {"1:0": 101, "1:1": 25}}


def test_a_stream_polls_before_it_reports_no_new_messages(
    list_queue: ListQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks: list[str] = []

    def bounds(topic: str, **_: object) -> dict[tuple[str, int], tuple[int, int]]:
        looks.append(topic)
        return {("1", 0): (0, 9 if len(looks) > 3 else 5)}

    monkeypatch.setattr(list_queue, "bounds", bounds)
    monkeypatch.setattr(source, "POLL_MS", (0,) * 10)
    end = stream().latestOffset({"t": {"1:0": 5}}, ReadAllAvailable())
    assert end == {"t": {"1:0": 9}}
    assert len(looks) == 4


@pytest.mark.parametrize("limits", [{}, {"maxOffsetsPerTrigger": "400"}])
def test_what_there_is_ends_no_wait_for_more(limits: dict[str, str]) -> None:
    """The trigger once asks for it: each run is a new process, whose wait would begin again."""
    reader = stream(minOffsetsPerTrigger="300", **limits)
    start, end = {"t": {"1:0": 0, "1:1": 5}}, {"t": {"1:0": 100, "1:1": 25}}
    usual = reader.getDefaultReadLimit()
    assert usual == (ReadMaxRows(400) if limits else ReadMinRows(300))
    assert reader.latestOffset(start, usual) == start
    assert reader.latestOffset(start, ReadAllAvailable()) == end


def planned(
    reader: StreamReader, queue: ListQueue, grow: int
) -> tuple[Offsets, Offsets, list[InputPartition]]:
    """Spark's calls up to the plan of batch 0, while `grow` messages arrive at each step."""
    start = as_told(reader.initialOffset())
    more(queue, grow)
    end = as_told(reader.latestOffset(start, reader.getDefaultReadLimit()))
    more(queue, grow)
    assert as_told(reader.initialOffset()) == start, "Spark asks again"
    more(queue, grow)
    return start, end, list(reader.partitions(start, end))


def as_told(offsets: Offsets) -> Offsets:
    """Spark stores offsets as text, and passes the parsed text."""
    told: Offsets = json.loads(json.dumps(offsets))
    return told


def more(queue: ListQueue, count: int) -> None:
    queue.held["t"] = {at: (low, high + count) for at, (low, high) in queue.held["t"].items()}


FIRST_TEN = {(0, at) for at in range(100, 110)} | {(1, at) for at in range(25, 35)}


def test_a_stream_keeps_its_first_start(list_queue: ListQueue) -> None:
    reader = stream()
    _, end, shares = planned(reader, list_queue, 10)
    assert rows_of(reader, shares) == FIRST_TEN
    after = as_told(reader.latestOffset(end, ReadAllAvailable()))
    assert rows_of(reader, list(reader.partitions(end, after))) == {
        (0, at) for at in range(110, 130)
    } | {(1, at) for at in range(35, 55)}
    assert reader.latestOffset(after, ReadAllAvailable()) == after


@pytest.mark.parametrize("start", ["latest", "earliest", '{"t": {"1:0": -1, "1:1": 25}}'])
def test_a_stream_keeps_its_start_across_restarts(list_queue: ListQueue, start: str) -> None:
    _, end, shares = planned(stream(startingOffsets=start), list_queue, 10)
    first = rows_of(stream(), shares)
    for _ in range(3):
        # Batch 0 is in the checkpoint, and has not ended: Spark asks for its start again.
        reader = stream(startingOffsets=start)
        list_queue.held["t"] = {at: (9, high + 5) for at, (_, high) in list_queue.held["t"].items()}
        again = as_told(reader.initialOffset())
        if start == "earliest":
            with pytest.raises(DataLossError, match=r"t 1:0 \[0, 9\), t 1:1 \[5, 9\)"):
                reader.partitions(again, end)
        else:
            assert rows_of(reader, list(reader.partitions(again, end))) == first == FIRST_TEN
        assert as_told(reader.latestOffset(end, ReadMaxRows(1))) != end


def test_the_first_batch_of_a_quiet_topic_stays_empty_after_a_restart(
    list_queue: ListQueue,
) -> None:
    start, end, shares = planned(stream(), list_queue, 0)
    assert rows_of(stream(), shares) == set()
    more(list_queue, 3)
    reader = stream()
    again = as_told(reader.initialOffset())
    assert again != start
    assert rows_of(reader, list(reader.partitions(again, end))) == set()
    after = as_told(reader.latestOffset(end, ReadAllAvailable()))
    assert rows_of(reader, list(reader.partitions(end, after))) == {
        *((0, at) for at in range(100, 103)),
        *((1, at) for at in range(25, 28)),
    }


def test_offsets_stay_the_same_text_without_new_messages() -> None:
    reader = stream()
    end = as_told(reader.latestOffset(as_told(reader.initialOffset()), ReadAllAvailable()))
    assert json.dumps(reader.latestOffset(end, ReadAllAvailable())) == json.dumps(end)


def test_a_topic_created_after_the_start_is_read_from_its_beginning(
    list_queue: ListQueue,
) -> None:
    list_queue.held["new"] = {("1", 0): (0, 9)}
    end = with_start({"new": {"1:0": 4}}, {})
    reader = stream(url="rocketmq://h:1", topicsPattern="new.*")
    again = as_told(reader.initialOffset())
    assert again == {"new": {"1:0": 9}}
    assert rows_of(reader, list(reader.partitions(again, end))) == {(0, at) for at in range(4)}


def test_what_retention_deletes_of_a_new_partition_is_lost(list_queue: ListQueue) -> None:
    """Spark runs the micro-batch that first reads it again, after a restart."""
    reader = stream()
    before = as_told(reader.latestOffset(as_told(reader.initialOffset()), ReadAllAvailable()))
    list_queue.held["t"]["1", 2] = (0, 9)
    after = as_told(reader.latestOffset(before, ReadAllAvailable()))
    assert rows_of(stream(), list(stream().partitions(before, after))) == {
        (2, at) for at in range(9)
    }
    list_queue.held["t"]["1", 2] = (5, 20)
    with pytest.raises(DataLossError) as caught:
        stream().partitions(before, after)
    assert caught.value.ranges == (Range("t", "1", 2, 0, 5),)
    end = as_told(reader.latestOffset(after, ReadAllAvailable()))
    assert split_start(end) == ({"t": {**after["t"], "1:2": 20}}, None)


def test_the_checkpoint_of_an_older_version_continues_at_the_end_of_batch_0(
    list_queue: ListQueue, caplog: pytest.LogCaptureFixture
) -> None:
    """It contains an end without a start, and the end is before "latest"."""
    reader, end = stream(), {"t": {"1:0": 90, "1:1": 20}}
    assert rows_of(reader, list(reader.partitions(as_told(reader.initialOffset()), end))) == set()
    assert "lacks the start of batch 0" in caplog.text
    after = as_told(reader.latestOffset(end, ReadAllAvailable()))
    assert rows_of(reader, list(reader.partitions(end, after))) == {
        *((0, at) for at in range(90, 100)),
        *((1, at) for at in range(20, 25)),
    }


def test_lost_rows_are_an_error_or_skipped(list_queue: ListQueue) -> None:
    start: Offsets = {"t": {"1:0": 10, "1:1": 5}}
    end: Offsets = {"t": {"1:0": 40, "1:1": 25}}
    list_queue.held["t"]["1", 0] = (30, 100)
    with pytest.raises(DataLossError, match=r"t 1:0 \[10, 30\)"):
        stream().partitions(start, end)
    reader = stream(failOnDataLoss="false")
    found = rows_of(reader, list(reader.partitions(start, end)))
    assert found == {(0, at) for at in range(30, 40)} | {(1, at) for at in range(5, 25)}


def test_progress_is_committed_once_per_batch_and_errors_do_not_stop_the_stream(
    list_queue: ListQueue, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    reader = stream(group="g", commitOffsets="true")
    start: Offsets = {"t": {"1:0": 10, "1:1": 5}}
    for _ in range(2):
        reader.latestOffset(start, ReadAllAvailable())
    assert list_queue.committed == [("g", start)]

    def fail(group: str, offsets: Offsets) -> None:
        raise UnavailableError("No master.")

    monkeypatch.setattr(list_queue, "commit", fail)
    reader.latestOffset({"t": {"1:0": 11, "1:1": 5}}, ReadAllAvailable())
    assert "Cannot commit the progress of group" in caplog.text


def test_progress_is_committed_at_the_brokers_that_are_there(list_queue: ListQueue) -> None:
    reader = stream(group="g", commitOffsets="true")
    start: Offsets = {"t": {"1:0": 100, "1:1": 25, "2:0": 7}}
    reader.latestOffset(start, ReadAllAvailable())
    list_queue.held["t"]["2", 0] = (0, 7)
    reader.latestOffset(start, ReadAllAvailable())
    assert list_queue.committed == [("g", {"t": {"1:0": 100, "1:1": 25}}), ("g", start)]


@pytest.mark.parametrize(
    "offsets",
    [5, None, [1], {"logOffset": 3}, {"t": {"0": 5}}, {"t": {"1:0": "3"}}, {"t": {"1:0": 1.5}}],
)
def test_a_checkpoint_of_another_source_is_refused(offsets: Any) -> None:
    """Of Spark's rate source, of files, of Kafka; or somebody has edited it."""
    words = r"The checkpoint holds .*not offsets of TubeMQ or RocketMQ.*checkpointLocation"
    with pytest.raises(UsageError, match=words):
        stream().latestOffset(offsets, ReadAllAvailable())
    with pytest.raises(UsageError, match=words):
        stream().partitions(offsets, {"t": {"1:0": 9}})
    with pytest.raises(UsageError, match=words):
        stream().partitions({"t": {"1:0": 9}}, offsets)


def test_options_without_effect_are_refused() -> None:
    for name, text in {"endingOffsets": "latest", "pushdown": "true"}.items():
        with pytest.raises(UsageError, match=f"{name} is for batches only"):
            stream(**{name: text}).initialOffset()
    for name in ("maxOffsetsPerTrigger", "minOffsetsPerTrigger"):
        with pytest.raises(UsageError, match=f"{name} is for streams"):
            batch(**{name: "5"}).partitions()
    for delay in ("5s", "0s"):
        with pytest.raises(UsageError, match="maxTriggerDelay is for streams"):
            batch(maxTriggerDelay=delay).partitions()
    with pytest.raises(UsageError, match="for streams"):
        batch(group="g", commitOffsets="true").partitions()
    data, schema = made()
    with pytest.raises(UsageError, match="columns are fixed"):
        data.reader(StructType(schema.fields[1:]))


@pytest.mark.parametrize(
    ("kind", "format_"), [(TubeMQDataSource, "tubemq"), (RocketMQDataSource, "rocketmq")]
)
def test_each_format_accepts_its_urls_only(kind: type[QueueDataSource], format_: str) -> None:
    assert kind.name() == format_
    for protocol in ("tubemq", "rocketmq"):
        for scheme in (protocol, f"{protocol}s"):
            data = kind({"url": f"{scheme}://h:1", "path": "t"})
            if protocol == format_:
                assert data.schema().startswith("topic string")
            else:
                with pytest.raises(UsageError, match=f"needs a url {format_}://"):
                    data.schema()
