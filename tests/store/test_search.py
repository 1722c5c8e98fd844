from __future__ import annotations

from typing import Any

import pytest


@pytest.fixture
def store(harness: Any, clock: Any) -> Any:
    """Messages at 10, 20, 20, 20, 30, 50 ms after the clock's start."""
    store = harness.open()
    begin = clock.ms
    for number, ms in enumerate([10, 20, 20, 20, 30, 50]):
        clock.ms = begin + ms
        store.append([harness.draft(number, size=5000), harness.draft(number, "other")])
    clock.ms = begin
    return store


@pytest.mark.parametrize(
    ("ms", "first", "nearest"),
    [
        (0, 0, 0), (10, 0, 0), (11, 1, 0), (15, 1, 0), (16, 1, 1), (20, 1, 1), (21, 4, 3),
        (25, 4, 3), (26, 4, 4), (30, 4, 4), (39, 5, 4), (40, 5, 4), (41, 5, 5), (50, 5, 5),
        (51, 6, 5), (999, 6, 5),
    ],
)  # fmt: skip
def test_by_time(store: Any, clock: Any, ms: int, first: int, nearest: int) -> None:
    assert store.offset_at_time("t", 0, clock.ms + ms) == first
    assert store.offset_at_time("t", 0, clock.ms + ms, nearest=True) == nearest


def test_by_time_without_messages(store: Any) -> None:
    assert store.offset_at_time("t", 7, 5) == 0
    assert store.offset_at_time("u", 0, 5, nearest=True) == 0


def test_by_time_after_old_files_were_deleted(harness: Any, store: Any, clock: Any) -> None:
    begin = clock.ms
    store.close()
    again = harness.open(retention_bytes=16_000)
    assert again.delete_expired(begin) == 1
    first, last = again.queue_range("t", 0)
    assert (first, last) == (3, 6)
    assert again.offset_at_time("t", 0, begin) == 3
    assert again.offset_at_time("t", 0, begin + 29) == 4
    assert again.offset_at_time("t", 0, begin, nearest=True) == 3


def test_by_time_skips_damage(harness: Any, store: Any, clock: Any) -> None:
    result = store.read("t", 0, 4, max_bytes=1, max_count=1)
    del result
    image = harness.crash()
    path = sorted((image / "commitlog").iterdir())[1]
    data = bytearray(path.read_bytes())
    at = data.index(b"t/0/4;")
    data[at] ^= 1
    path.write_bytes(data)
    again = harness.open(image)
    assert len(again.recovery.damage) == 1
    assert again.offset_at_time("t", 0, clock.ms + 21) == 5
    assert again.offset_at_time("t", 0, clock.ms + 20) == 1
    assert again.offset_at_time("t", 0, clock.ms + 45, nearest=True) == 5
    # The message before 5 is damaged, and the one before that is the nearest.
    assert again.offset_at_time("t", 0, clock.ms + 21, nearest=True) == 3


def test_by_time_if_the_newest_message_is_damaged(harness: Any, store: Any, clock: Any) -> None:
    """A group that is reset to the present would begin again at 0."""
    store.close()
    path = max((store.directory / "commitlog").iterdir())
    data = bytearray(path.read_bytes())
    data[data.index(b"t/0/5;")] ^= 1
    path.write_bytes(data)
    again = harness.open()
    again.verify()
    assert again.queue_range("t", 0) == (0, 6)
    assert again.offset_at_time("t", 0, clock.ms + 999, nearest=True) == 4
    assert again.offset_at_time("t", 0, clock.ms + 999) == 6
