"""Planning: every row once, in shares of the right size."""

from __future__ import annotations

import pickle
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coherer.spark.offsets import Offsets, canonical
from coherer.spark.planning import (
    PACK_ROWS,
    DataLossError,
    Range,
    backlog_rows,
    between,
    bounded,
    packed,
    shares_of,
    split,
    with_new,
)

SIZES = st.lists(st.integers(1, 20_000), min_size=1, max_size=12)


def ranges_of(sizes: list[int]) -> list[Range]:
    return [Range("t", "1", n, 7 * n, 7 * n + size) for n, size in enumerate(sizes)]


def rows_of(ranges: list[Range]) -> set[tuple[int, int]]:
    found = [(one.partition, offset) for one in ranges for offset in range(one.start, one.end)]
    assert len(found) == len(set(found)), "a row is read twice"
    return set(found)


@given(SIZES, st.integers(1, 30), st.none() | st.integers(500, 30_000))
def test_splitting_keeps_every_row_once(sizes: list[int], least: int, most: int | None) -> None:
    ranges = ranges_of(sizes)
    pieces = split(ranges, min_shares=least, max_rows=most)
    assert rows_of(pieces) == rows_of(ranges)
    assert all(one.rows > 0 for one in pieces)
    if most:
        assert max(one.rows for one in pieces) <= most
    for left, right in pairwise(pieces):
        assert left.partition != right.partition or left.end == right.start


@given(SIZES, st.integers(1, 30), st.none() | st.integers(1, 30), st.none() | st.integers(1000))
def test_shares_contain_every_row_once(
    sizes: list[int], least: int, most: int | None, rows: int | None
) -> None:
    ranges = ranges_of(sizes)
    shares = shares_of(ranges, min_shares=least, max_shares=most, max_rows=rows)
    assert rows_of([one for share in shares for one in share]) == rows_of(ranges)
    assert all(shares)
    if most:
        assert len(shares) <= most
        return
    assert len(shares) >= min(least, sum(sizes))
    if rows:
        assert max(sum(one.rows for one in share) for share in shares) <= rows


def test_no_rounding_makes_fewer_tasks_than_wanted() -> None:
    assert len(shares_of(ranges_of([10] * 3), min_shares=4, max_shares=None, max_rows=None)) == 4


def test_skew_is_split() -> None:
    pieces = split(ranges_of([90_000, 10_000]), min_shares=10, max_rows=None)
    assert [one.rows for one in pieces] == [10_000] * 10


def test_small_ranges_share_a_task_and_large_ones_do_not() -> None:
    small = packed(ranges_of([100] * 8), min_shares=1, max_shares=None)
    assert [len(share) for share in small] == [8]
    large = packed(ranges_of([PACK_ROWS] * 8), min_shares=1, max_shares=None)
    assert [len(share) for share in large] == [1] * 8
    held = packed(ranges_of([PACK_ROWS] * 8), min_shares=1, max_shares=2)
    assert [len(share) for share in held] == [4, 4]
    spread = packed(ranges_of([100] * 8), min_shares=4, max_shares=None)
    assert [len(share) for share in spread] == [2] * 4


def test_there_are_no_shares_without_rows() -> None:
    assert shares_of([], min_shares=4, max_shares=None, max_rows=3) == []


@given(
    st.lists(st.tuples(st.integers(0, 50), st.integers(0, 1000)), min_size=1, max_size=9),
    st.integers(1, 5000),
)
def test_the_row_limit_is_exact(partitions: list[tuple[int, int]], limit: int) -> None:
    start = canonical({"t": {f"1:{n}": low for n, (low, _) in enumerate(partitions)}})
    end = canonical({"t": {f"1:{n}": low + rows for n, (low, rows) in enumerate(partitions)}})
    stop = bounded(start, end, limit)
    assert backlog_rows(start, stop) == min(limit, backlog_rows(start, end))
    assert list(stop["t"]) == list(end["t"])
    for key in end["t"]:
        assert start["t"][key] <= stop["t"][key] <= end["t"][key]


