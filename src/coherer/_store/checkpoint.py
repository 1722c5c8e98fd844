"""The checkpoint: how far log, queues and index have certainly reached the disk.

Java's part is three store times at the file's beginning. After a crash Java's broker goes back to
the newest file of the log whose first message is 3 s older than the first two, and rebuilds from
there; index files newer than the third are thrown away. So the rule for whoever writes them:

* `log_ms` is the store time of a record that has been synced;
* `queues_ms` is the store time of a record whose queue entry has been synced, like those of all
  records before it;
* `index_ms` is the end of the index files when all of them had been synced. (Java writes the end
  of the last *full* one, and so loses the keys of the file that it was writing, but for those of
  records that it replays.)

Our own part says the same as an offset, so that we rebuild seconds and not a file of 1 GiB. It lies
where Java neither reads nor writes, and repeats Java's three times: when they differ, a Java broker
has used the directory since, and our part is not believed.


From written to durable: what waits to be synced, and what the checkpoint vouches for.

The writer notes what it wrote (`wrote`), and another thread may take it over at any time (`run`).
The checkpoint vouches for an offset only when log, queues and index up to it have been synced, in
this order: what is to be vouched for is noted, queue entries and keys that are only in memory are
written, everything is synced, the checkpoint is written.
"""

from __future__ import annotations

import struct
import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final
from zlib import crc32

from msgspec import Struct

from coherer._store.commit_log import CommitLog
from coherer._store.consume_queue import ConsumeQueue, Waiting, take_all
from coherer._store.files import Dirty, Files, out_of_files, translate, translate_os_errors
from coherer._store.index import KeyIndex
from coherer._store.index_file import Keys
from coherer.errors import StoreError, StoreFullError

CHECKPOINT_BYTES: Final = 4096
_TIMES = struct.Struct(">qqq")
_OURS_AT = 256
_OURS = struct.Struct(">8sqqqqqq")
_OURS_CRC = struct.Struct(">I")
_MAGIC = b"coherer1"
_SLACK_MS = 3000


class Checkpoint(Struct, frozen=True):
    """What the checkpoint says.

    Args:
        log_ms: see the rules of the module.
        queues_ms: see the rules of the module.
        index_ms: see the rules of the module.
        offset: records before this offset, their queue entries and their keys are on the disk;
            None when only Java's part can be believed.
        index_file: the name of the newest index file as a number, 0 for none.
        index_count: how many of its entries are on the disk.
    """

    log_ms: int = 0
    queues_ms: int = 0
    index_ms: int = 0
    offset: int | None = None
    index_file: int = 0
    index_count: int = 0

    @property
    def replay_ms(self) -> int:
        """Java's rule: replay from the newest file whose first record is no newer than this."""
        return max(min(self.log_ms, self.queues_ms) - _SLACK_MS, 0)

    def encode(self) -> bytes:
        """Give the whole file.

        >>> Checkpoint.decode(Checkpoint(5, 4, 3, 97).encode())
        Checkpoint(log_ms=5, queues_ms=4, index_ms=3, offset=97, index_file=0, index_count=0)
        """
        times = (self.log_ms, self.queues_ms, self.index_ms)
        data = bytearray(CHECKPOINT_BYTES)
        _TIMES.pack_into(data, 0, *times)
        if self.offset is not None:
            ours = _OURS.pack(_MAGIC, *times, self.offset, self.index_file, self.index_count)
            data[_OURS_AT : _OURS_AT + len(ours)] = ours
            _OURS_CRC.pack_into(data, _OURS_AT + len(ours), crc32(ours))
        return bytes(data)

    @classmethod
    def decode(cls, data: bytes) -> Checkpoint:
        """Read the file; what is missing or cannot be believed is as if nothing was synced."""
        if len(data) < _TIMES.size:
            return cls()
        times = _TIMES.unpack_from(data)
        ours = data[_OURS_AT : _OURS_AT + _OURS.size]
        check = data[_OURS_AT + _OURS.size : _OURS_AT + _OURS.size + _OURS_CRC.size]
        if len(check) == _OURS_CRC.size and crc32(ours) == _OURS_CRC.unpack(check)[0]:
            magic, *fields = _OURS.unpack(ours)
            if magic == _MAGIC and tuple(fields[:3]) == times:
                return cls(*times, *fields[3:])
        return cls(*times)


class CheckpointFile:
    """The file `checkpoint`.

    It is written in place: both parts lie in its first sector, so a power cut leaves the old one
    or the new one; anything else is found by the check sum and only makes the replay longer.
    """

    def __init__(self, files: Files, path: Path) -> None:
        self._files = files
        self._path = path

    def load(self) -> Checkpoint:
        """Read it; the empty one if there is none."""
        if not self._files.exists(self._path):
            return Checkpoint()
        handle = self._files.open(self._path)
        try:
            return Checkpoint.decode(self._files.read(handle, CHECKPOINT_BYTES, 0))
        finally:
            self._files.close(handle)

    def save(self, checkpoint: Checkpoint) -> None:
        """Write it, through to the disk.

        Raises:
            OSError: it could not be written.
        """
        created = not self._files.exists(self._path)
        handle = self._files.open(self._path, create=True)
        try:
            self._files.write(handle, checkpoint.encode(), 0)
            self._files.sync(handle)
        finally:
            self._files.close(handle)
        if created:
            self._files.sync_directory(self._path.parent)


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
