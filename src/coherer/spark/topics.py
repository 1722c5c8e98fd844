"""Which topics a read takes, and what the brokers hold of them."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from typing import Final

from coherer.errors import CohererError, UnavailableError
from coherer.rocketmq.codes import TopicNotExistError
from coherer.spark.offsets import Bounds, bounds_of, merged
from coherer.spark.options import ReadOptions
from coherer.spark.queue import Queue
from coherer.tubemq.codes import TopicNotDeployedError

log = logging.getLogger(__name__)

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
        parts: list[Bounds] = []
        for topic in self.names(queue):
            try:
                parts.append(bounds_of(topic, queue.bounds(topic)))
            except (TopicNotDeployedError, TopicNotExistError) as error:
                if self._strict and self._still_named(topic, queue):
                    raise
                self._leave_out(topic, error)
            else:
                self._missing.discard(topic)
        return merged(parts)

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
