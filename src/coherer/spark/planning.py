"""Plans the offsets and tasks of a batch. Pure functions of the brokers' bounds.

A *range* is an interval of one partition; a *share* is the ranges that one Spark task reads. Steps:
limit the end to the maximum number of rows, compare with the brokers' bounds, split large ranges,
and pack small ones together, because a task costs more than a thousand rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from heapq import heapify, heapreplace
from itertools import pairwise
from typing import Final, TypeVar

import msgspec

from coherer.errors import CohererError
from coherer.spark.offsets import Bounds, Offsets, canonical, flatten, split_key, total

T = TypeVar("T")

PACK_ROWS: Final = 5_000
"""Smaller ranges share a task: a task costs 5 to 40 ms, the time to read this many rows."""


SPLIT_ROWS: Final = 50_000
"""If there are fewer ranges than cores, tasks of at least this many rows share them."""


CONTINUE: Final = "set failOnDataLoss=false to continue without them."
"""What to do about lost messages; commands say how they do it."""


class Range(msgspec.Struct, frozen=True, gc=False):
    """An interval of one partition.

    Args:
        topic: the topic.
        broker: broker id (TubeMQ) or broker name (RocketMQ), as text.
        partition: partition id or queue id.
        start: the first offset.
        end: the offset after the last.

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
        """The number of rows (with Java's TubeMQ broker: index bytes)."""
        return self.end - self.start

    def __repr__(self) -> str:
        return f"{self.topic} {self.broker}:{self.partition} [{self.start}, {self.end})"


class Wanted(msgspec.Struct, frozen=True):
    """The rows that a read must return; None stands for all values, or for an open end.

    Args:
        brokers: ids or names, as in the column.
        offsets: the first offset, and the one after the last.
        stored_ms: the first time of storing, and the one after the last, ms since 1970.
    """

    topics: frozenset[str] | None = None
    brokers: frozenset[str] | None = None
    partitions: frozenset[int] | None = None
    offsets: tuple[int, int | None] = (0, None)
    stored_ms: tuple[int | None, int | None] = (None, None)
    tags: frozenset[str] | None = None

    def limit(self, ranges: Iterable[Range]) -> list[Range]:
        """The wanted parts of ranges, by everything but times and tags.

        >>> wanted = Wanted(partitions=frozenset({0}), offsets=(4, None))
        >>> wanted.limit([Range("t", "a", 0, 2, 9), Range("t", "a", 1, 2, 9)])
        [t a:0 [4, 9)]
        """
        low, high = self.offsets
        return [
            msgspec.structs.replace(one, start=start, end=end)
            for one in ranges
            for start in [max(one.start, low)]
            for end in [one.end if high is None else min(one.end, high)]
            if start < end
            and (self.topics is None or one.topic in self.topics)
            and (self.brokers is None or one.broker in self.brokers)
            and (self.partitions is None or one.partition in self.partitions)
        ]


class DataLossError(CohererError):
    """Messages that a batch should read are gone.

    `ranges` holds their offsets. Retention deleted them, or their topic was deleted.
    """

    ranges: tuple[Range, ...] = ()

    @classmethod
    def of(cls, ranges: Sequence[Range]) -> DataLossError:
        """The error for these ranges."""
        lost = ", ".join(map(repr, ranges))
        error = cls(
            f"Messages were lost before they were read: {lost}.",
            hint="Retention deleted them, or their topic was deleted. Keep messages longer, or "
            f"{CONTINUE}",
        )
        error.ranges = tuple(ranges)
        return error


def bounded(start: Offsets, end: Offsets, max_rows: int) -> Offsets:
    """An end up to `max_rows` after `start`, which partitions share in proportion to their backlog.

    The sum is exact. Each partition gets a row, so that none starves beside a large backlog; if
    there are more partitions than rows, they take turns. `start` contains every partition of `end`
    (see `with_new`).

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
    shares = _shares(waiting, max_rows)
    if not all(shares.values()):
        served = in_turn(list(waiting), total(start))[:max_rows]
        further = {key: waiting[key] - 1 for key in served}
        shares = {key: 1 + more for key, more in _shares(further, max_rows - len(served)).items()}
    return {
        topic: {
            key: start[topic][key] + shares.get((topic, key), 0)
            if (topic, key) in waiting
            else high
            for key, high in partitions.items()
        }
        for topic, partitions in end.items()
    }


def _shares(waiting: Mapping[T, int], rows: int) -> dict[T, int]:
    """Divide a number of rows in proportion; the largest remainders get what rounding leaves."""
    backlog = sum(waiting.values()) or 1
    shares = {key: count * rows // backlog for key, count in waiting.items()}
    over = rows - sum(shares.values())
    for key in sorted(waiting, key=lambda key: -(waiting[key] * rows % backlog))[:over]:
        shares[key] += 1
    return shares


def in_turn(places: Sequence[T], turn: int) -> list[T]:
    """The places from another one on; `turn` grows by the number of places that were served.

    >>> in_turn(["a", "b", "c"], 4)
    ['b', 'c', 'a']
    """
    first = turn % max(len(places), 1)
    return [*places[first:], *places[:first]]


def backlog_rows(start: Offsets, end: Offsets) -> int:
    """The number of rows between two offsets.

    >>> backlog_rows({"t": {"1:0": 4}}, {"t": {"1:0": 9, "1:1": 2}})
    7
    """
    return sum(max(0, high - start.get(topic, {}).get(key, 0)) for topic, key, high in flatten(end))


def with_new(start: Offsets, bounds: Bounds) -> Offsets:
    """`start` with the partitions that it lacks, at their beginning.

    >>> with_new({"t": {"1:0": 4}}, {"t": {"1:0": (0, 9), "1:1": (2, 5)}})
    {'t': {'1:0': 4, '1:1': 2}}
    """
    full: Offsets = {topic: dict(partitions) for topic, partitions in start.items()}
    for topic, partitions in bounds.items():
        known = full.setdefault(topic, {})
        for key, (low, _) in partitions.items():
            known.setdefault(key, low)
    return canonical(full)


def truncated(start: Offsets, bounds: Bounds) -> list[Range]:
    """The lost ranges of partitions that now end before `start`: truncated or recreated ones.

    >>> truncated({"t": {"1:0": 9, "1:1": 2}}, {"t": {"1:0": (0, 4), "1:1": (0, 5)}})
    [t 1:0 [4, 9)]
    """
    return [
        Range(topic, *split_key(key), bounds[topic][key][1], at)
        for topic, key, at in flatten(start)
        if key in bounds.get(topic, {}) and bounds[topic][key][1] < at
    ]


def clamped(start: Offsets, end: Offsets) -> Offsets:
    """`start`, moved back to `end` where it is after it.

    >>> clamped({"t": {"1:0": 9, "1:1": 2}}, {"t": {"1:0": 4, "1:1": 5}})
    {'t': {'1:0': 4, '1:1': 2}}
    """
    return {
        topic: {key: min(at, end.get(topic, {}).get(key, at)) for key, at in partitions.items()}
        for topic, partitions in start.items()
    }


def between(start: Offsets, end: Offsets, bounds: Bounds) -> tuple[list[Range], list[Range]]:
    """The ranges to read from `start` to `end`, and the ranges that are lost.

    Nothing is read of a partition whose end is before its start, and the stream continues from the
    end, as with Spark's Kafka source. It is a loss if the broker's end is before the start too: the
    partition was truncated or recreated. A partition that no broker reports keeps its range, and
    the read decides.

    Args:
        start: the first offset of each partition; a missing one starts at its first message.
        end: the offset after the last of each partition.
        bounds: of all partitions.

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


