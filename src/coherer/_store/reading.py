"""Reads messages: by queue offset (the hot path of reading), by time, and by key.

A bit may have flipped in an entry of a queue, so that it leads to another message. A record is
delivered if it is the message of this queue at this offset; otherwise it counts as damaged. Of
records that are adjacent in the log, the first and the last one are looked at: an entry that leads
elsewhere is not adjacent to both of its neighbours, because the right place is between them.
"""

from __future__ import annotations

import struct
import threading
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import lru_cache
from itertools import accumulate, compress
from operator import add, ne
from typing import Final, TypeAlias

from coherer._record.layout import (
    BLANK_BYTES,
    are_messages,
    is_message,
    properties_of,
    spans,
    store_ms_of,
)
from coherer._record.properties import decode, index_keys
from coherer._store.commit_log import CommitLog
from coherer._store.consume_queue import BLANK_SIZE, ENTRY, GAP_CODE, ConsumeQueue
from coherer._store.index import KeyIndex
from coherer._store.model import QueueEntry, ReadResult, ReadStatus

SCAN_ENTRIES: Final = 16_000
"""A filter that lets nothing through looks at this many entries per read, as in Java."""

ReadJoined: TypeAlias = Callable[[CommitLog, ConsumeQueue, int, int, int], ReadResult | None]

_CHUNK_ENTRIES: Final = 2_000
FEW_ENTRIES: Final = 256
_LARGE_BYTES: Final = 1024 * 1024
"""Reads of this many bytes are faster with numpy."""
_LARGE_READS: Final = 200
"""numpy is loaded after this many of them. A large read saves 0.1 to 0.6 ms with it, and loading it
takes 120 ms of CPU and 25 MB of memory."""


class _Collector:
    """Collects records until there are enough."""

    __slots__ = (
        "bytes_left",
        "count_left",
        "damaged",
        "identity",
        "log",
        "next",
        "offsets",
        "physical",
        "records",
    )

    def __init__(
        self, log: CommitLog, queue: ConsumeQueue, offset: int, max_bytes: int, max_count: int
    ) -> None:
        self.log = log
        self.identity = queue.topic_head, queue.queue_id
        self.next = offset
        self.bytes_left = max_bytes
        self.count_left = max_count
        self.records: list[memoryview] = []
        self.offsets: list[int] = []
        self.physical = 0
        self.damaged: list[int] = []

    def collect(self, entries: bytes, tags: frozenset[int] | None) -> bool:
        """Collect the records of some entries; return False when there are enough."""
        records, offsets = self.records, self.offsets
        begin = end = 0
        view = memoryview(b"")
        at = self.next
        bytes_left = self.bytes_left
        has_damage = bool(self.log.damage)
        topic_head, queue_id = self.identity
        try:
            for physical, size, tag in ENTRY.iter_unpack(entries):
                if tags is not None and tag not in tags:
                    at += 1
                    continue
                if not begin <= physical < end:
                    segment = self.log.segment_at(physical)
                    if segment is None:
                        if tag != GAP_CODE or size != BLANK_SIZE:
                            self.damaged.append(at)
                        at += 1
                        continue
                    begin, end = segment.begin, segment.end
                    view = self.log.view_of(segment)
                here = physical - begin
                if (
                    here + size > len(view)
                    or not is_message(view, here, size, topic_head, queue_id, at)
                    or (has_damage and self.log.is_damaged(physical))
                ):
                    if tag != GAP_CODE or size != BLANK_SIZE:
                        self.damaged.append(at)
                    at += 1
                    continue
                bytes_left -= size
                if bytes_left < 0 and records:
                    return False
                records.append(view[here : here + size])
                offsets.append(at)
                at += 1
                self.physical = physical + size
                if len(records) >= self.count_left:
                    return False
        finally:
            self.next = at
            self.bytes_left = bytes_left
        return True


def read_queue(
    log: CommitLog,
    queue: ConsumeQueue | None,
    offset: int,
    max_bytes: int,
    max_count: int,
    tags: frozenset[int] | None,
) -> ReadResult:
    """Read records of a queue; see `Store.read`."""
    if queue is None:
        status = ReadStatus.BEYOND if offset > 0 else ReadStatus.EMPTY
        return ReadResult(status, [], [], 0, 0, 0, 0)
    first, last = queue.min, queue.max
    if not first <= offset < last:
        status, next_offset = _outside(first, last, offset)
        return ReadResult(status, [], [], next_offset, first, last, 0)
    if tags is None and not log.damage:
        found = _read_slices(log, queue, offset, max_bytes, max_count)
        if found is not None:
            return found
    collector = _Collector(log, queue, offset, max_bytes, max_count)
    wanted = max_count if tags is None else _CHUNK_ENTRIES
    stop = min(last, offset + SCAN_ENTRIES)
    while collector.next < stop:
        entries = queue.read(collector.next, min(wanted, stop - collector.next))
        if not collector.collect(entries, tags):
            break
        if tags is None and (collector.records or collector.damaged):
            break
        wanted = _CHUNK_ENTRIES  # a filter matched nothing, or a power cut left a gap here
    status = ReadStatus.FOUND if collector.records else ReadStatus.NO_MATCH
    backlog = log.shown - collector.physical if collector.physical else 0
    return ReadResult(
        status,
        collector.records,
        collector.offsets,
        collector.next,
        first,
        last,
        backlog,
        collector.damaged,
    )


