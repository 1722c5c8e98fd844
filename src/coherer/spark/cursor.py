"""The ends of a stream's micro-batches.

This is the state of a stream's driver side; it is given the time and the brokers' bounds.
Invariants:

1. An end is never before the start that `next_end` was given, except in a partition that was
   truncated. That is a data loss, and with `failOnDataLoss` an error before Spark writes the end
   down: a broker that briefly reports an old end leaves no trace in the checkpoint. It is no data
   loss if a power cut has taken back messages that the stream had read: Coherer's broker continues
   behind the offset of a reader, once one reads there (`reach`).
2. A partition that no broker reports at the moment keeps its offset, since brokers come back. So
   does a topic whose brokers are all away, as long as another one can be read.
3. The first start may come from the checkpoint of another query; that is an error (`check_topics`,
   `check_brokers`). New partitions are read from their beginning, so the checkpoint of another
   topic or cluster would otherwise cause everything to be read without notice.
4. With `fix_target` (trigger AvailableNow) nothing after the ends of that moment is read.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Final

from coherer.errors import UsageError
from coherer.spark.offsets import (
    EARLIEST,
    LATEST,
    Bounds,
    Offsets,
    canonical,
    flatten,
    latest,
    resolve,
)
from coherer.spark.options import ReadOptions
from coherer.spark.planning import DataLossError, Range, bounded, truncated, with_new
from coherer.spark.rates import Scales, limited

FRESH_MS: Final = 1_000
"""The time for which an answer of the brokers is used for planning."""

_HINT = "A query that reads something else needs a checkpointLocation of its own."


def check_topics(start: Offsets, options: ReadOptions) -> None:
    """Check that the stream reads a topic of the checkpoint, whose offsets are `start`.

    Raises:
        UsageError: it reads other topics.

    >>> from coherer.spark.options import read_options
    >>> options = read_options({"url": "tubemq://h:1", "topic": "ships"})
    >>> check_topics({"flights": {"1:0": 7}}, options)
    Traceback (most recent call last):
    coherer.errors.UsageError: The checkpoint is for flights, and the stream reads ships. A query \
that reads something else needs a checkpointLocation of its own.
    """
    pattern = options.topics_pattern
    taken = options.topics if pattern is None else [t for t in start if re.fullmatch(pattern, t)]
    if start and not start.keys() & set(taken):
        wanted = ", ".join(options.topics) if pattern is None else f"topics that match {pattern}"
        raise UsageError(
            f"The checkpoint is for {', '.join(start)}, and the stream reads {wanted}.", hint=_HINT
        )


def check_brokers(start: Offsets, bounds: Bounds, url: str) -> None:
    """Check that the brokers have a partition of the checkpoint.

    This cannot distinguish clusters whose brokers have the same names.

    Raises:
        UsageError: the brokers have only other partitions of its topics.

    >>> check_brokers({"t": {"a:0": 7, "b:0": 3}}, {"t": {"b:0": (0, 5)}}, "")
    >>> check_brokers({"t": {"a:0": 7}}, {"t": {"b:0": (0, 5)}}, "rocketmq://h:1")
    Traceback (most recent call last):
    coherer.errors.UsageError: The checkpoint is for partitions a:0, and rocketmq://h:1 has only \
