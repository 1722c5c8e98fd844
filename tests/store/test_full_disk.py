"""A full disk: a batch is rejected completely, and the store recovers when space is free."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest

from coherer._store import OsFiles
from coherer.errors import StoreError, StoreFullError


def batch(harness: Any, begin: int, count: int = 30, **how: Any) -> list[Any]:
    return [
        harness.draft(begin + n, "tu"[n % 2], n % 3, size=700, key=f"k{n}", **how)
        for n in range(count)
    ]


def test_a_file_that_cannot_be_removed_refuses_the_next_batch_as_a_whole(harness: Any) -> None:
    """A write fails behind the beginning of a new file, and so does what takes the file back."""

    class Disk(OsFiles):
        fails = False

        def sync(self, handle: int) -> None:
            self._check()
            super().sync(handle)

        def remove(self, path: Path) -> None:
            self._check()
            super().remove(path)

        def _check(self) -> None:
            if self.fails:
                raise OSError(errno.EROFS, "Read-only file system")

    disk = Disk()
    store = harness.open(files=disk)
    store.append([harness.draft(0)])
    disk.fails = True
    for begin in (1, 31):
        with pytest.raises(StoreError):
            store.append([harness.draft(begin + n, size=700) for n in range(30)])
    disk.fails = False
    assert [one.queue_offset for one in store.append([harness.draft(61)])] == [1]
    assert harness.labels(store) == {0: "t/0/0", 1: "t/0/61"}


@pytest.mark.parametrize("free_sectors", [0, 1, 5, 20, 31, 32, 40, 41, 43, 46, 60])
def test_a_full_disk_rejects_a_batch_and_the_store_recovers(
    harness: Any, full_files: Any, free_sectors: int
) -> None:
    store = harness.open(files=full_files)
    store.append(batch(harness, 0, 5))
    before, end = harness.everything(store), store.end_offset
    full_files.free_sectors = free_sectors
    refused = 0
    for _ in range(3):
        try:
            store.append(batch(harness, 100))
        except StoreFullError:
            refused += 1
            assert harness.everything(store) == before
            assert store.end_offset == end
            # It is not visible after a restart either.
            crashed = harness.open(harness.crash())
            assert harness.everything(crashed) == before
            assert not crashed.recovery.damage
            crashed.close()
        else:
            before, end = harness.everything(store), store.end_offset
    assert refused
    full_files.free_sectors = None
    placed = store.append(batch(harness, 200))
    assert placed[0].physical_offset == end
    after = harness.everything(store)
    assert sum(map(len, after.values())) == sum(map(len, before.values())) + 30
    assert harness.everything(harness.open(harness.crash())) == after
    store.close()
    again = harness.open()
    assert harness.everything(again) == after
    assert again.recovery.clean
    assert not again.recovery.damage
    firsts = [name for name in after["t", 0].values() if int(name.split("/")[2]) % 100 == 0]
    assert {harness.label(record) for record in again.by_key("t", "k0")} == set(firsts)


def test_any_operation_may_fail(harness: Any, full_files: Any) -> None:
    store = harness.open(files=full_files)
    store.append(batch(harness, 0, 3))
    number, survived = 1000, 0
    for fail_at in range(200):
        before = harness.everything(store)
        full_files.fail_at = fail_at
        number += 100
        try:
            store.append(batch(harness, number, 40))
        except StoreFullError:
            assert harness.everything(store) == before
            full_files.fail_at = None
            crashed = harness.open(harness.crash())
            assert harness.everything(crashed) == before
            crashed.close()
        else:
            survived += 1
            full_files.fail_at = None
            if survived == 3:
                break
    assert survived == 3
    expected = harness.everything(store)
    store.close()
    again = harness.open()
    assert harness.everything(again) == expected
    assert (again.recovery.clean, again.recovery.damage) == (True, ())


def test_a_failed_batch_is_cut_off_later_if_necessary(harness: Any) -> None:
    """Even the cleanup fails at first; it is done before the next write."""

    class Stubborn(OsFiles):
        left: int | None = None

        def write(self, handle: int, data: bytes, offset: int) -> None:
            if self.left is not None:
                self.left -= 1
                if self.left < 0:
                    raise OSError(errno.EDQUOT, "Disk quota exceeded")
            super().write(handle, data, offset)

    files = Stubborn()
    store = harness.open(files=files)
    store.append(batch(harness, 0, 3))
    before = harness.everything(store)
    for left in (0, 1, 2, 3):
        files.left = left
        with pytest.raises(StoreFullError):
            store.append(batch(harness, 100, 120))
        assert harness.everything(store) == before
    files.left = None
    store.append(batch(harness, 200, 2))
    expected = harness.everything(store)
    assert sum(map(len, expected.values())) == 5
    crashed = harness.open(harness.crash())
    assert harness.everything(crashed) == expected
    assert not crashed.recovery.damage
    assert crashed.recovery.cut_bytes == 0


def test_keys_stay_in_memory_while_the_disk_is_full(harness: Any, full_files: Any) -> None:
    store = harness.open(files=full_files)
    store.append(batch(harness, 0, 6))
    full_files.free_sectors = 0
    with pytest.raises(StoreFullError):
        store.flush_queues()
    assert len(store.by_key("t", "k0")) == 1  # found in memory
    full_files.free_sectors = None
    store.flush_queues()
    assert len(store.by_key("t", "k0")) == 1
    assert len(list((harness.directory / "index").iterdir())) == 1


def test_pending_keys_are_limited(harness: Any, full_files: Any) -> None:
    store = harness.open(files=full_files, pending_keys_max=4)
    store.append(batch(harness, 0, 6))
    full_files.free_sectors = 0
    before = harness.everything(store)
    with pytest.raises(StoreFullError):
        store.append([harness.draft(9, key="k9")])
    assert harness.everything(store) == before
    store_without_keys = [harness.draft(9, size=1)]
    full_files.free_sectors = None
    store.append(store_without_keys)
    store.append([harness.draft(10, key="k9")])
    assert [harness.label(record) for record in store.by_key("t", "k9")] == ["t/0/10"]


def test_a_full_disk_can_be_opened_and_read(harness: Any, full_files: Any) -> None:
    store = harness.open()
    store.append(batch(harness, 0, 6))
    expected = harness.everything(store)
    full_files.free_sectors = 0
    again = harness.open(harness.crash(), files=full_files)
    assert harness.everything(again) == expected
    assert "The disk is full" in str(again.recovery)
    with pytest.raises(StoreFullError):
        again.append(batch(harness, 100))
    full_files.free_sectors = None
    again.append(batch(harness, 100, 1))


def test_a_full_disk_keeps_the_old_configuration(harness: Any, full_files: Any) -> None:
    store = harness.open(files=full_files)
    store.save_config("topics.json", b"old")
    full_files.free_sectors = 0
    with pytest.raises(StoreFullError):
        store.save_config("topics.json", b"new")
    assert store.read_config("topics.json", bytes) == b"old"
    full_files.free_sectors = None
    store.save_config("topics.json", b"new")
    assert store.read_config("topics.json", bytes) == b"new"


def test_other_errors_are_not_reported_as_full(harness: Any) -> None:
    class Broken(OsFiles):
        broken = False

        def write(self, handle: int, data: bytes, offset: int) -> None:
            if self.broken:
                raise OSError(errno.EIO, "Input/output error")
            super().write(handle, data, offset)

    files = Broken()
    store = harness.open(files=files)
    files.broken = True
    with pytest.raises(StoreError) as caught:
        store.append([harness.draft(0)])
    assert not isinstance(caught.value, StoreFullError)
    files.broken = False
    store.append([harness.draft(0)])


@pytest.mark.parametrize("written", [50, 1 << 20], ids=["a part", "everything"])
def test_a_refused_message_that_stays_on_the_disk_is_stored_later_or_never(
    harness: Any, written: int
) -> None:
    """While it is there, nothing else is stored: no offset means two messages."""

    class Failing(OsFiles):
        broken = False

        def write(self, handle: int, data: bytes, offset: int) -> None:
            if not self.broken:
                super().write(handle, data, offset)
                return
            if data.strip(b"\0"):
                super().write(handle, data[:written], offset)
            raise OSError(errno.EIO, "Input/output error")

    files = Failing()
    store = harness.open(files=files)
    store.append([harness.draft(0)])
    store.flush_queues()
    end = store.end_offset
    files.broken = True
    for number in (1, 2):
        with pytest.raises(StoreError):
            store.append([harness.draft(number)])
    assert (store.end_offset, store.queue_range("t", 0)) == (end, (0, 1))
    with pytest.raises(StoreError):
        store.close()
    again = harness.open()
    [result] = again.append([harness.draft(3)])
    stays = {1: "t/0/1"} if written > 50 else {}
    assert harness.labels(again) == {0: "t/0/0", **stays, result.queue_offset: "t/0/3"}


def test_too_many_open_files_is_a_temporary_error(harness: Any) -> None:
    """A file that cannot be opened is not synced, but nothing is lost: unlike after a failed sync
    the store resumes automatically."""

    class Few(OsFiles):
        none_left = False

        def open(self, path: Path, *, create: bool = False) -> int:
            if self.none_left:
                raise OSError(errno.EMFILE, "Too many open files")
            return super().open(path, create=create)

        def sync_directory(self, path: Path) -> None:
            if self.none_left:
                raise OSError(errno.ENFILE, "Too many open files in system")
            super().sync_directory(path)

    files = Few()
    store = harness.open(files=files)
    store.append(batch(harness, 0, 6))
    before = harness.everything(store)
    files.none_left = True
    store.append([harness.draft(9, "new")])  # the file of its queue is created later
    before = harness.everything(store)
    assert before["new", 0] == {0: "new/0/9"}
    for what in (store.flush, store.flush_queues, lambda: store.append(batch(harness, 50, 40))):
        with pytest.raises(StoreFullError, match="Too many open files"):
            what()
    files.none_left = False
    assert store.flush() == store.end_offset == store.durable_offset
    files.none_left = True
    with pytest.raises(StoreFullError):
        store.flush_queues()
    files.none_left = False
    store.flush_queues()
    assert harness.everything(store) == before
    store.append(batch(harness, 100, 6))
    expected = harness.everything(store)
    store.close()
    again = harness.open()
    assert harness.everything(again) == expected
    assert again.recovery.clean


def test_a_store_on_a_full_disk_can_be_closed(harness: Any, full_files: Any) -> None:
    """The messages are in the log; the next open rebuilds the rest from it."""
    store = harness.open(files=full_files)
    store.append([harness.draft(0)])
    store.flush_queues()
    store.append(batch(harness, 1, 6))
    expected = harness.everything(store)
    full_files.free_sectors = 0
    store.close()
    assert "The disk is full" in store.close_error
    assert store.durable_offset == store.end_offset
    full_files.free_sectors = None
    again = harness.open()
    assert harness.everything(again) == expected
    assert not again.recovery.clean
    assert not again.recovery.damage
    assert len(again.by_key("t", "k0")) == 1
    again.close()
    assert again.close_error == ""
    assert harness.open().recovery.clean


def test_a_file_that_cannot_grow_stays_open_for_nobody(harness: Any) -> None:
    """Otherwise senders that try again would use up the open files of the process."""

    class Limited(OsFiles):
        left = 10**6
        limited = False

        def open(self, path: Path, *, create: bool = False) -> int:
            if not self.left:
                raise OSError(errno.EMFILE, "Too many open files")
            self.left -= 1
            return super().open(path, create=create)

        def close(self, handle: int) -> None:
            self.left += 1
            super().close(handle)

        def resize(self, handle: int, size: int) -> None:
            if self.limited and size:
                raise OSError(errno.EFBIG, "File too large")
            super().resize(handle, size)

    files = Limited()
    store = harness.open(files=files)
    files.limited, files.left = True, 3
    for _ in range(9):
        with pytest.raises(StoreFullError, match="The disk is full"):
            store.append([harness.draft(0)])
    files.limited, files.left = False, 99
    store.append([harness.draft(1)])
    assert harness.labels(store) == {0: "t/0/1"}


def test_queue_files_are_synced_after_a_log_that_could_not_be_written_again(harness: Any) -> None:
    """The next checkpoint covers their entries."""

    class Failing(OsFiles):
        error = 0

        def __init__(self) -> None:
            self.synced: set[str] = set()
            self.paths: dict[int, Path] = {}

        def open(self, path: Path, *, create: bool = False) -> int:
            handle = super().open(path, create=create)
            self.paths[handle] = path
            return handle

        def write(self, handle: int, data: bytes, offset: int) -> None:
            if self.error and self.paths[handle].parent.name == "commitlog":
                raise OSError(self.error, os.strerror(self.error))
            super().write(handle, data, offset)

        def sync(self, handle: int) -> None:
            self.synced.add(self.paths[handle].parent.parent.name)
            super().sync(handle)

    killed = harness.open()
    killed.append([harness.draft(number) for number in range(9)])
    files = Failing()
    files.error = errno.ENOSPC
    store = harness.open(harness.crash(), files=files)
    files.error = errno.EIO
    with pytest.raises(StoreError, match="Could not write the log"):
        store.flush_queues()
    files.error = 0
    store.flush_queues()
    assert "t" in files.synced
