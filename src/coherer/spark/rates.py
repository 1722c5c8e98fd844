"""The number of rows and bytes per offset, and ends of micro-batches that keep limits on them.

On Coherer's broker and with RocketMQ an offset is a row. On Java's TubeMQ broker it is a step of an
index that the partitions of a store share, and no broker reports message sizes. So a `Scale` is
measured by one read at the start of the next micro-batch, and again after `MEASURE_MS`, because
messages change. A limit on bytes is therefore an estimate; a limit on rows is exact if offsets
count them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from math import ceil
from typing import Final, TypeAlias

import msgspec

from coherer.spark.columns import sources
from coherer.spark.offsets import Offsets, flatten, split_key
from coherer.spark.planning import Range, in_turn
from coherer.spark.queue import Queue

MEASURE_MS: Final = 1_000
"""A partition is measured again after this time; a measurement reads up to half a megabyte."""

DOUBT: Final = 2
"""An old measurement is repeated only if this multiple of its result reaches the limit."""

Place: TypeAlias = tuple[str, str]
"""Topic and `broker:partition`."""


class Scale(msgspec.Struct, frozen=True):
    """The rows, and the bytes of their values, per offset of a partition.

    `exact` says whether offsets count rows.
    """

    rows: float = 1.0
    bytes: float = 0.0
    exact: bool = True


def measure(queue: Queue, one: Range) -> Scale:
    """Measure a range by its first read."""
    with queue.reader(one, sources(["value"])) as reader:
        batch = reader.read()
        if batch is None:
            return Scale(0.0, 0.0, reader.exact)
        found = batch.to_arrow(sources(["value"]))
        span = max(1, reader.position - one.start)
        size = found.column("value").nbytes
        if reader.exact:
            return Scale(1.0, size / max(1, found.num_rows))
        return Scale(found.num_rows / span, size / span, exact=False)


class Scales:
    """The scales of partitions, measured when they are needed.

    Args:
        measure: measures a range.
        now_ms: a monotonic clock.
        counted: whether offsets are known to count rows (RocketMQ).
    """

    def __init__(
        self, measure: Callable[[Range], Scale], now_ms: Callable[[], int], *, counted: bool
    ) -> None:
        self._measure = measure
        self._now_ms = now_ms
        self._counted = counted
        self._known: dict[Place, tuple[Scale, int]] = {}

    def rows(self, start: Offsets, end: Offsets, limit: int) -> dict[Place, float]:
        """The rows between two offsets, by partition; see `bytes`."""
        if self._counted:
            return {place: float(stop - at) for place, (at, stop) in _open(start, end).items()}
        scales = self._scales(start, end, limit, lambda scale: scale.rows)
        return {
            place: (stop - at) * scales[place].rows
            for place, (at, stop) in _open(start, end).items()
        }

    def counts_rows(self, places: Iterable[Place]) -> bool:
        """Whether the offsets of all these partitions, measured before, count rows."""
        return self._counted or all(self._known[place][0].exact for place in places)

    def bytes(self, start: Offsets, end: Offsets, limit: int) -> dict[Place, float]:
        """The bytes between two offsets, by partition.

        They are compared with `limit`; far from it an old measurement suffices.
        """
        scales = self._scales(start, end, limit, lambda scale: scale.bytes)
        return {
            place: (stop - at) * scales[place].bytes
            for place, (at, stop) in _open(start, end).items()
        }

    def spans(self, start: Offsets, end: Offsets) -> dict[Place, int]:
        """The estimated number of offsets per row, by partition with unread messages."""
        known = {place: scale for place, (scale, _) in self._known.items()}
        found: dict[Place, int] = {}
        for place, (at, stop) in _open(start, end).items():
            rows = known.get(place, Scale()).rows
            found[place] = min(stop - at, ceil(1 / rows)) if rows else stop - at
        return found

    def _scales(
        self, start: Offsets, end: Offsets, limit: int, weight: Callable[[Scale], float]
    ) -> Mapping[Place, Scale]:
        opened = _open(start, end)
        known = self._known
        for place, (at, stop) in opened.items():
            if place not in known:
                self._renew(place, at, stop)
        estimate = sum(
            (stop - at) * weight(known[place][0]) for place, (at, stop) in opened.items()
        )
        if estimate * DOUBT >= limit:
            for place, (at, stop) in opened.items():
                scale, when_ms = known[place]
                is_fixed = scale.exact and weight(scale) == 1.0
                if not is_fixed and self._now_ms() - when_ms >= MEASURE_MS:
                    self._renew(place, at, stop)
        return {place: known[place][0] for place in opened}

    def _renew(self, place: Place, at: int, stop: int) -> None:
        topic, key = place
        scale = self._measure(Range(topic, *split_key(key), at, stop))
        self._known[place] = scale, self._now_ms()


def _open(start: Offsets, end: Offsets) -> dict[Place, tuple[int, int]]:
    """The partitions with unread messages, and the range of their offsets."""
    return {
        (topic, key): (start[topic][key], stop)
        for topic, key, stop in flatten(end)
        if stop > start[topic][key]
    }


def limited(
    start: Offsets,
    end: Offsets,
    limit: int,
    weights: Mapping[Place, float],
    spans: Mapping[Place, int],
) -> Offsets:
    """An end whose weight is about `limit`; all partitions are shortened in proportion.

    Each partition gets a row, so that none starves beside a large backlog; if these are more than
    the limit, the partitions take turns. One row is always read, so that a message larger than the
    limit does not stop the stream.

    Args:
        start: the first offset of each partition; it contains every partition of `end`.
        end: one after the last.
        limit: of the sum of the weights.
        weights: of the messages in between, by partition.
        spans: the offsets that a row takes, by partition.

    >>> start, end = {"t": {"1:0": 0, "1:1": 0}}, {"t": {"1:0": 90, "1:1": 30}}
    >>> one = {("t", "1:0"): 1, ("t", "1:1"): 1}
    >>> limited(start, end, 4000, {("t", "1:0"): 9000.0, ("t", "1:1"): 3000.0}, one)
    {'t': {'1:0': 30, '1:1': 10}}
    """
    total = sum(weights.values())
    if total <= limit:
        return end
    opened = _open(start, end)
    shares = {place: int((stop - at) * limit / total) for place, (at, stop) in opened.items()}
    if any(shares[place] < spans[place] for place in shares):
        shares = _with_a_row_each(opened, limit, weights, spans)
    return {
        topic: {
            key: start[topic][key] + shares[topic, key] if (topic, key) in shares else stop
            for key, stop in partitions.items()
        }
        for topic, partitions in end.items()
    }


def _with_a_row_each(
    opened: Mapping[Place, tuple[int, int]],
    limit: int,
    weights: Mapping[Place, float],
    spans: Mapping[Place, int],
) -> dict[Place, int]:
    """The offsets to read of each partition: a row, and its part of what the limit leaves."""
    sizes = {place: stop - at for place, (at, stop) in opened.items()}
    shares, left = dict.fromkeys(opened, 0), float(limit)
    turn = sum(at // spans[place] for place, (at, _) in opened.items())
    for place in in_turn(list(opened), turn):
        left -= weights[place] * spans[place] / sizes[place]
        if left < 0 and any(shares.values()):
            break
        shares[place] = spans[place]
    others = sum(weights.values()) - (limit - left)
    if left > 0 and others > 0:
        for place, size in sizes.items():
            shares[place] += int((size - spans[place]) * left / others)
    return shares
