"""The log as replicas get it: verified, and filled where it is damaged.

A replica verifies what it copies, and Java's slaves stop at the first bytes that are no record. So
where its log is damaged, or a file of it is missing, the master sends a *hole*: records that are as
long as the damage, of a topic that does not exist, and marked as rolled back. No broker, ours or
Java's, puts such a record into a queue. The master's own files stay as they are.

The content of a hole depends only on its place and on the record behind it, because a slave that
connects compares the end of its log with the master's.

A start verifies only the end of the log (`StoreOptions.verify_bytes`). The files before it are
verified when the first replica copies them, a megabyte at a time.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import Final

from coherer._common.logs import Log
from coherer._record.layout import (
    BLANK_BYTES,
    HOLE_TOPIC,
    RECORD_BYTES_MIN,
    ROLLED_BACK,
    blank,
    encode,
    store_ms_of,
)
from coherer._store.commit_log import CommitLog
from coherer._store.model import DamagedRange
from coherer._store.recovery import is_covered
from coherer._store.scanner import Scanner

_log = Log(logging.getLogger(__name__))

_PIECE_BYTES: Final = 1 << 20
_EMPTY_BYTES: Final = len(
    encode(HOLE_TOPIC, b"", b"", queue_id=0, queue_offset=0, physical_offset=0, store_ms=0)
)


def hole(begin: int, end: int, segment_end: int, store_ms: int) -> bytes:
    """Return records that are as long as the damage between two offsets of one log file.

    The result is empty if no record is that short.

    >>> len(hole(1000, 1500, 4096, 0)), len(hole(1000, 4096, 4096, 0)), hole(0, 50, 4096, 0)
    (500, 3096, b'')
    """
    return b"".join(records for _, records in _pieces(begin, end, segment_end, store_ms))


def _pieces(
    begin: int, end: int, segment_end: int, store_ms: int, first: int = 0
) -> Iterator[tuple[int, bytes]]:
    """Return the records of a hole that end after an offset, each with its offset."""
    tail = BLANK_BYTES if end == segment_end else 0
    if tail and end - begin < RECORD_BYTES_MIN + tail:
        if end - begin >= tail:
            yield begin, blank(end - begin) + bytes(end - begin - tail)
        return
    if end - begin < RECORD_BYTES_MIN:
        return
    while begin < end - tail:
        size = end - tail - begin
        if size > _PIECE_BYTES:
            size = min(_PIECE_BYTES, size - RECORD_BYTES_MIN)
        if begin + size > first:
            yield begin, _record(begin, size, store_ms)
        begin += size
    if tail:
        yield begin, blank(tail)


@lru_cache(maxsize=2)  # a record is sent in many pieces
def _record(begin: int, size: int, store_ms: int) -> bytes:
    return encode(
        HOLE_TOPIC,
        bytes(size - _EMPTY_BYTES),
        b"",
        queue_id=0,
        queue_offset=0,
        physical_offset=begin,
        store_ms=store_ms,
        sys_flag=ROLLED_BACK,
    )


def filled(log: CommitLog, offset: int, size: int, damage: Iterable[DamagedRange]) -> memoryview:
    """Return bytes of one file of the log, with holes instead of the damage.

    Args:
        log: the log.
        offset: of the first byte.
        size: the largest number of bytes.
        damage: all damage of the log that is known.
    """
    file_begin = offset - offset % log.segment_bytes
    file_end = file_begin + log.segment_bytes
    data = log.read_raw(offset, size)
    if log.segment_at(offset) is None and log.begin <= offset < log.shown:
        data = memoryview(bytes(min(size, file_end - offset)))
        behind = (one.begin for one in log.segments if one.begin > offset)
        damage = [DamagedRange(file_begin, next(behind, file_end), "a file is missing")]
    stop, found = offset + len(data), bytearray()
    for piece in damage:
        if piece.end <= offset or piece.begin >= stop:
            continue
        following = log.record_at(piece.end)
        store_ms = 0 if following is None else store_ms_of(following)
        begin, end = max(piece.begin, file_begin), min(piece.end, file_end)
        for at, records in _pieces(begin, end, file_end, store_ms, offset):
            if at >= stop:
                break
            found = found or bytearray(data)
            first, last = max(at, offset), min(at + len(records), stop)
            found[first - offset : last - offset] = records[first - at : last - at]
    return memoryview(bytes(found)) if found else data


class Source:
    """Reads the log for replicas.

    Args:
        torn: what power cuts have torn, as far as it is known.
        verified_from: the start has verified the log from this offset on.
    """

    def __init__(self, log: CommitLog, torn: Iterable[DamagedRange], verified_from: int) -> None:
        self._log = log
        self._torn = frozenset(torn)
        self._verified_from = verified_from
        self._files: dict[int, _File] = {}  # by their first offset

    def read(self, offset: int, max_bytes: int) -> memoryview:
        """Return bytes of the log, up to the end of their file.

        The result is empty at the end of the log, and also if it must be verified further: then
        call again after other work.
        """
        segment = self._log.segment_at(offset)
        if segment is not None and offset < self._verified_from:
            file = self._files.get(segment.begin)
            if file is None:
                file = _File(self._log, segment.begin, min(segment.end, self._verified_from))
                self._files[segment.begin] = file
            if file.verified <= offset and not self._verify(file, offset):
                return memoryview(b"")
            max_bytes = min(max_bytes, file.verified - offset)
        return self.known(offset, max_bytes)

    def known(self, offset: int, max_bytes: int) -> memoryview:
        """Return bytes of the log, up to the end of their file, without verifying them."""
        damage = self._torn.union(self._log.damage)
        if not damage and self._log.segment_at(offset) is not None:
            return self._log.read_raw(offset, max_bytes)
        return filled(self._log, offset, max_bytes, damage)

    def _verify(self, file: _File, offset: int) -> bool:
        """Verify more of a file; return whether this has reached a byte behind an offset."""
        known = self._log.damage
        found = [
            piece
            for piece in file.go_on()
            if not is_covered(piece, known) and not is_covered(piece, self._torn)
        ]
        for piece in found:
            _log.error(
                "Bytes %d to %d of the log are lost: %s. Readers skip them, and slaves get the log "
                "without them. If you have a copy of the files, stop the node and restore them.",
                piece.begin,
                piece.end,
                piece.reason,
            )
        if found:
            kept = [piece for piece in known if not is_covered(piece, found)]
            self._log.damage = tuple(sorted([*kept, *found], key=lambda piece: piece.begin))
        return file.verified > offset


class _File:
    """How far a file is verified.

    Args:
        begin: its first offset.
        end: where its records need not be verified any more.
    """

    def __init__(self, log: CommitLog, begin: int, end: int) -> None:
        self.verified = begin
        self._log = log
        self._begin, self._end = begin, end
        self._scanner: Scanner | None = Scanner(log, begin, end)
        self._runs = self._scanner.runs()
        self._seen = 0

    def go_on(self) -> list[DamagedRange]:
        """Verify about a megabyte more, and return the damage in it."""
        scanner = self._scanner
        if scanner is None:
            return []
        run = next(self._runs, None)
        if run is None or run[0][3] >= self._end:
            self.verified, self._scanner, self._runs = self._end, None, iter(())
            if (segment := self._log.segment_at(self._begin)) is not None:
                self._log.release(segment)
        else:
            self.verified = run[-1][3] + run[-1][0]
        damage = scanner.damage[self._seen :]
        self._seen = len(scanner.damage)
        return [piece for piece in damage if piece.begin < self._end]
