"""The position at which a consumer begins in a queue (docs/protocol/rocketmq.md, section 8.12).

| `start` | a group that has an offset begins | a group without one begins |
|---|---|---|
| `"latest"` | at its offset | at the end |
| `"earliest"` | at its offset | at the oldest message |
| a `datetime` | at its offset | at the first message stored about then |
| `"always-latest"` | at the end | at the end |
| a mapping of queues to offsets | at the given offset; other queues as `"latest"` | likewise |

The last two apply to the first assignment of a queue in this process; after that the consumer
continues at the group's offset.

* A consumer that begins at the end reads the end offsets when it starts (`set_ends`), because
  queues are assigned later: messages sent in between are delivered. If the topic does not exist
  yet, it is read from its oldest message once it does. A queue that was added later is read from
  about the time of the start.
* If a group begins at the end or at a time, that offset is stored when the queue is assigned, so
  that the next owner continues there.
* A RocketMQ 4 broker reports the offset 0 for a group that it has never seen while the queue's
  first message is in memory (section 2.7). `BrokerRpc.stored_offset` checks this with a second
  request.
* A retry topic belongs to the group: it is read from its oldest message, except when `start` is a
  time.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from enum import Enum
from typing import Literal

from coherer._common.moments import floor_ms
from coherer._wire.rocketmq.names import RETRY_PREFIX, Queue
from coherer.errors import UsageError

Start = Literal["latest", "earliest", "always-latest"] | datetime | Mapping[Queue, int]
"""Values of a consumer's option `start`."""


class Edge(Enum):
    """A position in a queue that its broker resolves."""

    OLDEST = "oldest"
    END = "end"
    TIME = "time"


WIRE_NAMES: Mapping[str, str] = {
    "latest": "CONSUME_FROM_LAST_OFFSET",
    "always-latest": "CONSUME_FROM_LAST_OFFSET",
    "earliest": "CONSUME_FROM_FIRST_OFFSET",
}
"""`consumeFromWhere` of a heartbeat."""


class StartPositions:
    """Decides where to begin in each queue.

    Args:
        start: the consumer's option.

    >>> starts = StartPositions("earliest")
    >>> queues = Queue("flights", "broker-a", 0), Queue("flights", "broker-b", 0)
    >>> starts.position(queues[0], 12), starts.position(queues[1], None)
    (12, <Edge.OLDEST: 'oldest'>)
    """

    def __init__(self, start: Start) -> None:
        if isinstance(start, Mapping):
            for queue, offset in start.items():
                if offset < 0:
                    raise UsageError(f"{queue}: a start offset is 0 or more, not {offset}.")
        elif not isinstance(start, datetime) and start not in WIRE_NAMES:
            raise UsageError(
                f"{start!r} is not a valid start position.",
                hint="Use 'latest', 'earliest', 'always-latest', a datetime, or a mapping.",
            )
        self._start: Start = start
        self._begun: set[Queue] = set()
        self._ends: dict[str, Mapping[Queue, int | None] | None] = {}
        self._since_ms = 0

    @property
    def time_ms(self) -> int:
        """The time of `Edge.TIME`, ms since 1970; 0 if no queue begins at a time."""
        if isinstance(self._start, datetime):
            return floor_ms(self._start)
        return self._since_ms

    @property
    def needs_ends(self) -> bool:
        """Whether new groups begin at the end, so that `set_ends` should be called."""
        return self._start in ("latest", "always-latest") or isinstance(self._start, Mapping)

    def set_ends(self, topic: str, ends: Mapping[Queue, int | None] | None, now_ms: int) -> None:
        """Set the end offsets that a topic's queues had when the consumer started.

        Args:
            topic: the topic.
            ends: by queue, None if the broker did not answer; None if the topic does not exist.
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

    def needs_stored_offset(self, queue: Queue) -> bool:
        """Whether the group's stored offset matters."""
        if queue in self._begun or queue.topic.startswith(RETRY_PREFIX):
            return True
        if isinstance(self._start, Mapping):
            return queue not in self._start
        # The group may have read beyond the end that this consumer saw at its start.
        return self._start != "always-latest" or isinstance(self._end(queue), int)

    def position(self, queue: Queue, stored: int | None) -> int | Edge:
        """Where to begin.

        Args:
            queue: the queue.
            stored: the group's offset there, or None.
        """
        start = self._start
        if stored is not None and self.needs_stored_offset(queue):
            ours = queue in self._begun or queue.topic.startswith(RETRY_PREFIX)
            end = self._end(queue) if start == "always-latest" and not ours else None
            return max(stored, end) if isinstance(end, int) else stored
        if queue.topic.startswith(RETRY_PREFIX):
            return Edge.END if isinstance(start, datetime) else Edge.OLDEST
        if isinstance(start, datetime):
            return Edge.TIME
        if isinstance(start, Mapping):
            first = start.get(queue) if queue not in self._begun else None
            return self._end(queue) if first is None else first
        return Edge.OLDEST if start == "earliest" else self._end(queue)

    def distinguishes_zero(self, queue: Queue) -> bool:
        """Whether a group without an offset begins elsewhere than a group at offset 0."""
        return self._start != "earliest" and not queue.topic.startswith(RETRY_PREFIX)

    def must_store(self, queue: Queue) -> bool:
        """Whether the start offset has to be stored, because it would differ later."""
        given = isinstance(self._start, Mapping) and queue in self._start
        return self.distinguishes_zero(queue) and not given

    def begun(self, queue: Queue) -> None:
        """Note that pulling has begun."""
        self._begun.add(queue)

    def _end(self, queue: Queue) -> int | Edge:
        """The end of a queue at the time when the consumer started."""
        if queue in self._begun or queue.topic not in self._ends:
            return Edge.END
        ends = self._ends[queue.topic]
        if ends is None:
            return Edge.OLDEST
        if queue not in ends:
            return Edge.TIME
        end = ends[queue]
        return Edge.END if end is None else end
