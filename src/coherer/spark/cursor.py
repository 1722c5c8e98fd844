"""The topics of a read, and the ends of a stream's micro-batches.

This is the state of a stream's driver side; it is given the time and the brokers' bounds.
Invariants:

1. An end is never before the start that `next_end` was given, except in a partition that was
   truncated. That is a data loss, and with `failOnDataLoss` an error before Spark writes the end
   down: a broker that briefly reports an old end leaves no trace in the checkpoint.
2. A partition that no broker reports at the moment keeps its offset, since brokers come back.
3. The first start may come from the checkpoint of another query; that is an error (`check_topics`,
   `check_brokers`). New partitions are read from their beginning, so the checkpoint of another
   topic or cluster would otherwise cause everything to be read without notice.
4. With `fix_target` (trigger AvailableNow) nothing after the ends of that moment is read.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterator
from datetime import datetime
from typing import Final, TypeVar

import msgspec

from coherer._common.logs import Log
from coherer._wire.rocketmq.codes import TopicNotExistError
from coherer._wire.tubemq.codes import TopicNotDeployedError
from coherer.errors import CohererError, UnavailableError, UsageError
from coherer.spark.offsets import (
    EARLIEST,
    LATEST,
    Bounds,
    Offsets,
    bounds_of,
    canonical,
    flatten,
    latest,
    merged,
    partition_key,
    resolve,
)
from coherer.spark.options import ReadOptions
from coherer.spark.planning import DataLossError, backlog_rows, bounded, truncated, with_new
from coherer.spark.queue import Queue

T = TypeVar("T")

log = Log(logging.getLogger(__name__))

RESOLVE_MS: Final = 1_000
"""How often a pattern is matched against the list of topics."""

_HINT = "A query that reads something else needs a checkpointLocation of its own."


class Topics:
    """The topics of a read, named or matched.

    Args:
        options: those of the read.
        now_ms: a monotonic clock.
    """

    def __init__(self, options: ReadOptions, now_ms: Callable[[], int]) -> None:
        self._names = options.topics
        self._pattern = options.topics_pattern
        self._strict = options.fail_on_data_loss
        self._missing: set[str] = set()
        self._now_ms = now_ms
        self._resolved_ms: int | None = None

    def names(self, queue: Queue) -> tuple[str, ...]:
        """The topics; a pattern is matched again after `RESOLVE_MS`."""
        if self._pattern is not None and self._stale():
            matches = re.compile(self._pattern).fullmatch
            self._names = tuple(sorted(name for name in queue.topics() if matches(name)))
            self._resolved_ms = self._now_ms()
        return self._names

    def _stale(self) -> bool:
        return self._resolved_ms is None or self._now_ms() - self._resolved_ms >= RESOLVE_MS

    def bounds(self, queue: Queue) -> Bounds:
        """The bounds of all partitions.

        Raises:
            RefusedError: a named topic does not exist, and `failOnDataLoss` is set.
        """
        return merged(bounds_of(topic, found) for topic, found in self._ask(queue, queue.bounds))

    def offsets_since(self, queue: Queue, time: datetime) -> Offsets:
        """The offsets of the first messages stored at a time or later.

        Raises:
            RefusedError: a named topic does not exist, and `failOnDataLoss` is set.
        """
        found = self._ask(queue, lambda topic: queue.offsets_since(topic, time))
        return canonical(
            {topic: {partition_key(*key): at[key] for key in at} for topic, at in found}
        )

    def with_offsets(self, queue: Queue, options: ReadOptions) -> ReadOptions:
        """The options with offsets instead of times.

        Raises:
            RefusedError: as `offsets_since`.
        """
        if options.starting_time is not None:
            start = self.offsets_since(queue, options.starting_time)
            options = msgspec.structs.replace(options, starting_offsets=start)
        if options.ending_time is not None:
            end = self.offsets_since(queue, options.ending_time)
            options = msgspec.structs.replace(options, ending_offsets=end)
        return options

    def _ask(self, queue: Queue, ask: Callable[[str], T]) -> Iterator[tuple[str, T]]:
        for topic in self.names(queue):
            try:
                found = ask(topic)
            except (TopicNotDeployedError, TopicNotExistError) as error:
                if self._strict and self._still_wanted(topic, queue):
                    raise
                self._skip(topic, error)
            else:
                self._missing.discard(topic)
                yield topic, found

    def _still_wanted(self, topic: str, queue: Queue) -> bool:
        """Whether a missing topic is wanted; one that matched a pattern may have been deleted."""
        self._resolved_ms = None
        return topic in self.names(queue)

    def _skip(self, topic: str, error: CohererError) -> None:
        if topic not in self._missing:  # log it once
            self._missing.add(topic)
            log.warning("Skipping topic %s: %s", topic, error)

    def check_whole(self, queue: Queue) -> None:
        """Check that `bounds` is complete, with no broker down.

        A running stream waits for such a broker, but a new read must not skip its partitions.

        Raises:
            UnavailableError: a part of a topic cannot be read now.
        """
        for topic in self.names(queue):
            missing = queue.missing_brokers(topic)
            if missing:
                brokers = ", ".join(missing)
                raise UnavailableError(
                    f"A part of the topic cannot be read now: brokers {brokers} are down.",
                    topic=topic,
                    hint="Start them, or set failOnDataLoss=false to read the rest.",
                )


def check_topics(start: Offsets, options: ReadOptions) -> None:
    """Check that the stream reads a topic of the checkpoint.

    Args:
        start: the offsets of the checkpoint.
        options: those of the stream.

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

    Args:
        start: the offsets of the checkpoint.
        bounds: of all partitions.
        url: of the cluster.

    Raises:
        UsageError: the brokers have other partitions of its topics only.

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


