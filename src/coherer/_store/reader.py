"""The reading half of a store: what is in it, and records by queue offset, log offset, time or key.

Each method turns an error of the disk into a `StoreError` that says what was read. How records are
found is in `reading`; the data for replicas is in `holes`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Final

from coherer._store import reading
from coherer._store.commit_log import CommitLog
from coherer._store.consume_queue import BLANK_SIZE, QueueDirectory
from coherer._store.files import store_error, translate_os_errors
from coherer._store.index import KeyIndex
from coherer._store.model import QueueEntry, ReadResult, RecoveryReport
from coherer.errors import ClosedError, StoreError

if TYPE_CHECKING:  # most nodes have no replica
    from coherer._store.holes import Source

_NO_LIMIT_MS: Final = 1 << 62


def _reading(topic: str, queue_id: int) -> AbstractContextManager[None]:
    return translate_os_errors(f"read queue {queue_id} of topic {topic}")


def _unreadable(topic: str, queue_id: int, error: OSError) -> StoreError:
    """The error that `_reading` raises, for what is read once for each message."""
    return store_error(error, f"read queue {queue_id} of topic {topic}")


class Reader:
    """What readers see of a store. `coherer._store.store.Store` adds what changes it.

    Attributes:
        log: the commit log.
        recovery: what opening the store has found.
    """

    _closed = False
    _source: Source | None = None

    def __init__(self, log: CommitLog, queue_files: QueueDirectory, index: KeyIndex | None) -> None:
        self._log = self.log = log
        self._queue_files = queue_files
        self._queues = queue_files.queues
        self._index = index
        self.recovery = RecoveryReport()

    def _check_open(self) -> None:
        if self._closed:
            raise ClosedError("The store is closed.")

    @property
    def min_offset(self) -> int:
        """The first offset of the log."""
        return self._log.begin

    @property
    def end_offset(self) -> int:
        """The offset after the last record that readers see."""
        return self._log.shown

    def queue_range(self, topic: str, queue_id: int) -> tuple[int, int]:
        """Return the first offset of a queue and the next one; (0, 0) if there is no such queue."""
        queue = self._queues.get((topic, queue_id))
        return (queue.min, queue.max) if queue else (0, 0)

    def queues(self, topic: str) -> list[int]:
        """Return the numbers of a topic's queues that ever held a message."""
        numbers = self._queue_files.numbers(topic)
        return [number for number in numbers if self._queues[topic, number].max]

    def topics(self) -> list[str]:
        """Return the topics that ever held a message."""
        return sorted({name for (name, _), queue in self._queues.items() if queue.max})

    def reach(self, topic: str, queue_id: int, offset: int) -> None:
        """Prepare a read at an offset: `Store` may have to end a gap of the queue there."""

    def read(
        self,
        topic: str,
        queue_id: int,
        offset: int,
        *,
        max_bytes: int,
        max_count: int,
        tags: frozenset[int] | None = None,
    ) -> ReadResult:
        """Read records of a queue from an offset on, as slices of the memory-mapped log.

        Args:
            offset: the first queue offset to read.
            max_bytes: the largest total size of the records; one record is returned in any case.
            max_count: the largest number of records.
            tags: only return records with one of these tag codes; the others are not touched.

        Raises:
            ClosedError: the store is closed. Slices of earlier reads stay valid.
            StoreError: the disk failed, or too many files are open.
        """
        self._check_open()
        self.reach(topic, queue_id, offset)
        queue = self._queues.get((topic, queue_id))
        try:
            return reading.read_queue(self._log, queue, offset, max_bytes, max_count, tags)
        except OSError as error:
            raise _unreadable(topic, queue_id, error) from error

    def read_slices(
        self, topic: str, queue_id: int, offset: int, *, max_bytes: int, max_count: int
    ) -> ReadResult | None:
        """Read records of a queue like `read`, without a step per record.

        Adjacent records are a slice of the log, scattered ones are copied (see `joining`). The
        first and the last record of a slice are messages of the queue. Those between them are not
        verified: callers compare the heads with queue and offsets, else they call `read`.

        Returns:
            The slices, or the copy, without `offsets`; None if there is nothing to read at the
            offset, if a record is not that of its queue, or if parts of the log are known to be
            damaged. Then call `read`.

        Raises:
            ClosedError: the store is closed. Slices of earlier reads stay valid.
            StoreError: see `read`.
        """
        self._check_open()
        queue = self._queues.get((topic, queue_id))
        try:
            return reading.read_slices(self._log, queue, offset, max_bytes, max_count)
        except OSError as error:
            raise _unreadable(topic, queue_id, error) from error

    def entries(self, topic: str, queue_id: int, offset: int, count: int) -> list[QueueEntry]:
        """Return up to `count` entries of a queue from an offset on; fewer at the end of a file.

        Raises:
            ClosedError: the store is closed.
            StoreError: see `read`.
        """
        self._check_open()
        with _reading(topic, queue_id):
            return reading.entries(self._queues.get((topic, queue_id)), offset, count)

    def leads_to_log(self, entry: QueueEntry) -> bool:
        """Whether an entry leads to a place in the log.

        A blank or a damaged one does not, nor, for a moment, one that is being shown to readers.
        """
        return entry.size_bytes != BLANK_SIZE and entry.physical_offset < self.end_offset

    def after_blanks(self, topic: str, queue_id: int, offset: int) -> int:
        """Return the first offset from one on where a queue has a message; its next one if none."""
        queue = self._queues.get((topic, queue_id))
        if queue is None or offset >= queue.max:
            return offset
        with _reading(topic, queue_id):
            return queue.after_blanks(max(offset, queue.min))

    def first_behind(self, topic: str, queue_id: int, physical_offset: int) -> int:
        """Return the first message of a queue that is not before an offset of the log."""
        queue = self._queues.get((topic, queue_id))
        if queue is None:
            return 0
        with _reading(topic, queue_id):
            return queue.first_where(lambda _, place, __: place >= physical_offset)

    def place_of(self, topic: str, queue_id: int, offset: int) -> int | None:
        """Return the log offset of a message; None if the queue has none at this offset."""
        try:
            return reading.place_of(self._queues.get((topic, queue_id)), offset)
        except OSError as error:
            raise _unreadable(topic, queue_id, error) from error

    def record_at(self, physical_offset: int) -> memoryview | None:
        """Return the record at an offset of the log; None if no valid record begins there."""
        try:
            return self._log.record_at(physical_offset)
        except OSError as error:
            raise store_error(error, "read the log") from error

    def offset_at_time(self, topic: str, queue_id: int, ms: int, *, nearest: bool = False) -> int:
        """Find the first message of a queue that was stored at `ms` or later.

        Returns the next offset if all messages are older. With `nearest`, Java's rule applies: the
        message with the nearest store time, the earlier of two equally near ones, 0 if none.
        """
        queue = self._queues.get((topic, queue_id))
        if queue is None:
            return 0
        with _reading(topic, queue_id):
            return reading.offset_at_time(self._log, queue, ms, nearest=nearest)

    def by_key(
        self,
        topic: str,
        key: str,
        *,
        max_count: int = 64,
        begin_ms: int = 0,
        end_ms: int = _NO_LIMIT_MS,
    ) -> list[memoryview]:
        """Find the records of a topic that have a key (or unique id), newest first."""
        found = self.search_key(topic, key, max_count=max_count, begin_ms=begin_ms, end_ms=end_ms)
        return [record for record in found if record is not None]

    def search_key(
        self,
        topic: str,
        key: str,
        *,
        max_count: int = 64,
        begin_ms: int = 0,
        end_ms: int = _NO_LIMIT_MS,
    ) -> Iterator[memoryview | None]:
        """`by_key` step by step: also None now and then, so that the caller can do other work.

        A search may have to pass over millions of other keys.
        """
        if self._index is None:
            return
        with translate_os_errors(f"search for a key in topic {topic}"):
            yield from reading.search_key(
                self._log,
                self._index,
                topic,
                key,
                max_count=max_count,
                begin_ms=begin_ms,
                end_ms=end_ms,
            )

    def read_raw(self, offset: int, max_bytes: int) -> memoryview:
        """Return bytes of the log, up to the end of their file.

        Known damage is filled with records that nobody delivers; see `holes`.

        Raises:
            ClosedError: the store is closed. Slices of earlier reads stay valid.
        """
        return self._replica_source().known(offset, max_bytes)

    def read_verified(self, offset: int, max_bytes: int) -> memoryview:
        """Return bytes of the log, up to the end of their file: the data for a replica.

        Damage is filled with records that nobody delivers; see `holes`. The result is empty at the
        end of the log, and also if it must be verified further: then call again after other work.

        Raises:
            ClosedError: the store is closed. Slices of earlier reads stay valid.
        """
        with translate_os_errors("read the log"):
            return self._replica_source().read(offset, max_bytes)

    def _replica_source(self) -> Source:
        self._check_open()
        if self._source is None:
            from coherer._store.holes import Source  # most nodes have no replica

            torn = [piece for cut in self.recovery.cuts for piece in cut.torn]
            self._source = Source(self._log, torn, self.recovery.checked_from)
        return self._source
