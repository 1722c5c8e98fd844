from __future__ import annotations

from typing import Any

import pytest

from coherer._store import ReadStatus
from coherer.errors import StoreFullError

HOUR = 3_600_000


def fill(harness: Any, store: Any, count: int = 60, *, step_ms: int = 1000) -> None:
    for number in range(count):
        store.append([harness.draft(number, "tu"[number % 2], size=1000, key=f"k{number}")])
        harness.clock.ms += step_ms


def filled(harness: Any, count: int = 60, **options: Any) -> Any:
    """A store that exceeds the limits of its options."""
    store = harness.open()
    fill(harness, store, count)
    store.close()
    return harness.open(**options)


def files(harness: Any, *path: str) -> list[int]:
    return sorted(int(name.name) for name in harness.directory.joinpath(*path).iterdir())


def test_retention_by_size(harness: Any, clock: Any) -> None:
    store = filled(harness, retention_bytes=40_000, retention_hours=None)
    assert store.end_offset > 60_000
    assert store.exceeds_size_limit
    before = harness.everything(store)
    assert store.delete_expired(clock.ms) == 2
    assert store.delete_expired(clock.ms) == 0
    assert not store.exceeds_size_limit
    assert files(harness, "commitlog") == [32_768, 49_152, 65_536]
    assert store.min_offset == 32_768
    first, last = store.queue_range("t", 0)
    assert (first, last) == (14, 30)
    assert files(harness, "consumequeue", "t", "0") == [0, 400]
    for key, queue in harness.everything(store).items():
        low, high = store.queue_range(*key)
        assert queue == {at: before[key][at] for at in range(low, high)}
    below = store.read("t", 0, 3, max_bytes=1, max_count=1)
    assert (below.status, below.next_offset) == (ReadStatus.BELOW, 14)
    assert store.record_at(0) is None
    assert store.by_key("t", "k0") == []
    assert len(store.by_key("t", "k58")) == 1
    # The same after a restart, clean or not.
    expected = harness.everything(store)
    crashed = harness.open(harness.crash())
    assert harness.everything(crashed) == expected
    assert crashed.queue_range("t", 0) == (14, 30)
    assert not crashed.recovery.damage
    store.close()
    assert harness.everything(harness.open()) == expected