class Cursor:
    """Finds the ends of micro-batches.

    Args:
        options: those of the stream.
        bounds: asks the brokers for the bounds of all partitions.
        now_ms: a monotonic clock.
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
        """The start of a stream without a checkpoint.

        Args:
            wanted: `earliest`, `latest`, or offsets.

        Raises:
            UsageError: `wanted` names a partition or offset that does not exist.
        """
        return canonical(resolve(wanted, self.fetch_bounds(), "startingOffsets", unnamed=LATEST))

    def fetch_bounds(self) -> Bounds:
        """Asks the brokers for the bounds of all partitions."""
        self._bounds = self._ask()
        return self._bounds

    def bounds_for(self, start: Offsets) -> Bounds:
        """Asks the brokers for bounds, for a batch that starts at `start`.

        Raises:
            UsageError: `start` comes from a checkpoint of another topic or cluster.
        """
        if not self._checked:
            check_topics(start, self._options)
        bounds = self.fetch_bounds()
        if not self._checked and self._options.fail_on_data_loss:
            check_brokers(start, bounds, self._options.access.url)
        self._checked = True
        return bounds

    def newest(self) -> Offsets | None:
        """The ends of the last answer."""
        return None if self._bounds is None else latest(self._bounds)

    def fix_target(self) -> None:
        """Reads nothing after the present ends from now on."""
        self._target = latest(self.fetch_bounds())

    @property
    def has_target(self) -> bool:
        """Whether `fix_target` was called."""
        return self._target is not None

    def next_end(self, start: Offsets, max_rows: int | None) -> Offsets:
        """The end of the micro-batch that starts at `start`; `start` itself if there is nothing.

        Args:
            start: the end of the previous micro-batch.
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
            topic: {key: self._end_of(topic, key, at, bounds) for key, at in partitions.items()}
            for topic, partitions in begin.items()
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
        """Whether there are fewer rows than `minOffsetsPerTrigger`, and still time to wait."""
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
        UsageError: the options name a partition or offset that does not exist.
    """
    start = resolve(
        options.starting_offsets or EARLIEST, bounds, "startingOffsets", unnamed=EARLIEST
    )
    end = resolve(options.ending_offsets or LATEST, bounds, "endingOffsets", unnamed=LATEST)
    for topic, key, first in flatten(start):
        # If the start is the first message, retention may have passed the end.
        if end[topic][key] < first and first > bounds[topic][key][0]:
            raise UsageError(
                f"Option endingOffsets names offset {end[topic][key]} of partition {key}, "
                f"and the start is {first}.",
                topic=topic,
            )
    return canonical(start), canonical(end)
