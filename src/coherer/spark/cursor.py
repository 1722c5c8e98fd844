"""Where a stream goes next: the state of its driver side, told the time and what brokers hold.

Rules:

1. An end is never before what `next_end` was given as the start, except in a partition that went
   back. That is a loss, and with `failOnDataLoss` an error before Spark writes the end down: a
   broker that tells an old end for a moment leaves no trace in the checkpoint.
2. A partition that no broker names at the moment stays where it is. Brokers come back.
3. The first start that it is told may come from a checkpoint of something else: that is an error
   (`checkpoint`).
4. With `fix_target` (trigger AvailableNow) nothing behind the ends of that moment is read.
"""

from __future__ import annotations

from collections.abc import Callable

from coherer.errors import UsageError
from coherer.spark.checkpoint import check_brokers, check_topics
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
from coherer.spark.planning import DataLossError, backlog_rows, bounded, truncated, with_new


class Cursor:
    """Finds the ends of micro-batches.

    Args:
        options: those of the stream.
        bounds: asks the brokers.
        now_ms: a clock that never goes back.
    """

    def __init__(
        self, options: ReadOptions, bounds: Callable[[], Bounds], now_ms: Callable[[], int]
    ) -> None:
        self._options = options
        self._ask = bounds
        self._now_ms = now_ms
        self._target: Offsets | None = None
        self._bounds: Bounds | None = None
        self._waiting_since_ms: int | None = None
        self._checked = False

    def initial(self, wanted: str | Offsets) -> Offsets:
        """Where a stream without a checkpoint begins.

        Args:
            wanted: `earliest`, `latest`, or offsets.

        Raises:
            UsageError: `wanted` names what does not exist.
        """
        return canonical(resolve(wanted, self.look(), "startingOffsets", unnamed=LATEST))

    def look(self) -> Bounds:
        """Asks the brokers what they hold."""
        self._bounds = self._ask()
        return self._bounds

    def bounds_for(self, start: Offsets) -> Bounds:
        """Asks the brokers what they hold, for a batch that begins at `start`.

        Raises:
            UsageError: `start` comes from a checkpoint of another topic or cluster.
        """
        if not self._checked:
            check_topics(start, self._options)
        bounds = self.look()
        if not self._checked and self._options.fail_on_data_loss:
            check_brokers(start, bounds, self._options.access.url)
        self._checked = True
        return bounds

    def newest(self) -> Offsets | None:
        """The ends that were seen last."""
        return None if self._bounds is None else latest(self._bounds)

    def fix_target(self) -> None:
        """From now on nothing behind the present ends is read."""
        self._target = latest(self.look())

    @property
    def has_target(self) -> bool:
        """Whether `fix_target` was called."""
        return self._target is not None

    def next_end(self, start: Offsets, max_rows: int | None) -> Offsets:
        """The end of the micro-batch that begins at `start`; `start` itself when there is none.

        Args:
            start: the end of the micro-batch before.
            max_rows: the row limit of the trigger.

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
            topic: {key: self._end_of(topic, key, at, bounds) for key, at in places.items()}
            for topic, places in begin.items()
        }
        if self._wait_for_more(backlog_rows(begin, end)):
            return canonical(start)
        return end if max_rows is None else bounded(begin, end, max_rows)

    def _end_of(self, topic: str, key: str, at: int, bounds: Bounds) -> int:
        _, high = bounds.get(topic, {}).get(key, (at, at))
        if self._target is None or high < at:
            return high
        return max(at, min(high, self._target.get(topic, {}).get(key, at)))

    def _wait_for_more(self, rows: int) -> bool:
        """Whether fewer rows than `minOffsetsPerTrigger` are there, and there is still time."""
        if self.has_target or not 0 < rows < self._options.min_offsets_per_trigger:
            self._waiting_since_ms = None
            return False
        now_ms = self._now_ms()
        if self._waiting_since_ms is None:
            self._waiting_since_ms = now_ms
        if now_ms - self._waiting_since_ms < self._options.max_trigger_delay_ms:
            return True
        self._waiting_since_ms = None
        return False


def batch_ends(options: ReadOptions, bounds: Bounds) -> tuple[Offsets, Offsets]:
    """Start and end of a batch read.

    Raises:
        UsageError: the options name what does not exist.
    """
    start = resolve(
        options.starting_offsets or EARLIEST, bounds, "startingOffsets", unnamed=EARLIEST
    )
    end = resolve(options.ending_offsets or LATEST, bounds, "endingOffsets", unnamed=LATEST)
    for topic, key, first in flatten(start):
        # Where the start is the first message held, retention may have passed the end.
        if end[topic][key] < first and first > bounds[topic][key][0]:
            raise UsageError(
                f"Option endingOffsets names offset {end[topic][key]} of partition {key}, "
                f"and the start is {first}.",
                topic=topic,
            )
    return canonical(start), canonical(end)