def _read_slices(
    log: CommitLog, queue: ConsumeQueue, offset: int, max_bytes: int, max_count: int
) -> ReadResult | None:
    """Read undamaged records of one log file with no per-record Python work.

    Returns None if the records are in several files, or if an entry is wrong; then the caller reads
    record by record.
    """
    physical, sizes = _positions(queue, offset, max_bytes, max_count)
    count = len(sizes)
    segment = log.segment_at(physical[0]) if count else None
    if segment is None or physical[-1] + sizes[-1] > segment.end:
        return None
    view, base = log.view_of(segment), segment.begin
    places = [at - base for at in physical]
    if min(places) < 0 or not are_messages(
        view, places, sizes, queue.topic_head, queue.queue_id, range(offset, offset + count)
    ):
        return None
    records = [view[at : at + size] for at, size in zip(places, sizes, strict=True)]
    return ReadResult(
        ReadStatus.FOUND,
        records,
        list(range(offset, offset + count)),
        offset + count,
        queue.min,
        queue.max,
        log.shown - physical[-1] - sizes[-1],
    )


def read_slices(
    log: CommitLog, queue: ConsumeQueue | None, offset: int, max_bytes: int, max_count: int
) -> ReadResult | None:
    """Read records of a queue as slices of adjacent records; see `Store.read_slices`."""
    if queue is None or log.damage or not queue.min <= offset < queue.max:
        return None
    wanted = _wanted(queue, offset, max_bytes, max_count)
    read_joined = None
    if wanted > FEW_ENTRIES:
        read_joined = JOINING.function(large=max_bytes >= _LARGE_BYTES)
    if read_joined is not None:
        found = read_joined(log, queue, offset, max_bytes, wanted)
        if found is not None:
            return found
    physical, sizes = _positions(queue, offset, max_bytes, max_count)
    segment = log.segment_at(physical[0]) if sizes else None
    if segment is None:
        return None
    # Each log file has its own mapping: stop at its end.
    begin, end = segment.begin, segment.end
    if physical[-1] + sizes[-1] > end:
        count = bisect_right(list(map(add, physical, sizes)), end)
        physical, sizes = physical[:count], sizes[:count]
    if not sizes:
        return None
    view, count = log.view_of(segment), len(sizes)
    stretches = _stretches(view, begin, queue, offset, physical, sizes)
    if stretches is None:
        return None
    slices = [
        view[physical[first] - begin : physical[last] + sizes[last] - begin]
        for first, last in stretches
    ]
    return ReadResult(
        ReadStatus.FOUND,
        slices,
        [],
        offset + count,
        queue.min,
        queue.max,
        log.shown - physical[-1] - sizes[-1],
        heads_match=len(slices) == count,
    )


def _stretches(
    view: memoryview,
    base: int,
    queue: ConsumeQueue,
    offset: int,
    physical: Sequence[int],
    sizes: Sequence[int],
) -> list[tuple[int, int]] | None:
    """Return the first and the last one of adjacent records, for each stretch of them.

    Args:
        view: the log file with the records.
        base: the log offset at which it begins.
        offset: the queue offset of the first record.

    Returns:
        Indexes into `physical`; None if an entry is wrong. See the module.
    """
    if min(physical) < base or min(sizes) < BLANK_BYTES:
        return None
    count, head, queue_id = len(sizes), queue.topic_head, queue.queue_id
    if count == 1:  # soon, for those who wait for each message
        is_it = is_message(view, physical[0] - base, sizes[0], head, queue_id, offset)
        return [(0, 0)] if is_it else None
    breaks = list(compress(range(1, count), map(ne, map(add, physical, sizes), physical[1:])))
    firsts, lasts = [0, *breaks], [*(at - 1 for at in breaks), count - 1]
    ends = sorted({*firsts, *lasts})
    here, there = [physical[at] - base for at in ends], [sizes[at] for at in ends]
    numbers = [offset + at for at in ends]
    if not are_messages(view, here, there, head, queue_id, numbers):
        return None
    return list(zip(firsts, lasts, strict=True))


