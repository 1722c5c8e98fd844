"""The checkpoint: how far log, queues and index have certainly reached the disk.

Java's part of the file is three store times at its beginning. After a crash Java's broker goes back
to the newest log file whose first message is 3 s older than the first two times, and rebuilds from
there. It deletes index files that are newer than the third time. So:

* `log_ms` is the store time of a record that has been synced.
* `queues_ms` is the store time of a record whose queue entry has been synced, as have those of all
  records before it.
* `index_ms` is the end time of the index files when all of them had been synced. (Java writes the
  end time of the last *full* file. So it loses the keys of the file that it was writing, except
  those of the records that it replays.)

Coherer's own part says the same as a log offset, so that recovery rebuilds seconds and not a file
of 1 GiB. It is at a position that Java neither reads nor writes, and it repeats Java's three times:
if they differ, a Java broker has used the directory since, and Coherer's part is ignored. The same
holds for the reserve of queue offsets (`offset_reserve`). The gaps of power cuts stay valid.

`Checkpointer` moves the checkpoint. The writer publishes what it wrote (`commit`); another thread
may flush at any time (`flush`, or `flush_log` for the log alone). The checkpoint covers an offset
only when log, queues and index up to it are synced. So a flush goes in this order: note the offset,
write the queue entries and keys that are only in memory, sync everything, write the checkpoint.

With sync flush readers see a batch only after a flush. A reader may store the offset of what it
read, and after a power cut that offset must not belong to another message.
"""

from __future__ import annotations

import struct
import threading
from collections import deque
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any, Final
from zlib import crc32

from msgspec import Struct
from msgspec.structs import replace

from coherer._store.commit_log import CommitLog
from coherer._store.consume_queue import ConsumeQueue, PendingEntries, publish
from coherer._store.files import (
    Files,
    UnsyncedFiles,
    is_out_of_handles,
    store_error,
    translate_os_errors,
)
from coherer._store.index import KeyIndex
from coherer._store.index_file import IndexKeys
from coherer._store.offset_reserve import GAPS_MAX, Gap, Reserve, with_gap
from coherer.errors import StoreError, StoreFullError

CHECKPOINT_BYTES: Final = 4096
_TIMES = struct.Struct(">qqq")
_OWN_AT = 256
_OWN = struct.Struct(">8sqqqqqq")
_OWN_CRC = struct.Struct(">I")
_MAGIC = b"coherer1"
_RESERVE_AT = 320
_RESERVE = struct.Struct(">8sqqqqq16s")
_RESERVE_MAGIC = b"reserve1"
_GAPS_AT = 392
_GAPS = struct.Struct(">8sI")
_GAP = struct.Struct(">qqq")
_GAPS_MAGIC = b"gaps0001"
_SLACK_MS = 3000


class Checkpoint(Struct, frozen=True):
    """The content of the checkpoint file.

    Args:
        log_ms: see the module.
        queues_ms: see the module.
        index_ms: see the module.
        offset: records before this offset, their queue entries and their keys are on the disk;
            None if only Java's part is valid.
        index_file: the name of the newest index file as a number; 0 without one.
        index_count: how many of its entries are on the disk.
        reserve: how many entries a queue can have got behind `offset`.
        boot: the boot of the machine that wrote the file; empty if unknown.
        gaps: the gaps in queue offsets that power cuts made.
    """

    log_ms: int = 0
    queues_ms: int = 0
    index_ms: int = 0
    offset: int | None = None
    index_file: int = 0
    index_count: int = 0
    reserve: int = 0
    boot: bytes = b""
    gaps: tuple[Gap, ...] = ()

    @property
    def replay_ms(self) -> int:
        """Java's rule: replay from the newest log file that begins no later than this time."""
        return max(min(self.log_ms, self.queues_ms) - _SLACK_MS, 0)

    def encode(self) -> bytes:
        """Return the content of the file.

        >>> found = Checkpoint.decode(Checkpoint(5, 4, 3, 97).encode())
        >>> found.log_ms, found.queues_ms, found.index_ms, found.offset
        (5, 4, 3, 97)
        """
        times = (self.log_ms, self.queues_ms, self.index_ms)
        data = bytearray(CHECKPOINT_BYTES)
        _TIMES.pack_into(data, 0, *times)
        if self.offset is not None:
            own = _OWN.pack(_MAGIC, *times, self.offset, self.index_file, self.index_count)
            _put(data, _OWN_AT, own)
            reserve = _RESERVE.pack(_RESERVE_MAGIC, *times, self.offset, self.reserve, self.boot)
            _put(data, _RESERVE_AT, reserve)
        gaps = [_GAP.pack(gap.covered, gap.end, gap.entries) for gap in self.gaps]
        _put(data, _GAPS_AT, b"".join([_GAPS.pack(_GAPS_MAGIC, len(gaps)), *gaps]))
        return bytes(data)

    @classmethod
    def decode(cls, data: bytes) -> Checkpoint:
        """Parse the content of the file; a missing or invalid part counts as nothing synced."""
        if len(data) < _TIMES.size:
            return cls()
        times: tuple[int, int, int] = _TIMES.unpack_from(data)
        gaps = _gaps(data)
        magic, *fields = _part(data, _OWN_AT, _OWN)
        if magic != _MAGIC or tuple(fields[:3]) != times:
            return replace(cls(*times), gaps=gaps)
        offset, index_file, index_count = fields[3:]
        magic, *others = _part(data, _RESERVE_AT, _RESERVE)
        reserve, boot = 0, b""
        if magic == _RESERVE_MAGIC and tuple(others[:4]) == (*times, offset):
            reserve, boot = others[4], others[5] if any(others[5]) else b""
        return Checkpoint(*times, offset, index_file, index_count, reserve, boot, gaps)


