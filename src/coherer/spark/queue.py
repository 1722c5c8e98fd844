"""Queues as Spark sees them: the interface, and connections in Spark's Python processes.

`TubeMQQueue` and `RocketMQQueue` implement the interface; tests implement it with a list.

Spark forks its workers and reuses them for task after task, so a connection opened by one task
serves the next. Invariants:

1. There is one queue per process and `Access`. The process id is part of the key: a forked child
   never uses its parent's connection.
2. After an exception a queue is closed and forgotten; the next task opens a new one.
3. Spark ends its processes by closing their connections, possibly in the middle of a batch. That
   prints no traceback.
4. The heap is frozen for the first two tasks of a process: the first one imports what reading
   needs. Spark's daemon collects garbage after every task. That takes 20 to 35 ms with pyarrow
   loaded, and next to nothing with a frozen heap.
"""

from __future__ import annotations

import gc
import os
import sys
import traceback
from collections.abc import Callable, Collection, Generator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from datetime import datetime
from types import TracebackType
from typing import TYPE_CHECKING, Final, Protocol, Self

import pyarrow as pa

from coherer._record.bad_record import BadRecord
from coherer._record.batches import PackedMessages
from coherer.errors import CohererError
from coherer.message import Receipt
from coherer.spark.offsets import Offsets
from coherer.spark.options import Access
from coherer.spark.planning import Range

if TYPE_CHECKING:
    from coherer.spark.sending import SingleRow


class Batch(Protocol):
    """The messages of one read, for example `coherer._wire.tubemq.MessageBatch`."""

    @property
    def offset(self) -> int:
        """The offset at which the read started."""
        ...

    def to_arrow(self, columns: Sequence[str]) -> pa.RecordBatch:
        """The columns of these names that the protocol has; see `columns.COLUMNS`."""
        ...

    def bad_records(self) -> Sequence[BadRecord]:
        """Those records that `to_arrow` leaves out and that arrived. Not a hot path."""
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
        """Offsets that a power cut left empty, as far as was read; they hold no messages."""
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

    def bounds(self, topic: str) -> Mapping[tuple[str, int], tuple[int, int]]:
        """The first offset and the end offset, by (broker, partition)."""
        ...

    def offsets_since(
        self, topic: str, time: datetime, partitions: Collection[tuple[str, int]] | None = None
    ) -> Mapping[tuple[str, int], int]:
        """The offset of the first message at a time or later, by (broker, partition).

        `partitions` are those that matter; None for all.
        """
        ...

    def missing_brokers(self, topic: str) -> Sequence[str]:
        """Brokers that are down, so that `bounds` lacks their partitions of the topic."""
        ...

    def reader(self, one: Range, columns: Sequence[str]) -> RangeReader:
        """A reader for a range, from which these columns of `to_arrow` are wanted."""
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
        """Sends batches; returns the outcome of each (`Producer.send_packed`)."""
        ...

    def send_singles(
        self, rows: Sequence[SingleRow], window: int
    ) -> Sequence[tuple[SingleRow, CohererError]]:
        """Sends rows one by one and waits for all receipts; returns the rows that failed."""
        ...

    def commit(self, group: str, offsets: Offsets) -> None:
        """Sets the offsets of a group, for people and tools that watch its lag."""
        ...

    def close(self) -> None:
        """Closes all connections."""
        ...


def _tubemq(access: Access) -> Queue:
    from coherer.spark.tubemq import TubeMQQueue

    return TubeMQQueue(access)


def _rocketmq(access: Access) -> Queue:
    from coherer.spark.rocketmq import RocketMQQueue

    return RocketMQQueue(access)


OPENERS: Final[dict[str, Callable[[Access], Queue]]] = {"tubemq": _tubemq, "rocketmq": _rocketmq}
"""Opens a queue, by protocol."""

FREEZES: Final = 2
"""How often a process freezes its heap."""

_queues: Final[dict[tuple[int, Access], Queue]] = {}
_frozen: Final[dict[int, int]] = {}


@contextmanager
def shared_queue(access: Access) -> Generator[Queue]:
    """The process's queue for `access`, opened on first use.

    It stays open for the next task, unless the block raises an exception.
    """
    key = (os.getpid(), access)
    if key not in _queues:
        _queues[key] = OPENERS[access.protocol](access)
    freeze_heap()
    queue = _queues[key]
    try:
        yield queue
    except GeneratorExit:
        # A task that has read enough (`limit`) closes its generator: this is not an error.
        raise
    except BaseException:
        if _queues.get(key) is queue:
            del _queues[key]
        with suppress(CohererError, OSError):
            queue.close()
        raise


def freeze_heap() -> None:
    """Excludes all present objects from garbage collection, the first two times in a process."""
    times = _frozen.get(os.getpid(), 0)
    if times < FREEZES:
        _frozen[os.getpid()] = times + 1
        gc.collect()
        gc.freeze()


RUNNER: Final = "pyspark.sql.streaming.python_streaming_source_runner"
DAEMON: Final = "pyspark.daemon"
"""The main modules of a stream's driver side, and of the processes that find and plan sources. (For
tasks `configure` sets another one: `coherer.spark.daemon`.)"""

CUT_OFF: Final = (BrokenPipeError, ConnectionResetError)


def end_quietly() -> None:
    """In a process of Spark, suppresses the traceback when Spark has closed the connection."""
    main = sys.modules["__main__"]
    name = None if main.__spec__ is None else main.__spec__.name
    if name == RUNNER:
        sys.excepthook = _print_error
    elif name == DAEMON:
        # Its loop calls `traceback.print_exc()` when a worker fails.
        vars(main)["traceback"] = _QuietTraceback()


def _print_error(
    kind: type[BaseException], error: BaseException, trace: TracebackType | None
) -> None:
    if not issubclass(kind, CUT_OFF):
        sys.__excepthook__(kind, error, trace)


class _QuietTraceback:
    """The part of the module `traceback` that PySpark's daemon uses."""

    format_exc = staticmethod(traceback.format_exc)

    def print_exc(self) -> None:
        """Print the traceback, unless Spark closed the connection."""
        if not isinstance(sys.exception(), CUT_OFF):
            traceback.print_exc()
