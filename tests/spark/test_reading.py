"""ReadSettings: the exact rows of the ranges, in batches of a suitable size."""

from __future__ import annotations

from collections.abc import Generator
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from coherer.errors import DisconnectedError
from coherer.spark.columns import BY_NAME, DEFAULT, arrow_schema
from coherer.spark.planning import DataLossError, Range
from coherer.spark.reading import (
    BATCH,
    ENOUGH_BYTES,
    SKIPPED,
    BadRecordError,
    ReadSettings,
    joined,
    rows,
)

if TYPE_CHECKING:
    from tests.spark.queues import ListQueue


def reading(
    lost: list[Range],
    *,
    fail: bool = True,
    mode: str = "FAILFAST",
    columns: tuple[str, ...] = DEFAULT,
) -> ReadSettings:
    return ReadSettings(columns, fail, mode, lost.append, lambda one, _reason: lost.append(one))


def offsets_of(batches: list[pa.RecordBatch]) -> list[tuple[int, int]]:
    return [
        (row["partition"], row["offset"])  # type: ignore[misc]
        for batch in batches
        for row in batch.to_pylist()
    ]


def test_rows_match_the_ranges_for_any_read_size(list_queue: ListQueue) -> None:
    ranges = [Range("t", "1", 0, 3, 30), Range("t", "1", 1, 5, 25), Range("t", "1", 0, 90, 91)]
    for step in (1, 7, 1000):
        list_queue.step = step
        found = list(rows(list_queue, ranges, reading([])))
        wanted = [(one.partition, at) for one in ranges for at in range(one.start, one.end)]
        assert offsets_of(found) == wanted
        assert list_queue.open_readers == 0


def test_columns_have_the_schema_that_spark_requires(list_queue: ListQueue) -> None:
    every = tuple(BY_NAME)
    one = Range("t", "1", 0, 3, 4)
    (batch,) = rows(list_queue, [one], reading([], columns=every, mode="PERMISSIVE"))
    assert batch.schema == arrow_schema(every)
    (row,) = batch.to_pylist()
    assert row["id"] == "1003"
    assert row["value"] == b"v3"
    assert row["key"] is row["error"] is row["bornTimestamp"] is None
    assert str(row["timestamp"]) == "2013-01-01 10:00:00+00:00"
    assert row["timestampType"] == 0
    assert row["properties"] == [("a", "b")]


def test_only_what_is_asked_for_is_decoded(list_queue: ListQueue) -> None:
    one = Range("t", "1", 0, 3, 5)
    (batch,) = rows(list_queue, [one], reading([], columns=("value", "timestampType")))
    assert batch.to_pydict() == {"value": [b"v3", b"v4"], "timestampType": [0, 0]}
    assert list_queue.asked == [("offset", "value", "time")]


@pytest.mark.parametrize(
    ("start", "end", "low", "high", "lost"),
    [(0, 50, 20, 100, (0, 20)), (0, 50, 60, 100, (0, 50)), (80, 100, 0, 90, (90, 100))],
)
def test_rows_deleted_between_planning_and_reading_are_reported(
    list_queue: ListQueue, start: int, end: int, low: int, high: int, lost: tuple[int, int]
) -> None:
    list_queue.held["t"]["1", 0] = (low, high)
    one = Range("t", "1", 0, start, end)
    with pytest.raises(DataLossError, match=rf"t 1:0 \[{lost[0]}, {lost[1]}\)"):
        list(rows(list_queue, [one], reading([])))
    reported: list[Range] = []
    found = list(rows(list_queue, [one], reading(reported, fail=False)))
    assert reported == [Range("t", "1", 0, *lost)]
    wanted = [(0, at) for at in range(start, end) if not lost[0] <= at < lost[1]]
    assert offsets_of(found) == wanted


@pytest.mark.parametrize("withheld", [False, True], ids=["arrived", "left out by the broker"])
@pytest.mark.parametrize("damaged", [{0}, {6}, {7, 8}, {29}, {3, 5, 20}, set(range(30))])
def test_bad_records_are_an_error_or_rows_or_dropped(
    list_queue: ListQueue, damaged: set[int], withheld: bool
) -> None:
    list_queue.damaged = damaged
    list_queue.withheld = damaged if withheld else set()
    one = Range("t", "1", 0, 0, 30)
    first = min(damaged)
    with pytest.raises(BadRecordError, match=rf"t 1:0 \[{first}, .*mode=PERMISSIVE") as caught:
        list(rows(list_queue, [one], reading([])))
    assert caught.value.ranges[0].start == first

    reported: list[Range] = []
    found = list(rows(list_queue, [one], reading(reported, mode="DROP")))
    assert offsets_of(found) == [(0, at) for at in range(30) if at not in damaged]
    assert {at for lost in reported for at in range(lost.start, lost.end)} == damaged

    settings = reading([], mode="PERMISSIVE", columns=("offset", "id", "value", "error"))
    made = [row for batch in rows(list_queue, [one], settings) for row in batch.to_pylist()]
    assert [row["offset"] for row in made] == list(range(30))
    for row in made:
        at = row["offset"]
        bad = (b"bad%d" % at, "It is damaged.") if not withheld else (None, SKIPPED)
        wanted = bad if at in damaged else (b"v%d" % at, None)
        assert (row["value"], row["error"]) == wanted


