"""What a batch reads and who reads it: pure functions, told what the brokers hold.

A *range* is a stretch of one partition; a *share* is what one Spark task reads, one range or
several. Steps: bound the end by the row limit, compare with what the brokers still hold, cut
ranges that are too large, and pack small ones, because a task costs more than a thousand rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heapreplace
from itertools import pairwise
from typing import Final

import msgspec

from coherer.errors import CohererError
from coherer.spark.offsets import Bounds, Offsets, canonical, flatten, split_key

PACK_ROWS: Final = 5_000
"""Smaller ranges share a task: a task costs 5 to 40 ms, which is time for this many rows."""


class Range(msgspec.Struct, frozen=True, gc=False):
    """A stretch of one partition.

    Args:
        topic: the topic.
        broker: broker id (TubeMQ) or broker name (RocketMQ), as text.
        partition: partition id or queue id.
        start: the first offset.
        end: the offset behind the last.

    >>> Range("flights", "1", 0, 10, 30)
    flights 1:0 [10, 30)
    """

    topic: str
    broker: str
    partition: int
    start: int
    end: int

    @property
    def rows(self) -> int:
        """How many rows it has (with Java's TubeMQ broker: index bytes)."""
        return self.end - self.start

    def __repr__(self) -> str:
        return f"{self.topic} {self.broker}:{self.partition} [{self.start}, {self.end})"


class DataLossError(CohererError):
    """Messages that a batch should read are gone.

    `ranges` names them. They were deleted by retention, or their topic was, or they are damaged.
    """

    ranges: tuple[Range, ...] = ()

    @classmethod
    def of(cls, ranges: Sequence[Range]) -> DataLossError:
        """The error for these ranges."""
        lost = ", ".join(map(repr, ranges))
        error = cls(
            f"Messages are gone before they were read: {lost}.",
            hint="Retention deleted them, or they are damaged, which the log says. "
            "Keep messages longer, or set failOnDataLoss=false to go on without them.",
        )
        error.ranges = tuple(ranges)
        return error


def bounded(start: Offsets, end: Offsets, max_rows: int) -> Offsets:
    """An end not more than `max_rows` behind `start`, taken from partitions by their backlog.

    The sum is exact. What rounding leaves over goes to the largest remainders first, so that no
    partition starves. `start` names every partition of `end` (see `with_new`).

    >>> bounded({"t": {"1:0": 0, "1:1": 0}}, {"t": {"1:0": 90, "1:1": 30}}, 40)
    {'t': {'1:0': 30, '1:1': 10}}
    """
    backlog = backlog_rows(start, end)
    if backlog <= max_rows:
        return end
    waiting = {
        (topic, key): high - start[topic][key]
        for topic, key, high in flatten(end)
        if high > start[topic][key]
    }
    shares = {place: rows * max_rows // backlog for place, rows in waiting.items()}
    over = max_rows - sum(shares.values())
    by_remainder = sorted(waiting, key=lambda place: -(waiting[place] * max_rows % backlog))
    for place in by_remainder[:over]:
        shares[place] += 1
    return {
        topic: {
            key: start[topic][key] + shares[topic, key] if (topic, key) in shares else high
            for key, high in places.items()
        }
        for topic, places in end.items()
    }


def backlog_rows(start: Offsets, end: Offsets) -> int:
    """How many rows lie between two offsets.

    >>> backlog_rows({"t": {"1:0": 4}}, {"t": {"1:0": 9, "1:1": 2}})
    7
    """
    return sum(max(0, high - start.get(topic, {}).get(key, 0)) for topic, key, high in flatten(end))


def with_new(start: Offsets, bounds: Bounds) -> Offsets:
    """`start` with the partitions that it does not know, at their beginning.

    >>> with_new({"t": {"1:0": 4}}, {"t": {"1:0": (0, 9), "1:1": (2, 5)}})
    {'t': {'1:0': 4, '1:1': 2}}
    """
    full: Offsets = {topic: dict(places) for topic, places in start.items()}
    for topic, places in bounds.items():
        known = full.setdefault(topic, {})
        for key, (low, _) in places.items():
            known.setdefault(key, low)
    return canonical(full)


def truncated(start: Offsets, bounds: Bounds) -> list[Range]:
    """What is lost of partitions whose end lies before `start` now: they were cut or made anew.

    >>> truncated({"t": {"1:0": 9, "1:1": 2}}, {"t": {"1:0": (0, 4), "1:1": (0, 5)}})
    [t 1:0 [4, 9)]
    """
    return [
        Range(topic, *split_key(key), bounds[topic][key][1], at)
        for topic, key, at in flatten(start)
        if key in bounds.get(topic, {}) and bounds[topic][key][1] < at
    ]


def clamped(start: Offsets, end: Offsets) -> Offsets:
    """`start`, moved back to `end` where it lies behind it.

    >>> clamped({"t": {"1:0": 9, "1:1": 2}}, {"t": {"1:0": 4, "1:1": 5}})
    {'t': {'1:0': 4, '1:1': 2}}
    """
    return {
        topic: {key: min(at, end.get(topic, {}).get(key, at)) for key, at in places.items()}
        for topic, places in start.items()
    }


def between(start: Offsets, end: Offsets, bounds: Bounds) -> tuple[list[Range], list[Range]]:
    """The ranges to read from `start` to `end`, and the ranges that are lost.

    Of a partition whose end lies before its start nothing is read, and the stream goes on from the
    end, as with Spark's Kafka source. That is a loss where the broker's own end lies before the
    start: the partition was cut or made anew. A partition that no broker names at the moment keeps
    its range: the read will tell.

    Args:
        start: the first offset of each partition; where it is silent, the first one held.
        end: the offset behind the last of each partition.
        bounds: what the brokers hold.

    >>> between({"t": {"1:0": 4}}, {"t": {"1:0": 9}}, {"t": {"1:0": (6, 20)}})
    ([t 1:0 [6, 9)], [t 1:0 [4, 6)])
    """
    ranges: list[Range] = []
    lost: list[Range] = []
    for topic, key, stop in flatten(end):
        broker, partition = split_key(key)
        first = start.get(topic, {}).get(key)
        unknown = (stop, stop) if first is None else (first, max(first, stop))
        low, high = bounds.get(topic, {}).get(key, unknown)
        first = low if first is None else first
        begin, finish = min(max(first, low), stop), min(stop, high)
        gaps = [(first, begin), (max(begin, finish), stop)] if first <= stop else [(high, first)]
        lost += [Range(topic, broker, partition, *gap) for gap in gaps if gap[0] < gap[1]]
        if begin < finish:
            ranges.append(Range(topic, broker, partition, begin, finish))
    return ranges, lost


def cut(ranges: Sequence[Range], *, min_shares: int, max_rows: int | None) -> list[Range]:
    """Cuts ranges, in proportion to their size, until there are `min_shares` and none is too long.

    >>> cut([Range("t", "1", 0, 0, 10), Range("t", "1", 1, 0, 2)], min_shares=4, max_rows=None)
    [t 1:0 [0, 3), t 1:0 [3, 6), t 1:0 [6, 10), t 1:1 [0, 2)]
    """
    rows = sum(one.rows for one in ranges)
    pieces: list[Range] = []
    for one in ranges:
        count = -(-one.rows // max_rows) if max_rows else 1
        if len(ranges) < min_shares:
            count = max(count, round(one.rows * min_shares / rows))
        pieces += _even(one, min(count, one.rows))
    return pieces


def _even(one: Range, count: int) -> list[Range]:
    edges = [one.start + one.rows * n // count for n in range(count + 1)]
    return [Range(one.topic, one.broker, one.partition, low, high) for low, high in pairwise(edges)]


def packed(
    ranges: Sequence[Range], *, min_shares: int, max_shares: int | None
) -> list[tuple[Range, ...]]:
    """Puts ranges together into shares: largest first, each into the share with the fewest rows.

    Args:
        ranges: what is to be read.
        min_shares: so many shares at least, if there are so many ranges.
        max_shares: so many at most; None lets small ranges share up to `PACK_ROWS`.

    >>> packed([Range("t", "1", n, 0, 10) for n in range(3)], min_shares=2, max_shares=None)
    [(t 1:0 [0, 10), t 1:2 [0, 10)), (t 1:1 [0, 10),)]
    """
    small = sum(one.rows for one in ranges if one.rows < PACK_ROWS)
    large = sum(one.rows >= PACK_ROWS for one in ranges)
    count = max(large + -(-small // PACK_ROWS), min_shares)
    count = min(count, len(ranges), max_shares or len(ranges))
    shares: list[list[Range]] = [[] for _ in range(count)]
    emptiest = [(0, place) for place in range(count)]
    for one in sorted(ranges, key=lambda item: -item.rows):
        rows, place = emptiest[0]
        shares[place].append(one)
        heapreplace(emptiest, (rows + one.rows, place))
    return [tuple(sorted(share, key=_order)) for share in shares]


def _order(one: Range) -> tuple[str, str, int, int]:
    return one.topic, one.broker, one.partition, one.start


def shares_of(
    ranges: Sequence[Range], *, min_shares: int, max_shares: int | None, max_rows: int | None
) -> list[tuple[Range, ...]]:
    """Cuts and packs: what each task of a batch reads.

    Args:
        ranges: what is to be read.
        min_shares: so many tasks at least, while there are rows enough.
        max_shares: so many at most.
        max_rows: so many rows per task at most; small ranges are then not packed.

    >>> shares_of([Range("t", "1", 0, 0, 4)], min_shares=1, max_shares=None, max_rows=3)
    [(t 1:0 [0, 2),), (t 1:0 [2, 4),)]
    """
    pieces = cut(ranges, min_shares=min_shares, max_rows=max_rows)
    if max_rows:
        min_shares = max(min_shares, len(pieces))
    return packed(pieces, min_shares=min_shares, max_shares=max_shares)
