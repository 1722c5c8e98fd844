"""What a store holds, for those who read it: all that changes nothing."""

from __future__ import annotations

from pathlib import Path

from coherer._record.layout import BLANK_BYTES
from coherer._store import reading
from coherer._store.commit_log import CommitLog
from coherer._store.consume_queue import ENTRY, QueueDirectory
from coherer._store.index import KeyIndex
from coherer._store.model import QueueEntry, ReadResult, StoreOptions
from coherer._store.reading import read_queue
from coherer.errors import ClosedError

_FOR_EVER_MS = 1 << 62


class Contents:
    """The reading half of a `Store`.

    Args:
        directory: where the files are.
        options: how they were opened.
        log: the commit log.
        queue_files: the consume queues.
        index: the key index, if there is one.
    """

    def __init__(
        self,
        directory: Path,
        options: StoreOptions,
        log: CommitLog,
        queue_files: QueueDirectory,
        index: KeyIndex | None,
    ) -> None:
        self._directory = directory
        self._options = options
        self._log = log
        self._queue_files = queue_files
        self._queues = queue_files.queues
        self._index = index
        self._closed = False

    @property
    def directory(self) -> Path:
        """Where its files are."""
        return self._directory

    @property
    def end_offset(self) -> int:
        """The offset behind the last record of the log."""
        return self._log.end

    @property
    def durable_offset(self) -> int:
        """Records before this offset survive a power cut."""
        return self._log.durable

    @property
    def record_bytes_max(self) -> int:
        """The largest record that fits into a file of the log."""
        return self._log.segment_bytes - BLANK_BYTES

    @property
    def segment_bytes(self) -> int:
        """Size of a file of the log. Files that were there before keep theirs."""
        return self._log.segment_bytes

    @property
    def options(self) -> StoreOptions:
        """How it was opened."""
        return self._options

    @property
    def delay_levels_ms(self) -> tuple[int, ...]:
        """How long messages wait in each queue of the schedule topic."""
        return self._options.delay_levels_ms

    @property
    def min_offset(self) -> int:
        """The first offset of the log."""
        return self._log.begin

    def _check_open(self) -> None:
        if self._closed:
            raise ClosedError("The store is closed.")

    def queue_range(self, topic: str, queue_id: int) -> tuple[int, int]:
        """Give the first offset of a queue and the next to be written; (0, 0) if there is none."""
        queue = self._queues.get((topic, queue_id))
        return (queue.min, queue.max) if queue else (0, 0)

    def queues(self, topic: str) -> list[int]:
        """Give the numbers of a topic's queues that ever held a message."""
        numbers = self._queue_files.numbers(topic)
        return [number for number in numbers if self._queues[topic, number].max]

    def topics(self) -> list[str]:
        """Give the topics that ever held a message."""
        return sorted({name for (name, _), queue in self._queues.items() if queue.max})

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
        """Read records of a queue, from an offset on, as slices of the mapped log.

        Args:
            topic: the topic.
            queue_id: the queue.
            offset: where to begin.
            max_bytes: records are given while they fit, but at least one.
            max_count: so many records at most.
            tags: only records with one of these tag codes; others are not even touched.

        Raises:
            ClosedError: the store is closed. ReadResult that it gave stay valid.
        """
        self._check_open()
        queue = self._queues.get((topic, queue_id))
        return read_queue(self._log, queue, offset, max_bytes, max_count, tags)

    def entries(self, topic: str, queue_id: int, offset: int, count: int) -> list[QueueEntry]:
        """Give entries of a queue, from an offset on: up to `count`, fewer at the end of a file.

        Raises:
            ClosedError: the store is closed.
        """
        self._check_open()
        queue = self._queues.get((topic, queue_id))
        if queue is None or not queue.min <= offset < queue.max:
            return []
        found = ENTRY.iter_unpack(queue.read(offset, count))
        return [QueueEntry(number, *fields) for number, fields in enumerate(found, offset)]

    def record_at(self, physical_offset: int) -> memoryview | None:
        """Give the record at an offset of the log; None where no valid one begins."""
        return self._log.record_at(physical_offset)

    def offset_at_time(self, topic: str, queue_id: int, ms: int, *, nearest: bool = False) -> int:
        """Find the first message of a queue that was stored at `ms` or later.

        Gives the next offset to be written when all are older. With `nearest`, Java's rule: the
        message with the nearest store time, of two equally near the earlier; 0 if there is none.
        """
        queue = self._queues.get((topic, queue_id))
        return reading.offset_at_time(self._log, queue, ms, nearest=nearest) if queue else 0

    def by_key(
        self,
        topic: str,
        key: str,
        *,
        max_count: int = 64,
        begin_ms: int = 0,
        end_ms: int = _FOR_EVER_MS,
    ) -> list[memoryview]:
        """Find the records of a topic that have a key (or unique id), newest first."""
        if self._index is None:
            return []
        return reading.by_key(
            self._log, self._index, topic, key,
            max_count=max_count, begin_ms=begin_ms, end_ms=end_ms,
        )  # fmt: skip

    def read_raw(self, offset: int, max_bytes: int) -> memoryview:
        """Give bytes of the log as they are, up to the end of their file: what a slave is sent.

        Raises:
            ClosedError: the store is closed. ReadResult that it gave stay valid.
        """
        self._check_open()
        return self._log.read_raw(offset, max_bytes)

    @property
    def last_segment_offset(self) -> int:
        """The first offset of the file that is being written: where a new slave begins."""
        return max(self._log.end - self._log.end % self._log.segment_bytes, self._log.begin)