def test_deleted_messages_are_not_bad_records(list_queue: ListQueue) -> None:
    """`failOnDataLoss` and `mode` are independent of each other."""
    list_queue.held["t"]["1", 0] = (10, 100)
    list_queue.damaged = {15}
    one = Range("t", "1", 0, 0, 30)
    with pytest.raises(DataLossError, match=r"t 1:0 \[0, 10\)"):
        list(rows(list_queue, [one], reading([], mode="PERMISSIVE")))
    with pytest.raises(BadRecordError, match=r"t 1:0 \[15, 16\)"):
        list(rows(list_queue, [one], reading([], fail=False)))
    reported: list[Range] = []
    found = list(rows(list_queue, [one], reading(reported, fail=False, mode="PERMISSIVE")))
    assert offsets_of(found) == [(0, at) for at in range(10, 30)]
    assert reported == [Range("t", "1", 0, 0, 10)]


def test_a_large_damaged_range_becomes_rows_piece_by_piece(list_queue: ListQueue) -> None:
    count = 3 * BATCH.rows
    list_queue.held["t"]["1", 0] = (0, count)
    list_queue.damaged = list_queue.withheld = set(range(count))
    one = Range("t", "1", 0, 0, count)
    settings = reading([], mode="PERMISSIVE", columns=("offset", "error"))
    found = list(rows(list_queue, [one], settings))
    assert max(batch.num_rows for batch in found) <= BATCH.rows
    assert sum(batch.num_rows for batch in found) == count


def test_with_index_offsets_bad_records_have_the_offset_of_their_read(
    list_queue: ListQueue,
) -> None:
    list_queue.exact = False
    one = Range("t", "1", 0, 0, 100)
    (batch,) = rows(list_queue, [one], reading([]))
    assert batch.num_rows == 100
    list_queue.damaged = {50}
    with pytest.raises(BadRecordError, match=r"t 1:0 \[49, 56\): It is damaged"):
        list(rows(list_queue, [one], reading([])))
    reported: list[Range] = []
    (batch,) = rows(list_queue, [one], reading(reported, mode="DROP"))
    assert (batch.num_rows, reported) == (99, [Range("t", "1", 0, 49, 56)])
    settings = reading([], mode="PERMISSIVE", columns=("offset", "value", "error"))
    (batch,) = rows(list_queue, [one], settings)
    bad = [row for row in batch.to_pylist() if row["error"]]
    assert bad == [{"offset": 49, "value": b"bad50", "error": "It is damaged."}]
    list_queue.damaged = set()
    list_queue.held["t"]["1", 0] = (28, 100)
    with pytest.raises(DataLossError, match=r"t 1:0 \[0, 28\)"):
        list(rows(list_queue, [one], reading([])))


@pytest.mark.parametrize(
    ("held", "lost", "read"), [(60, "[60, 100)", 32), (27, "[27, 100)", 0), (0, "[0, 100)", 0)]
)
def test_with_index_offsets_an_end_that_is_gone_is_a_loss(
    list_queue: ListQueue, held: int, lost: str, read: int
) -> None:
    """A broker that was killed has lost what was in its memory only."""
    list_queue.exact = False
    list_queue.held["t"]["1", 0] = (0, held)
    one = Range("t", "1", 0, 28, 100)
    reported: list[Range] = []
    found = list(rows(list_queue, [one], reading(reported, fail=False)))
    assert sum(batch.num_rows for batch in found) == read
    assert lost in repr(reported)
    with pytest.raises(DataLossError):
        list(rows(list_queue, [one], reading([])))


def test_errors_of_the_broker_propagate(list_queue: ListQueue) -> None:
    list_queue.broken = True
    with pytest.raises(DisconnectedError):
        list(rows(list_queue, [Range("t", "1", 0, 0, 9)], reading([])))
    assert list_queue.open_readers == 0


def test_stopping_early_closes_the_reader(list_queue: ListQueue) -> None:
    list_queue.held["t"]["1", 0] = (0, 10**9)
    list_queue.step = 10_000
    found = rows(list_queue, [Range("t", "1", 0, 0, 10**9)], reading([]))
    next(found)
    assert list_queue.open_readers == 1
    assert isinstance(found, Generator)
    found.close()
    assert list_queue.open_readers == 0


def batch_of(count: int, size: int) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.array([b"x" * size] * count, pa.binary())], names=["v"])


def test_small_batches_are_joined() -> None:
    sizes = [batch.nbytes for batch in joined(batch_of(100, 1000) for _ in range(100))]
    assert all(ENOUGH_BYTES <= size < BATCH.size for size in sizes[:-1])
    assert sum(sizes) > 10_000_000


def test_tiny_rows_are_joined_up_to_the_row_limit() -> None:
    counts = [batch.num_rows for batch in joined(batch_of(300, 1) for _ in range(100))]
    assert max(counts) <= BATCH.rows
    assert sum(counts) == 30_000
    assert len(counts) <= 6


def test_large_batches_are_split() -> None:
    (first, *others) = joined([batch_of(64, 100_000)])
    assert first.nbytes < 3_000_000
    assert first.num_rows + sum(batch.num_rows for batch in others) == 64


def test_a_batch_of_the_right_size_is_not_copied() -> None:
    whole = batch_of(1000, 1000)
    (given,) = joined([whole])
    assert given is whole
