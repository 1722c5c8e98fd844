"""The register knows the files of queues: after a kill none is missing without a word."""

from __future__ import annotations

import shutil
import struct
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from coherer._store import Store, inventory
from coherer._store.verify import verify_store
from coherer.errors import StoreError
from tests.copies import copy_tree
from tests.store.conftest import FullFiles

PER_FILE = 20
"""Entries in a file of a queue."""


def fill(harness: Any, store: Store, count: int, topic: str = "t", queue: int = 0) -> None:
    for number in range(count):
        store.append([harness.draft(number, topic, queue)])


def lose(directory: Path, *names: str) -> None:
    shutil.rmtree(directory.joinpath("consumequeue", *names))


@pytest.fixture
def expired(harness: Any) -> Store:
    """All messages of queue 0 were deleted: 45, in three files."""
    store: Store = harness.open(retention_hours=0, verify_bytes=0)
    fill(harness, store, 45)
    fill(harness, store, 300, "other")
    store.flush_queues()
    harness.clock.ms += 3_600_000
    while store.delete_expired(harness.clock.ms):
        pass
    assert store.queue_range("t", 0) == (45, 45)
    store.flush_queues()
    return store


def test_files_that_retention_has_deleted_are_not_missing(harness: Any, expired: Store) -> None:
    again = harness.open(harness.crash(), verify_bytes=0, retention_hours=0)
    assert not expired.recovery.repaired
    assert again.recovery.repaired == ()
    assert again.queue_range("t", 0) == (45, 45)


@pytest.mark.parametrize("is_clean", [True, False])
def test_a_lost_queue_gives_out_no_offset_of_deleted_messages(
    harness: Any, expired: Store, tmp_path: Path, *, is_clean: bool
) -> None:
    image = harness.crash()
    if is_clean:
        expired.close()
        image = harness.directory
    lose(image, "t", "0")
    again = harness.open(image, verify_bytes=0, retention_hours=0)
    assert again.recovery.repaired
    assert again.queue_range("t", 0)[0] >= 45
    copy_tree(image, tmp_path / "killed")
    for directory in (image, tmp_path / "killed"):
        again.close()
        again = harness.open(directory, verify_bytes=0, retention_hours=0)
        assert again.recovery.repaired == ()
        [result] = again.append([harness.draft(0, "t")])
        assert 45 <= result.queue_offset <= 45 + 2 * PER_FILE


@pytest.mark.parametrize("damage", [lambda path: path.write_bytes(b"nonsense\n\0\0"), Path.unlink])
def test_a_register_that_is_lost_is_written_again(
    harness: Any, damage: Callable[[Path], object]
) -> None:
    store = harness.open(verify_bytes=0)
    fill(harness, store, 50)
    store.flush_queues()
    image = harness.crash()
    damage(image / "register")
    again = harness.open(image, verify_bytes=0)
    expected = harness.everything(again)
    again.append([harness.draft(0, "u")])
    again.flush_queues()
    assert again.recovery.repaired == ()
    again.close()
    (image / "abort").touch()
    (image / "inventory").unlink()
    lose(image, "t")
    third = harness.open(image, verify_bytes=0)
    assert harness.labels(third) == expected["t", 0]


def test_a_deleted_topic_does_not_come_back(harness: Any) -> None:
    store = harness.open(verify_bytes=0)
    fill(harness, store, 50)
    fill(harness, store, 5, "u")
    store.flush_queues()
    store.delete_topic("t")
    again = harness.open(harness.crash(), verify_bytes=0)
    assert (again.recovery.repaired, again.topics()) == ((), ["u"])


@pytest.mark.parametrize("fail_at", range(4))
def test_a_topic_is_deleted_on_a_full_disk(harness: Any, tmp_path: Path, fail_at: int) -> None:
    files = FullFiles()
    store = harness.open(files=files, verify_bytes=0)
    fill(harness, store, 50)
    store.flush_queues()
    files.fail_at = fail_at
    with suppress(StoreError):
        store.delete_topic("t")
    files.fail_at = None
    again = harness.open(harness.crash(), verify_bytes=0)
    assert again.recovery.repaired == ()


def test_a_topic_that_java_has_deleted_does_not_come_back(harness: Any) -> None:
    store = harness.open(verify_bytes=0)
    fill(harness, store, 50)
    fill(harness, store, 5, "u")
    store.close()
    checkpoint = harness.directory / "checkpoint"
    data = bytearray(checkpoint.read_bytes())
    struct.pack_into(">q", data, 0, struct.unpack_from(">q", data)[0] + 1)
    checkpoint.write_bytes(data)
    lose(harness.directory, "t")
    again = harness.open(verify_bytes=0)
    again.flush_queues()
    third = harness.open(harness.crash(), verify_bytes=0)
    for one in (again, third):
        assert (one.recovery.repaired, one.topics()) == ((), ["u"])


def test_a_file_that_was_cut_off_is_not_missing(harness: Any) -> None:
    """A kill between the register and the checkpoint, and a log whose end is torn."""
    store = harness.open(verify_bytes=0)
    fill(harness, store, 10)
    store.flush_queues()
    before = store.end_offset
    fill(harness, store, 30)
    harness.write_queues(store)
    image = harness.crash()
    log = image / "commitlog" / f"{0:020}"
    log.write_bytes(log.read_bytes()[:before].ljust(log.stat().st_size, b"\0"))
    again = harness.open(image, verify_bytes=0)
    assert (again.recovery.repaired, again.queue_range("t", 0)) == ((), (0, 10))
    again.close()
    (image / "abort").touch()
    (image / "inventory").unlink()
    assert verify_store(image).problems == []
    assert harness.open(image, verify_bytes=0).recovery.repaired == ()


def test_a_file_that_no_checkpoint_has_covered_is_not_missing(harness: Any) -> None:
    """A start that has cut it off is killed before it notes that in the register."""
    store = harness.open(verify_bytes=0)
    fill(harness, store, 10)
    store.flush_queues()
    end, checkpoint = store.end_offset, (harness.directory / "checkpoint").read_bytes()
    fill(harness, store, 30)
    store.flush_queues()
    image = harness.crash()
    (image / "checkpoint").write_bytes(checkpoint)
    log = image / "commitlog" / f"{0:020}"
    log.write_bytes(log.read_bytes()[:end].ljust(log.stat().st_size, b"\0"))
    (image / "consumequeue" / "t" / "0" / f"{PER_FILE * 20:020}").unlink()
    again = harness.open(image, verify_bytes=0)
    assert (again.recovery.repaired, again.queue_range("t", 0)) == ((), (0, 10))


def test_the_register_stays_short(harness: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inventory, "SPARE_LINES", 10)
    store = harness.open(verify_bytes=0)
    for number in range(40):
        store.append([harness.draft(number, "u", number % 20)])
        store.append([harness.draft(number, f"t{number}")])
    store.flush_queues()
    for number in range(40):
        store.delete_topic(f"t{number}")
    store.close()
    path = harness.directory / "register"
    assert path.read_bytes().count(b"\n") > 100
    again = harness.open(verify_bytes=0)
    expected = harness.everything(again)
    assert path.read_bytes().count(b"\n") == 20
    image = harness.crash()
    lose(image, "u")
    assert harness.everything(harness.open(image, verify_bytes=0)) == expected
