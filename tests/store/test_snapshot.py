"""The files of a store, read without opening it: what is planned, and in which order it is read."""

from __future__ import annotations

from pathlib import Path

import pytest

from coherer._store import Draft, Store, StoreOptions
from coherer._store.gathering import LogFiles, QueueRange, entries_of
from coherer._store.snapshot import StoreSnapshot
from coherer.errors import UsageError
from tests.store.conftest import Clock

OPTIONS = StoreOptions(segment_bytes=8192, queue_segment_bytes=200, index_enabled=False)
COUNT = 120


@pytest.fixture
def directory(tmp_path: Path, clock: Clock) -> Path:
    """A store with files of 10 entries, and a message each second."""
    with Store.open(tmp_path, OPTIONS, now_ms=clock) as store:
        for number in range(COUNT):
            clock.ms += 1000
            store.append([Draft("a", number % 3, b"%d" % number, b"", number % 2)])
            store.append([Draft("%DLQ%g", 0, b"dead", b"")])
    return tmp_path


def test_queues_topics_and_times(directory: Path, clock: Clock) -> None:
    snapshot = StoreSnapshot(directory)
    assert snapshot.topics() == ["a"]
    assert snapshot.bounds("a") == dict.fromkeys(range(3), (0, COUNT // 3))
    assert snapshot.bounds("%DLQ%g") == {0: (0, COUNT)}
    assert snapshot.has_topic("a")
    assert not snapshot.has_topic("b")
    assert snapshot.broker_name() is None
    assert snapshot.offsets_since("a", clock.ms - 29_500) == dict.fromkeys(range(3), 30)
    assert snapshot.offsets_since("a", clock.ms + 1) == dict.fromkeys(range(3), 40)
    snapshot.close()


def test_entries_are_in_the_order_of_the_log(directory: Path) -> None:
    snapshot = StoreSnapshot(directory)
    ranges = [QueueRange("a", number, 7, 33) for number in range(3)]
    entries, _ = entries_of(directory, ranges)
    assert list(entries.places) == sorted(
        snapshot.record_at("a", number, offset)[0] for number in range(3) for offset in range(7, 33)
    )
    assert entries.sources.tolist() == [0, 1, 2] * 26
    assert entries.offsets.tolist() == [offset for offset in range(7, 33) for _ in range(3)]
    place = int(entries.places[30])
    assert snapshot.first_from("a", 0, place) == 17
    assert snapshot.first_from("a", 0, place + 1) == 18
    snapshot.close()


@pytest.mark.parametrize(("max_bytes", "max_count"), [(1 << 20, 1000), (500, 1000), (1 << 20, 2)])
def test_chunks_hold_the_records(directory: Path, max_bytes: int, max_count: int) -> None:
    entries, _ = entries_of(directory, [QueueRange("a", number, 0, 40) for number in range(3)])
    bodies: list[bytes] = []
    for chunk in LogFiles(directory).chunks(entries, max_bytes, max_count):
        assert chunk.data is not None
        assert len(chunk.entries.places) <= max_count
        for place, size in zip(chunk.entries.places, chunk.entries.sizes, strict=True):
            record = chunk.data[place : place + size]
            bodies.append(bytes(record[88 : 88 + int.from_bytes(record[84:88], "big")]))
    assert bodies == [b"%d" % number for number in range(COUNT)]


def test_scattered_records_are_read_through_a_mapping(directory: Path) -> None:
    entries, _ = entries_of(directory, [QueueRange("a", 0, 0, 40)])
    some = entries.pick(slice(0, 12, 11))
    (chunk,) = LogFiles(directory).chunks(some, 1 << 20, 100)
    assert chunk.data is not None
    assert len(chunk.data) == OPTIONS.segment_bytes


def test_deleted_files_are_no_data(directory: Path) -> None:
    ranges = [QueueRange("a", number, 0, 40) for number in range(3)]
    (entries, _), log = entries_of(directory, ranges), LogFiles(directory)
    files = sorted((directory / "commitlog").iterdir())
    files[0].unlink()
    first, *others = log.chunks(entries, 1 << 20, 1000)
    assert first.data is None
    assert others
    again = next(iter(LogFiles(directory).chunks(entries, 1 << 20, 1000)))
    assert again.data is None
    assert again.entries.offsets.tolist() == first.entries.offsets.tolist()
    snapshot = StoreSnapshot(directory)
    assert min(low for low, _ in snapshot.bounds("a").values()) > 0
    (directory / "consumequeue" / "a" / "0" / f"{0:020d}").unlink()
    left, _ = entries_of(directory, ranges[:1])
    assert left.offsets.tolist() == list(range(10, 40))
    snapshot.close()


def test_other_directories_are_no_stores(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no store"):
        StoreSnapshot(tmp_path)


def test_a_part_of_a_restore_is_no_store(directory: Path, tmp_path: Path) -> None:
    """A reader that skips what is lost would take it for the whole."""
    mark = tmp_path / "restore-incomplete"
    mark.touch()
    with pytest.raises(UsageError, match="has not finished"):
        StoreSnapshot(directory)
    mark.unlink()
    StoreSnapshot(directory).close()