def _put(data: bytearray, at: int, part: bytes) -> None:
    data[at : at + len(part)] = part
    _OWN_CRC.pack_into(data, at + len(part), crc32(part))


def _checked(data: bytes, at: int, size: int) -> bytes:
    """Return a part of the file, or "" if it is missing or its checksum is wrong."""
    part, check = data[at : at + size], data[at + size : at + size + _OWN_CRC.size]
    if len(check) < _OWN_CRC.size or _OWN_CRC.unpack(check)[0] != crc32(part):
        return b""
    return part


def _part(data: bytes, at: int, layout: struct.Struct) -> tuple[Any, ...]:
    part = _checked(data, at, layout.size)
    return layout.unpack(part) if part else (b"",)


def _gaps(data: bytes) -> tuple[Gap, ...]:
    if len(data) < _GAPS_AT + _GAPS.size:
        return ()
    magic, count = _GAPS.unpack_from(data, _GAPS_AT)
    if magic != _GAPS_MAGIC or count > GAPS_MAX:
        return ()
    part = _checked(data, _GAPS_AT, _GAPS.size + count * _GAP.size)
    return tuple(Gap(*fields) for fields in _GAP.iter_unpack(part[_GAPS.size :]))


class CheckpointFile:
    """The file `checkpoint`.

    It is written in place: both parts are in its first sector, so a power cut leaves the old or the
    new content. The checksum detects anything else, which only makes the replay longer.
    """

    def __init__(self, files: Files, path: Path) -> None:
        self._files = files
        self._path = path

    def load(self) -> Checkpoint:
        """Read the file; without one, return an empty checkpoint."""
        if not self._files.exists(self._path):
            return Checkpoint()
        handle = self._files.open(self._path)
        try:
            return Checkpoint.decode(self._files.read(handle, CHECKPOINT_BYTES, 0))
        finally:
            self._files.close(handle)

    def save(self, checkpoint: Checkpoint) -> None:
        """Write and sync the file.

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


class Checkpointer:
    """Makes batches visible, syncs them, and writes the checkpoint.

    Args:
        files: how to access files.
        path: the checkpoint file.
        log: the log.
        index: the key index, if there is one.
        pending: queue entries that are only in memory.
        now_ms: the time of day; a new index file is named after it.
        monotonic_ms: a monotonic clock.
        show_durable: whether readers see durable messages only.
        reserve: whether to reserve queue offsets; False for a replica, whose master does it.

    Attributes:
        checkpoint: the last one that was written.
        gaps: the gaps in queue offsets that power cuts made.
    """

    def __init__(
        self,
        files: Files,
        path: Path,
        log: CommitLog,
        index: KeyIndex | None,
        pending: PendingEntries,
        now_ms: Callable[[], int],
        monotonic_ms: Callable[[], int],
        *,
        show_durable: bool = False,
        reserve: bool = True,
    ) -> None:
        self._files = files
        self._file = CheckpointFile(files, path)
        self._directory = path.parent
        self._log = log
        self._index = index
        self._now_ms = now_ms
        self._pending = pending
        self._guard = pending.guard
        # End and store time of the last record with a queue entry, and the growth of queues there.
        self._published = (0, 0, 0)
        self._show = not show_durable
        # By batch: its end, and the ends of its queues.
        self._hidden: deque[tuple[int, list[tuple[ConsumeQueue, int]]]] = deque()
        self._flush_guard = threading.Lock()
        self._save_guard = threading.Lock()  # taken after the other one, for the file alone
        self._monotonic_ms = monotonic_ms
        self._reserve = Reserve() if reserve and not show_durable else None
        self._failed = ""
        self.checkpoint = self._file.load()
        self.gaps = self.checkpoint.gaps

    @property
    def is_behind(self) -> bool:
        """Whether the checkpoint does not cover everything that was written."""
        return self._published[0] != self.checkpoint.offset

    def start_at(self, end: int, store_ms: int, *, lost_power: bool) -> None:
        """Set what recovery has found.

        Args:
            end: the end of the log.
            store_ms: the store time of the last record.
            lost_power: whether messages that readers have seen may be lost.
        """
        found = self.checkpoint
        if lost_power and found.offset is not None and found.reserve:
            self.gaps = with_gap(self.gaps, Gap(found.offset, end, found.reserve))
        self._published = (end, store_ms, 0)

    def claim(self, entries: int) -> None:
        """Let queues grow by up to `entries`, before a batch is written. Only for the writer.

        Raises:
            StoreError: the reserve of queue offsets could not be extended.
        """
        reserve = self._reserve
        while reserve is not None and entries:
            with self._guard:
                if reserve.claim(entries):
                    return
            self._extend(entries)

    def extend_if_low(self) -> None:
        """Extend the reserve of queue offsets early, so that the writer does not have to.

        Raises:
            StoreError: it could not be extended.
        """
        if self._reserve is not None and self._reserve.is_low:
            self._extend(0)

    def _extend(self, wanted: int) -> None:
        if self.checkpoint.offset is None and self._published[0]:
            self.flush()  # a Java broker has used the directory
        with self._save_guard:
            reserve = self._reserve
            covered = 0 if reserve is None else reserve.covered
            checkpoint = replace(self.checkpoint, offset=self.checkpoint.offset or 0)
            self._save(checkpoint, covered, wanted)

    def _save(self, checkpoint: Checkpoint, covered: int, wanted: int = 0) -> None:
        """Write the checkpoint with a new reserve. The caller holds `_save_guard`."""
        reserve, limit = self._reserve, covered
        if reserve is not None:
            with self._guard:
                limit = reserve.plan(self._monotonic_ms(), wanted)
        with translate_os_errors("write the checkpoint"):
            checkpoint = replace(
                checkpoint,
                reserve=limit - covered, boot=self._files.boot_id(), gaps=self.gaps,
            )  # fmt: skip
            self._file.save(checkpoint)
        self.checkpoint = checkpoint
        if reserve is not None:
            with self._guard:
                reserve.limit, reserve.covered = limit, covered

    def commit(
        self,
        end: int,
        store_ms: int,
        queues: Collection[ConsumeQueue],
        keys: IndexKeys | None = None,
    ) -> None:
        """Make what was written up to `end` part of the log; show it now or when it is durable.

        Args:
            end: the offset after the last record.
            store_ms: the store time of the last record.
            queues: the queues with new entries.
            keys: new keys, unless the index has them already.
        """
        with self._guard:
            growth = 0 if self._reserve is None else self._reserve.growth
            publish(queues, self._pending, show=self._show)
            self._published = (end, store_ms, growth)
            if keys is not None and self._index is not None:
                self._index.add(keys)
            self._log.commit(end, store_ms, show=self._show)
            if not self._show:
                self._hidden.append((end, [(queue, queue.next) for queue in queues]))

    def flush_log(self) -> int:
        """Sync the log, and show what has become durable. For any thread.

        Returns:
            The offset up to which the log is durable.

        Raises:
            StoreError: see `CommitLog.flush`.
        """
        durable = self._log.flush()
        if not self._show:
            self._show_durable(durable)
        return durable

    def _show_durable(self, durable: int) -> None:
        hidden = self._hidden
        with self._guard:
            while hidden and hidden[0][0] <= durable:
                end, queues = hidden.popleft()
                for queue, count in queues:
                    queue.max = min(count, queue.next)
                self._log.show(end)

    def flush(self) -> None:
        """Sync log, queues and index and write the checkpoint. For any thread.

        Raises:
            StoreFullError: queue entries or keys could not be written because the disk is full
                (they stay in memory), or too many files are open.
            StoreError: the disk failed.
        """
        with self._flush_guard:
            if self._failed:
                raise StoreError(self._failed, hint="Restart the node.")
            if self._index is not None:
                with translate_os_errors("write the key index"):
                    self._index.write(self._now_ms())  # most keys, while the writer continues
            (offset, queues_ms, covered), indexed = self._write()
            unsynced = self._pending.take_unsynced()
            try:
                self.flush_log()
                self._sync(unsynced)
            except StoreFullError:
                self._pending.restore_unsynced(unsynced)
                raise
            times = (self._log.durable_ms, queues_ms, indexed[0])
            with self._save_guard:
                self._save(Checkpoint(*times, offset, *indexed[1:]), covered)

    def end_reserve(self) -> None:
        """Reserve nothing from the next flush on, because no message follows."""
        self._reserve = None

    def _write(self) -> tuple[tuple[int, int, int], tuple[int, int, int]]:
        """Write queue entries and keys; return the covered position of the log and of the index."""
        published, indexed = self._published, (self.checkpoint.index_ms, 0, 0)

        def mark() -> None:
            nonlocal published, indexed
            if self._index is not None:
                with translate_os_errors("write the key index"):
                    self._index.write(self._now_ms())
                indexed = self._index.position()
            published = self._published

        with translate_os_errors("write the consume queues"):
            self._pending.write(mark)
        return published, indexed

    def _sync(self, unsynced: UnsyncedFiles) -> None:
        try:
            unsynced.sync(self._files, self._directory)
            if self._index is not None:
                self._index.sync()
        except OSError as error:
            if is_out_of_handles(error):
                raise store_error(error, "sync queues and index") from error
            self._failed = f"Queues or index could not be synced: {error}."
            raise StoreError(self._failed) from error
