"""Where a consumer begins in a queue (8.12).

| `start` | a group that has an offset there begins | one that has none |
|---|---|---|
| `"latest"` | where it left off | at the end |
| `"earliest"` | where it left off | at the oldest message that is kept |
| a `datetime` | where it left off | at the first message stored about then |
| `"always-latest"` | at the end | at the end |
| a mapping of queues to offsets | at the given offset; other queues as `"latest"` | likewise |

The last two hold for the first time that this process takes the queue; then it carries on.

Java's broker says that a group which it has never seen stands at 0 as long as the queue's first
message is in memory, so with it `"latest"` of a new group begins at the oldest message of a young
topic (2.7). A retry topic is read from its oldest message, except when the start is a time: what is
in it is the group's own.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from enum import Enum
from typing import Literal

from coherer.errors import UsageError
from coherer.rocketmq.names import RETRY_PREFIX, Queue

Start = Literal["latest", "earliest", "always-latest"] | datetime | Mapping[Queue, int]
"""What the option `start` of a consumer takes."""


class Edge(Enum):
    """A place in a queue that its broker knows."""

    OLDEST = "oldest"
    END = "end"
    TIME = "time"


WIRE_NAMES: Mapping[str, str] = {
    "latest": "CONSUME_FROM_LAST_OFFSET",
    "always-latest": "CONSUME_FROM_LAST_OFFSET",
    "earliest": "CONSUME_FROM_FIRST_OFFSET",
}
"""`consumeFromWhere` of a heartbeat."""


class Starts:
    """Decides where to begin in each queue.

    Args:
        start: the wish.

    >>> starts = Starts("earliest")
    >>> starts.of(Queue("flights", "broker-a", 0), 12), starts.of(Queue("flights", "b", 0), None)
    (12, <Edge.OLDEST: 'oldest'>)
    """

    def __init__(self, start: Start) -> None:
        if isinstance(start, Mapping):
            for queue, offset in start.items():
                if offset < 0:
                    raise UsageError(f"{queue}: {offset} is no start position.")
        elif not isinstance(start, datetime) and start not in WIRE_NAMES:
            raise UsageError(
                f"{start!r} is no start position.",
                hint="Take 'latest', 'earliest', 'always-latest', a time, or queues and offsets.",
            )
        self._start: Start = start
        self._taken: set[Queue] = set()

    @property
    def time_ms(self) -> int:
        """The time to begin at, ms since 1970; 0 when that is not the wish."""
        return int(self._start.timestamp() * 1000) if isinstance(self._start, datetime) else 0

    @property
    def wire_name(self) -> str:
        """`consumeFromWhere` of heartbeats."""
        if isinstance(self._start, datetime):
            return "CONSUME_FROM_TIMESTAMP"
        return (
            "CONSUME_FROM_LAST_OFFSET"
            if isinstance(self._start, Mapping)
            else (WIRE_NAMES[self._start])
        )

    def needs_stored(self, queue: Queue) -> bool:
        """Whether it matters where the group is."""
        if queue in self._taken or queue.topic.startswith(RETRY_PREFIX):
            return True
        if isinstance(self._start, Mapping):
            return queue not in self._start
        return self._start != "always-latest"

    def of(self, queue: Queue, stored: int | None) -> int | Edge:
        """Where to begin.

        Args:
            queue: which queue.
            stored: the group's offset there; None when it has none.
        """
        if stored is not None and self.needs_stored(queue):
            return stored
        start = self._start
        if queue.topic.startswith(RETRY_PREFIX):
            return Edge.END if isinstance(start, datetime) else Edge.OLDEST
        if isinstance(start, datetime):
            return Edge.TIME
        if isinstance(start, Mapping):
            first = start.get(queue) if queue not in self._taken else None
            return Edge.END if first is None else first
        return Edge.OLDEST if start == "earliest" else Edge.END

    def taken(self, queue: Queue) -> None:
        """Pulling has begun there."""
        self._taken.add(queue)
