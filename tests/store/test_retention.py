from __future__ import annotations

from typing import Any

from coherer._store import ReadStatus

HOUR = 3_600_000


def fill(bench: Any, store: Any, count: int = 60, *, step_ms: int = 1000) -> None:
    for number in range(count):
        store.append([bench.draft(number, "tu"[number % 2], size=1000, key=f"k{number}")])
        bench.clock.ms += step_ms


def filled(bench: Any, count: int = 60, **options: Any) -> Any:
    """A store that exceeds the limits of its options."""
    store = bench.open()
    fill(bench, store, count)
    store.close()
    return bench.open(**options)


def files(bench: Any, *path: str) -> list[int]:
    return sorted(int(name.name) for name in bench.directory.joinpath(*path).iterdir())


def test_retention_by_size(bench: Any, clock: Any) -> None:
    store = filled(bench, retention_bytes=40_000, retention_hours=None)
    assert store.end_offset > 60_000
    assert store.exceeds_size_limit
    before = bench.everything(store)
    assert store.delete_expired(clock.ms) == 2
    assert store.delete_expired(clock.ms) == 0
    assert not store.exceeds_size_limit
    assert files(bench, "commitlog") == [32_768, 49_152, 65_536]
    assert store.min_offset == 32_768
    first, last = store.queue_range("t", 0)
    assert (first, last) == (14, 30)
    assert files(bench, "consumequeue", "t", "0") == [0, 400]
    for key, queue in bench.everything(store).items():
        low, high = store.queue_range(*key)
        assert queue == {at: before[key][at] for at in range(low, high)}
    below = store.read("t", 0, 3, max_bytes=1, max_count=1)
    assert (below.status, below.next_offset) == (ReadStatus.BELOW, 14)
    assert store.record_at(0) is None
    assert store.by_key("t", "k0") == []
    assert len(store.by_key("t", "k58")) == 1
    # The same after a restart, clean or not.
    expected = bench.everything(store)
    crashed = bench.open(bench.crash())
    assert bench.everything(crashed) == expected
    assert crashed.queue_range("t", 0) == (14, 30)
    assert not crashed.recovery.damage
    store.close()
    assert bench.everything(bench.open()) == expected


