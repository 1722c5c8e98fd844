"""Retention of single topics: what readers see, and what the log and a restart make of it."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coherer._store import ReadStatus
from coherer._store.topic_retention import TopicLimit
from coherer.errors import UsageError

HOUR_MS = 3_600_000


def range_of(store: Any, topic: str = "t", number: int = 0) -> tuple[int, int]:
    found: tuple[int, int] = store.queue_range(topic, number)
    return found


def test_old_messages_are_hidden(harness: Any) -> None:
    store = harness.open()
    for number in range(10):
        store.append([harness.draft(number, topic) for topic in "tu"])
        harness.clock.ms += HOUR_MS
    limits = {"t": TopicLimit.parse("3h"), "missing": TopicLimit.parse("1h")}
    assert store.topic_retention.apply(limits, harness.clock.ms) == 7
    assert range_of(store) == (7, 10)
    assert range_of(store, "u") == (0, 10)
    found = store.read("t", 0, 0, max_bytes=1 << 20, max_count=100)
    assert (found.status, found.next_offset) == (ReadStatus.BELOW, 7)
    assert len(store.read("t", 0, 7, max_bytes=1 << 20, max_count=100).records) == 3
    assert store.offset_at_time("t", 0, 0) == 7
    harness.clock.ms += 10 * HOUR_MS
    store.topic_retention.apply(limits, harness.clock.ms)
    assert range_of(store) == (10, 10)
    store.append([harness.draft(11)])
    assert range_of(store) == (10, 11)


def test_the_size_of_each_queue_is_limited(harness: Any) -> None:
    store = harness.open()
    limits = {"t": TopicLimit.parse("2KiB")}
    for number in range(100):
        (result,) = store.append([harness.draft(number, size=100)])
        store.append([harness.draft(number, queue_id=1, size=10)])
        store.topic_retention.apply(limits, harness.clock.ms)
        begin, end = range_of(store)
        assert (end - begin) * result.size_bytes <= 2048
    assert (end - begin + 1) * result.size_bytes > 2048
    assert range_of(store, "t", 1)[0] < 100 - 2048 // 200


def test_hidden_messages_stay_in_the_files_until_the_log_drops_them(harness: Any) -> None:
    store = harness.open(retention_hours=100)
    for number in range(300):
        store.append([harness.draft(number, size=400)])
        harness.clock.ms += HOUR_MS // 10
    store.topic_retention.apply({"t": TopicLimit.parse("1h")}, harness.clock.ms)
    hidden = range_of(store)
    assert hidden == (290, 300)
    harness.clock.ms += 80 * HOUR_MS
    assert store.delete_expired(harness.clock.ms) > 0
    assert range_of(store) == hidden
    store.close()
    again = harness.open(retention_hours=100)
    assert not again.recovery.problems()
    begin, end = range_of(again)
    assert 0 < begin < 290, "without a limit they can be read again"
    assert end == 300
    assert len(again.read("t", 0, begin, max_bytes=1 << 20, max_count=1).records) == 1


def test_a_crash_with_hidden_messages_recovers(harness: Any) -> None:
    store = harness.open()
    store.append([harness.draft(number, size=300) for number in range(200)])
    store.flush_queues()
    store.topic_retention.apply({"t": TopicLimit.parse("1KiB")}, harness.clock.ms)
    store.append([harness.draft(number, size=300) for number in range(200, 250)])
    again = harness.open(harness.crash())
    assert not again.recovery.problems()
    assert range_of(again) == (0, 250)


def test_a_deleted_topic_begins_anew(harness: Any) -> None:
    store = harness.open()
    limits = {"t": TopicLimit.parse("1KiB")}
    store.append([harness.draft(number, size=300) for number in range(50)])
    store.topic_retention.apply(limits, harness.clock.ms)
    store.delete_topic("t")
    store.append([harness.draft(number, size=300) for number in range(2)])
    store.topic_retention.apply(limits, harness.clock.ms)
    assert range_of(store) == (0, 2)


@given(sizes=st.lists(st.integers(10, 3000), max_size=60), limit=st.integers(0, 20_000))
def test_as_many_messages_stay_as_fit(
    sizes: list[int], limit: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    from tests.store.conftest import Clock, Harness, draft

    harness = Harness(tmp_path_factory.mktemp("sizes"), Clock())
    store = harness.open()
    stored = [store.append([draft(n, size=size)])[0].size_bytes for n, size in enumerate(sizes)]
    store.topic_retention.apply({"t": TopicLimit(size_bytes=limit)}, harness.clock.ms)
    begin, end = range_of(store)
    assert end == len(stored)
    assert sum(stored[begin:]) <= limit
    assert begin == 0 or sum(stored[begin - 1 :]) > limit
    harness.close()


@pytest.mark.parametrize("text", ["", "24", "h", "1x", "24h/12h", "-1h", "1GiB/1GiB", "10 parsecs"])
def test_malformed_limits(text: str) -> None:
    with pytest.raises(UsageError, match="Write a time"):
        TopicLimit.parse(text)
