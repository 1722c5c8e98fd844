"""Readers pass over the gap that a power cut left in a queue's offsets."""

from __future__ import annotations

from typing import Any

import pytest

from coherer._store import OsFiles, ReadStatus
from coherer._store.offset_reserve import LEAD_MIN


class Unknown(OsFiles):
    """A system that does not say when it was started: each crash counts as a power cut."""

    def boot_id(self) -> bytes:
        return b""


@pytest.fixture
def store(harness: Any) -> Any:
    """Offsets 0 to 9, a gap, and two more messages."""
    first = harness.open(files=Unknown())
    first.append([harness.draft(n) for n in range(10)])
    again = harness.open(harness.crash(), files=Unknown())
    again.append([harness.draft(10), harness.draft(11)])
    return again


@pytest.mark.parametrize("count", [1, 32, 9999])
@pytest.mark.parametrize("at", [8, 10, 100])
def test_one_read_reaches_the_next_message(store: Any, at: int, count: int) -> None:
    begin = store.queue_range("t", 0)[1] - 2
    assert begin >= LEAD_MIN
    offsets: list[int] = []
    reads, wanted = 0, 2 + max(10 - at, 0)
    while len(offsets) < wanted:
        found = store.read("t", 0, at, max_bytes=1 << 20, max_count=count)
        assert found.status is ReadStatus.FOUND
        assert not found.damaged
        offsets += found.offsets
        at, reads = found.next_offset, reads + 1
    assert offsets[-2:] == [begin, begin + 1]
    assert reads <= 4


def test_stretches_end_at_the_gap(store: Any) -> None:
    limits = {"max_bytes": 1 << 20, "max_count": 9999}
    assert store.read_stretches("t", 0, 0, **limits).next_offset == 10
    assert store.read_stretches("t", 0, 10, **limits) is None


def test_times_and_places(store: Any, harness: Any) -> None:
    begin = store.queue_range("t", 0)[1] - 2
    assert store.place_of("t", 0, 50) is None
    assert store.place_of("t", 0, begin) is not None
    assert store.offset_at_time("t", 0, harness.clock.ms + 1) == begin + 2
    assert store.offset_at_time("t", 0, harness.clock.ms) == 0


def test_retention_deletes_the_gap_with_the_messages(harness: Any) -> None:
    first = harness.open(files=Unknown())
    first.append([harness.draft(n, size=1000) for n in range(30)])
    again = harness.open(harness.crash(), files=Unknown(), retention_bytes=1)
    for number in range(60):
        again.append([harness.draft(number, "tu"[number % 2], size=1000)])
    again.flush_queues()
    assert again.delete_expired(harness.clock.ms) > 0
    low, high = again.queue_range("t", 0)
    assert LEAD_MIN <= low < high
    assert sorted(harness.labels(again)) == list(range(low, high))
