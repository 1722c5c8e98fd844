"""What Spark needs of a queue: a few questions, the same for both protocols.

`coherer.spark.tubemq` answers them for TubeMQ. Tests answer them with a list.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from types import TracebackType
from typing import Protocol, Self

import pyarrow as pa

from coherer.message import Message
from coherer.spark.offsets import Offsets
from coherer.spark.planning import Range


class Batch(Protocol):
    """What one read brought, for example `coherer._wire.tubemq.MessageBatch`."""

    @property
    def offset(self) -> int:
        """Where the read began."""
        ...

    def to_arrow(self) -> pa.RecordBatch:
        """Columns topic, broker, partition, offset, id, tag, time, value, properties."""
        ...


class RangeReader(Protocol):
    """Reads one range of one partition, in order; to be used with `with`."""

    @property
    def exact(self) -> bool:
        """Whether offsets count messages; known once it is open."""
        ...

    @property
    def position(self) -> int:
        """Where the next read begins; at first the start, or behind it when messages are gone."""
        ...

    @property
    def left_out(self) -> int:
        """How many messages were left out up to there: damaged, or deleted in between."""
        ...

    def read(self) -> Batch | None:
        """The next messages; None when the end of the range is reached."""
        ...

    def __enter__(self) -> Self: ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None: ...


class Queue(Protocol):
    """A cluster, seen from a process of Spark."""

    def topics(self) -> Sequence[str]:
        """All topics."""
        ...

    def bounds(self, topic: str) -> Mapping[tuple[str, int], tuple[int, int]]:
        """(broker, partition) to (first offset held, offset behind the last)."""
        ...

    def since(self, topic: str, time: datetime) -> Mapping[tuple[str, int], int]:
        """(broker, partition) to the offset of the first message stored at a time or later."""
        ...

    def away(self, topic: str) -> Sequence[str]:
        """Brokers whose part of the topic is missing in `bounds`, because they are down."""
        ...

    def reader(self, one: Range) -> RangeReader:
        """A reader for a range."""
        ...

    def send(self, messages: Iterable[Message], window: int) -> int:
        """Sends messages and waits for all receipts; returns how many they were."""
        ...

    def commit(self, group: str, offsets: Offsets) -> None:
        """Sets the offsets of a group, for people and tools that look at its lag."""
        ...

    def close(self) -> None:
        """Closes all connections."""
        ...