@given(st.integers(2, 8), st.integers(1, 4))
def test_no_partition_starves(partitions: int, limit: int) -> None:
    at: Offsets = {"t": {f"1:{n}": 0 for n in range(partitions)}}
    end: Offsets = {"t": {f"1:{n}": 50 for n in range(partitions)}}
    for _ in range(partitions):
        at = bounded(at, end, limit)
    assert backlog_rows({"t": dict.fromkeys(at["t"], 0)}, at) == partitions * limit
    assert max(at["t"].values()) - min(at["t"].values()) <= 1


@pytest.mark.parametrize("limit", [1, 3, 100])
def test_a_quiet_partition_does_not_wait_for_the_backlog_of_others(limit: int) -> None:
    """Producers fill the others as fast as the stream reads."""
    at: Offsets = {"t": {"1:0": 0, "1:1": 0, "1:2": 0, "1:3": 0}}
    end: Offsets = {"t": {"1:0": 10**6, "1:1": 1, "1:2": 10**6, "1:3": 1}}
    for _ in range(4):
        before = backlog_rows(at, end)
        at = bounded(at, end, limit)
        assert before - backlog_rows(at, end) == limit
        end["t"] |= {key: at["t"][key] + 10**6 for key in ("1:0", "1:2")}
    assert (at["t"]["1:1"], at["t"]["1:3"]) == (1, 1)


def test_the_row_limit_ignores_a_truncated_partition() -> None:
    start, end = {"t": {"1:0": 9, "1:1": 0}}, {"t": {"1:0": 2, "1:1": 9}}
    assert bounded(start, end, 4) == {"t": {"1:0": 2, "1:1": 4}}


def test_new_partitions_start_at_their_beginning() -> None:
    bounds = {"a": {"1:0": (2, 9)}, "t": {"1:0": (0, 9), "1:1": (5, 6)}}
    assert with_new({"t": {"1:0": 4}}, bounds) == {"a": {"1:0": 2}, "t": {"1:0": 4, "1:1": 5}}


def test_ranges_between_offsets() -> None:
    bounds = {"t": {"1:0": (0, 20), "1:1": (3, 30)}}
    ranges, lost = between({"t": {"1:0": 4}}, {"t": {"1:0": 9, "1:1": 8}}, bounds)
    assert [repr(one) for one in ranges] == ["t 1:0 [4, 9)", "t 1:1 [3, 8)"]
    assert lost == []


def test_lost_ranges_are_found() -> None:
    def lost(start: int, end: int, low: int, high: int) -> list[tuple[int, int]]:
        offsets = {"t": {"1:0": start}}, {"t": {"1:0": end}}
        return [(one.start, one.end) for one in between(*offsets, {"t": {"1:0": (low, high)}})[1]]

    assert lost(4, 9, 6, 9) == [(4, 6)], "retention deleted the beginning"
    assert lost(4, 9, 20, 30) == [(4, 9)], "retention deleted all"
    assert lost(4, 9, 0, 7) == [(7, 9)], "the broker lost the end"
    assert lost(4, 9, 0, 2) == [(4, 9)], "the broker lost all"
    assert lost(9, 4, 0, 4) == [(4, 9)], "the topic was recreated"
    assert lost(9, 4, 0, 6) == [(6, 9)], "and continues"
    assert lost(9, 4, 0, 9) == [], "an end before its start alone is not a loss"
    assert lost(4, 9, 0, 9) == []


def test_a_partition_that_no_broker_reports_is_not_lost() -> None:
    ranges, lost = between({"t": {"1:0": 4}}, {"t": {"1:0": 9}}, {})
    assert [repr(one) for one in ranges] == ["t 1:0 [4, 9)"]
    assert lost == []
    assert between({"t": {"1:0": 9}}, {"t": {"1:0": 4}}, {}) == ([], [])


def test_the_error_lists_lost_ranges_and_can_be_pickled() -> None:
    error = DataLossError.of([Range("t", "1", 0, 4, 6)])
    again = pickle.loads(pickle.dumps(error))
    assert "t 1:0 [4, 6)" in str(again)
    assert "failOnDataLoss" in str(again)
    assert again.ranges == (Range("t", "1", 0, 4, 6),)
