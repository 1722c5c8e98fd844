"""The commit log: one sequence of records in files of equal size.

Invariants:

* A file is named by the offset of its first byte and has its full size from the start, sparse. So
  the mapping that reads are served from is made once and never reaches past the end of the file.
* Bytes before `end` are never written again. `end` moves (`commit`) when a whole batch is written,
  in the queues too. Bytes that a failed write left after it are cut off.
* Readers only look before `shown`, which is `end`, or with sync flush what is durable (`show`).
* `durable` is the offset up to which the log has certainly reached the disk. `flush` moves it, from
  any thread, while the writer continues. `_guard` is held while a handle is closed or synced.
* After a failed sync the content of the disk is unknown: the log accepts no more writes until it is
  opened again and has read its files. What it then reads can be in the system's cache only: after
  a failed sync Linux counts the pages as clean, and the next sync succeeds without writing them.
  So `flush` writes what another process left behind once more, before it syncs (`rewrite_from`).
"""

from __future__ import annotations

import mmap
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from coherer._common.distribution import Distribution
from coherer._record.layout import HEAD, flaw
from coherer._store.files import (
    Files,
    file_name,
    file_offsets,
    is_out_of_handles,
    store_error,
    translate_os_errors,
    zero,
)
from coherer._store.model import DamagedRange
from coherer.errors import DamagedStoreError, StoreError, UsageError


class Segment:
    """One file of the log."""

    __slots__ = ("begin", "end", "handle", "path", "view")

    def __init__(self, path: Path, begin: int, size: int) -> None:
        self.path = path
        self.begin = begin
        self.end = begin + size
        self.handle: int | None = None
        self.view: memoryview | None = None


_CHUNK_BYTES: Final = 1 << 20

SYNC_S: Final = (0.001, 0.004, 0.016, 0.064, 0.256, 1.024, 4.096)
"""Upper limits of the buckets of sync durations, in seconds."""


