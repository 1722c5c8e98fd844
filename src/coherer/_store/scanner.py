"""The scanner: reads the log and verifies it.

The scanner accepts a record if its lengths agree with each other, the checksum of its body is
right, and the offset in it is its position. Otherwise it searches for the next position where all
of this holds. If one exists, the bytes between are *damage*, which is reported and skipped. If not,
the log ends: the bytes that follow are the torn end of an interrupted write. Before `trusted`, up
to which the log was known to be on the disk, such bytes are damage too. The scanner reads by
position and not through mappings, so that reading holes costs no memory pages.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from coherer._record.layout import (
    BLANK,
    BLANK_BYTES,
    BLANK_MAGIC,
    FIXED_BYTES,
    HEAD,
    MAGIC,
    RecordSummary,
    examine,
)
from coherer._record.runs import Fields, examine_run, fields_of
from coherer._store.commit_log import CommitLog, Segment
from coherer._store.model import DamagedRange

_CHUNK_BYTES: Final = 1 << 20
_MAGICS: Final = re.compile(
    re.escape(MAGIC.to_bytes(4, "big")) + b"|" + re.escape(BLANK_MAGIC.to_bytes(4, "big"))
)


class Scanner:
    """Reads the log from `begin` on; iterate to get the summary of each valid record.

    After the iteration `end` is the end of the log and `damage` holds the skipped ranges.

    Args:
        begin: an offset at which a record begins.
        trusted: the log does not end before this offset.
        strict: from `trusted` on, the log ends at the first position without a valid record.
    """

    def __init__(self, log: CommitLog, begin: int, trusted: int, *, strict: bool = False) -> None:
        self._strict = strict
        self._log = log
        self._trusted = trusted
        self._chunk = b""
        self._chunk_begin = 0
        self.damage: list[DamagedRange] = []
        self.end = begin

    def __iter__(self) -> Iterator[RecordSummary]:
        for run in self.runs():
            for fields in run:
                yield RecordSummary(*fields)

    def runs(self) -> Iterator[list[Fields]]:
        """Return the records, up to a megabyte at a time. No damage lies between those of a run."""
        at = self.end
        while True:
            segment = self._log.segment_at(at)
            run = [] if segment is None else self._run(segment, at)
            if run:
                yield run
                at = run[-1][3] + run[-1][0]
            found = "a file is missing" if segment is None else self._record_or_reason(segment, at)
            if isinstance(found, RecordSummary):
                yield [fields_of(found)]
                at += found.size
                continue
            if isinstance(found, int):
                at += found
                continue
            stop = self._strict and at >= self._trusted
            following = None if stop else self.next_valid(at)
            if following is None:
                break
            self.damage.append(DamagedRange(at, following, found))
            at = following
        if at < self._trusted:
            self.damage.append(DamagedRange(at, self._trusted, found))
            at = self._trusted
        self.end = at

    def _run(self, segment: Segment, at: int) -> list[Fields]:
        """Return the valid records from an offset on that are in the chunk."""
        self._load(segment, at, FIXED_BYTES)
        begin = self._chunk_begin
        end = min(len(self._chunk), segment.end - BLANK_BYTES - begin)
        return examine_run(self._chunk, at - begin, end, begin)

    def _record_or_reason(self, segment: Segment, at: int) -> RecordSummary | int | str:
        """Return the record at an offset, the size of the blank there, or why neither is valid."""
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
            return f"its own offset is {physical}"
        return examine(memoryview(self._chunk), here)

    def _load(self, segment: Segment, at: int, size: int) -> None:
        """Load `size` bytes from `at` on into the chunk, fewer at the end of the file."""
        if self._chunk_begin <= at and at + size <= self._chunk_begin + len(self._chunk):
            return
        size = min(max(size, _CHUNK_BYTES), segment.end - at)
        self._chunk = self._log.read(segment, at, size)
        self._chunk_begin = at

    def record_at(self, at: int) -> RecordSummary | None:
        """Return the record at an offset; None if there is no valid one."""
        segment = self._log.segment_at(at)
        found = None if segment is None else self._record_or_reason(segment, at)
        return found if isinstance(found, RecordSummary) else None

    def next_valid(self, at: int) -> int | None:
        """Return the offset of the first valid record or blank after `at`, or None."""
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
        # Try the record's own size first, so that a body that contains records is not searched.
        self._load(segment, at, FIXED_BYTES)
        here = at - self._chunk_begin
        if len(self._chunk) - here < BLANK_BYTES:
            return None
        size, magic = BLANK.unpack_from(self._chunk, here)
        if magic != MAGIC or not FIXED_BYTES < size <= segment.end - at - BLANK_BYTES:
            return None
        return (
            None if isinstance(self._record_or_reason(segment, at + size), str) else at + int(size)
        )

    def _search(self, segment: Segment, at: int) -> int | None:
        position: int | None = at
        while position is not None and position < segment.end:
            position = self._log.next_data(position)
            if position is None:
                return None
            begin = max(position - 7, segment.begin)  # a magic number may cross the border
            size = min(_CHUNK_BYTES, segment.end - begin)
            chunk = self._log.read(segment, begin, size)
            for hit in _MAGICS.finditer(chunk):
                candidate = begin + hit.start() - 4
                if candidate >= at and not isinstance(
                    self._record_or_reason(segment, candidate), str
                ):
                    return candidate
            position = begin + len(chunk) if len(chunk) == size else None
        return None

    def torn_bytes(self) -> int:
        """Return the number of bytes from `end` to the last one that is not zero."""
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
