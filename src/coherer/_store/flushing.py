"""From written to durable: what waits to be synced, and what the checkpoint vouches for.

The writer notes what it wrote (`wrote`), and another thread may take it over at any time (`run`).
The checkpoint vouches for an offset only when log, queues and index up to it have been synced, in
this order: what is to be vouched for is noted, queue entries and keys that are only in memory are
written, everything is synced, the checkpoint is written.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from pathlib import Path

from coherer._store.checkpoint import Checkpoint, CheckpointFile
from coherer._store.disk import Dirty, out_of_files, translate, translate_os_errors
from coherer._store.files import Files
from coherer._store.index import KeyIndex
from coherer._store.keys import Keys
from coherer._store.log import CommitLog
from coherer._store.queue import ConsumeQueue, take_all
from coherer._store.waiting import Waiting
from coherer.errors import StoreError, StoreFullError


class Flushing:
    """What has to be synced.

    Args:
        files: where everything is.
        path: of the checkpoint.
        log: the log.
        index: the key index, if there is one.
        waiting: queue entries that are only in memory.
        now_ms: names a new index file.

    Attributes:
        checkpoint: what was vouched for last.
    """

    def __init__(
        self,
        files: Files,
        path: Path,
        log: CommitLog,
        index: KeyIndex | None,
        waiting: Waiting,
        now_ms: Callable[[], int],
    ) -> None:
        self._files = files
        self._file = CheckpointFile(files, path)
        self._directory = path.parent
        self._log = log
        self._index = index
        self._now_ms = now_ms
        self._waiting = waiting
        self._guard = waiting.guard  # for the next one, which the other thread takes over
        self._queued = (0, 0)  # up to where records have queue entries; store time of the last
        self._one_at_a_time = threading.Lock()
        self._failed = ""
        self.checkpoint = self._file.load()

    @property
    def due(self) -> bool:
        """Whether something was written that the checkpoint does not vouch for."""
        return self._queued[0] != self.checkpoint.offset

    def start(self, end: int, store_ms: int) -> None:
        """Say what recovery has found."""
        self._queued = (end, store_ms)

    def wrote(
        self,
        end: int,
        store_ms: int,
        queues: Iterable[ConsumeQueue],
        keys: Keys | None = None,
    ) -> None:
        """Make what was written up to `end` part of the log, and visible.

        Args:
            end: behind the last record.
            store_ms: when that was stored.
            queues: those with pending entries of it.
            keys: for the index, if it has not got them already.
        """
        with self._guard:
            take_all(queues, self._waiting)
            self._queued = (end, store_ms)
            if keys is not None and self._index is not None:
                self._index.add(keys)
            self._log.commit(end, store_ms)

    def run(self) -> None:
        """Make log, queues and index durable and write the checkpoint. For any thread.

        Raises:
            StoreFullError: there is no room for queue entries or keys, which wait in memory, or
                too many files are open.
            StoreError: the disk failed.
        """
        with self._one_at_a_time:
            if self._failed:
                raise StoreError(self._failed, hint="Start the node again.")
            if self._index is not None:
                with translate_os_errors("write the key index"):
                    self._index.write(self._now_ms())  # most of them, while the writer goes on
            (offset, queues_ms), mark = self._write()
            dirty = self._waiting.take_dirty()
            try:
                self._log.flush()
                self._sync(dirty)
            except StoreFullError:
                self._waiting.give_back(dirty)
                raise
            times = (self._log.durable_ms, queues_ms, mark[0])
            with translate_os_errors("write the checkpoint"):
                checkpoint = Checkpoint(*times, offset, *mark[1:])
                self._file.save(checkpoint)
                self.checkpoint = checkpoint

    def _write(self) -> tuple[tuple[int, int], tuple[int, int, int]]:
        """Write queue entries and keys; give up to where, and what the index has."""
        queued, indexed = self._queued, (self.checkpoint.index_ms, 0, 0)

        def mark() -> None:
            nonlocal queued, indexed
            if self._index is not None:
                with translate_os_errors("write the key index"):
                    self._index.write(self._now_ms())
                indexed = self._index.mark()
            queued = self._queued

        with translate_os_errors("write the consume queues"):
            self._waiting.write(mark)
        return queued, indexed

    def _sync(self, dirty: Dirty) -> None:
        try:
            dirty.sync(self._files, self._directory)
            if self._index is not None:
                self._index.sync()
        except OSError as error:
            if out_of_files(error):
                raise translate(error, "sync queues and index") from error
            self._failed = f"Queues or index could not be synced: {error}."
            raise StoreError(self._failed) from error
