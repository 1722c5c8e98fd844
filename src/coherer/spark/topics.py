"""The topics and partitions of a read, and the offsets of times.

A topic is named, or matches a pattern that is evaluated repeatedly, or some of its partitions are
assigned.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from time import sleep
from typing import Final, TypeVar

from msgspec.structs import replace

from coherer._common.logs import Log
from coherer._wire.rocketmq.codes import TopicNotExistError
from coherer._wire.tubemq.codes import TopicNotDeployedError
from coherer.errors import CohererError, UnavailableError, UsageError
from coherer.spark.cursor import batch_ends
from coherer.spark.offsets import (
    ALL,
    LATEST,
    Assigned,
    Bounds,
    Offsets,
    Times,
    bounds_of,
    brokers_of,
    canonical,
    flatten,
    is_assigned,
    merged,
    partition_key,
    split_key,
)
from coherer.spark.options import ERROR, ReadOptions
from coherer.spark.planning import Range, between
from coherer.spark.queue import Queue, TopicAwayError

T = TypeVar("T")

log = Log(logging.getLogger(__name__))

RESOLVE_MS: Final = 1_000
"""The interval at which a pattern is matched against the list of topics."""

AGAIN_S: Final = 0.2
"""The pause before brokers are asked again while all of them are away."""

READ_REST: Final = ", or set failOnDataLoss=false to read the rest."
"""What else to do about brokers that are down; commands read a topic whole."""

_NOTHING: Final[Offsets] = {}


def monotonic_ms() -> int:
    """A clock for `Topics`."""
    return time.monotonic_ns() // 1_000_000


class Topics:
    """The topics of a read, named or matched.

    Args:
        options: those of the read.
        now_ms: a monotonic clock.
        running: whether it is a stream, which goes on without the brokers that are away. A new read
            does so only with `failOnDataLoss=false`.
    """

    def __init__(
        self, options: ReadOptions, now_ms: Callable[[], int], *, running: bool = False
    ) -> None:
        self._names = options.topics
        self._pattern = options.topics_pattern
        self._assigned = options.assigned
        self._strict = options.fail_on_data_loss
        self._partial = running or not options.fail_on_data_loss
        self._timeout_ms = options.access.timeout_ms
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

    def bounds(self, queue: Queue, known: Offsets | None = _NOTHING) -> Bounds:
        """The bounds of all partitions that are read.

        If brokers may be away, topics whose brokers are all away are left out, as long as there are
        others. Otherwise one of them may be restarting: this waits for it.

        Args:
            queue: the cluster.
            known: the partitions that have been read before; None if nobody knows.

        Raises:
            RefusedError: a named topic does not exist, and `failOnDataLoss` is set.
            UnavailableError: no topic has a broker that is there, until the timeout.
        """

        def ask(topic: str) -> Mapping[tuple[str, int], tuple[int, int]]:
            brokers = None if known is None else brokers_of(known.get(topic, ()))
            return queue.bounds(topic, partial=self._partial, known=brokers)

        until_ms = self._now_ms() + self._timeout_ms
        while True:
            try:
                found = merged(bounds_of(topic, ends) for topic, ends in self._ask(queue, ask))
                break
            except TopicAwayError:
                if self._now_ms() >= until_ms:
                    raise
            sleep(AGAIN_S)
        return {
            topic: {key: at for key, at in ends.items() if self._is_wanted(topic, key)}
            for topic, ends in found.items()
        }

    def _is_wanted(self, topic: str, key: str) -> bool:
        return self._assigned is None or is_assigned(key, self._assigned[topic])

    def offsets_since(self, queue: Queue, times: datetime | Times) -> Offsets:
        """The offsets of the first messages stored at a time or later.

        Raises:
            RefusedError: a named topic does not exist, and `failOnDataLoss` is set.
            UsageError: `times` names a topic or partition that is not read.
        """
        if isinstance(times, dict):
            self._check_topics(times, queue)

        def ask(topic: str) -> Mapping[str, int]:
            if isinstance(times, dict):
                return _since(queue, topic, times.get(topic, {}))
            return _keyed(queue.offsets_since(topic, times))

        return canonical(
            {
                topic: {key: at[key] for key in at if self._is_wanted(topic, key)}
                for topic, at in self._ask(queue, ask)
            }
        )

    def _check_topics(self, times: Times, queue: Queue) -> None:
        names = self.names(queue)
        for topic in times:
            if topic not in names:
                raise UsageError(
                    f"An option names a time for topic {topic}, which is not read.",
                    hint=f"The topics are: {', '.join(names)}.",
                )

    def with_offsets(self, queue: Queue, options: ReadOptions) -> ReadOptions:
        """The options with offsets instead of times.

        Raises:
            RefusedError, UsageError: as `offsets_since`.
            UsageError: all messages are older than a starting time, and the strategy is `error`.
        """
        since = options.starting_time or options.starting_times
        if since is not None:
            start = self.offsets_since(queue, since)
            strategy = options.unmatched or (ERROR if options.starting_times else LATEST)
            if strategy == ERROR:
                _check_matched(start, self.bounds(queue))
            options = replace(options, starting_offsets=start)
        until = options.ending_time or options.ending_times
        if until is not None:
            options = replace(options, ending_offsets=self.offsets_since(queue, until))
        return options

    def _ask(self, queue: Queue, ask: Callable[[str], T]) -> Iterator[tuple[str, T]]:
        away: list[TopicAwayError] = []
        is_there = False
        for topic in self.names(queue):
            try:
                found = ask(topic)
            except (TopicNotDeployedError, TopicNotExistError) as error:
                if self._strict and self._still_wanted(topic, queue):
                    raise
                self._skip(topic, error)
            except TopicAwayError as error:
                away.append(error)
                self._skip(topic, error)
            else:
                is_there = True
                self._missing.discard(topic)
                yield topic, found
        if away and not is_there:
            raise away[0]

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
            missing = [one for one in queue.missing_brokers(topic) if self._has_part(topic, one)]
            if missing:
                brokers = ", ".join(missing)
                raise UnavailableError(
                    f"A part of the topic cannot be read now: brokers {brokers} are down.",
                    topic=topic,
                    hint=f"Start them{READ_REST}",
                )
        if self._assigned is not None:
            self._check_assigned(self.bounds(queue), self._assigned)

    def _has_part(self, topic: str, broker: str) -> bool:
        """Whether a broker may have partitions that are read."""
        return self._assigned is None or any(
            isinstance(one, int) or split_key(one)[0] == broker for one in self._assigned[topic]
        )

    def _check_assigned(self, bounds: Bounds, assigned: Assigned) -> None:
        for topic, wanted in assigned.items():
            keys = bounds.get(topic, {})
            for one in wanted:
                if not any(is_assigned(key, [one]) for key in keys):
                    raise UsageError(
                        f"Option assign names partition {one}, which does not exist.", topic=topic
                    )


def ranges_of(queue: Queue, options: ReadOptions) -> tuple[list[Range], list[Range]]:
    """The ranges that a batch reads from a cluster or from stores, and those that are lost.

    Raises:
        UsageError: a topic, partition or offset that the options name does not exist.
    """
    topics = Topics(options, monotonic_ms)
    options = topics.with_offsets(queue, options)
    bounds = topics.bounds(queue)
    return between(*batch_ends(options, bounds), bounds)


def _since(queue: Queue, topic: str, times: Mapping[str, int]) -> dict[str, int]:
    """The offsets of a topic's partitions at their own times."""
    by_time: dict[int, set[str]] = {}
    for key, ms in times.items():
        by_time.setdefault(ms, set()).add(key)
    found: dict[str, int] = {}
    for ms, keys in by_time.items():
        partitions = None if ALL in keys else [split_key(key) for key in keys]
        since = datetime.fromtimestamp(ms / 1000, UTC)
        answer = _keyed(queue.offsets_since(topic, since, partitions))
        if partitions is not None:
            answer = {key: at for key, at in answer.items() if key in keys}
        for key in sorted(keys - answer.keys() - {ALL}):
            raise UsageError(
                f"An option names a time for partition {key}, which does not exist.", topic=topic
            )
        found |= answer
    return found


def _keyed(offsets: Mapping[tuple[str, int], int]) -> dict[str, int]:
    return {partition_key(*key): at for key, at in offsets.items()}


def _check_matched(start: Offsets, bounds: Bounds) -> None:
    for topic, key, at in flatten(start):
        if at >= bounds.get(topic, {}).get(key, (0, at + 1))[1]:
            raise UsageError(
                f"Partition {key} has no message at its starting time or later.",
                topic=topic,
                hint="startingOffsetsByTimestampStrategy=latest starts at its end.",
            )
