"""Readers pass over the gap that a power cut left in a queue's offsets."""

from __future__ import annotations

from pathlib import Path
from shutil import rmtree
from typing import Any

import pytest

from coherer._store import ReadStatus
from coherer._store.config_files import ConfigFiles
from coherer._store.consume_queue import ENTRY_BYTES, GAP_ENTRY, ConsumeQueue
from coherer._store.files import ReadOnlyFiles
from coherer._store.gathering import QueueRange, entries_of
from coherer._store.offset_reserve import LEAD_MIN
from coherer._store.snapshot import StoreSnapshot
from coherer.errors import StoreFullError
from tests.copies import copy_tree
from tests.power import Booted, Unknown, tear


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


def test_slices_end_at_the_gap(store: Any) -> None:
    limits = {"max_bytes": 1 << 20, "max_count": 9999}
    assert store.read_slices("t", 0, 0, **limits).next_offset == 10
    assert store.read_slices("t", 0, 10, **limits) is None


def test_the_files_tell_gaps_from_damage(store: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    store.flush_queues()
    end = store.queue_range("t", 0)[1]
    entries, gaps = entries_of(store.directory, [QueueRange("t", 0, 0, end)])
    assert entries.offsets.tolist() == [*range(10), end - 2, end - 1]
    assert gaps.offsets.tolist() == [*range(10, end - 2)]
    snapshot, reads = StoreSnapshot(store.directory), []
    read = ReadOnlyFiles.read

    def counted(files: ReadOnlyFiles, *place: int) -> bytes:
        reads.append(place)
        return read(files, *place)

    monkeypatch.setattr(ReadOnlyFiles, "read", counted)
    following = entries.places[-2], entries.sizes[-2]
    assert {snapshot.record_at("t", 0, at) for at in (10, 50, end - 2)} == {following}
    # One for each file of 20 entries: a gap of a busy node has hundreds of thousands of offsets.
    assert len(reads) <= 3 * (end // 20 + 1)
    assert snapshot.record_at("t", 0, end)[1] == 0
    snapshot.close()


def test_a_replica_has_the_gap_of_its_master(store: Any, harness: Any, tmp_path: Path) -> None:
    """Also after a crash that loses the entries of its queues."""
    replica = harness.open(tmp_path / "replica", replica=True)
    replica.append_raw(0, bytes(store.read_raw(0, store.end_offset)))
    killed = tmp_path / "killed"
    copy_tree(replica.directory, killed)
    for copy in (replica, harness.open(killed, replica=True)):
        assert copy.recovery.damage == ()
        assert copy.queue_range("t", 0) == store.queue_range("t", 0)
        found = copy.read("t", 0, 10, max_bytes=1 << 20, max_count=32)
        assert found.offsets == store.read("t", 0, 10, max_bytes=1 << 20, max_count=32).offsets
        assert found.gaps(10) == [range(10, found.offsets[0])]
        assert not found.damaged


def test_times_and_places(store: Any, harness: Any) -> None:
    begin = store.queue_range("t", 0)[1] - 2
    assert store.place_of("t", 0, 50) is None
    assert store.place_of("t", 0, begin) is not None
    assert store.offset_at_time("t", 0, harness.clock.ms + 1) == begin + 2
    assert store.offset_at_time("t", 0, harness.clock.ms) == 0


@pytest.mark.parametrize("nearest", [False, True])
def test_a_search_by_time_does_not_walk_through_the_gap(
    store: Any, harness: Any, monkeypatch: pytest.MonkeyPatch, nearest: bool
) -> None:
    """It may have a million entries, and the node answers nobody else meanwhile."""
    begin, end = 10, store.queue_range("t", 0)[1]
    real, asked = ConsumeQueue.entry, 0

    def entry(queue: Any, index: int) -> Any:
        nonlocal asked
        asked += 1
        return real(queue, index)

    monkeypatch.setattr(ConsumeQueue, "entry", entry)
    ms = harness.clock.ms
    for wanted_ms in (ms - 1, ms, ms + 1):
        store.offset_at_time("t", 0, wanted_ms, nearest=nearest)
    assert asked < (end - begin) / 3


def test_a_reader_in_the_gap_is_inside_of_the_queue(harness: Any) -> None:
    """Also when the messages before the gap are deleted, and when there were none."""
    first = harness.open(files=Unknown())
    first.append([harness.draft(n, size=1000) for n in range(30)])
    again = harness.open(harness.crash(), files=Unknown(), retention_bytes=1)
    again.append([harness.draft(0, "t", 1)])
    assert again.queue_range("t", 1)[0] == 0
    for number in range(60):
        again.append([harness.draft(number, "u", size=1000)])
    again.append([harness.draft(30)])
    again.flush_queues()
    again.delete_expired(harness.clock.ms)
    assert again.min_offset > 30_000
    low, high = again.queue_range("t", 0)
    assert low == 30
    assert high > LEAD_MIN
    again.close()
    again = harness.open(again.directory, files=Unknown(), retention_bytes=1)
    assert again.queue_range("t", 0) == (30, high)


def test_a_queue_goes_on_when_a_reader_stands_behind_its_end(harness: Any) -> None:
    first = harness.open(files=Unknown())
    first.append([harness.draft(n) for n in range(10)])
    limits = {"max_bytes": 1 << 20, "max_count": 32}
    image = harness.crash()
    ends: set[int] = set()
    for _ in range(2):
        store = harness.open(image, files=Unknown())
        store.know_topics("t".__eq__)
        assert store.queue_range("t", 0)[1] == 10  # Java's broker would not stand a gap at the end
        assert store.read("t", 0, 10, **limits).status is ReadStatus.EMPTY
        assert store.read("t", 0, 1 << 40, **limits).status is ReadStatus.BEYOND
        assert store.queue_range("t", 0)[1] == 10
        found = store.read("t", 0, 20, **limits)
        assert found.status is ReadStatus.NO_MATCH
        assert found.next_offset == store.queue_range("t", 0)[1] >= LEAD_MIN
        ends.add(found.next_offset)
        assert store.read("t", 1, 3, **limits).status is ReadStatus.NO_MATCH  # it was all lost
        assert store.read("v", 0, 3, **limits).status is ReadStatus.BEYOND  # there is no such topic
        store.close()
    # The gap is not filled twice.
    assert len(ends) == 1
    store = harness.open(image, files=Unknown())
    assert store.append([harness.draft(99)])[0].queue_offset in ends


def test_a_topic_that_is_being_created_again_has_no_gap(harness: Any) -> None:
    """A reader stands where it was in the topic of that name that was deleted."""
    harness.open(files=Unknown()).append([harness.draft(0)])
    store = harness.open(harness.crash(), files=Unknown())
    store.know_topics("t".__eq__)
    store.save_topics_first("t".__eq__)
    assert store.read("t", 1, 3, max_bytes=1 << 20, max_count=32).status is ReadStatus.BEYOND
    assert store.queue_range("t", 1) == (0, 0)


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


@pytest.mark.parametrize("torn", [0, 5])
def test_a_message_that_a_power_cut_took_alone_is_a_gap(harness: Any, torn: int) -> None:
    """A stream would stop there for ever, with an error about a bad record."""
    first = harness.open(files=Unknown())
    first.append([harness.draft(n, size=500) for n in range(10)])
    image = harness.crash()
    tear(image, b"t/0/%d;" % torn)
    limits = {"max_bytes": 1 << 20, "max_count": 32}
    for lives in range(4):
        store = harness.open(image, files=Unknown())
        assert store.queue_range("t", 0) == (0, 10)
        found = store.read("t", 0, torn, **limits)
        assert found.gaps(torn) == [range(torn, torn + 1)]
        assert not found.damaged
        assert found.offsets == list(range(torn + 1, 10))
        # Later starts find it again: after a kill, in the log, and when queues are rebuilt.
        if lives == 0:
            image = image.with_name("killed")
            copy_tree(store.directory, image)
        else:
            store.close()
        if lives == 1 and torn:  # otherwise the queue would begin at its first message
            rmtree(image / "consumequeue")
        if lives == 2:
            [path] = (image / "consumequeue" / "t" / "0").iterdir()
            data = bytearray(path.read_bytes())
            data[20 * 7 + 3] ^= 1
            path.write_bytes(data)


def test_a_full_disk_at_the_start_does_not_make_it_damage(
    harness: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The start cannot note what is torn; messages follow; it is killed; another start looks."""
    first = harness.open(files=Booted(b"1" * 16))
    first.append([harness.draft(n, size=500) for n in range(10)])
    image = harness.crash()
    tear(image, b"t/0/5;")

    def full(_: ConfigFiles, name: str, data: bytes) -> None:
        raise StoreFullError(f"No space for the {len(data)} bytes of {name}.")

    with monkeypatch.context() as patch:
        patch.setattr(ConfigFiles, "save", full)
        store = harness.open(image, files=Booted(b"2" * 16))
        store.append([harness.draft(n, size=500) for n in range(10, 20)])
        copy_tree(image, tmp_path / "killed")
        store.close()
    again = harness.open(tmp_path / "killed", files=Booted(b"2" * 16))
    found = again.read("t", 0, 5, max_bytes=1 << 20, max_count=32)
    assert not found.damaged
    assert found.gaps(5)[0] == range(5, 6)


def test_a_message_that_is_damaged_without_a_power_cut_is_no_gap(harness: Any) -> None:
    first = harness.open()
    first.append([harness.draft(n, size=500) for n in range(10)])
    image = harness.crash()
    tear(image, b"t/0/5;")
    store = harness.open(image)
    found = store.read("t", 0, 5, max_bytes=1 << 20, max_count=32)
    assert found.damaged == [5]
    assert found.gaps(5) == []


@pytest.mark.parametrize("torn", [10, 11, 15])
def test_half_an_entry_of_a_gap_is_no_damaged_message(
    harness: Any, tmp_path: Path, torn: int
) -> None:
    """A power cut took the end of a gap's entry, and all that was behind it."""
    first = harness.open(files=Unknown())
    first.append([harness.draft(n) for n in range(10)])
    first.flush_queues()
    crashed = harness.open(harness.crash(), files=Unknown())
    crashed.flush_queues()
    image = tmp_path / "torn"
    copy_tree(crashed.directory, image)
    file = next((image / "consumequeue" / "t" / "0").iterdir())
    written = file.read_bytes()[: 10 * ENTRY_BYTES] + GAP_ENTRY * (torn - 10) + GAP_ENTRY[:12]
    file.write_bytes(written.ljust(file.stat().st_size, b"\0"))
    again = harness.open(image, files=Unknown())
    (placed,) = again.append([harness.draft(10)])
    again.flush_queues()
    entries, gaps = entries_of(image, [QueueRange("t", 0, 0, placed.queue_offset + 1)])
    offsets = sorted([*entries.offsets.tolist(), *gaps.offsets.tolist()])
    assert offsets == list(range(placed.queue_offset + 1))


@pytest.mark.parametrize("torn", [1, 3])
def test_rebuilt_queues_begin_with_the_gap_that_a_power_cut_tore_into_their_first_messages(
    harness: Any, torn: int
) -> None:
    """A reader in the gap is never before the beginning of its queue."""
    first = harness.open(files=Unknown())
    first.append([harness.draft(n, size=500) for n in range(10)])
    image = harness.crash()
    for number in range(torn):
        tear(image, b"t/0/%d;" % number)
    store = harness.open(image, files=Unknown())
    begin, end = store.queue_range("t", 0)
    assert begin == 0
    store.close()
    rmtree(image / "consumequeue")
    again = harness.open(image, files=Unknown())
    assert again.queue_range("t", 0) == (begin, end)
    found = again.read("t", 0, 0, max_bytes=1 << 20, max_count=32)
    assert found.gaps(0) == [range(torn)]
    assert found.offsets == list(range(torn, 10))
