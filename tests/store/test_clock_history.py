"""Elapsed times of messages while the machine's clock is set."""

from __future__ import annotations

from pathlib import Path

import pytest

from coherer._record.layout import decode
from coherer._store import Draft, Store, StoreOptions
from coherer._store.clock_history import ClockHistory
from coherer.testing import ManualClock

OPTIONS = StoreOptions(segment_bytes=1 << 20, queue_segment_bytes=2000, index_enabled=False)
HOUR_MS = 3_600_000


def open_store(directory: Path, clock: ManualClock) -> Store:
    return Store.open(directory, OPTIONS, now_ms=clock.wall_ms, monotonic_ms=clock.now_ms)


def put(store: Store, body: bytes) -> int:
    return store.append([Draft("t", 0, body, b"")])[0].physical_offset


@pytest.mark.parametrize("by_ms", [-HOUR_MS, -10_000, -20, 20, 10_000, HOUR_MS])
def test_elapsed_time_since_a_message_was_stored(tmp_path: Path, by_ms: int) -> None:
    clock = ManualClock()
    stored: list[tuple[int, int]] = []
    with open_store(tmp_path, clock) as store:
        for _ in range(3):
            stored += [(put(store, b"x"), clock.now_ms())]
            clock.turn(by_ms)
            clock.advance(1_000)
        for offset, now_ms in stored:
            record = store.record_at(offset)
            assert record is not None
            found_ms = store.clock_history.stored_ms(offset, decode(record).store_ms)
            assert abs(found_ms - now_ms) <= 50


@pytest.mark.parametrize("by_ms", [-HOUR_MS, HOUR_MS])
def test_store_times_keep_their_order_and_can_be_searched(tmp_path: Path, by_ms: int) -> None:
    clock = ManualClock()
    with open_store(tmp_path, clock) as store:
        begin_ms = clock.wall_ms()
        for turned in (0, by_ms, -by_ms):
            clock.turn(turned)
            for _ in range(5):
                clock.advance(1_000)
                put(store, b"x")
        found = store.read("t", 0, 0, max_bytes=1 << 20, max_count=100)
        times = [decode(record).store_ms for record in found.records]
        assert times == sorted(times)
        offsets = [store.offset_at_time("t", 0, ms) for ms in times]
        assert offsets == [times.index(ms) for ms in times]
        assert store.offset_at_time("t", 0, begin_ms) == 0
        assert store.offset_at_time("t", 0, max(times) + 1) == 15


def test_the_history_is_limited() -> None:
    times = ClockHistory(0, now_ms=0, wall_ms=0)
    for n in range(250_000):  # store times are constant, so each batch differs more
        times.note(n * 100, now_ms=n * 100, wall_ms=n * 100 - HOUR_MS, store_ms=0)
    last = 249_999
    assert times.stored_ms(last * 100, 0) == last * 100
    assert times.born_ms(last * 100, last * 100 - HOUR_MS) == last * 100
    assert times.stored_ms(0, 0) == 0, "the first of all is kept"


def test_replicated_records_count_as_older() -> None:
    times = ClockHistory(100, now_ms=1_000, wall_ms=1_000)
    assert times.is_older(99)
    assert not times.is_older(100)
    times.note_copy(300, 7_000)
    assert times.is_older(299)
    assert times.opened_ms == 7_000