def test_queue_files_without_messages_are_deleted(bench: Any, clock: Any) -> None:
    store = filled(bench, 150, retention_bytes=1)
    assert store.delete_expired(clock.ms) == 10
    first, last = store.queue_range("t", 0)
    assert (first // 20 * 400, last) == (files(bench, "consumequeue", "t", "0")[0], 75)
    assert first == store.queue_range("u", 0)[0]
    store.close()
    assert bench.open().queue_range("t", 0) == (first, last)


def test_an_idle_queue_keeps_its_offsets(bench: Any, clock: Any) -> None:
    """All messages of the queue are deleted; the next one gets the next offset, not 0."""
    store = bench.open(retention_bytes=1)
    store.append([bench.draft(n, "quiet") for n in range(3)])
    fill(bench, store, 40)
    store.delete_expired(clock.ms)
    assert store.queue_range("quiet", 0) == (3, 3)
    assert store.read("quiet", 0, 3, max_bytes=1, max_count=1).status is ReadStatus.EMPTY
    store.close()
    again = bench.open()
    assert again.queue_range("quiet", 0) == (3, 3)
    again.append([bench.draft(3, "quiet")])
    assert bench.labels(again, "quiet") == {3: "quiet/0/3"}
    assert bench.labels(bench.open(bench.crash()), "quiet") == {3: "quiet/0/3"}


def test_retention_by_age(bench: Any, clock: Any) -> None:
    store = bench.open(retention_hours=1)
    begin = clock.ms
    fill(bench, store, step_ms=60_000)  # an hour, 14 messages per file
    assert store.delete_expired(begin + HOUR) == 0
    assert store.delete_expired(begin + HOUR + 13 * 60_000) == 0
    assert (
        store.delete_expired(begin + HOUR + 14 * 60_000) == 1
    )  # the youngest message of the file is an hour old
    assert store.min_offset == 16_384
    assert store.delete_expired(begin + 100 * HOUR) == 3
    assert len(files(bench, "commitlog")) == 1  # the file that is being written stays
    assert store.queue_range("t", 0)[0] < store.queue_range("t", 0)[1]


def test_no_retention_limit(bench: Any, clock: Any) -> None:
    store = bench.open(retention_hours=None)
    fill(bench, store)
    assert store.delete_expired(clock.ms + 10**6 * HOUR) == 0


def test_index_files_of_deleted_messages_are_deleted(bench: Any, clock: Any) -> None:
    store = filled(bench, 100, retention_bytes=1)
    assert len(files(bench, "index")) == 3
    store.delete_expired(clock.ms)
    assert len(files(bench, "index")) == 1
    assert store.by_key("u", "k1") == []


def test_a_failed_deletion_is_retried(bench: Any, clock: Any, monkeypatch: Any) -> None:
    import pytest

    from coherer._store import OsFiles
    from coherer.errors import StoreError

    files_ = OsFiles()
    store = filled(bench, files=files_, retention_bytes=1)
    expected = bench.everything(store)

    def refuse(path: Any) -> None:
        raise PermissionError(13, "in use", str(path))  # Windows, while it is mapped

    monkeypatch.setattr(files_, "remove", refuse)
    with pytest.raises(StoreError):
        store.delete_expired(clock.ms)
    assert bench.everything(store) == expected
    monkeypatch.undo()
    assert store.delete_expired(clock.ms) == 4


def test_the_size_limit_is_kept_during_appends(bench: Any) -> None:
    """Without calls of `delete_expired`: a producer may be faster than any timer."""
    limit = 80_000
    store = bench.open(retention_bytes=limit)
    largest = 0
    for number in range(0, 600, 3):
        store.append([bench.draft(number + n, "tu"[n % 2], size=1000) for n in range(3)])
        largest = max(largest, store.end_offset - store.min_offset)
        kept = sum(path.stat().st_size for path in (bench.directory / "commitlog").iterdir())
        assert kept <= limit + 2 * 16_384
    assert limit < largest <= limit + 16_384
    first, last = store.queue_range("t", 0)
    assert first > 0
    assert [*bench.labels(store)] == [*range(first, last)]


def test_a_replica_keeps_the_size_limit(bench: Any, tmp_path: Any) -> None:
    master = bench.open()
    fill(bench, master, 200)
    limit = 40_000
    slave = bench.open(tmp_path / "slave", retention_bytes=limit, replica=True)
    while slave.end_offset < master.end_offset:
        slave.append_raw(slave.end_offset, bytes(master.read_raw(slave.end_offset, 1 << 20)))
        assert slave.end_offset - slave.min_offset <= limit + 16_384


def test_the_size_limit_determines_the_file_size() -> None:
    import pytest

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


def test_offsets_of_deleted_messages_are_not_reused(bench: Any, clock: Any) -> None:
    """Queue entries were only in memory when the log file was deleted; then a crash."""
    store = bench.open(retention_bytes=1)
    store.append([bench.draft(n, "quiet") for n in range(3)])
    fill(bench, store, 100)
    store.delete_expired(clock.ms)
    expected = bench.everything(store)
    assert store.min_offset > 0
    crashed = bench.open(bench.crash())
    assert crashed.queue_range("quiet", 0) == (3, 3)
    assert bench.everything(crashed) == expected
    assert not crashed.recovery.damage


def test_old_files_are_deleted_from_a_full_disk(bench: Any, clock: Any, full_files: Any) -> None:
    """Pending entries cannot be written first, because only the deletion frees space."""
    store = bench.open(files=full_files)
    fill(bench, store, 100)
    expected = bench.everything(store)
    full_files.free_sectors = 0
    store.close()
    again = bench.open(files=full_files, retention_bytes=40_000)
    assert again.delete_expired(clock.ms) > 0
    full_files.free_sectors = None
    again.flush_queues()
    for key, found in bench.everything(again).items():
        first, last = again.queue_range(*key)
        assert found == {at: expected[key][at] for at in range(first, last)}
    assert again.end_offset - again.min_offset <= 40_000
