"""Queues of the schedule topic hold delivery times, also after a rebuild."""

from __future__ import annotations

import shutil
from typing import Any

import pytest

from coherer._record.system_topics import SCHEDULE_TOPIC
from coherer._store import QueueEntry


def test_entries_hold_store_time_plus_delay(harness: Any) -> None:
    store = harness.open()
    placed = store.append(
        [harness.draft(0, SCHEDULE_TOPIC, 2, tag="a"), harness.draft(1, "t", tag="")]
    )
    assert store.entries(SCHEDULE_TOPIC, 2, 0, 10) == [
        QueueEntry(0, placed[0].physical_offset, placed[0].size_bytes, harness.clock.ms + 10_000)
    ]
    assert store.entries("t", 0, 0, 10)[0].code == 0


def test_delay_levels_of_the_options_are_used(harness: Any) -> None:
    store = harness.open(delay_levels_ms=(7, 70))
    store.append(
        [harness.draft(0, SCHEDULE_TOPIC, 1), harness.draft(1, SCHEDULE_TOPIC, 2, tag="TagA")]
    )
    assert store.entries(SCHEDULE_TOPIC, 1, 0, 1)[0].code == harness.clock.ms + 70
    assert store.entries(SCHEDULE_TOPIC, 2, 0, 1)[0].code == 2598919  # there is no such level


@pytest.mark.parametrize("rebuild", [False, True])
def test_a_rebuilt_entry_is_the_same(harness: Any, rebuild: bool) -> None:
    store = harness.open()
    for number in range(30):
        store.append([harness.draft(number, SCHEDULE_TOPIC, number % 3)])
        harness.clock.ms += 13
    before = [store.entries(SCHEDULE_TOPIC, level, 0, 10) for level in range(3)]
    image = harness.crash()
    if rebuild:
        shutil.rmtree(image / "consumequeue")
    harness.clock.ms += 100_000
    again = harness.open(image)
    assert again.recovery.replayed == 30
    assert [again.entries(SCHEDULE_TOPIC, level, 0, 10) for level in range(3)] == before


def test_entries_stop_at_the_end_of_a_file(harness: Any) -> None:
    store = harness.open()  # 20 entries per file
    store.append([harness.draft(number) for number in range(30)])
    store.flush_queues()
    assert [entry.offset for entry in store.entries("t", 0, 5, 100)] == list(range(5, 20))
    assert [entry.offset for entry in store.entries("t", 0, 20, 3)] == [20, 21, 22]
    assert store.entries("t", 0, 30, 3) == store.entries("t", 7, 0, 3) == []
