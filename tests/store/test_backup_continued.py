"""A repeated backup never gets worse: other histories, damage, and kills between two steps."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import pytest

from coherer._store import OsFiles
from coherer._store.backup import back_up
from coherer._store.files import ReadOnlyFiles
from coherer._store.history import load_history
from coherer._store.restore import restore, verify_backup
from coherer.errors import DamagedStoreError, StoreError, StoreFullError, UsageError
from tests.copies import copy_tree
from tests.store.test_backup import Contents, KilledError, contents, restored, take


def manifest(target: Path) -> Any:
    return json.loads((target / "backup.json").read_bytes())


def image(target: Path) -> dict[str, bytes]:
    """The content of a backup, without its lock."""
    return {
        path.relative_to(target).as_posix(): path.read_bytes()
        for path in target.rglob("*")
        if path.is_file() and path.name != "lock"
    }


def flip(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)


class NothingSurvives(random.Random):
    """A power cut that loses everything that was not synced."""

    def choice(self, seq: Any) -> Any:
        return seq[0]

    def randint(self, a: int, b: int) -> int:
        return a


# -- histories


def test_the_history_of_a_directory_stays_and_a_restored_one_gets_its_own(
    harness: Any, tmp_path: Path
) -> None:
    store, target = harness.open(), tmp_path / "backup"
    first = load_history(store.directory)
    assert first is not None
    store.append([harness.draft(n) for n in range(50)])
    store.close()
    store = harness.open()
    assert load_history(store.directory) == first
    end = take(store, target).log_end
    restore(target, tmp_path / "new")
    new = load_history(tmp_path / "new")
    assert new is not None
    assert new.id != first.id
    assert [(one.id, one.log_end) for one in new.ancestors] == [(first.id, end)]


def two_lives(harness: Any, tmp_path: Path) -> tuple[Any, Any, Path]:
    """A store, another one restored from its backup, and the backup."""
    store, target = harness.open(), tmp_path / "backup"
    store.append([harness.draft(n) for n in range(600)])
    take(store, target)
    restore(target, tmp_path / "second")
    return store, harness.open(tmp_path / "second"), target


def test_a_restored_node_continues_its_backup_and_then_the_first_one_is_refused(
    harness: Any, tmp_path: Path
) -> None:
    store, second, target = two_lives(harness, tmp_path)
    second.append([harness.draft(n) for n in range(600, 700)])
    report = take(second, target)
    assert report.copied_bytes < 200 * 1024
    assert restored(harness, target, "r1") == contents(second)
    store.append([harness.draft(n) for n in range(900, 950)])
    before = image(target)
    with pytest.raises(UsageError, match="a backup of another node"):
        take(store, target)
    assert image(target) == before


def test_a_restored_node_is_refused_once_the_first_one_has_gone_on(
    harness: Any, tmp_path: Path
) -> None:
    store, second, target = two_lives(harness, tmp_path)
    store.append([harness.draft(n) for n in range(600, 1100)])
    take(store, target)
    second.append([harness.draft(n, "other") for n in range(700)])
    before = image(target)
    with pytest.raises(UsageError, match=r"was restored from this backup when .* Use another"):
        take(second, target)
    assert image(target) == before
    assert restored(harness, target, "r") == contents(store), "500 messages are still there"


def test_two_nodes_restored_from_one_backup_do_not_both_continue_it(
    harness: Any, tmp_path: Path
) -> None:
    _, second, target = two_lives(harness, tmp_path)
    restore(target, tmp_path / "third")
    third = harness.open(tmp_path / "third")
    second.append([harness.draft(700)])
    third.append([harness.draft(800)])
    take(second, target)
    with pytest.raises(UsageError, match="a backup of another node"):
        take(third, target)
    restore(target, tmp_path / "fourth")
    fourth = harness.open(tmp_path / "fourth")
    fourth.append([harness.draft(701)])
    take(fourth, target)
    assert restored(harness, target, "r") == contents(fourth)


def test_a_copied_directory_with_other_messages_is_refused(harness: Any, tmp_path: Path) -> None:
    store, target = harness.open(), tmp_path / "backup"
    store.append([harness.draft(n) for n in range(100)])
    clone = harness.open(harness.crash("clone"))
    store.append([harness.draft(n) for n in range(100, 600)])
    take(store, target)
    harness.clock.ms += 1000
    clone.append([harness.draft(n) for n in range(100, 900)])
    before = image(target)
    with pytest.raises(UsageError, match="is not the one that was backed up"):
        take(clone, target)
    assert image(target) == before


def as_version_1(target: Path, **changes: Any) -> None:
    """Turn a manifest into one of an older version of Coherer."""
    found = manifest(target)
    for name in ("history", "ancestors", "checked", "crc"):
        found.pop(name, None)
    found |= {"version": 1, **changes}
    (target / "backup.json").write_bytes(msgspec.json.encode(found))


def test_a_backup_of_an_older_version_is_restored_and_continued_after_a_full_comparison(
    harness: Any, tmp_path: Path
) -> None:
    store, target = harness.open(), tmp_path / "backup"
    store.append([harness.draft(n) for n in range(300)])
    take(store, target)
    as_version_1(target)
    assert restored(harness, target, "old") == contents(store)
    assert verify_backup(target).problems == []
    store.append([harness.draft(n) for n in range(300, 320)])
    report = take(store, target)
    assert report.compared_bytes >= report.log_end - 320 * 300
    assert manifest(target)["version"] == 2
    assert manifest(target)["history"] == load_history(store.directory).id  # type: ignore[union-attr]
    as_version_1(target)
    other = harness.open(tmp_path / "other")
    other.append([harness.draft(n) for n in range(300)])
    with pytest.raises(UsageError, match="is not the one that was backed up"):
        take(other, target)


def test_the_identity_decides_where_there_is_no_history(harness: Any, tmp_path: Path) -> None:
    store, target = harness.open(), tmp_path / "backup"
    store.save_config("identity.json", b'{"brokerId":1}')
    take(store, target)
    as_version_1(target)
    store.save_config("identity.json", b'{"brokerId":1,"clusterName":"c"}')
    take(store, target)  # the node was given another role
    as_version_1(target)
    store.save_config("identity.json", b'{"brokerId":2}')
    with pytest.raises(UsageError, match="a backup of another node"):
        take(store, target)


def java_made(harness: Any, name: str, first: int, count: int) -> Any:
    """A store without the files of Coherer, while it is open."""
    store = harness.open(harness.directory.parent / name)
    store.append([harness.draft(n) for n in range(first, first + count)])
    (store.directory / "history.json").unlink()
    (store.directory / "removals").unlink()
    return store


def test_a_directory_without_a_history_is_told_by_its_log(harness: Any, tmp_path: Path) -> None:
    store, target = java_made(harness, "java", 0, 100), tmp_path / "backup"
    take(store, target)
    store.append([harness.draft(n) for n in range(100, 120)])
    take(store, target)
    harness.clock.ms += 1000
    other = java_made(harness, "other", 0, 200)
    with pytest.raises(UsageError, match="is not the one that was backed up"):
        take(other, target)
    store.close()
    store = harness.open(store.directory)  # the first open gives it an id
    take(store, target)
    assert restored(harness, target, "r") == contents(store)
    (store.directory / "history.json").unlink()
    with pytest.raises(UsageError, match="has no history"):
        take(store, target)


def test_a_gap_in_the_log_needs_a_known_history(harness: Any, tmp_path: Path) -> None:
    store, target = harness.open(retention_hours=1), tmp_path / "backup"
    store.append([harness.draft(n) for n in range(100)])
    take(store, target)
    as_version_1(target)
    store.append([harness.draft(n, size=1000) for n in range(100, 200)])
    harness.clock.ms += 2 * 3_600_000
    store.delete_expired(harness.clock.ms)
    before = image(target)
    with pytest.raises(UsageError, match="so nothing can be compared"):
        take(store, target)
    assert image(target) == before


# -- damage


def test_a_flipped_bit_in_the_log_does_not_replace_the_good_record(
    harness: Any, tmp_path: Path
) -> None:
    store, target = harness.open(), tmp_path / "backup"
    store.append([harness.draft(n) for n in range(300)])
    take(store, target)
    good = contents(store)
    before = image(target)
    for at in (150, store.end_offset - 20):
        path = store.directory / "commitlog" / f"{at - at % 16384:020}"
        flip(path, at % 16384)
        with pytest.raises(DamagedStoreError, match=r"is damaged at offset \d+.*holds the right"):
            take(store, target)
        flip(path, at % 16384)
    assert image(target) == before
    assert restored(harness, target, "r") == good


def test_what_is_missing_or_altered_in_the_backup_is_copied_again_and_told(
    harness: Any, tmp_path: Path
) -> None:
    store, target = harness.open(), tmp_path / "backup"
    store.append([harness.draft(n, key=f"k{n}") for n in range(300)])
    store.flush_queues()
    take(store, target)
    pieces = [one["name"] for one in manifest(target)["log"]["pieces"]]
    files = [one["name"] for one in manifest(target)["files"]]
    queue = next(name for name in files if "consumequeue" in name)
    (target / "data" / pieces[0]).unlink()
    flip(target / "data" / pieces[1], 100)
    flip(target / "data" / pieces[-1], 10)
    (target / "data" / queue).write_bytes(b"")
    assert len(verify_backup(target).problems) == 4
    report = take(store, target)
    assert set(report.repaired) == {pieces[0], pieces[1], pieces[-1], queue}
    assert verify_backup(target).problems == []
    assert restored(harness, target, "r") == contents(store)


def test_a_piece_that_nobody_has_any_more_is_an_error(harness: Any, tmp_path: Path) -> None:
    store, target = harness.open(), tmp_path / "backup"
    store.append([harness.draft(n) for n in range(300)])
    take(store, target)
    first = manifest(target)["log"]["pieces"][0]["name"]
    flip(target / "data" / first, 100)
    flip(store.directory / "commitlog" / f"{0:020}", 100)
    before = image(target)
    with pytest.raises(DamagedStoreError, match="does not have these bytes"):
        take(store, target)
    assert image(target) == before


@pytest.mark.parametrize("everything", [True, False])
def test_only_a_part_is_compared_each_time_and_everything_if_asked(
    harness: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, everything: bool
) -> None:
    store, target = harness.open(), tmp_path / "backup"
    store.append([harness.draft(n) for n in range(600)])
    take(store, target)
    names = [one["name"] for one in manifest(target)["log"]["pieces"]]
    monkeypatch.setattr("coherer._store.backup_checks.COMPARED_BYTES", 20_000)
    flip(target / "data" / names[2], 100)
    rounds = 0
    while not (report := take(store, target, everything=everything)).repaired:
        rounds += 1
        assert 16_384 <= report.compared_bytes < 60_000
        assert rounds < 10
    assert report.repaired == [names[2]]
    assert (rounds == 0) == everything


@pytest.mark.parametrize("damage", ["flipped", "zeroed", "blank"])
def test_a_damaged_entry_of_a_queue_does_not_replace_the_good_one(
    harness: Any, tmp_path: Path, damage: str
) -> None:
    store, target = harness.open(), tmp_path / "backup"
    store.append([harness.draft(n) for n in range(10)])
    store.flush_queues()
    take(store, target)
    before = image(target)
    store.append([harness.draft(n) for n in range(10, 15)])
    store.flush_queues()
    good = contents(store)
    path = store.directory / "consumequeue/t/0" / f"{0:020}"
    whole = path.read_bytes()
    entry = {
        "flipped": bytes((whole[60],)) + bytes((whole[61] ^ 1,)) + whole[62:80],
        "zeroed": bytes(20),
        "blank": bytes(8) + bytes.fromhex("7fffffff") + bytes(8),
    }[damage]
    path.write_bytes(whole[:60] + entry + whole[80:])
    with pytest.raises(DamagedStoreError, match=r"Entry 3 in .* is damaged; .* verify --repair"):
        take(store, target)
    assert image(target) == before
    path.write_bytes(whole)
    take(store, target)
    assert restored(harness, target, "r") == good


def test_a_queue_that_was_made_anew_replaces_the_old_one(harness: Any, tmp_path: Path) -> None:
    store, target = harness.open(), tmp_path / "backup"
    store.append([harness.draft(n) for n in range(15)])
    store.flush_queues()
    take(store, target)
    store.delete_topic("t")
    store.append([harness.draft(n) for n in range(20, 23)])
    store.flush_queues()
    take(store, target)
    assert restored(harness, target, "r") == contents(store)


def test_a_lost_or_changed_manifest_is_noticed(harness: Any, tmp_path: Path) -> None:
    store, target = harness.open(), tmp_path / "backup"
    store.append([harness.draft(n) for n in range(100)])
    take(store, target)
    whole = (target / "backup.json").read_bytes()
    (target / "backup.json").write_bytes(whole.replace(b'"generation":1', b'"generation":7'))
    for use in (take, lambda _, target: restore(target, tmp_path / "r")):
        with pytest.raises(DamagedStoreError, match="its checksum is wrong"):
            use(store, target)
    (target / "backup.json").unlink()
    before = image(target)
    with pytest.raises(UsageError, match=r"its backup\.json is missing"):
        take(store, target)
    assert image(target) == before


def test_many_pieces_are_joined_from_the_backup_not_from_the_log(
    harness: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("coherer._store.backup_checks.COMPARED_BYTES", 0)
    store, target = harness.open(segment_bytes=1 << 20), tmp_path / "backup"
    for number in range(63):
        store.append([harness.draft(number)])
        take(store, target)
    good = contents(store)
    assert len(manifest(target)["log"]["pieces"]) == 63
    flip(store.directory / "commitlog" / f"{0:020}", 150)
    for _ in range(2):
        store.append([harness.draft(999)])
        take(store, target)
    assert len(manifest(target)["log"]["pieces"]) <= 3
    found = restored(harness, target, "r")
    assert found["t", 0][1] == [*good["t", 0][1], "t/0/999", "t/0/999"]


# -- while something changes


def test_a_topic_that_is_created_anew_during_the_backup_is_noticed(
    harness: Any, tmp_path: Path
) -> None:
    """On ext4 the new directory often has the inode number of the old one."""
    store = harness.open()
    store.append([harness.draft(n, "tu"[n % 2], 0) for n in range(100)])
    store.flush_queues()
    number = 100

    def renew(_done: int, _total: int) -> None:
        nonlocal number
        if number == 100:
            folder = store.directory / "consumequeue/u"
            inode = folder.stat().st_ino
            for _ in range(50):
                store.delete_topic("u")
                store.append([harness.draft(number, "u", 0)])
                number += 1
                store.flush_queues()
                if folder.stat().st_ino == inode:
                    break

    take(store, tmp_path / "backup", progress=renew)
    assert number > 100
    assert restored(harness, tmp_path / "backup", "new") == contents(store)


def test_a_file_that_exists_only_as_its_previous_version_is_in_the_backup(
    harness: Any, tmp_path: Path
) -> None:
    store, target = harness.open(), tmp_path / "backup"
    config = store.directory / "config"
    for name in ("consumerOffset.json", "topics.json"):
        store.save_config(name, b"1")
        store.save_config(name, b"2")
        (config / name).rename(config / f"{name}.bak")
    take(store, target)
    restore(target, tmp_path / "one")
    for name in ("consumerOffset.json", "topics.json"):
        assert (tmp_path / "one/config" / name).read_bytes() == b"2"
    store.save_config("topics.json", b"3")
    (config / "consumerOffset.json").write_bytes(b"")  # empty counts as missing at a start
    take(store, target)
    restore(target, tmp_path / "two")
    assert (tmp_path / "two/config/consumerOffset.json").read_bytes() == b"2"
    assert (tmp_path / "two/config/topics.json").read_bytes() == b"3"
    assert (tmp_path / "two/config/topics.json.bak").read_bytes() == b"2"


# -- kills, power cuts, full disks


@pytest.mark.parametrize("honest", [True, False], ids=["synced", "a disk that lies"])
def test_a_node_that_loses_power_after_a_backup_is_never_behind_it(
    harness: Any,
    tmp_path: Path,
    power_files: Callable[[], Any],
    monkeypatch: pytest.MonkeyPatch,
    honest: bool,
) -> None:
    """Otherwise it stores other messages at offsets that the backup holds."""
    files, target = power_files(), tmp_path / "backup"
    store = harness.open(files=files)
    store.append([harness.draft(n) for n in range(10)])
    store.flush()
    store.append([harness.draft(n) for n in range(10, 20)])

    def sync(*_: object) -> None:  # of the backup, which uses other file handles
        if honest:
            store.flush()

    monkeypatch.setattr(ReadOnlyFiles, "sync", sync)
    monkeypatch.setattr(ReadOnlyFiles, "sync_directory", lambda *_: None)
    take(store, target)
    monkeypatch.undo()
    held = image(target)
    files.cut(harness.directory, tmp_path / "cut", NothingSurvives())
    again = harness.open(tmp_path / "cut")
    again.append([harness.draft(n) for n in range(20, 40)])
    if honest:
        take(again, target)
        assert restored(harness, target, "r") == contents(again)
        assert len(contents(again)["t", 0][1]) == 40
    else:
        with pytest.raises(UsageError, match="first difference is at offset"):
            take(again, target)
        assert image(target) == held


class StepFiles(OsFiles):
    """Files that call `before` before each change."""

    def __init__(self, before: Callable[[], None]) -> None:
        self.before = before

    def lock(self, path: Path) -> int:
        return OsFiles().lock(path)  # a killed process holds no lock

    def open(self, path: Path, *, create: bool = False) -> int:
        if create and not path.exists():
            self.before()
        return super().open(path, create=create)

    def resize(self, handle: int, size: int) -> None:
        self.before()
        super().resize(handle, size)

    def write(self, handle: int, data: bytes, offset: int) -> None:
        self.before()
        super().write(handle, data, offset)

    def make_directory(self, path: Path) -> None:
        self.before()
        super().make_directory(path)

    def sync_directory(self, path: Path) -> None:
        self.before()
        super().sync_directory(path)

    def sync_all(self, path: Path) -> bool:
        self.before()
        return super().sync_all(path)

    def replace(self, source: Path, target: Path) -> None:
        self.before()
        super().replace(source, target)

    def remove(self, path: Path) -> None:
        self.before()
        super().remove(path)


class Steps:
    """Counts steps, and fails at one of them."""

    def __init__(self, fail_at: int, error: BaseException) -> None:
        self.count = 0
        self._fail_at, self._error = fail_at, error

    def __call__(self) -> None:
        self.count += 1
        if self.count > self._fail_at:
            raise self._error


ENDS = [KilledError(), OSError(28, "No space left on device")]


@pytest.mark.parametrize("end", ENDS, ids=["kill", "full"])
def test_a_backup_that_ends_at_any_step_leaves_a_whole_one(
    harness: Any, tmp_path: Path, end: BaseException
) -> None:
    store, base = harness.open(), tmp_path / "base"
    store.append([harness.draft(n, key=f"k{n}") for n in range(150)])
    store.save_config("topics.json", b"1")
    store.flush_queues()
    take(store, base)
    old = contents(store)
    store.append([harness.draft(n) for n in range(150, 300)])
    store.flush_queues()
    new = contents(store)
    step, target = 0, tmp_path / "backup"
    while True:
        shutil.rmtree(target, ignore_errors=True)
        copy_tree(base, target)
        steps = Steps(step, end)
        try:
            take(store, target, files=StepFiles(steps))
        except (KilledError, StoreFullError) as error:
            told = getattr(error, "hint", "The previous backup is unchanged.")
            assert step == 0 or "The previous backup is unchanged." in told
            changed = image(target).get("backup.json") != image(base)["backup.json"]
        else:
            assert steps.count <= step
            break
        if step % 7 == 0:  # whatever it left, it is whole
            assert verify_backup(target).problems == []
            assert restored(harness, target, "r") == (new if changed else old)
        take(store, target)
        assert {*image(target)} - {"backup.json"} == {f"data/{name}" for name in names(target)}
        step += 1
    assert step > 30
    assert restored(harness, target, "r") == new


def names(target: Path) -> set[str]:
    found = manifest(target)
    return {one["name"] for one in [*found["files"], *found["log"]["pieces"]]}


@pytest.mark.parametrize("end", ENDS, ids=["kill", "full"])
def test_a_first_backup_and_a_restore_that_end_at_any_step_start_over(
    harness: Any, tmp_path: Path, end: BaseException
) -> None:
    store, target, new = harness.open(), tmp_path / "backup", tmp_path / "new"
    store.append([harness.draft(n) for n in range(150)])
    store.flush_queues()
    for step in range(0, 400, 3):
        steps = Steps(step, end)
        try:
            take(store, target, files=StepFiles(steps))
        except (KilledError, StoreFullError):
            continue
        break
    assert step > 30
    assert names(target) == {name[5:] for name in image(target) if name != "backup.json"}
    for step in range(0, 400, 3):
        steps = Steps(step, end)
        try:
            restore(target, new, files=StepFiles(steps))
        except (KilledError, StoreFullError):
            assert (
                (new / "restore-incomplete").exists() or not new.exists() or [*new.iterdir()] == []
            )
            continue
        break
    assert step > 30
    assert contents(harness.open(new)) == contents(store)


@pytest.mark.parametrize("count", [1, 60], ids=["few files", "many files"])
def test_what_was_restored_survives_a_power_cut(
    harness: Any, tmp_path: Path, power_files: Callable[[], Any], count: int
) -> None:
    store, target, new = harness.open(), tmp_path / "backup", tmp_path / "new"
    store.append([harness.draft(n, f"t{n % count}") for n in range(150)])
    store.flush_queues()
    take(store, target)
    files = power_files()
    files.adopt(tmp_path)
    restore(target, new, files=files)
    for seed in range(5):
        after = tmp_path / f"after{seed}"
        files.cut(new, after, random.Random(seed))
        assert image(after) == image(new)


@pytest.mark.parametrize("seed", range(8))
def test_a_power_cut_during_a_backup_leaves_a_whole_one(
    harness: Any, tmp_path: Path, power_files: Callable[[], Any], seed: int
) -> None:
    store, target = harness.open(), tmp_path / "backup"
    chance, files = random.Random(seed), power_files()
    files.adopt(tmp_path)
    expected: list[Contents] = []
    for part in range(3):
        store.append([harness.draft(n) for n in range(part * 60, part * 60 + 60)])
        store.flush_queues()
        expected.append(contents(store))
        files.before = Steps(chance.randint(20, 60), KilledError()) if part else (lambda: None)
        with suppress(KilledError):
            take(store, target, files=files)
        files.before = lambda: None
    after = tmp_path / "after"
    files.cut(target, after, chance)
    assert verify_backup(after).problems == []
    assert restored(harness, after, "r") in expected


def test_a_manifest_is_durable_before_what_it_replaced_is_removed(
    harness: Any, tmp_path: Path, power_files: Callable[[], Any]
) -> None:
    """A backup is killed between the rename of its manifest and the sync of the name."""
    store, target, files = harness.open(), tmp_path / "backup", power_files()
    files.adopt(tmp_path)
    store.append([harness.draft(n) for n in range(60)])
    store.save_config("topics.json", b"1")
    take(store, target, files=files)
    store.save_config("topics.json", b"2")
    before = image(target)["backup.json"]

    def die() -> None:
        if (target / "backup.json").read_bytes() != before:
            raise KilledError

    files.before = die
    with pytest.raises(KilledError):
        take(store, target, files=files)
    copied = (target / "backup.json").read_bytes()
    assert copied != before

    def die_then() -> None:
        if len([*target.rglob("topics.json")]) == 1:  # what was replaced is gone
            raise KilledError

    files.before = die_then
    with pytest.raises(KilledError):
        take(store, target, files=files)
    for seed in range(20):
        after = tmp_path / f"after{seed}"
        files.cut(target, after, random.Random(seed))
        assert verify_backup(after).problems == []


def test_a_backup_inside_another_one_is_refused(harness: Any, tmp_path: Path) -> None:
    store, target = harness.open(), tmp_path / "backup"
    store.append([harness.draft(1)])
    take(store, target)
    for place in ("inside", "data/inside", "data/00000001/inside"):
        with pytest.raises(UsageError, match="lies inside the backup"):
            take(store, target / place)
        with pytest.raises(UsageError, match="inside a backup"):
            restore(target, target / place)
    with pytest.raises(UsageError, match="lies inside the backup"):
        back_up(target / "data/00000001", tmp_path / "of a backup")
    with pytest.raises(UsageError, match="around the one to restore"):
        restore(target, tmp_path)
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(UsageError, match="is a file"):
        take(store, tmp_path / "file")


def test_a_restore_removes_only_what_a_restore_writes(harness: Any, tmp_path: Path) -> None:
    store, target, home = harness.open(), tmp_path / "backup", tmp_path / "home"
    store.append([harness.draft(1)])
    take(store, target)
    home.mkdir()
    (home / "restore-incomplete").touch()
    (home / "notes.txt").write_text("mine")
    with pytest.raises(UsageError, match=r"other files .* such as notes\.txt"):
        restore(target, home)
    (home / "notes.txt").unlink()
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "kept").touch()
    (home / "config").symlink_to(outside)
    restore(target, home)
    assert (outside / "kept").exists()
    assert not (home / "config").is_symlink()


def test_what_the_disk_returns_is_compared_before_the_manifest_is_replaced(
    harness: Any, tmp_path: Path
) -> None:
    class LyingFiles(OsFiles):
        def write(self, handle: int, data: bytes, offset: int) -> None:
            super().write(handle, data[:-1] + b"!" if len(data) > 9_000 else data, offset)

    store, target = harness.open(), tmp_path / "backup"
    store.append([harness.draft(n) for n in range(50)])
    take(store, target)
    store.append([harness.draft(n, size=4000) for n in range(50, 60)])
    before = image(target)
    with pytest.raises(StoreError, match="does not hold the bytes that were written"):
        take(store, target, files=LyingFiles())
    assert image(target) == before
