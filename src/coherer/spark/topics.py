"""Which topics a read takes, and what the brokers hold of them."""

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
from coherer.errors import CohererError, UnavailableError
from coherer.spark.offsets import Bounds, Offsets, bounds_of, canonical, merged, partition_key
from coherer.spark.options import ReadOptions
from coherer.spark.queue import Queue

T = TypeVar("T")

log = Log(logging.getLogger(__name__))

RESOLVE_MS: Final = 1_000
"""A pattern is matched against the list of topics this often."""


class Topics:
    """The topics of a read, named or matched.

    Args:
        options: those of the read.
        now_ms: a clock that never goes back.
    """

    def __init__(self, options: ReadOptions, now_ms: Callable[[], int]) -> None:
        self._names = options.topics
        self._pattern = options.topics_pattern
        self._strict = options.fail_on_data_loss
        self._missing: set[str] = set()
        self._now_ms = now_ms
        self._resolved_ms: int | None = None

    def names(self, queue: Queue) -> tuple[str, ...]:
        """The topics; a pattern is matched again when it is time."""
        if self._pattern is not None and self._stale():
            matches = re.compile(self._pattern).fullmatch
            self._names = tuple(sorted(name for name in queue.topics() if matches(name)))
            self._resolved_ms = self._now_ms()
        return self._names

    def _stale(self) -> bool:
        return self._resolved_ms is None or self._now_ms() - self._resolved_ms >= RESOLVE_MS

    def bounds(self, queue: Queue) -> Bounds:
        """What the brokers hold of all topics.

        Raises:
            RefusedError: a named topic is not there, and `failOnDataLoss` is set.
        """
        return merged(bounds_of(topic, found) for topic, found in self._ask(queue, queue.bounds))

    def since(self, queue: Queue, time: datetime) -> Offsets:
        """Where what was stored at a time or later begins, in all topics.

        Raises:
            RefusedError: a named topic is not there, and `failOnDataLoss` is set.
        """
        found = self._ask(queue, lambda topic: queue.since(topic, time))
        return canonical(
            {topic: {partition_key(*at): places[at] for at in places} for topic, places in found}
        )

    def timed(self, queue: Queue, options: ReadOptions) -> ReadOptions:
        """The options with offsets in place of times.

        Raises:
            RefusedError: as with `since`.
        """
        if options.starting_time is not None:
            start = self.since(queue, options.starting_time)
            options = msgspec.structs.replace(options, starting_offsets=start)
        if options.ending_time is not None:
            end = self.since(queue, options.ending_time)
            options = msgspec.structs.replace(options, ending_offsets=end)
        return options

    def _ask(self, queue: Queue, ask: Callable[[str], T]) -> Iterator[tuple[str, T]]:
        for topic in self.names(queue):
            try:
                found = ask(topic)
            except (TopicNotDeployedError, TopicNotExistError) as error:
                if self._strict and self._still_named(topic, queue):
                    raise
                self._leave_out(topic, error)
            else:
                self._missing.discard(topic)
                yield topic, found

    def _still_named(self, topic: str, queue: Queue) -> bool:
        """Whether it is read, although it is not there: a pattern's may be gone since we looked."""
        self._resolved_ms = None
        return topic in self.names(queue)

    def _leave_out(self, topic: str, error: CohererError) -> None:
        if topic not in self._missing:  # said once, not at every look
            self._missing.add(topic)
            log.warning("Topic %s is left out: %s", topic, error)

    def check_whole(self, queue: Queue) -> None:
        """See that nothing is missing in `bounds` because its broker is down.

        A stream that goes on waits for such a broker; what begins must not pass over it.

        Raises:
            UnavailableError: a part of a topic cannot be read now.
        """
        for topic in self.names(queue):
            away = queue.away(topic)
            if away:
                raise UnavailableError(
                    f"A part of the topic cannot be read now; brokers {', '.join(away)} are away.",
                    topic=topic,
                    hint="Start them, or set failOnDataLoss=false to read what there is.",
                )
