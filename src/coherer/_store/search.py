"""Finding messages by time and by key."""

from __future__ import annotations

from coherer._record.layout import properties_of, spans, store_ms_of
from coherer._record.properties import decode, index_keys
from coherer._store.commit_log import CommitLog
from coherer._store.consume_queue import BLANK_SIZE, ConsumeQueue
from coherer._store.index import KeyIndex
from coherer.errors import DamagedStoreError


def offset_at_time(log: CommitLog, queue: ConsumeQueue, ms: int, *, nearest: bool) -> int:
    """Find a queue offset by store time; see `Store.offset_at_time`."""

    def holds(_: int, offset: int, size: int) -> bool | None:
        stored_ms = _store_ms(log, offset, size)
        return None if stored_ms is None else stored_ms >= ms

    found = queue.first_where(holds)
    if not nearest or found <= queue.min:
        return found if found < queue.max or not nearest else 0
    before_ms, after_ms = _time_of(log, queue, found - 1), _time_of(log, queue, found)
    if before_ms is None:
        return found if after_ms is not None else 0
    if after_ms is None:
        return found - 1
    return found - 1 if ms - before_ms <= after_ms - ms and after_ms != ms else found


def _time_of(log: CommitLog, queue: ConsumeQueue, index: int) -> int | None:
    entry = queue.entry(index) if index < queue.max else None
    if entry is None or entry[1] == BLANK_SIZE:
        return None
    return _store_ms(log, entry[0], entry[1])


def _store_ms(log: CommitLog, offset: int, size: int) -> int | None:
    segment = log.segment_at(offset)
    if segment is None or not log.begin <= offset < log.end or log.damaged(offset):
        return None
    here = offset - segment.begin
    try:
        return store_ms_of(log.view_of(segment)[here : here + size])
    except (DamagedStoreError, IndexError):
        return None


def by_key(
    log: CommitLog,
    index: KeyIndex,
    topic: str,
    key: str,
    *,
    max_count: int,
    begin_ms: int,
    end_ms: int,
) -> list[memoryview]:
    """Find records that have a key, newest first; see `Store.by_key`."""
    records: list[memoryview] = []
    seen: set[int] = set()

    def accept(offset: int) -> bool:
        record = log.record_at(offset) if offset not in seen else None
        seen.add(offset)
        if record is None or not begin_ms <= store_ms_of(record) <= end_ms:
            return False
        found = spans(record)
        if bytes(record[found.topic_begin : found.topic_end]) != topic.encode():
            return False
        if key not in index_keys(decode(properties_of(record))):
            return False
        records.append(record)
        return True

    index.find(topic, key, (begin_ms, end_ms), accept, max_count)
    return records
