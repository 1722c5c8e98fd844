"""Backups of a store that is in use: what they hold, what they copy, and what kills leave."""

from __future__ import annotations

import json
import random
import shutil
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coherer._record.layout import decode
from coherer._store import OsFiles, Store
from coherer._store.backup import BackupReport, back_up
from coherer._store.config_files import unsealed
from coherer._store.restore import restore, verify_backup
from coherer.errors import DamagedStoreError, StoreError, UsageError
from tests.store.conftest import Clock, Harness, draft

Contents = dict[tuple[str, int], tuple[int, list[str]]]


def contents(store: Store) -> Contents:
    """The first offset and the labels of each queue."""
    found: Contents = {}
    for topic in store.topics():
        for number in store.queues(topic):
            begin, end = store.queue_range(topic, number)
            labels: list[str] = []
            at = begin
            while at < end:
                read = store.read(topic, number, at, max_bytes=1 << 20, max_count=1000)
                labels += [bytes(decode(one).body).split(b";")[0].decode() for one in read.records]
                assert read.next_offset > at
                at = read.next_offset
            found[topic, number] = begin, labels
    return found


def later() -> int:
    """A time long after all files were written, so that their times can be trusted."""
    import time

    return time.time_ns() + 60_000_000_000


def take(store: Store, target: Path, **more: Any) -> BackupReport:
    return back_up(store.directory, target, wall_ns=later, **more)


def restored(harness: Any, backup: Path, name: str) -> Contents:
    """What a restored store holds."""
    target = backup.parent / name
    shutil.rmtree(target, ignore_errors=True)
    restore(backup, target)
    store = harness.open(target)
    found = contents(store)
    assert store.recovery.problems() == []
    store.close()
    return found


class KilledError(Exception):
    """The process died."""


class KilledFiles(OsFiles):
    """Files of a process that dies before its n-th change."""

    def __init__(self, steps: int) -> None:
        self.left = steps

    def _step(self) -> None:
        self.left -= 1
        if self.left < 0:
            raise KilledError

    def write(self, handle: int, data: bytes, offset: int) -> None:
        self._step()
        super().write(handle, data, offset)

    def replace(self, source: Path, target: Path) -> None:
        self._step()
        super().replace(source, target)

    def remove(self, path: Path) -> None:
        self._step()
        super().remove(path)


def test_a_backup_holds_everything_and_the_next_one_copies_only_what_is_new(
    harness: Any, tmp_path: Path
) -> None:
    store, target = harness.open(), tmp_path / "backup"
    store.append([harness.draft(n, "tu"[n % 2], n % 3, key=f"k{n}") for n in range(500)])
    store.save_config("topics.json", b"{}")
    first = take(store, target)
    assert first.log_end == store.end_offset
    assert restored(harness, target, "one") == contents(store)
    store.append([harness.draft(n, "t", 0) for n in range(500, 520)])
    size = store.end_offset - (first.log_end or 0)
    second = take(store, target)
    assert size - 100 < second.copied_bytes < size + 10_000 < first.copied_bytes
    assert restored(harness, target, "two") == contents(store)
    assert unsealed((tmp_path / "two/config/topics.json").read_bytes()) == b"{}"
    third = take(store, target)
    assert third.copied_bytes == 0
    report = verify_backup(target)
    assert report.problems == []
    assert report.records == 520


def test_the_files_of_a_backup_are_sparse(harness: Any, tmp_path: Path) -> None:
    store = harness.open(segment_bytes=64 << 20, queue_segment_bytes=6_000_000)
    store.append([harness.draft(0)])
    store.flush_queues()
    report = take(store, tmp_path / "backup")
    assert report.copied_bytes < 100_000
    taken = sum(one.stat().st_blocks * 512 for one in (tmp_path / "backup").rglob("*"))
    assert taken < 2_000_000
    restore(tmp_path / "backup", tmp_path / "new")
    log = next((tmp_path / "new/commitlog").iterdir())
    assert log.stat().st_size == 64 << 20
    assert log.stat().st_blocks * 512 < 2_000_000


def test_a_backup_under_load_holds_whatever_was_acknowledged(harness: Any, tmp_path: Path) -> None:
    store, target = harness.open(segment_bytes=1 << 18, index_entries=3000), tmp_path / "backup"
    stop, acknowledged, chance = threading.Event(), [0], random.Random(7)
    most = [0]  # the sender goes on during a backup, but not without end

    def send() -> None:
        number = 0
        while not stop.is_set():
            if number >= most[0]:
                stop.wait(0.001)
                continue
            count = chance.randint(1, 30)
            store.append([harness.draft(number + n, "t", 0, size=200) for n in range(count)])
            number += count
            acknowledged[0] = number
            if chance.random() < 0.05:
                store.flush_queues()

    sender = threading.Thread(target=send)
    sender.start()
    try:
        for round_ in range(6):
            goal = acknowledged[0] + 200
            most[0] = goal + 3000
            while acknowledged[0] < goal:
                stop.wait(0.001)  # let the sender run
            before = acknowledged[0]
            report = back_up(store.directory, target)
            begin, labels = restored(harness, target, f"r{round_}")["t", 0]
            assert begin == 0
            assert labels == [f"t/0/{n}" for n in range(len(labels))]
            assert len(labels) >= before
            assert verify_backup(target).log_end == report.log_end
    finally:
        stop.set()
        sender.join()


