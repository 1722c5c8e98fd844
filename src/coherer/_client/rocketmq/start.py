"""Where a consumer begins in a queue (8.12).

| `start` | a group that has an offset there begins | one that has none |
|---|---|---|
| `"latest"` | where it left off | at the end |
| `"earliest"` | where it left off | at the oldest message that is kept |
| a `datetime` | where it left off | at the first message stored about then |
| `"always-latest"` | at the end | at the end |
| a mapping of queues to offsets | at the given offset; other queues as `"latest"` | likewise |

The last two hold for the first time that this process takes the queue; then it carries on.

A consumer that begins at the end looks at the ends when it starts (`looked`), because it takes
queues later: what is sent in between is delivered. A topic that does not exist then is read from
its oldest message when it does. A queue that was not there is read from about the time of the
start. Where a group begins at the end, or at a time, is written down when the queue is taken:
whoever has the queue next carries on there.

A broker of RocketMQ 4 says that a group which it has never seen stands at 0 as long as the queue's
first message is in memory (2.7). Such an answer is checked with another request, see `Door.stored`.
A retry topic is read from its oldest message, except when the start is a time: what is in it is the
group's own.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from enum import Enum
from typing import Literal

from coherer._wire.rocketmq.names import RETRY_PREFIX, Queue
from coherer.errors import UsageError

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
        self._ends: dict[str, Mapping[Queue, int | None] | None] = {}
        self._since_ms = 0

    @property
    def time_ms(self) -> int:
        """The time that `Edge.TIME` stands for, ms since 1970; 0 when nothing begins at a time."""
        if isinstance(self._start, datetime):
            return int(self._start.timestamp() * 1000)
        return self._since_ms

    @property
    def at_end(self) -> bool:
        """Whether a new group begins at the end, so that `looked` should be told the ends."""
        return self._start in ("latest", "always-latest") or isinstance(self._start, Mapping)

    def looked(self, topic: str, ends: Mapping[Queue, int | None] | None, now_ms: int) -> None:
        """Take where the queues of a topic end when the consumer starts.

        Args:
            topic: the topic.
            ends: by queue, None where the broker does not tell; None when there is no such topic.
            now_ms: the time, ms since 1970.
        """
        self._ends[topic] = ends
        self._since_ms = self._since_ms or now_ms

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
        # At the end of its start a consumer may be behind what the group has read meanwhile.
        return self._start != "always-latest" or isinstance(self._end(queue), int)

    def of(self, queue: Queue, stored: int | None) -> int | Edge:
        """Where to begin.

        Args:
            queue: which queue.
            stored: the group's offset there; None when it has none.
        """
        start = self._start
        if stored is not None and self.needs_stored(queue):
            ours = queue in self._taken or queue.topic.startswith(RETRY_PREFIX)
            end = self._end(queue) if start == "always-latest" and not ours else None
            return max(stored, end) if isinstance(end, int) else stored
        if queue.topic.startswith(RETRY_PREFIX):
            return Edge.END if isinstance(start, datetime) else Edge.OLDEST
        if isinstance(start, datetime):
            return Edge.TIME
        if isinstance(start, Mapping):
            first = start.get(queue) if queue not in self._taken else None
            return self._end(queue) if first is None else first
        return Edge.OLDEST if start == "earliest" else self._end(queue)

    def tells_apart(self, queue: Queue) -> bool:
        """Whether a group that has no offset begins elsewhere than one that is at 0."""
        return self._start != "earliest" and not queue.topic.startswith(RETRY_PREFIX)

    def lasts(self, queue: Queue) -> bool:
        """Whether the place where a group begins is another one later: it is written down then."""
        given = isinstance(self._start, Mapping) and queue in self._start
        return self.tells_apart(queue) and not given

    def _end(self, queue: Queue) -> int | Edge:
        """The end of a queue, as it was when the consumer started."""
        if queue in self._taken or queue.topic not in self._ends:
            return Edge.END
        ends = self._ends[queue.topic]
        if ends is None:
            return Edge.OLDEST
        if queue not in ends:
            return Edge.TIME
        end = ends[queue]
        return Edge.END if end is None else end

    def taken(self, queue: Queue) -> None:
        """Pulling has begun there."""
        self._taken.add(queue)