def _positions(
    queue: ConsumeQueue, offset: int, max_bytes: int, max_count: int
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the log offsets and sizes of one or more records of a queue."""
    entries = queue.read(offset, _wanted(queue, offset, max_bytes, max_count))
    numbers = _entries(len(entries) // ENTRY.size).unpack(entries)
    physical, sizes = numbers[::3], numbers[1::3]
    if sum(sizes) > max_bytes:
        count = max(1, bisect_right(list(accumulate(sizes)), max_bytes))
        physical, sizes = physical[:count], sizes[:count]
    return physical, sizes


def _wanted(queue: ConsumeQueue, offset: int, max_bytes: int, max_count: int) -> int:
    """Return how many entries to read, estimated from `max_bytes`."""
    wanted = min(max_count, queue.max - offset)
    if wanted > FEW_ENTRIES:
        _, size, _ = ENTRY.unpack(queue.read(offset, 1))
        wanted = min(wanted, max(FEW_ENTRIES, 2 * max_bytes // max(size, 1)))
    return wanted


class Joining:
    """Loads `joining.read_joined`, which needs numpy, after many large reads.

    The import takes tenths of a second, so it runs in a separate thread. Reads are slower until it
    has finished, and stay so if numpy is not installed.
    """

    def __init__(self) -> None:
        self._function: ReadJoined | None = None
        self._large_reads = 0

    def function(self, *, large: bool) -> ReadJoined | None:
        """Return the function if it is loaded; start loading it with the last of many large reads.

        Args:
            large: whether it is for a large read.
        """
        if large and self._function is None:
            self._large_reads += 1
            if self._large_reads == _LARGE_READS:
                threading.Thread(target=self.load, name="import numpy", daemon=True).start()
        return self._function

    def load(self) -> None:
        """Load the function; return when it is loaded, or when loading has failed."""
        with suppress(ImportError):
            from coherer._store.joining import read_joined  # needs numpy, an extra

            self._function = read_joined


JOINING: Final = Joining()
"""The loader of this process."""


@lru_cache(maxsize=64)
def _entries(count: int) -> struct.Struct:
    return struct.Struct(">" + "qiq" * count)


def _outside(first: int, last: int, offset: int) -> tuple[ReadStatus, int]:
    if offset < first:
        return ReadStatus.BELOW, first
    if offset == last:
        return ReadStatus.EMPTY, last
    return ReadStatus.BEYOND, last


def entries(queue: ConsumeQueue | None, offset: int, count: int) -> list[QueueEntry]:
    """Read entries of a queue; see `Store.entries`."""
    if queue is None or not queue.min <= offset < queue.max:
        return []
    found = ENTRY.iter_unpack(queue.read(offset, count))
    return [QueueEntry(number, *fields) for number, fields in enumerate(found, offset)]


def place_of(queue: ConsumeQueue | None, offset: int) -> int | None:
    """Find the log offset of a message; see `Store.place_of`."""
    if queue is None or not queue.min <= offset < queue.max:
        return None
    place, size_bytes, _ = ENTRY.unpack(queue.read(offset, 1))
    return None if size_bytes == BLANK_SIZE else place


def offset_at_time(log: CommitLog, queue: ConsumeQueue, ms: int, *, nearest: bool) -> int:
    """Find a queue offset by store time; see `Store.offset_at_time`."""

    def is_later(index: int, offset: int, size: int) -> bool | None:
        stored_ms = _store_ms(log, queue, index, offset, size)
        return None if stored_ms is None else stored_ms >= ms

    found = queue.first_where(is_later)
    if not nearest:
        return found
    before, after_ms = found, _time_of(log, queue, found)
    while before > queue.min:
        before = queue.before_gap(before) - 1
        before_ms = _time_of(log, queue, before) if before >= queue.min else None
        if before_ms is not None:  # otherwise it is damaged
            is_nearer = after_ms is None or (ms - before_ms <= after_ms - ms and after_ms != ms)
            return before if is_nearer else found
    return found if after_ms is not None else 0


def _time_of(log: CommitLog, queue: ConsumeQueue, index: int) -> int | None:
    entry = queue.entry(index) if index < queue.max else None
    if entry is None or entry[1] == BLANK_SIZE:
        return None
    return _store_ms(log, queue, index, entry[0], entry[1])


def _store_ms(
    log: CommitLog, queue: ConsumeQueue, index: int, offset: int, size: int
) -> int | None:
    """When the message of an entry was stored; None if it is damaged."""
    segment = log.segment_at(offset)
    if segment is None or not log.begin <= offset < log.shown or log.is_damaged(offset):
        return None
    view, here = log.view_of(segment), offset - segment.begin
    if not is_message(view, here, size, queue.topic_head, queue.queue_id, index):
        return None
    return store_ms_of(view, here)


def search_key(
    log: CommitLog,
    index: KeyIndex,
    topic: str,
    key: str,
    *,
    max_count: int,
    begin_ms: int,
    end_ms: int,
) -> Iterator[memoryview | None]:
    """Find records that have a key, newest first; see `Store.search_key`."""
    seen: set[int] = set()
    for offsets in index.slices(topic, key, (begin_ms, end_ms)):
        for offset in offsets:
            record = log.record_at(offset) if offset not in seen else None
            seen.add(offset)
            if record is None or not begin_ms <= store_ms_of(record) <= end_ms:
                continue
            found = spans(record)
            if bytes(record[found.topic_begin : found.topic_end]) != topic.encode():
                continue
            if key in index_keys(decode(properties_of(record))):
                yield record
                max_count -= 1
            if max_count <= 0:
                return
        yield None
