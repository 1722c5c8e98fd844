"""A queue that is a list, for tests without a node; and the endpoints of a node, for the others."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from types import TracebackType
from typing import NamedTuple, Self

import pyarrow as pa

from coherer.blocking import connect
from coherer.blocking.rocketmq import Client as RocketClient
from coherer.blocking.tubemq import Client
from coherer.errors import DisconnectedError
from coherer.message import Message
from coherer.spark.offsets import Offsets
from coherer.spark.planning import Range


class Endpoint(NamedTuple):
    """A format, and the node that serves it.

    Args:
        format: `tubemq` or `rocketmq`.
        url: of the node.
        broker: name of the node's broker in that protocol.
        admin: options for its administration.
    """

    format: str
    url: str
    broker: str
    admin: dict[str, str]

    def connect(self) -> Client | RocketClient:
        """A client."""
        return connect(self.url)

    def offsets(self, topic: str, **partitions: int) -> str:
        """Offsets as an option: `q0=10` is queue 0."""
        pairs = ", ".join(f'"{self.broker}:{key[1:]}": {at}' for key, at in partitions.items())
        return f'{{"{topic}": {{{pairs}}}}}'


class ListBatch:
    """The messages of one read: `count` from `offset` on."""

    def __init__(self, one: Range, offset: int, count: int, damaged: set[int]) -> None:
        self.offset = offset
        self._damaged = damaged
        self._one = one
        self._count = count

    def to_arrow(self) -> pa.RecordBatch:
        offsets = [
            offset
            for offset in range(self.offset, self.offset + self._count)
            if offset not in self._damaged
        ]
        self._count = len(offsets)
        columns = {
            "topic": pa.array([self._one.topic] * self._count, pa.string()),
            "broker": pa.array([self._one.broker] * self._count, pa.string()),
            "partition": pa.array([self._one.partition] * self._count, pa.int32()),
            "offset": pa.array(offsets, pa.int64()),
            "id": pa.array([1000 + offset for offset in offsets], pa.int64()),
            "tag": pa.array([None] * self._count, pa.string()),
            "time": pa.array(["201301011000"] * self._count, pa.string()),
            "value": pa.array([b"v%d" % offset for offset in offsets], pa.binary()),
            "properties": pa.array([[("a", "b")]] * self._count, pa.map_(pa.string(), pa.string())),
        }
        return pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns))


class ListReader:
    """Reads `step` messages at a time; may overshoot the end, as a broker does."""

    def __init__(self, queue: ListQueue, one: Range) -> None:
        self._queue = queue
        self._one = one
        self._at = one.start
        self.left_out = 0

    def __enter__(self) -> Self:
        self._queue.open_readers += 1
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._queue.open_readers -= 1

    @property
    def exact(self) -> bool:
        return self._queue.exact

    @property
    def position(self) -> int:
        low, _ = self._queue.held[self._one.topic][self._one.broker, self._one.partition]
        return max(self._at, low)

    def read(self) -> ListBatch | None:
        if self._queue.broken:
            raise DisconnectedError("The broker is gone.")
        low, high = self._queue.held[self._one.topic][self._one.broker, self._one.partition]
        self._at = max(self._at, low)
        if self._at >= min(high, self._one.end):
            return None
        count = min(self._queue.step, high - self._at)
        batch = ListBatch(self._one, self._at, count, self._queue.damaged)
        self.left_out += len(self._queue.damaged.intersection(range(self._at, self._at + count)))
        self._at += self._queue.step
        return batch


class ListQueue:
    """Topics with `(low, high)` of each partition; a message is made when it is read."""

    def __init__(self, held: dict[str, dict[tuple[str, int], tuple[int, int]]]) -> None:
        self.held = held
        self.step = 7
        self.exact = True
        self.broken = False
        self.damaged: set[int] = set()
        self.closed = False
        self.down: list[str] = []
        self.open_readers = 0
        self.sent: list[Message] = []
        self.committed: list[tuple[str, Offsets]] = []

    def topics(self) -> Sequence[str]:
        return list(self.held)

    def bounds(self, topic: str) -> Mapping[tuple[str, int], tuple[int, int]]:
        return self.held[topic]

    def offsets_since(self, topic: str, time: datetime) -> Mapping[tuple[str, int], int]:
        """A message is stored each second, from 1970 on."""
        second = math.ceil(time.timestamp())
        return {at: min(max(second, low), high) for at, (low, high) in self.held[topic].items()}

    def missing_brokers(self, topic: str) -> Sequence[str]:
        return self.down

    def reader(self, one: Range) -> ListReader:
        return ListReader(self, one)

    def send(self, messages: Iterable[Message], window: int) -> int:
        before = len(self.sent)
        self.sent += messages
        return len(self.sent) - before

    def commit(self, group: str, offsets: Offsets) -> None:
        self.committed.append((group, offsets))

    def close(self) -> None:
        self.closed = True