b:0. [topic t] Is it another cluster? Then the query needs a checkpointLocation of its own. If the \
brokers are down, start them; failOnDataLoss=false reads on without them.
    """
    shared = [topic for topic, partitions in start.items() if partitions and bounds.get(topic)]
    if not shared or any(start[topic].keys() & bounds[topic].keys() for topic in shared):
        return
    topic = shared[0]
    raise UsageError(
        f"The checkpoint is for partitions {', '.join(start[topic])}, and {url} has only "
        f"{', '.join(bounds[topic])}.",
        topic=topic,
        hint="Is it another cluster? Then the query needs a checkpointLocation of its own. If the "
        "brokers are down, start them; failOnDataLoss=false reads on without them.",
    )


def _ignore(ranges: Sequence[Range]) -> None:
    """Do nothing."""


class Cursor:
    """Finds the ends of micro-batches.

    Args:
        options: those of the stream.
        bounds: asks the brokers for the bounds of all partitions, given those that have been read,
            or None if nobody knows.
        now_ms: a monotonic clock.
        scales: those of the partitions.
        reach: reads at the end of each range, so that the broker knows the offsets of readers.
    """

    def __init__(
        self,
        options: ReadOptions,
        bounds: Callable[[Offsets | None], Bounds],
        now_ms: Callable[[], int],
        scales: Scales,
        reach: Callable[[Sequence[Range]], None] = _ignore,
    ) -> None:
        self._options = options
        self._reach = reach
        self._ask = bounds
        self._now_ms = now_ms
        self._scales = scales
        self._target: Offsets | None = None
        self._bounds: Bounds | None = None
        self._asked_ms = 0
        self._waiting_since_ms: int | None = None
        self._checked = False

    def initial(self, wanted: str | Offsets, bounds: Bounds) -> Offsets:
        """The start of a stream without a checkpoint.

        Args:
            wanted: `earliest`, `latest`, or offsets.
            bounds: those of all partitions, also of brokers that `bounds_for` may leave out.

        Raises:
            UsageError: `wanted` names a partition or offset that does not exist.
        """
        self._keep(bounds)
        strict = self._options.fail_on_data_loss
        start = resolve(wanted, bounds, "startingOffsets", unnamed=LATEST, strict=strict)
        if isinstance(wanted, dict):  # the other partitions keep their offsets until they are there
            for topic, key, offset in flatten(wanted):
                if offset >= 0:
                    start.setdefault(topic, {}).setdefault(key, offset)
        return canonical(start)

    def fetch_bounds(self, known: Offsets | None) -> Bounds:
        """Ask the brokers for the bounds of all partitions; `known` are those that were read."""
        return self._keep(self._ask(known))

    def _keep(self, bounds: Bounds) -> Bounds:
        self._bounds = bounds
        self._asked_ms = self._now_ms()
        return bounds

    def bounds_for(self, start: Offsets) -> Bounds:
        """Ask the brokers for bounds, for a batch that starts at `start`.

        Raises:
            UsageError: `start` comes from a checkpoint of another topic or cluster.
        """
        if not self._checked:
            check_topics(start, self._options)
        bounds = self._reaching(start, self.fetch_bounds(start))
        if not self._checked and self._options.fail_on_data_loss:
            check_brokers(start, bounds, self._options.access.url)
        self._checked = True
        return bounds

    def planning_bounds(self, start: Offsets, end: Offsets) -> Bounds:
        """The bounds for planning a batch whose end was just decided.

        Spark plans it a few milliseconds after `next_end`, so its bounds are used again. Messages
        that retention deletes in between are noticed by the tasks, as when they run later.

        Raises:
            UsageError: as `bounds_for`.
        """
        known = self._bounds
        fresh = self._checked and self._now_ms() - self._asked_ms <= FRESH_MS
        if fresh and known is not None and _contain(known, end):
            return known
        return self._reaching(end, self.bounds_for(start))

    def _reaching(self, offsets: Offsets, bounds: Bounds) -> Bounds:
        """The bounds, after a read behind the end of a partition where offsets are behind it."""
        beyond = truncated(offsets, bounds)
        if not beyond:
            return bounds
        self._reach(beyond)
        return self.fetch_bounds(offsets)

    def newest(self) -> Offsets | None:
        """The ends of the last answer."""
        return None if self._bounds is None else latest(self._bounds)

    def present(self, offsets: Offsets) -> Offsets:
        """The offsets of the partitions that brokers reported in the last answer."""
        bounds = self._bounds or {}
        return {
            topic: {key: at for key, at in partitions.items() if key in bounds[topic]}
            for topic, partitions in offsets.items()
            if bounds.get(topic)
        }

    def begin_of(self, start: Offsets) -> Offsets:
        """`start`, and the beginnings of partitions that are new in the last answer."""
        return with_new(start, self._bounds or {})

    def fix_target(self) -> None:
        """Read nothing after the present ends from now on."""
        # Spark has not said yet where the stream stands.
        self._target = latest(self.fetch_bounds(None))

    @property
    def has_target(self) -> bool:
        """Whether `fix_target` was called."""
        return self._target is not None

    def next_end(
        self,
        start: Offsets,
        max_rows: int | None = None,
        max_bytes: int | None = None,
        *,
        wait: bool = True,
    ) -> Offsets:
        """The end of the micro-batch that starts at `start`; `start` itself if there is nothing.

        Args:
            start: the offsets after the last micro-batch.
            max_rows: the most rows of the micro-batch; None for no limit.
            max_bytes: the most bytes of its values; None for no limit.
            wait: whether to wait for `minOffsetsPerTrigger`.

        Raises:
            UsageError: `start` comes from a checkpoint of another topic or cluster.
            DataLossError: a partition ends before `start`, and `failOnDataLoss` is set.
        """
        bounds = self.bounds_for(start)
        lost = truncated(start, bounds)
        if lost and self._options.fail_on_data_loss:
            raise DataLossError.of(lost)
        begin = with_new(start, bounds)
        end = {
            topic: {key: self._end_of(topic, key, at, bounds) for key, at in partitions.items()}
            for topic, partitions in begin.items()
        }
        if wait and self._wait_for_more(begin, end):
            return canonical(start)
        if max_rows is not None:
            end = self._of_rows(begin, end, max_rows)
        if max_bytes is not None:
            weights = self._scales.bytes(begin, end, max_bytes)
            end = limited(begin, end, max_bytes, weights, self._scales.spans(begin, end))
        return end

    def _of_rows(self, begin: Offsets, end: Offsets, limit: int) -> Offsets:
        rows = self._scales.rows(begin, end, limit)
        if self._scales.counts_rows(rows):
            return bounded(begin, end, limit)
        return limited(begin, end, limit, rows, self._scales.spans(begin, end))

    def _end_of(self, topic: str, key: str, at: int, bounds: Bounds) -> int:
        _, high = bounds.get(topic, {}).get(key, (at, at))
        if self._target is None or high < at:
            return high
        return max(at, min(high, self._target.get(topic, {}).get(key, at)))

    def _wait_for_more(self, begin: Offsets, end: Offsets) -> bool:
        """Whether to wait, because there are fewer rows than `minOffsetsPerTrigger`."""
        least = self._options.min_offsets_per_trigger
        enough = self.has_target or not least
        if enough or not 0 < sum(self._scales.rows(begin, end, least).values()) < least:
            self._waiting_since_ms = None
            return False
        now_ms = self._now_ms()
        if self._waiting_since_ms is None:
            self._waiting_since_ms = now_ms
        if now_ms - self._waiting_since_ms < self._options.max_trigger_delay_ms:
            return True
        self._waiting_since_ms = None
        return False


def _contain(bounds: Bounds, end: Offsets) -> bool:
    """Whether the brokers have messages up to the end of a batch."""
    return all(at <= bounds.get(topic, {}).get(key, (0, -1))[1] for topic, key, at in flatten(end))


def batch_ends(options: ReadOptions, bounds: Bounds) -> tuple[Offsets, Offsets]:
    """Start and end of a batch read.

    Raises:
        UsageError: the options name a partition or offset that does not exist.
    """
    begin, stop = options.starting_offsets or EARLIEST, options.ending_offsets or LATEST
    strict = options.fail_on_data_loss
    start = resolve(begin, bounds, "startingOffsets", unnamed=EARLIEST, strict=strict)
    end = resolve(stop, bounds, "endingOffsets", unnamed=LATEST, strict=strict)
    for topic, key, first in flatten(start):
        # If the start is the first message, retention may have deleted the end.
        if end[topic][key] < first and first > bounds[topic][key][0]:
            raise UsageError(
                f"Option endingOffsets names offset {end[topic][key]} of partition {key}, "
                f"and the start is {first}.",
                topic=topic,
            )
    return canonical(start), canonical(end)
