"""The interface of a cluster, as Spark's processes see it.

`TubeMQQueue` and `RocketMQQueue` implement it; tests implement it with a list. `connections` opens
the queues of a process.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from datetime import datetime
from types import TracebackType
from typing import Protocol, Self

import pyarrow as pa

from coherer._record.bad_record import BadRecord
from coherer._record.batches import PackedMessages
from coherer.errors import CohererError, UnavailableError
from coherer.message import Receipt
from coherer.spark.offsets import Offsets
from coherer.spark.planning import Range


class TopicAwayError(UnavailableError):
    """All brokers of a topic are away: it has not been deleted, as far as anybody can tell."""


class Batch(Protocol):
    """The messages of one read, for example `coherer._wire.tubemq.MessageBatch`."""

    @property
    def offset(self) -> int:
        """The offset at which the read started."""
        ...

    def to_arrow(self, columns: Sequence[str]) -> pa.RecordBatch:
        """The named columns, if the protocol has them; see `columns.COLUMNS`."""
        ...

    def bad_records(self) -> Sequence[BadRecord]:
        """The received records that `to_arrow` skips. Not a hot path."""
        ...


class OpenReader(Protocol):
    """Reads one range of one partition, in order."""

    @property
    def exact(self) -> bool:
        """Whether offsets count messages; known once the reader is open."""
        ...

    @property
    def position(self) -> int:
        """The offset of the next read; initially the start, or after it if messages are gone."""
        ...

    @property
    def left_out(self) -> int:
        """The number of skipped messages: damaged, or deleted in between."""
        ...

    @property
    def gaps(self) -> Sequence[range]:
        """Offsets without messages since a power cut, in the part that was read."""
        ...

    def read(self) -> Batch | None:
        """The next messages; None at the end of the range."""
        ...


class RangeReader(OpenReader, Protocol):
    """A reader to be used in a `with` block."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None: ...


class Queue(Protocol):
    """A cluster, as a Spark process sees it."""

    def topics(self) -> Sequence[str]:
        """All topics."""
        ...

    def bounds(
        self, topic: str, *, partial: bool = False, known: Collection[str] | None = ()
    ) -> Mapping[tuple[str, int], tuple[int, int]]:
        """The first offset and the end offset, by (broker, partition).

        Args:
            topic: the topic.
            partial: leave out brokers that are away, if others are there.
            known: the brokers that had the topic before; None if nobody knows. A topic that had
                none is not taken for one whose brokers are away.

        Raises:
            TopicAwayError: all brokers of the topic are away, and `partial` is set.
        """
        ...

    def offsets_since(
        self, topic: str, time: datetime, partitions: Collection[tuple[str, int]] | None = None
    ) -> Mapping[tuple[str, int], int]:
        """The offset of the first message at a time or later, by (broker, partition).

        Others than `partitions` may be missing, or not; None for all.
        """
        ...

    def missing_brokers(self, topic: str) -> Sequence[str]:
        """Brokers that are down, so that `bounds` lacks their partitions of the topic."""
        ...

    def reader(self, one: Range, columns: Sequence[str]) -> RangeReader:
        """A reader for a range; `columns` of `to_arrow` will be read."""
        ...

    def readers(
        self, ranges: Sequence[Range], columns: Sequence[str]
    ) -> AbstractContextManager[Sequence[OpenReader]]:
        """Open readers for some ranges, and read the first batch of each at the same time."""
        ...

    def places(self, topic: str) -> Sequence[tuple[str, int]]:
        """Broker and number of all partitions that rows can be sent to, sorted."""
        ...

    def send_packed(
        self, batches: Sequence[PackedMessages], window: int
    ) -> Sequence[Receipt | CohererError]:
        """Send batches; returns the outcome of each (`coherer.blocking._packed`)."""
        ...

    def commit(self, group: str, offsets: Offsets) -> None:
        """Set the offsets of a group, for people and tools that watch its lag."""
        ...

    def close(self) -> None:
        """Close all connections."""
        ...
