"""Walking the log record by record, and finding the way again behind damage.

A record is believed when its lengths fit each other, its body has the right check sum, and the
offset that it names is where it lies. Where that fails the walk looks for the next place where it
holds. If there is one, what lies between is *damage in the middle*, reported and stepped over. If
there is none the log ends: what follows is the torn end of an interrupted write, unless it lies
before `trusted`, up to where the log was known to be on the disk; then it is damage too.

Reading is done by position and not through mappings, so that looking at holes costs no pages.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

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
from coherer._store.log import CommitLog, Segment
from coherer._store.model import DamagedRange

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