def split(ranges: Sequence[Range], *, min_shares: int, max_rows: int | None) -> list[Range]:
    """Split ranges into `min_shares` or more of limited length, always the longest one further.

    >>> split([Range("t", "1", 0, 0, 10), Range("t", "1", 1, 0, 2)], min_shares=4, max_rows=None)
    [t 1:0 [0, 3), t 1:0 [3, 6), t 1:0 [6, 10), t 1:1 [0, 2)]
    """
    counts = [-(-one.rows // max_rows) if max_rows else 1 for one in ranges]
    longest = [
        (-one.rows / count, n) for n, (one, count) in enumerate(zip(ranges, counts, strict=True))
    ]
    heapify(longest)
    for _ in range(min(min_shares, sum(one.rows for one in ranges)) - sum(counts)):
        _, number = longest[0]
        counts[number] += 1
        heapreplace(longest, (-ranges[number].rows / counts[number], number))
    return [
        piece
        for one, count in zip(ranges, counts, strict=True)
        for piece in _even(one, min(count, one.rows))
    ]


def _even(one: Range, count: int) -> list[Range]:
    edges = [one.start + one.rows * n // count for n in range(count + 1)]
    return [Range(one.topic, one.broker, one.partition, low, high) for low, high in pairwise(edges)]


def packed(
    ranges: Sequence[Range], *, min_shares: int, max_shares: int | None
) -> list[tuple[Range, ...]]:
    """Pack ranges into shares: largest first, each into the share with the fewest rows.

    `min_shares` needs enough ranges. If `max_shares` is None, small ranges share up to `PACK_ROWS`.

    >>> packed([Range("t", "1", n, 0, 10) for n in range(3)], min_shares=2, max_shares=None)
    [(t 1:0 [0, 10), t 1:2 [0, 10)), (t 1:1 [0, 10),)]
    """
    small = sum(one.rows for one in ranges if one.rows < PACK_ROWS)
    large = sum(one.rows >= PACK_ROWS for one in ranges)
    count = max(large + -(-small // PACK_ROWS), min_shares)
    count = min(count, len(ranges), max_shares or len(ranges))
    shares: list[list[Range]] = [[] for _ in range(count)]
    emptiest = [(0, index) for index in range(count)]
    for one in sorted(ranges, key=lambda item: -item.rows):
        rows, index = emptiest[0]
        shares[index].append(one)
        heapreplace(emptiest, (rows + one.rows, index))
    return [tuple(sorted(share, key=_order)) for share in shares]


def _order(one: Range) -> tuple[str, str, int, int]:
    return one.topic, one.broker, one.partition, one.start


def shares_for_cores(ranges: Sequence[Range], cores: int) -> int:
    """The number of tasks that keeps all cores busy, if they have `SPLIT_ROWS` each.

    >>> shares_for_cores([Range("t", "1", 0, 0, 300_000)], 2)
    2
    """
    return min(cores, sum(one.rows for one in ranges) // SPLIT_ROWS)


def shares_of(
    ranges: Sequence[Range], *, min_shares: int, max_shares: int | None, max_rows: int | None
) -> list[tuple[Range, ...]]:
    """The shares of a batch's tasks: split, then packed.

    With `max_rows`, the maximum rows of a task, small ranges are not packed.

    >>> shares_of([Range("t", "1", 0, 0, 4)], min_shares=1, max_shares=None, max_rows=3)
    [(t 1:0 [0, 2),), (t 1:0 [2, 4),)]
    """
    pieces = split(ranges, min_shares=min_shares, max_rows=max_rows)
    if max_rows:
        min_shares = max(min_shares, len(pieces))
    return packed(pieces, min_shares=min_shares, max_shares=max_shares)