class History:
    """A store with a random history, and what a restore of its last backup must hold."""

    def __init__(self, root: Path, chance: random.Random) -> None:
        self.clock = Clock()
        self.harness = Harness(root, self.clock)
        self.store = self.harness.open(retention_hours=1)
        self.target = root / "backup"
        self.expected: Contents | None = None
        self._chance = chance
        self._number = 0

    def append(self) -> None:
        count = self._chance.randint(1, 60)
        topics = [self._chance.choice("tuv") for _ in range(count)]
        numbers = range(self._number, self._number + count)
        self.store.append(
            [
                draft(number, topic, number % 3, size=300, key=f"k{number}")
                for number, topic in zip(numbers, topics, strict=True)
            ]
        )
        self._number += count

    def flush(self) -> None:
        self.store.flush_queues()

    def expire(self) -> None:
        self.clock.ms += 2 * 3_600_000
        self.store.delete_expired(self.clock.ms)

    def delete(self) -> None:
        self.store.delete_topic(self._chance.choice("tuv"))

    def backup(self) -> None:
        take(self.store, self.target)
        self.expected = contents(self.store)

    def kill(self) -> None:
        """Kill a backup. It has succeeded if its manifest is there."""
        before = self.manifest()
        with suppress(KilledError):
            take(self.store, self.target, files=KilledFiles(self._chance.randint(0, 60)))
        if self.manifest() != before:
            self.expected = contents(self.store)

    def manifest(self) -> bytes:
        path = self.target / "backup.json"
        return path.read_bytes() if path.exists() else b""


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 1 << 30))
def test_any_history_of_backups_and_kills_restores_exactly(
    seed: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    root = tmp_path_factory.mktemp("history")
    chance = random.Random(seed)
    history = History(root, chance)
    steps = [history.append] * 2 + [
        history.flush, history.expire, history.delete, history.backup, history.kill
    ]  # fmt: skip
    for step in range(chance.randint(3, 14)):
        chance.choice(steps)()
        if history.expected is not None:
            assert restored(history.harness, history.target, f"r{step}") == history.expected
    history.harness.close()
    shutil.rmtree(root)


def test_a_topic_that_is_deleted_during_the_backup_is_not_revived(
    harness: Any, tmp_path: Path
) -> None:
    store = harness.open()
    store.append([harness.draft(n, "tu"[n % 2], 0) for n in range(100)])
    store.flush_queues()
    deleted: list[str] = []

    def delete(_done: int, _total: int) -> None:
        if not deleted:
            deleted.append("u")
            store.append([harness.draft(n, "u", 0) for n in range(100, 110)])
            store.delete_topic("u")

    take(store, tmp_path / "backup", progress=delete)
    found = restored(harness, tmp_path / "backup", "new")
    assert ("u", 0) not in found
    assert found == contents(store)


def test_damage_is_found_and_not_restored(harness: Any, tmp_path: Path) -> None:
    store, target = harness.open(), tmp_path / "backup"
    store.append([harness.draft(n) for n in range(100)])
    store.flush_queues()
    take(store, target)
    piece = next(target.rglob("*commitlog/*"))
    data = bytearray(piece.read_bytes())
    data[100] ^= 1
    piece.write_bytes(data)
    next(target.rglob("*consumequeue/t/0/*")).unlink()
    found = verify_backup(target)
    assert {(one.part, one.repairable) for one in found.problems} == {
        ("log", False),
        ("queue", False),
    }
    with pytest.raises(DamagedStoreError, match="is missing, or its checksum is wrong"):
        restore(target, tmp_path / "new")
    assert (tmp_path / "new/restore-incomplete").exists()


def test_another_node_does_not_replace_a_backup(harness: Any, tmp_path: Path) -> None:
    store, target = harness.open(), tmp_path / "backup"
    store.append([harness.draft(n) for n in range(100)])
    take(store, target)
    before = restored(harness, target, "one")
    empty = harness.open(tmp_path / "empty")
    with pytest.raises(UsageError, match="a backup of another node: the history"):
        take(empty, target)
    empty.append([harness.draft(n, "other") for n in range(300)])
    with pytest.raises(UsageError, match="Use another directory") as refused:
        take(empty, target)
    assert "The backup is unchanged" in str(refused.value)
    assert restored(harness, target, "two") == before


@pytest.mark.parametrize("place", ["store", "store/inside", "."])
def test_a_backup_is_not_inside_the_directory_of_the_node(
    harness: Any, tmp_path: Path, place: str
) -> None:
    store = harness.open()
    with pytest.raises(UsageError, match="would lie inside"):
        take(store, tmp_path / place)


def test_a_directory_with_other_files_is_refused(harness: Any, tmp_path: Path) -> None:
    store = harness.open()
    (tmp_path / "home").mkdir()
    (tmp_path / "home/notes.txt").write_text("mine")
    with pytest.raises(UsageError, match=r"other files, such as notes\.txt"):
        take(store, tmp_path / "home")
    take(store, tmp_path / "backup")
    with pytest.raises(UsageError, match="is not empty"):
        restore(tmp_path / "backup", tmp_path / "home")
    assert (tmp_path / "home/notes.txt").read_text() == "mine"


def test_two_backups_do_not_mix(harness: Any, tmp_path: Path) -> None:
    store, target = harness.open(), tmp_path / "backup"
    store.append([harness.draft(1)])
    refused: list[str] = []

    def again(_done: int, _total: int) -> None:
        try:
            take(store, target)
        except StoreError as error:
            refused.append(error.text)

    take(store, target, progress=again)
    assert refused
    assert "Another backup, verify or restore uses" in refused[0]


def test_many_small_backups_do_not_leave_many_pieces(harness: Any, tmp_path: Path) -> None:
    store, target = harness.open(segment_bytes=1 << 20), tmp_path / "backup"
    for number in range(150):
        store.append([harness.draft(number)])
        take(store, target)
    pieces = json.loads((target / "backup.json").read_bytes())["log"]["pieces"]
    assert len(pieces) <= 64
    assert restored(harness, target, "new") == contents(store)


def test_a_restore_that_was_killed_starts_over(harness: Any, tmp_path: Path) -> None:
    store, target = harness.open(), tmp_path / "backup"
    store.append([harness.draft(n, size=500) for n in range(300)])
    take(store, target)
    with pytest.raises(KilledError):
        restore(target, tmp_path / "new", files=KilledFiles(3))
    assert (tmp_path / "new/restore-incomplete").exists()
    restore(target, tmp_path / "new")
    again = harness.open(tmp_path / "new")
    assert contents(again) == contents(store)


def test_two_restores_into_one_directory_do_not_mix(harness: Any, tmp_path: Path) -> None:
    store, other = harness.open(), harness.open(tmp_path / "other")
    store.append([harness.draft(n, size=500) for n in range(300)])
    other.append([harness.draft(n, "other") for n in range(200)])
    take(store, tmp_path / "backup")
    take(other, tmp_path / "second")
    refused: list[str] = []

    def again(_done: int, _total: int) -> None:
        with pytest.raises(StoreError) as error:
            restore(tmp_path / "second", tmp_path / "new")
        refused.append(error.value.text)

    restore(tmp_path / "backup", tmp_path / "new", progress=again)
    assert "Another restore, or a node, is writing to" in refused[0]
    assert contents(harness.open(tmp_path / "new")) == contents(store)


@pytest.mark.parametrize("work", ["verify", "restore"])
def test_a_backup_may_end_right_before_it_is_verified_or_restored(
    harness: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, work: str
) -> None:
    store, target, waiting = harness.open(), tmp_path / "backup", [True]
    store.append([harness.draft(1)])
    store.save_config("topics.json", b"{}")
    take(store, target)
    store.append([harness.draft(2)])
    store.save_config("topics.json", b'{"dataVersion": {}}')  # the backup removes the old file
    lock = OsFiles.lock

    def late(files: OsFiles, path: Path) -> int:
        if waiting:  # the next lock is that of the backup
            waiting.clear()
            take(store, target)
        return lock(files, path)

    monkeypatch.setattr(OsFiles, "lock", late)
    if work == "verify":
        assert not verify_backup(target).problems
    else:
        restore(target, tmp_path / "new")
        assert contents(harness.open(tmp_path / "new")) == contents(store)


def test_accounts_are_private_or_left_out(harness: Any, tmp_path: Path) -> None:
    store = harness.open()
    secrets = store.directory / "conf/plain_acl.yml"
    secrets.parent.mkdir()
    secrets.write_text("accounts: []")
    secrets.chmod(0o600)
    take(store, tmp_path / "with")
    assert (tmp_path / "with").stat().st_mode & 0o077 == 0
    copied = next((tmp_path / "with").rglob("plain_acl.yml"))
    assert copied.stat().st_mode & 0o077 == 0
    restore(tmp_path / "with", tmp_path / "new")
    assert (tmp_path / "new/conf/plain_acl.yml").stat().st_mode & 0o777 == 0o600
    take(store, tmp_path / "without", accounts=False)
    assert not list((tmp_path / "without").rglob("plain_acl.yml"))
