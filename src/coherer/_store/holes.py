"""Fills the damaged parts of the log in what replicas get.

A replica verifies what it copies, and Java's slaves stop at the first bytes that are no record. So
where its log is damaged, the master sends a *hole*: records that are as long as the damage, of a
topic that does not exist, and marked as rolled back. No broker, ours or Java's, puts such a record
into a queue. The master's own files stay as they are.

The content of a hole depends only on its place and on the record behind it, because a slave that
connects compares the end of its log with the master's.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

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
    size = end - begin
    tail = blank(BLANK_BYTES) if end == segment_end else b""
    if end == segment_end and size < RECORD_BYTES_MIN + BLANK_BYTES:
        return blank(size) + bytes(size - BLANK_BYTES) if size >= BLANK_BYTES else b""
    if size < RECORD_BYTES_MIN:
        return b""
    return b"".join([*_records(begin, end - len(tail), store_ms), tail])


def _records(begin: int, end: int, store_ms: int) -> Iterator[bytes]:
    while begin < end:
        size = end - begin
        if size > _PIECE_BYTES:
            size = min(_PIECE_BYTES, size - RECORD_BYTES_MIN)
        yield encode(
            HOLE_TOPIC,
            bytes(size - _EMPTY_BYTES),
            b"",
            queue_id=0,
            queue_offset=0,
            physical_offset=begin,
            store_ms=store_ms,
            sys_flag=ROLLED_BACK,
        )
        begin += size


def filled(
    log: CommitLog, offset: int, data: memoryview, damage: Iterable[DamagedRange]
) -> memoryview:
    """Return bytes of one file of the log, with holes instead of the damage.

    Args:
        log: the log.
        offset: of the first byte.
        data: the bytes.
        damage: all damage of the log that is known.
    """
    stop, found = offset + len(data), bytearray()
    for piece in damage:
        segment = log.segment_at(offset)
        if segment is None or piece.end <= offset or piece.begin >= stop:
            continue
        begin, end = max(piece.begin, segment.begin), min(piece.end, segment.end)
        following = log.record_at(piece.end)
        store_ms = 0 if following is None else store_ms_of(following)
        if records := hole(begin, end, segment.end, store_ms):
            found = found or bytearray(data)
            first, last = max(begin, offset), min(end, stop)
            found[first - offset : last - offset] = records[first - begin : last - begin]
    return memoryview(bytes(found)) if found else data
