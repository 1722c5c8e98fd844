"""The store of a node: append, read, flush. (Recovery and the rest follow.)"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Self

from coherer.errors import ClosedError, StoreError
from coherer.store.batch import Encoder
from coherer.store.disk import Handles, our_errors, translate
from coherer.store.files import Files, OsFiles
from coherer.store.log import CommitLog
from coherer.store.model import (
    Appended,
    Draft,
    RecoveryReport,
    Slices,
    StoreOptions,
)
from coherer.store.queue import ConsumeQueue
from coherer.store.read import read_queue

_DEFAULTS = StoreOptions()
_OS_FILES = OsFiles()


class Store:
    """One directory of messages."""

    def __init__(
        self, directory: Path, options: StoreOptions, now_ms: Callable[[], int], files: Files
    ) -> None:
        self._directory = directory
        self._options = options
        self._now_ms = now_ms
        self._files = files
        self._lock_handle: int | None = files.lock(directory / "lock")
        self._queue_directory = directory / "consumequeue"
        self._queues: dict[tuple[str, int], ConsumeQueue] = {}
        self._handles = Handles(files, options.open_files)
        self._log = CommitLog(files, directory / "commitlog", options.segment_bytes)
        self._encoder = Encoder(self._log.segment_bytes, self._queue_made)
        self._last_ms = 0
        self._dirty: set[Path] = set()
        self._dirty_guard = threading.Lock()
        self.store_host = options.store_host
        self.recovery = RecoveryReport()

    @classmethod
    def open(
        cls,
        directory: Path,
        options: StoreOptions = _DEFAULTS,
        *,
        now_ms: Callable[[], int],
        files: Files = _OS_FILES,
    ) -> Self:
        """Open a directory, made if it is missing, and recover what a crash left behind."""
        with our_errors(f"open {directory}"):
            for name in ("commitlog", "consumequeue", "index", "config"):
                files.make_directory(directory / name)
            store = cls(directory, options, now_ms, files)
            return store

    @property
    def end_offset(self) -> int:
        """The offset behind the last record of the log."""
        return self._log.end

    @property
    def durable_offset(self) -> int:
        """Records before this offset survive a power cut."""
        return self._log.durable

    def _queue_made(self, topic: str, queue_id: int) -> ConsumeQueue:
        queue = self._queues.get((topic, queue_id))
        if queue is None:
            size = self._options.queue_segment_bytes
            queue = ConsumeQueue(
                self._files, self._handles, self._queue_directory, topic, queue_id, size
            )
            self._queues[topic, queue_id] = queue
        return queue

    def append(self, drafts: Sequence[Draft]) -> list[Appended]:
        """Store a batch: all of it or nothing.

        Raises:
            UsageError: a draft cannot be stored.
            StoreFullError: there is no room; try again when there is.
            StoreError: the disk failed.
        """
        if self._lock_handle is None:
            raise ClosedError("The store is closed.")
        store_ms = self._last_ms = max(self._now_ms(), self._last_ms)
        batch = self._encoder.encode(drafts, self._log.end, store_ms, self.store_host)
        before = self._log.end
        dirty: set[Path] = set()
        counts = [queue.max for queue in batch.queues]
        try:
            self._log.write(batch.chunks)
            for queue in batch.queues:
                queue.append(b"".join(queue.pending), dirty)
        except (OSError, StoreError) as error:
            self._log.withdraw(before)
            for queue, count in zip(batch.queues, counts, strict=True):
                queue.withdraw(count)
            if isinstance(error, OSError):
                raise translate(error, "write a consume queue") from error
            raise
        finally:
            for queue in batch.queues:
                queue.pending.clear()
        with self._dirty_guard:
            self._dirty |= dirty
            self._log.commit(batch.end, store_ms)
        return batch.appended

    def queue_range(self, topic: str, queue_id: int) -> tuple[int, int]:
        """Give the first offset of a queue and the next to be written; (0, 0) if there is none."""
        queue = self._queues.get((topic, queue_id))
        return (queue.min, queue.max) if queue else (0, 0)

    def queues(self, topic: str) -> list[int]:
        """Give the numbers of a topic's queues that ever held a message."""
        return sorted([number for name, number in self._queues if name == topic])

    def topics(self) -> list[str]:
        """Give the topics that ever held a message."""
        return sorted({name for name, _ in self._queues})

    def read(
        self,
        topic: str,
        queue_id: int,
        offset: int,
        *,
        max_bytes: int,
        max_count: int,
        tags: frozenset[int] | None = None,
    ) -> Slices:
        """Read records of a queue as slices of the mapped log."""
        queue = self._queues.get((topic, queue_id))
        return read_queue(self._log, queue, offset, max_bytes, max_count, tags)

    def flush(self) -> int:
        """Make the log durable; give the offset up to which it is. For any thread."""
        return self._log.flush()

    def close(self) -> None:
        """Close the store: everything is durable afterwards."""
        if self._lock_handle is None:
            return
        self.flush()
        self._handles.close()
        self._log.close()
        self._files.unlock(self._directory / "lock", self._lock_handle)
        self._lock_handle = None