class CommitLog:
    """The files under `commitlog/`.

    Args:
        files: how to access files.
        segment_bytes: the size of new files; existing files keep theirs.

    Raises:
        DamagedStoreError: the files do not fit together.
    """

    def __init__(self, files: Files, directory: Path, segment_bytes: int) -> None:
        self._files = files
        self._directory = directory
        self._segments: dict[int, Segment] = {}
        self._guard = threading.Lock()
        # A process that was killed may have created a file without syncing its name.
        self._has_new_names = True
        self._failed = ""
        self._has_garbage = False  # a failed write left bytes after the end
        self._unsynced = False  # the end was cut since the last sync
        self._rewrite: tuple[int, int] | None = None
        begins = file_offsets(files.names(directory))
        self.segment_bytes = self._existing_size(begins) or segment_bytes
        for begin in begins:
            self._add(begin)
        self.begin = begins[0] if begins else 0
        self.end = self.shown = self.begin
        self._tail = (self.begin, 0)  # end and store time of the last record; replaced atomically
        self.durable = self.begin
        self.durable_ms = 0
        self.damage: tuple[DamagedRange, ...] = ()
        self.syncs = Distribution(SYNC_S)

    def _existing_size(self, begins: list[int]) -> int:
        sizes: set[int] = set()
        for begin in begins:
            handle = self._files.open(self._directory / file_name(begin))
            try:
                sizes.add(self._files.size(handle))
            finally:
                self._files.close(handle)
        size = max(sizes, default=0)
        if size and any(begin % size for begin in begins):
            raise DamagedStoreError(
                f"The files in {self._directory} have {size} bytes, but their names do not match.",
                hint="Do not rename, join or cut files of the log.",
            )
        return size

    def _add(self, begin: int) -> Segment:
        path = self._directory / file_name(begin)
        segment = Segment(path, begin, self.segment_bytes)
        self._segments[begin] = segment
        return segment

    @property
    def segments(self) -> list[Segment]:
        """The files, oldest first."""
        return sorted(self._segments.values(), key=lambda segment: segment.begin)

    def segment_at(self, offset: int) -> Segment | None:
        """Return the file that holds an offset, if it exists."""
        return self._segments.get(offset - offset % self.segment_bytes)

    def handle_of(self, segment: Segment) -> int:
        """Return the handle of a file of the log; open it at its full size if necessary."""
        if segment.handle is None:
            handle = self._files.open(segment.path, create=True)
            try:
                if self._files.size(handle) != self.segment_bytes:
                    self._files.resize(handle, self.segment_bytes)
            except OSError:
                self._files.close(handle)
                raise
            segment.handle = handle
        return segment.handle

    def view_of(self, segment: Segment) -> memoryview:
        """Return a mapping of the whole file. It lives as long as any slice of it."""
        if segment.view is None:
            handle = self._files.open(segment.path)  # `flush` may close the other handle
            try:
                if self._files.size(handle) < self.segment_bytes:
                    self._files.resize(handle, self.segment_bytes)
                segment.view = memoryview(self._files.map(handle, self.segment_bytes))
            finally:
                self._files.close(handle)
        return segment.view

    def is_damaged(self, offset: int) -> bool:
        """Whether an offset lies in a range that was found damaged."""
        return any(piece.begin <= offset < piece.end for piece in self.damage)

    def record_at(self, offset: int) -> memoryview | None:
        """Return the record at an offset; None if there is no valid one. It is verified."""
        segment = self.segment_at(offset)
        if segment is None or not self.begin <= offset < self.shown:
            return None
        view, here = self.view_of(segment), offset - segment.begin
        if flaw(view, here) or HEAD.unpack_from(view, here)[6] != offset:
            return None
        return view[here : here + HEAD.unpack_from(view, here)[0]]

    def read(self, segment: Segment, offset: int, size: int) -> bytes:
        """Read from a file by log offset; fewer bytes at the end of the file."""
        with self._guard:
            return self._files.read(self.handle_of(segment), size, offset - segment.begin)

    def next_data(self, offset: int) -> int | None:
        """Return the first offset from here to the end of its file that may hold data."""
        segment = self.segment_at(offset)
        if segment is None:
            return None
        with self._guard:
            found = self._files.next_data(self.handle_of(segment), offset - segment.begin)
        return None if found is None or found >= self.segment_bytes else segment.begin + found

    def write(self, chunks: Sequence[tuple[int, bytes]]) -> None:
        """Write a batch after the end, all of it or nothing. `commit` makes it part of the log.

        Args:
            chunks: offsets and bytes, one pair for each file that the batch touches.

        Raises:
            StoreFullError: the disk is full.
            StoreError: the disk failed.
        """
        if self._failed:
            raise StoreError(self._failed, hint="Check the disk, then restart the node.")
        before = self.end
        self.cut_rest()
        try:
            for offset, data in chunks:
                segment = self.segment_at(offset)
                if segment is None:
                    segment = self._create(offset - offset % self.segment_bytes)
                self._files.write(self.handle_of(segment), data, offset - segment.begin)
        except OSError as error:
            self.withdraw(before)
            raise store_error(error, "write the log") from error

    def _create(self, begin: int) -> Segment:
        segment = self._add(begin)
        # The size is synced first, because the size of the files is taken from any one of them.
        self._files.sync(self.handle_of(segment))
        self._has_new_names = True
        return segment

    def start_at(self, offset: int) -> None:
        """Start a log without files at another offset than 0.

        Raises:
            UsageError: no file can start there.
        """
        if offset % self.segment_bytes:
            raise UsageError(
                f"A file of {self.segment_bytes} bytes cannot start at offset {offset}.",
                hint="Set segment_bytes to the size of the master's files.",
            )
        self.begin = self.durable = offset
        self.commit(offset, 0)

    def read_raw(self, offset: int, size: int) -> memoryview:
        """Return up to `size` bytes of the log, not past the end of their file."""
        segment = self.segment_at(offset)
        if segment is None or not self.begin <= offset < self.shown:
            return memoryview(b"")
        stop = min(offset + size, segment.end, self.shown)
        return self.view_of(segment)[offset - segment.begin : stop - segment.begin]

    def commit(self, end: int, store_ms: int, *, show: bool = True) -> None:
        """Make the bytes up to `end` part of the log.

        Args:
            show: whether readers see it at once; otherwise `show` is called later.
        """
        self._tail = (end, store_ms)
        self.end = end
        if show:
            self.shown = end

    def show(self, end: int) -> None:
        """Let readers see the log up to `end`."""
        self.shown = end

    def keep_rest(self) -> None:
        """Leave what is after the end until `cut_rest` or the next write."""
        self._has_garbage = True

    def cut_rest(self) -> None:
        """Remove what `keep_rest` has left.

        Raises:
            StoreError: a file could not be cut.
        """
        if self._has_garbage:
            self.cut(self.end)

    def withdraw(self, end: int) -> None:
        """Undo writes after `end`, now or before the next write."""
        self._has_garbage = True
        with suppress(OSError, StoreError):
            self.cut(end)

    def cut(self, end: int) -> None:
        """Remove everything after `end`.

        Raises:
            StoreError: a file could not be cut.
        """
        self.end = end
        self.shown = min(self.shown, end)
        self._tail = (end, self._tail[1])
        with translate_os_errors("cut the end of the log"):
            for segment in self.segments:
                if segment.begin >= end and segment.begin > self.begin:
                    self._remove(segment)
                elif segment.end > end:
                    with self._guard:
                        handle = self.handle_of(segment)
                        zero(self._files, handle, max(end - segment.begin, 0))
                        self._unsynced = True
        self._has_garbage = False

    def release_memory(self) -> None:
        """Release the memory that reads have mapped; the pages stay in the system's cache."""
        advice: int | None = getattr(mmap, "MADV_DONTNEED", None)
        if advice is None:
            return
        for segment in self.segments:
            view = segment.view
            if view is not None and isinstance(view.obj, mmap.mmap):
                view.obj.madvise(advice)

    def flush(self) -> int:
        """Sync all written data; may run beside the writer. Returns the durable offset.

        Raises:
            StoreFullError: too many files are open, or the disk is full when `rewrite_from` needs
                it; nothing is lost, try again.
            StoreError: the disk failed.
        """
        with self._guard:
            end, store_ms = self._tail
            if self._failed:
                raise StoreError(self._failed)
            if end == self.durable and not (self._unsynced or self._rewrite):
                return end
            began_s = time.perf_counter()
            with translate_os_errors("write the log"):
                self._write_again()
            try:
                self._sync_range(self.durable, end)
            except OSError as error:
                if is_out_of_handles(error):
                    raise store_error(error, "sync the log") from error
                self._failed = f"The log could not be synced: {error}."
                raise StoreError(self._failed) from error
            self.syncs.add(time.perf_counter() - began_s)
            self.durable = end
            self.durable_ms = store_ms
        return end

    def rewrite_from(self, begin: int) -> None:
        """Have the next `flush` write everything from an offset on once more. See the module."""
        if begin < self.end:
            self._rewrite = (max(begin, self.begin), self.end)

    def _write_again(self) -> None:
        if self._rewrite is None:
            return
        at, end = self._rewrite
        while at < end:
            segment = self._segments.get(at - at % self.segment_bytes)
            if segment is None:  # a file is missing
                at += self.segment_bytes - at % self.segment_bytes
                continue
            size = min(_CHUNK_BYTES, segment.end - at, end - at)
            data = self._files.read(self.handle_of(segment), size, at - segment.begin)
            self._files.write(self.handle_of(segment), data, at - segment.begin)
            at += size
        self._rewrite = None

    def _sync_range(self, begin: int, end: int) -> None:
        if self._has_new_names:
            # Before the sync, because the writer may create another file meanwhile.
            self._has_new_names = False
            try:
                self._files.sync_directory(self._directory)
            except OSError:
                self._has_new_names = True
                raise
        at = begin - begin % self.segment_bytes
        while at <= end:
            segment = self._segments.get(at)
            at += self.segment_bytes
            if segment is None:
                continue
            self._files.sync(self.handle_of(segment))
            if segment.end <= end:
                self._close(segment)
        self._unsynced = False

    def release(self, segment: Segment) -> None:
        """Close a file that was read, unless it is still written."""
        with self._guard:
            if segment.end <= self.durable:
                self._close(segment)

    def drop_first(self) -> int:
        """Delete the oldest file; return the new first offset. Slices of the file stay valid."""
        segment = self.segments[0]
        self._remove(segment)
        self.begin = self.segments[0].begin
        return self.begin

    def _remove(self, segment: Segment) -> None:
        with self._guard:
            self._close(segment)
            segment.view = None
            self._files.remove(segment.path)  # Windows refuses this while slices of it exist
            self._segments.pop(segment.begin)

    def _close(self, segment: Segment) -> None:
        if segment.handle is not None:
            handle, segment.handle = segment.handle, None
            self._files.close(handle)

    def finish_recovery(self, end: int, durable: int, store_ms: int) -> None:
        """Set where the log ends, and how far it is known to be on the disk."""
        for segment in self._segments.values():
            if not segment.begin <= end < segment.end:
                self._close(segment)
        self.begin = min(self._segments, default=end - end % self.segment_bytes)
        self.durable = min(max(durable, self.begin), end)
        self.commit(end, store_ms)
        if self.durable == end:
            self.durable_ms = store_ms

    def close(self) -> None:
        """Close every file. Slices of them stay valid."""
        with self._guard:
            for segment in self._segments.values():
                self._close(segment)
                segment.view = None
