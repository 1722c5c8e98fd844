"""Queues of the schedule topic hold delivery times, also after a rebuild."""

from __future__ import annotations

import shutil
from typing import Any

import pytest

from coherer._record.system_topics import SCHEDULE_TOPIC
from coherer._store import QueueEntry


def test_entries_hold_store_time_plus_delay(bench: Any) -> None:
    store = bench.open()
    placed = store.append([bench.draft(0, SCHEDULE_TOPIC, 2, tag="a"), bench.draft(1, "t", tag="")])
    assert store.entries(SCHEDULE_TOPIC, 2, 0, 10) == [
        QueueEntry(0, placed[0].physical_offset, placed[0].size_bytes, bench.clock.ms + 10_000)
    ]
    assert store.entries("t", 0, 0, 10)[0].code == 0


def test_delay_levels_of_the_options_are_used(bench: Any) -> None:
    store = bench.open(delay_levels_ms=(7, 70))
    store.append([bench.draft(0, SCHEDULE_TOPIC, 1), bench.draft(1, SCHEDULE_TOPIC, 2, tag="TagA")])
    assert store.entries(SCHEDULE_TOPIC, 1, 0, 1)[0].code == bench.clock.ms + 70
    assert store.entries(SCHEDULE_TOPIC, 2, 0, 1)[0].code == 2598919  # there is no such level


@pytest.mark.parametrize("rebuild", [False, True])
def test_a_rebuilt_entry_is_the_same(bench: Any, rebuild: bool) -> None:
    store = bench.open()
    for number in range(30):
        store.append([bench.draft(number, SCHEDULE_TOPIC, number % 3)])
        bench.clock.ms += 13
    before = [store.entries(SCHEDULE_TOPIC, level, 0, 10) for level in range(3)]
    image = bench.crash()
    if rebuild:
        shutil.rmtree(image / "consumequeue")
    bench.clock.ms += 100_000
    again = bench.open(image)
    assert again.recovery.replayed == 30
    assert [again.entries(SCHEDULE_TOPIC, level, 0, 10) for level in range(3)] == before


def test_entries_stop_at_the_end_of_a_file(bench: Any) -> None:
    store = bench.open()  # 20 entries per file
    store.append([bench.draft(number) for number in range(30)])
    store.flush_queues()
    assert [entry.offset for entry in store.entries("t", 0, 5, 100)] == list(range(5, 20))
    assert [entry.offset for entry in store.entries("t", 0, 20, 3)] == [20, 21, 22]
    assert store.entries("t", 0, 30, 3) == store.entries("t", 7, 0, 3) == []
