"""From written to durable: what waits to be synced, and what the checkpoint vouches for.

The writer notes what it wrote (`wrote`), and another thread may take it over at any time (`run`).
The checkpoint vouches for an offset only when log, queues and index up to it have been synced, in
this order: what is to be vouched for is noted, everything is synced, the checkpoint is written.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

from coherer.errors import StoreError, StoreFullError
from coherer.store.checkpoint import Checkpoint, CheckpointFile
from coherer.store.disk import Dirty, our_errors, out_of_files, translate
from coherer.store.files import Files
from coherer.store.index import KeyIndex
from coherer.store.keys import Keys
from coherer.store.log import CommitLog


class Flushing:
    """What has to be synced.

    Args:
        files: where everything is.
        path: of the checkpoint.
        log: the log.
        index: the key index, if there is one.
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
        now_ms: Callable[[], int],
    ) -> None:
        self._files = files
        self._file = CheckpointFile(files, path)
        self._log = log
        self._index = index
        self._now_ms = now_ms
        self._guard = threading.Lock()  # for the next two, which the other thread takes over
        self._dirty = Dirty()
        self._queued = (0, 0)  # up to where records have queue entries; store time of the last
        self._one_at_a_time = threading.Lock()
        self._failed = ""
        self.checkpoint = self._file.load()

    @property
    def due(self) -> bool:
        """Whether something was written that the checkpoint does not vouch for."""
        return self._queued[0] != self.checkpoint.offset

    def start(self, end: int, store_ms: int, dirty: Dirty) -> None:
        """Say what recovery has found and what it has written."""
        self._queued = (end, store_ms)
        self._dirty = dirty

    def wrote(self, end: int, store_ms: int, dirty: Dirty, keys: Keys | None = None) -> None:
        """Make what was written up to `end` part of the log.

        Args:
            end: behind the last record.
            store_ms: when that was stored.
            dirty: what must be synced.
            keys: for the index, if it has not got them already.
        """
        with self._guard:
            self._dirty.merge(dirty)
            self._queued = (end, store_ms)
            if keys is not None and self._index is not None:
                self._index.add(keys)
            self._log.commit(end, store_ms)

    def run(self) -> None:
        """Make log, queues and index durable and write the checkpoint. For any thread.

        Raises:
            StoreFullError: there is no room for keys, which wait, or too many files are open.
            StoreError: the disk failed.
        """
        with self._one_at_a_time:
            if self._failed:
                raise StoreError(self._failed, hint="Start the node again.")
            if self._index is not None:
                with our_errors("write the key index"):
                    self._index.write(self._now_ms())  # most of them, while the writer goes on
            with self._guard, our_errors("write the key index"):
                mark = (self.checkpoint.index_ms, 0, 0)
                if self._index is not None:
                    self._index.write(self._now_ms())
                    mark = self._index.mark()
                (offset, queues_ms), dirty, self._dirty = self._queued, self._dirty, Dirty()
            try:
                self._log.flush()
                self._sync(dirty)
            except StoreFullError:
                with self._guard:
                    self._dirty.merge(dirty)
                raise
            times = (self._log.durable_ms, queues_ms, mark[0])
            with our_errors("write the checkpoint"):
                checkpoint = Checkpoint(*times, offset, *mark[1:])
                self._file.save(checkpoint)
                self.checkpoint = checkpoint

    def _sync(self, dirty: Dirty) -> None:
        try:
            dirty.sync(self._files)
            if self._index is not None:
                self._index.sync()
        except OSError as error:
            if out_of_files(error):
                raise translate(error, "sync queues and index") from error
            self._failed = f"Queues or index could not be synced: {error}."
            raise StoreError(self._failed) from error
