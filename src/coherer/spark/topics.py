"""Which topics a read takes, and what the brokers hold of them."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final

from coherer.errors import UnavailableError
from coherer.spark.offsets import Bounds, bounds_of, merged
from coherer.spark.options import ReadOptions
from coherer.spark.queue import Queue

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
        """What the brokers hold of all topics."""
        return merged(bounds_of(topic, queue.bounds(topic)) for topic in self.names(queue))

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
