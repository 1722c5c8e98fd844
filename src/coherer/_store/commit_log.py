"""The commit log: one sequence of records, cut into files of equal size.

Rules:

* A file is named by the offset of its first byte and has its full size from the start, sparse. So
  the mapping that reads are served from is made once, and never reaches behind the file's end.
* Bytes before `end` are never written again; readers only look there. `end` moves (`commit`) when
  a batch is wholly written, in the queues too; what a failed write left behind it is cut off.
* `durable` is how far the log has certainly reached the disk. `flush` moves it, from any thread,
  while the writer goes on; `_guard` is held by whoever closes or syncs a handle.
* When a sync has failed nobody knows what the disk holds: the log takes no more writes until it
  is opened again and has read what is there.


Walking the log record by record, and finding the way again behind damage.

A record is believed when its lengths fit each other, its body has the right check sum, and the
offset that it names is where it lies. Where that fails the walk looks for the next place where it
holds. If there is one, what lies between is *damage in the middle*, reported and stepped over. If
there is none the log ends: what follows is the torn end of an interrupted write, unless it lies
before `trusted`, up to where the log was known to be on the disk; then it is damage too.

Reading is done by position and not through mappings, so that looking at holes costs no pages.
"""

from __future__ import annotations

import mmap
import re
import threading
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from coherer._record.layout import (
    BLANK,
    BLANK_BYTES,
    BLANK_MAGIC,
    FIXED_BYTES,
    HEAD,
    MAGIC,
    RecordSummary,
    examine,
    flaw,
)
from coherer._store.files import (
    Files,
    file_name,
    numbered,
    out_of_files,
    translate,
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


class CommitLog:
    """The files under `commitlog/`.

    Args:
        files: where they are.
        directory: the directory of the log.
        segment_bytes: size of a file, unless there are files already.

    Raises:
        DamagedStoreError: the files do not fit together.
    """

    def __init__(self, files: Files, directory: Path, segment_bytes: int) -> None:
        self._files = files
        self._directory = directory
        self._segments: dict[int, Segment] = {}
        self._guard = threading.Lock()
        self._new_names = False
        self._failed = ""
        self._uncut = False  # something is left behind the end
        self._unsynced = False  # the end was cut since the last sync
        begins = numbered(files.names(directory))
        self.segment_bytes = self._existing_size(begins) or segment_bytes
        for begin in begins:
            self._add(begin)
        self.begin = begins[0] if begins else 0
        self.end = self.begin
        self._tail = (self.begin, 0)  # end and store time of the last record, read as one
        self.durable = self.begin
        self.durable_ms = 0
        self.damage: tuple[DamagedRange, ...] = ()

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
                f"The files in {self._directory} have {size} bytes, but not names to fit.",
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
        """Give the file that holds an offset, if it is there."""
        return self._segments.get(offset - offset % self.segment_bytes)

    def handle_of(self, segment: Segment) -> int:
        """Open a file of the log, if it is not open, at its full size."""
        if segment.handle is None:
            handle = self._files.open(segment.path, create=True)
            if self._files.size(handle) != self.segment_bytes:
                self._files.resize(handle, self.segment_bytes)
            segment.handle = handle
        return segment.handle

    def view_of(self, segment: Segment) -> memoryview:
        """Give the whole file, mapped. The mapping lives as long as anybody holds a slice of it."""
        if segment.view is None:
            handle = self._files.open(segment.path)  # our own: `flush` may close the other one
            try:
                if self._files.size(handle) < self.segment_bytes:
                    self._files.resize(handle, self.segment_bytes)
                segment.view = memoryview(self._files.map(handle, self.segment_bytes))
            finally:
                self._files.close(handle)
        return segment.view

    def damaged(self, offset: int) -> bool:
        """Tell whether an offset lies in a piece that was found damaged."""
        return any(piece.begin <= offset < piece.end for piece in self.damage)

    def record_at(self, offset: int) -> memoryview | None:
        """Give the record at an offset if there is a valid one, proven."""
        segment = self.segment_at(offset)
        if segment is None or not self.begin <= offset < self.end:
            return None
        view, here = self.view_of(segment), offset - segment.begin
        if flaw(view, here) or HEAD.unpack_from(view, here)[6] != offset:
            return None
        return view[here : here + HEAD.unpack_from(view, here)[0]]

    def read(self, segment: Segment, offset: int, size: int) -> bytes:
        """Read by position; fewer bytes at the file's end."""
        with self._guard:
            return self._files.read(self.handle_of(segment), size, offset - segment.begin)

    def next_data(self, offset: int) -> int | None:
        """Give the first offset from here to the end of its file that may hold data."""
        segment = self.segment_at(offset)
        if segment is None:
            return None
        with self._guard:
            found = self._files.next_data(self.handle_of(segment), offset - segment.begin)
        return None if found is None or found >= self.segment_bytes else segment.begin + found

    def write(self, chunks: Sequence[tuple[int, bytes]]) -> None:
        """Write a batch behind the end: all of it, or none. `commit` makes it part of the log.

        Args:
            chunks: pieces and their offsets; one per file that the batch touches.

        Raises:
            StoreFullError: there is no room.
            StoreError: the disk failed.
        """
        if self._failed:
            raise StoreError(self._failed, hint="Look at the disk, then start the node again.")
        before = self.end
        if self._uncut:
            self.cut(before)
        try:
            for offset, data in chunks:
                segment = self.segment_at(offset)
                if segment is None:
                    segment = self._start(offset - offset % self.segment_bytes)
                self._files.write(self.handle_of(segment), data, offset - segment.begin)
        except OSError as error:
            self.withdraw(before)
            raise translate(error, "write the log") from error

    def _start(self, begin: int) -> Segment:
        segment = self._add(begin)
        # The size is on the disk before anything else: a file's size tells that of all.
        self._files.sync(self.handle_of(segment))
        self._new_names = True
        return segment

    def start_at(self, offset: int) -> None:
        """Let a log without files begin elsewhere than at 0.

        Raises:
            UsageError: no file can begin there.
        """
        if offset % self.segment_bytes:
            raise UsageError(
                f"A file of {self.segment_bytes} bytes cannot begin at offset {offset}.",
                hint="Set segment_bytes to the size of the master's files.",
            )
        self.begin = self.durable = offset
        self.commit(offset, 0)

    def read_raw(self, offset: int, size: int) -> memoryview:
        """Give up to `size` bytes of the log, none behind the end of their file."""
        segment = self.segment_at(offset)
        if segment is None or not self.begin <= offset < self.end:
            return memoryview(b"")
        stop = min(offset + size, segment.end, self.end)
        return self.view_of(segment)[offset - segment.begin : stop - segment.begin]

    def commit(self, end: int, store_ms: int) -> None:
        """Make what was written up to `end` part of the log; `store_ms` is its last record's."""
        self._tail = (end, store_ms)
        self.end = end

    def withdraw(self, end: int) -> None:
        """Take back what was written behind `end`, now or before the next write."""
        self._uncut = True
        with suppress(OSError, StoreError):
            self.cut(end)

    def cut(self, end: int) -> None:
        """Make the log end at `end`: nothing is left behind it.

        Raises:
            StoreError: a file could not be cut.
        """
        self.end = end
        self._tail = (end, self._tail[1])
        for segment in self.segments:
            if segment.begin >= end and segment.begin > self.begin:
                self._remove(segment)
            elif segment.end > end:
                with translate_os_errors("cut the end of the log"), self._guard:
                    handle = self.handle_of(segment)
                    zero(self._files, handle, max(end - segment.begin, 0))
                    self._unsynced = True
        self._uncut = False

    def relax(self) -> None:
        """Give back the memory that reads have mapped; it stays in the system's cache."""
        advice: int | None = getattr(mmap, "MADV_DONTNEED", None)
        if advice is None:
            return
        for segment in self.segments:
            view = segment.view
            if view is not None and isinstance(view.obj, mmap.mmap):
                view.obj.madvise(advice)

    def flush(self) -> int:
        """Make what is written durable; may run beside the writer.

        Raises:
            StoreFullError: too many files are open; nothing is lost, try again.
            StoreError: the disk failed.
        """
        with self._guard:
            end, store_ms = self._tail
            if self._failed:
                raise StoreError(self._failed)
            if end == self.durable and not self._unsynced:
                return end
            try:
                self._sync_range(self.durable, end)
            except OSError as error:
                if out_of_files(error):
                    raise translate(error, "sync the log") from error
                self._failed = f"The log could not be synced: {error}."
                raise StoreError(self._failed) from error
            self.durable = end
            self.durable_ms = store_ms
        return end

    def _sync_range(self, begin: int, end: int) -> None:
        if self._new_names:
            self._new_names = False  # before: the writer may make another one meanwhile
            try:
                self._files.sync_directory(self._directory)
            except OSError:
                self._new_names = True
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

    def drop_first(self) -> int:
        """Delete the oldest file; give the new first offset. Views of it stay valid."""
        segment = self.segments[0]
        self._remove(segment)
        self.begin = self.segments[0].begin
        return self.begin

    def _remove(self, segment: Segment) -> None:
        with self._guard:
            self._close(segment)
            segment.view = None
            self._files.remove(segment.path)  # Windows refuses while slices of it are out
            self._segments.pop(segment.begin)

    def _close(self, segment: Segment) -> None:
        if segment.handle is not None:
            handle, segment.handle = segment.handle, None
            self._files.close(handle)

    def settle(self, end: int, durable: int, store_ms: int) -> None:
        """Say, after recovery, where the log ends and how far it is known to be on the disk."""
        for segment in self._segments.values():
            if not segment.begin <= end < segment.end:
                self._close(segment)
        self.begin = min(self._segments, default=end - end % self.segment_bytes)
        self.durable = min(max(durable, self.begin), end)
        self.commit(end, store_ms)
        if self.durable == end:
            self.durable_ms = store_ms

    def close(self) -> None:
        """Close every file. ReadResult that are out stay valid."""
        with self._guard:
            for segment in self._segments.values():
                self._close(segment)
                segment.view = None


_CHUNK_BYTES = 1 << 20
_MAGICS = re.compile(
    re.escape(MAGIC.to_bytes(4, "big")) + b"|" + re.escape(BLANK_MAGIC.to_bytes(4, "big"))
)


class Scanner:
    """Walks the log from `begin` on; iterate to get the summary of each valid record.

    After the walk `end` is the end of the log and `damage` what was stepped over.

    Args:
        log: the log.
        begin: where a record begins.
        trusted: the log does not end before this offset.
        strict: from there on the log ends where no valid record follows, whatever lies behind.
    """

    def __init__(self, log: CommitLog, begin: int, trusted: int, *, strict: bool = False) -> None:
        self._strict = strict
        self._log = log
        self._trusted = trusted
        self._chunk = memoryview(b"")
        self._chunk_begin = 0
        self.damage: list[DamagedRange] = []
        self.end = begin

    def __iter__(self) -> Iterator[RecordSummary]:
        at = self.end
        while True:
            segment = self._log.segment_at(at)
            found = "a file is missing" if segment is None else self._look(segment, at)
            if isinstance(found, RecordSummary):
                yield found
                at += found.size
                continue
            if isinstance(found, int):
                at += found
                continue
            beyond = self._strict and at >= self._trusted
            following = None if beyond else self.next_valid(at)
            if following is None:
                break
            self.damage.append(DamagedRange(at, following, found))
            at = following
        if at < self._trusted:
            self.damage.append(DamagedRange(at, self._trusted, found))
            at = self._trusted
        self.end = at

    def _look(self, segment: Segment, at: int) -> RecordSummary | int | str:
        """Give the record here, the size of a blank, or what is wrong."""
        self._load(segment, at, FIXED_BYTES)
        here = at - self._chunk_begin
        if len(self._chunk) - here < BLANK_BYTES:
            return "cut short"
        size, magic = BLANK.unpack_from(self._chunk, here)
        if magic == BLANK_MAGIC:
            return int(size) if size == segment.end - at else f"blank of {size} bytes"
        if magic != MAGIC:
            return f"magic number {magic:#x}"
        if not FIXED_BYTES < size <= segment.end - at - BLANK_BYTES:
            return f"size {size}"
        self._load(segment, at, size)
        here = at - self._chunk_begin
        physical = HEAD.unpack_from(self._chunk, here)[6]
        if physical != at:
            return f"it says that it lies at {physical}"
        return examine(self._chunk, here)

    def _load(self, segment: Segment, at: int, size: int) -> None:
        """Have `size` bytes from `at` on in the chunk, or what the file has of them."""
        if self._chunk_begin <= at and at + size <= self._chunk_begin + len(self._chunk):
            return
        size = min(max(size, _CHUNK_BYTES), segment.end - at)
        self._chunk = memoryview(self._log.read(segment, at, size))
        self._chunk_begin = at

    def record_at(self, at: int) -> RecordSummary | None:
        """Give the record here if there is a valid one."""
        segment = self._log.segment_at(at)
        found = None if segment is None else self._look(segment, at)
        return found if isinstance(found, RecordSummary) else None

    def next_valid(self, at: int) -> int | None:
        """Find the first valid record (or blank) behind `at`; None if there is none."""
        segment = self._log.segment_at(at)
        if segment is not None:
            found = self._after(segment, at) or self._search(segment, at + 1)
            if found is not None:
                return found
        for later in self._log.segments:
            if later.begin > at:
                found = self._search(later, later.begin)
                if found is not None:
                    return found
        return None

    def _after(self, segment: Segment, at: int) -> int | None:
        # Where the record's own size leads: a body that looks like records cannot mislead us.
        self._load(segment, at, FIXED_BYTES)
        here = at - self._chunk_begin
        if len(self._chunk) - here < BLANK_BYTES:
            return None
        size, magic = BLANK.unpack_from(self._chunk, here)
        if magic != MAGIC or not FIXED_BYTES < size <= segment.end - at - BLANK_BYTES:
            return None
        return None if isinstance(self._look(segment, at + size), str) else at + int(size)

    def _search(self, segment: Segment, at: int) -> int | None:
        position: int | None = at
        while position is not None and position < segment.end:
            position = self._log.next_data(position)
            if position is None:
                return None
            begin = max(position - 7, segment.begin)  # a magic number may lie across the border
            size = min(_CHUNK_BYTES, segment.end - begin)
            chunk = self._log.read(segment, begin, size)
            for hit in _MAGICS.finditer(chunk):
                candidate = begin + hit.start() - 4
                if candidate >= at and not isinstance(self._look(segment, candidate), str):
                    return candidate
            position = begin + len(chunk) if len(chunk) == size else None
        return None

    def torn_bytes(self) -> int:
        """Say how much lies behind `end`: the bytes up to the last that is not zero."""
        last = self.end
        for segment in self._log.segments:
            position: int | None = max(self.end, segment.begin)
            while position is not None and position < segment.end:
                position = self._log.next_data(position)
                if position is None:
                    break
                chunk = self._log.read(segment, position, _CHUNK_BYTES)
                kept = len(chunk.rstrip(b"\0"))
                if kept:
                    last = position + kept
                position = position + len(chunk) if chunk else None
        return last - self.end