def test_queue_files_without_messages_are_deleted(harness: Any, clock: Any) -> None:
    store = filled(harness, 150, retention_bytes=1)
    assert store.delete_expired(clock.ms) == 10
    first, last = store.queue_range("t", 0)
    assert (first // 20 * 400, last) == (files(harness, "consumequeue", "t", "0")[0], 75)
    assert first == store.queue_range("u", 0)[0]
    store.close()
    assert harness.open().queue_range("t", 0) == (first, last)


def test_an_idle_queue_keeps_its_offsets(harness: Any, clock: Any) -> None:
    """All messages of the queue are deleted; the next one gets the next offset, not 0."""
    store = harness.open(retention_bytes=1)
    store.append([harness.draft(n, "quiet") for n in range(3)])
    fill(harness, store, 40)
    store.delete_expired(clock.ms)
    assert store.queue_range("quiet", 0) == (3, 3)
    assert store.read("quiet", 0, 3, max_bytes=1, max_count=1).status is ReadStatus.EMPTY
    store.close()
    again = harness.open()
    assert again.queue_range("quiet", 0) == (3, 3)
    again.append([harness.draft(3, "quiet")])
    assert harness.labels(again, "quiet") == {3: "quiet/0/3"}
    assert harness.labels(harness.open(harness.crash()), "quiet") == {3: "quiet/0/3"}


def test_retention_by_age(harness: Any, clock: Any) -> None:
    store = harness.open(retention_hours=1)
    begin = clock.ms
    fill(harness, store, step_ms=60_000)  # an hour, 14 messages per file
    assert store.delete_expired(begin + HOUR) == 0
    assert store.delete_expired(begin + HOUR + 13 * 60_000) == 0
    assert (
        store.delete_expired(begin + HOUR + 14 * 60_000) == 1
    )  # the youngest message of the file is an hour old
    assert store.min_offset == 16_384
    assert store.delete_expired(begin + 100 * HOUR) == 3
    assert len(files(harness, "commitlog")) == 1  # the file that is being written stays
    assert store.queue_range("t", 0)[0] < store.queue_range("t", 0)[1]


def test_no_retention_limit(harness: Any, clock: Any) -> None:
    store = harness.open(retention_hours=None)
    fill(harness, store)
    assert store.delete_expired(clock.ms + 10**6 * HOUR) == 0


def test_index_files_of_deleted_messages_are_deleted(harness: Any, clock: Any) -> None:
    store = filled(harness, 100, retention_bytes=1)
    assert len(files(harness, "index")) == 3
    store.delete_expired(clock.ms)
    assert len(files(harness, "index")) == 1
    assert store.by_key("u", "k1") == []


def test_a_failed_deletion_is_retried(harness: Any, clock: Any, monkeypatch: Any) -> None:
    from coherer._store import OsFiles
    from coherer.errors import StoreError

    files_ = OsFiles()
    store = filled(harness, files=files_, retention_bytes=1)
    expected = harness.everything(store)

    def refuse(path: Any) -> None:
        raise PermissionError(13, "in use", str(path))  # Windows, while it is mapped

    monkeypatch.setattr(files_, "remove", refuse)
    with pytest.raises(StoreError):
        store.delete_expired(clock.ms)
    assert harness.everything(store) == expected
    monkeypatch.undo()
    assert store.delete_expired(clock.ms) == 4


def test_queue_files_that_cannot_be_deleted_are_deleted_later(
    harness: Any, clock: Any, monkeypatch: Any
) -> None:
    """Meanwhile no queue begins before the log, neither that of the file nor any other."""
    from coherer._store import OsFiles
    from coherer.errors import StoreError

    files_ = OsFiles()
    store = filled(harness, 150, files=files_, retention_bytes=1)
    remove = files_.remove

    def refuse(path: Any) -> None:
        if "consumequeue" in path.parts:
            raise PermissionError(13, "in use", str(path))
        remove(path)

    monkeypatch.setattr(files_, "remove", refuse)
    with pytest.raises(StoreError):
        store.delete_expired(clock.ms)
    for topic in "tu":
        first, last = store.queue_range(topic, 0)
        assert 0 < first == min(harness.labels(store, topic)) < last
        assert files(harness, "consumequeue", topic, "0")[0] == 0
    monkeypatch.undo()
    assert store.delete_expired(clock.ms) == 0
    for topic in "tu":
        assert files(harness, "consumequeue", topic, "0")[0] > 0


def test_the_size_limit_is_kept_during_appends(harness: Any) -> None:
    """Without calls of `delete_expired`: a producer may be faster than any timer."""
    limit = 80_000
    store = harness.open(retention_bytes=limit)
    largest = 0
    for number in range(0, 600, 3):
        store.append([harness.draft(number + n, "tu"[n % 2], size=1000) for n in range(3)])
        largest = max(largest, store.end_offset - store.min_offset)
        kept = sum(path.stat().st_size for path in (harness.directory / "commitlog").iterdir())
        assert kept <= limit + 2 * 16_384
    assert limit < largest <= limit + 16_384
    first, last = store.queue_range("t", 0)
    assert first > 0
    assert [*harness.labels(store)] == [*range(first, last)]


def test_a_replica_keeps_the_size_limit(harness: Any, tmp_path: Any) -> None:
    master = harness.open()
    fill(harness, master, 200)
    limit = 40_000
    slave = harness.open(tmp_path / "slave", retention_bytes=limit, replica=True)
    while slave.end_offset < master.end_offset:
        slave.append_raw(slave.end_offset, bytes(master.read_raw(slave.end_offset, 1 << 20)))
        assert slave.end_offset - slave.min_offset <= limit + 16_384


def test_the_size_limit_determines_the_file_size() -> None:
    from coherer._store.model import check_retention, segment_bytes_for
    from coherer.errors import UsageError

    mib = 1 << 20
    assert segment_bytes_for(None, 4 * mib) == 1024 * mib
    assert segment_bytes_for(800 * mib, 4 * mib) == 100 * mib
    assert segment_bytes_for(10**15, 4 * mib) == 1024 * mib
    assert 4 * mib < segment_bytes_for(16 * mib, 4 * mib) < 5 * mib  # a message must fit
    for limit in (0, 1, 4 * mib, 8 * mib):
        with pytest.raises(UsageError, match=r"retention_bytes is .* or more"):
            segment_bytes_for(limit, 4 * mib)
    check_retention(None, 1024 * mib)
    check_retention(32 * mib, 16 * mib)
    with pytest.raises(UsageError, match="33,554,432 or more"):
        check_retention(31 * mib, 16 * mib)


def test_offsets_of_deleted_messages_are_not_reused(harness: Any, clock: Any) -> None:
    """Queue entries were only in memory when the log file was deleted; then a crash."""
    store = harness.open(retention_bytes=1)
    store.append([harness.draft(n, "quiet") for n in range(3)])
    fill(harness, store, 100)
    store.delete_expired(clock.ms)
    expected = harness.everything(store)
    assert store.min_offset > 0
    crashed = harness.open(harness.crash())
    assert crashed.queue_range("quiet", 0) == (3, 3)
    assert harness.everything(crashed) == expected
    assert not crashed.recovery.damage


def test_old_files_are_deleted_from_a_full_disk(harness: Any, clock: Any, full_files: Any) -> None:
    """The queues are past them, so that the deletion needs no space."""
    store = filled(harness, 100, files=full_files, retention_bytes=40_000)
    expected = harness.everything(store)
    full_files.free_sectors = 0
    assert store.delete_expired(clock.ms) > 0
    for key, found in harness.everything(store).items():
        first, last = store.queue_range(*key)
        assert found == {at: expected[key][at] for at in range(first, last)}
    assert store.end_offset - store.min_offset <= 40_000


def test_a_file_is_kept_while_the_queues_are_not_past_it(
    harness: Any, clock: Any, full_files: Any
) -> None:
    """A crash after the deletion would leave queues that know nothing of its messages."""
    store = harness.open(files=full_files)
    store.append([harness.draft(n, "quiet") for n in range(3)])
    fill(harness, store, 100)
    full_files.free_sectors = 0
    store.close()
    again = harness.open(files=full_files, retention_bytes=40_000)
    expected = harness.everything(again)
    with pytest.raises(StoreFullError, match="Old log files are kept"):
        again.delete_expired(clock.ms)
    full_files.free_sectors = None
    crashed = harness.open(harness.crash())
    assert not crashed.recovery.damage
    assert harness.everything(crashed) == expected
    assert again.delete_expired(clock.ms) > 0
    expected = harness.everything(again)
    crashed = harness.open(harness.crash("again"))
    assert not crashed.recovery.damage
    assert harness.everything(crashed) == expected
    assert crashed.queue_range("quiet", 0) == (3, 3)


def test_a_file_that_is_missing_since_the_checkpoint_damages_no_other(harness: Any) -> None:
    """An earlier version deleted it before the queues were past it, on a full disk."""
    store = harness.open()
    store.append([harness.draft(0, "t")])
    store.flush_queues()
    fill(harness, store, 100)
    expected = harness.everything(store)
    image = harness.crash()
    (image / "commitlog" / f"{0:020}").unlink()
    crashed = harness.open(image)
    assert not crashed.recovery.damage
    for key, found in harness.everything(crashed).items():
        first, last = crashed.queue_range(*key)
        assert first > 0
        assert found == {at: expected[key][at] for at in range(first, last)}
        assert last == max(expected[key]) + 1
