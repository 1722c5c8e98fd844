"""Damaged queues and indexes are rebuilt from the log; a damaged log is reported."""

from __future__ import annotations

import errno
import itertools
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from coherer._store import DamagedRange, OsFiles, Store
from coherer._store.verify import verify_store
from coherer.errors import StoreError
from tests.copies import copy_tree

COUNT = 300
SEGMENT = 16_384


def fill(harness: Any, store: Store, count: int = COUNT, begin: int = 0) -> None:
    for number in range(begin, begin + count):
        store.append([harness.draft(number, "tu"[number % 2], number % 3, key=f"k{number}")])


def contents(harness: Any, store: Store) -> Any:
    return harness.everything(store)


def queue_files(directory: Path) -> list[Path]:
    return sorted((directory / "consumequeue" / "t" / "0").iterdir())


def flip(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 0x55
    path.write_bytes(data)


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:130])


def flip_last(directory: Path) -> None:
    flip(queue_files(directory)[-1], 6)


def flip_first(directory: Path) -> None:
    flip(queue_files(directory)[0], 25)


def flip_tag_code(directory: Path) -> None:
    flip(queue_files(directory)[0], 19)


def cut_first(directory: Path) -> None:
    cut(queue_files(directory)[0])


def cut_last(directory: Path) -> None:
    cut(queue_files(directory)[-1])


def lose_first(directory: Path) -> None:
    queue_files(directory)[0].unlink()


def lose_middle(directory: Path) -> None:
    queue_files(directory)[1].unlink()


def lose_last(directory: Path) -> None:
    queue_files(directory)[-1].unlink()


def lose_queue(directory: Path) -> None:
    shutil.rmtree(directory / "consumequeue" / "t" / "0")


def lose_topic(directory: Path) -> None:
    shutil.rmtree(directory / "consumequeue" / "t")


def zero_all(directory: Path) -> None:
    for path in queue_files(directory):
        path.write_bytes(bytes(path.stat().st_size))


DAMAGES = [
    flip_last, flip_first, flip_tag_code, cut_first, cut_last, lose_first, lose_middle, lose_last,
    lose_queue, lose_topic, zero_all,
]  # fmt: skip


@pytest.mark.parametrize("damage", DAMAGES)
def test_queues_are_rebuilt_after_a_clean_close(
    harness: Any, damage: Callable[[Path], None]
) -> None:
    store = harness.open(queue_segment_bytes=400)
    fill(harness, store)
    expected = contents(harness, store)
    store.close()
    assert len(queue_files(harness.directory)) == 3
    damage(harness.directory)
    again = harness.open(queue_segment_bytes=400, verify_bytes=0)
    assert contents(harness, again) == expected
    report = again.recovery
    assert report.clean
    assert report.damage == ()
    assert len(report.repaired) == (3 if damage is lose_topic else 1)
    assert all("Queue t/" in text for text in report.repaired)
    assert all("Nothing is lost" in text for text in report.problems())
    again.append([harness.draft(900, "t", 0)])
    again.close()
    third = harness.open(queue_segment_bytes=400)
    assert third.recovery.repaired == ()
    assert third.queue_range("t", 0) == (0, 51)


@pytest.mark.parametrize(
    "damage",
    [cut_first, cut_last, lose_first, lose_middle, lose_last, lose_queue, lose_topic],
)
def test_queues_are_rebuilt_after_a_crash(
    harness: Any, tmp_path: Path, damage: Callable[[Path], None]
) -> None:
    """Also those whose messages are older than what every start verifies."""
    store = harness.open(queue_segment_bytes=400, verify_bytes=0)
    fill(harness, store)
    store.flush_queues()
    fill(harness, store, 30, begin=COUNT)
    expected = contents(harness, store)
    image = harness.crash()
    damage(image)
    assert [one for one in verify_store(image).problems if one.part == "queue"]
    again = harness.open(image, queue_segment_bytes=400, verify_bytes=0)
    assert contents(harness, again) == expected
    assert len(again.recovery.repaired) == (3 if damage is lose_topic else 1)
    again.append([harness.draft(900, "t", 0)])
    again.flush_queues()
    copy_tree(image, tmp_path / "copy")
    third = harness.open(tmp_path / "copy", queue_segment_bytes=400, verify_bytes=0)
    assert (third.recovery.repaired, third.queue_range("t", 0)) == ((), (0, 56))


class Ending(OsFiles):
    """After some changes all others fail: for the directory, that is the end of the process."""

    def __init__(self, left: int) -> None:
        super().__init__()
        self.left = left

    def _count(self) -> None:
        self.left -= 1
        if self.left < 0:
            raise OSError(errno.EIO, "Input/output error")

    def open(self, path: Path, *, create: bool = False) -> int:
        if create and not path.exists():
            self._count()
        return super().open(path, create=create)

    def resize(self, handle: int, size: int) -> None:
        self._count()
        super().resize(handle, size)

    def write(self, handle: int, data: bytes, offset: int) -> None:
        self._count()
        super().write(handle, data, offset)

    def make_directory(self, path: Path) -> None:
        if not path.exists():
            self._count()
        super().make_directory(path)

    def replace(self, source: Path, target: Path) -> None:
        self._count()
        super().replace(source, target)

    def link(self, source: Path, target: Path) -> None:
        self._count()
        super().link(source, target)

    def remove(self, path: Path) -> None:
        if path.exists():
            self._count()
        super().remove(path)

    def remove_tree(self, path: Path) -> None:
        if path.exists():
            self._count()
        super().remove_tree(path)


def lose_all_queues(directory: Path) -> None:
    shutil.rmtree(directory / "consumequeue")


def lose_oldest_keys(directory: Path) -> None:
    index_files(directory)[0].unlink()


def cut_oldest_keys(directory: Path) -> None:
    cut(index_files(directory)[0])


@pytest.mark.parametrize(
    ("damage", "is_clean"),
    [
        (flip_first, True),
        (lose_queue, True),
        (lose_all_queues, True),
        (lose_oldest_keys, True),
        (lose_oldest_keys, False),
        (lose_middle, False),
        (lose_all_queues, False),
        (cut_oldest_keys, False),
    ],
)
def test_a_start_that_ends_in_a_repair_leaves_it_to_the_next(
    harness: Any, tmp_path: Path, damage: Callable[[Path], None], *, is_clean: bool
) -> None:
    """Also if the messages are older than what every start verifies."""
    how: dict[str, Any] = {"verify_bytes": 0, "index_slots": 64, "index_entries": 150}
    store = harness.open(**how)
    fill(harness, store)
    store.delete_topic("u")
    fill(harness, store, 30, begin=COUNT)
    store.delete_topic("u")
    store.append([harness.draft(number, "later") for number in range(9)])
    store.flush_queues()
    keys = [f"k{number}" for number in range(0, COUNT + 30, 2)]
    expected = contents(harness, store)
    image = harness.crash()
    if is_clean:
        store.close()
        image = harness.directory
    damage(image)
    is_over = False
    for changes in itertools.count(step=3):
        directory = tmp_path / str(changes)
        copy_tree(image, directory)
        files = Ending(changes)
        try:
            first = harness.open(directory, files=files, **how)
        except StoreError:
            pass
        else:
            is_over = files.left >= 0
            files.left = 1_000
            first.close()
        again = harness.open(directory, **how)
        found_here = contents(harness, again)
        if damage is lose_all_queues:  # nothing says any more that a topic was deleted
            found_here = {name: found_here.get(name) for name in expected}
        assert found_here == expected, changes
        assert [len(again.by_key("t", key)) for key in keys] == [1] * len(keys), changes
        again.close()
        assert not [one for one in verify_store(directory).problems if one.part == "queue"]
        assert not (directory / "config" / "repairs.json").exists()
        shutil.rmtree(directory)
        if is_over:
            break
    assert changes > 20


@pytest.mark.parametrize("content", [b"", b"{", b'{"queues":7}'])
def test_everything_is_rebuilt_if_nobody_knows_what_to_rebuild(
    harness: Any, content: bytes
) -> None:
    store = harness.open(verify_bytes=0)
    fill(harness, store)
    store.append([harness.draft(number, "later") for number in range(9)])
    expected = contents(harness, store)
    store.close()
    lose_queue(harness.directory)
    with pytest.raises(StoreError):
        harness.open(files=Ending(20), verify_bytes=0)
    path = harness.directory / "config" / "repairs.json"
    assert b"t/0" in path.read_bytes()
    for one in (path, path.with_name("repairs.json.bak")):
        one.write_bytes(content)
    what = [one.what for one in verify_store(harness.directory).problems if one.part == "queue"]
    assert "a start did not finish rebuilding all queues" in what
    again = harness.open(verify_bytes=0)
    assert contents(harness, again) == expected
    again.close()
    assert not path.exists()


def test_an_unfinished_repair_is_reported(harness: Any) -> None:
    store = harness.open(verify_bytes=0)
    fill(harness, store)
    store.append([harness.draft(number, "later") for number in range(9)])
    store.close()
    lose_queue(harness.directory)
    files = Ending(20)
    with pytest.raises(StoreError):
        harness.open(files=files, verify_bytes=0)
    [problem] = [one for one in verify_store(harness.directory).problems if one.part == "queue"]
    assert (problem.where, problem.messages) == ("t/0, from entry 0", 50)
    assert problem.what == "a start did not finish its repair"


def test_a_trimmed_queue_is_rebuilt(harness: Any) -> None:
    store = harness.open(queue_segment_bytes=400, retention_hours=0)
    fill(harness, store)
    store.flush_queues()
    harness.clock.ms += 3_600_000
    assert store.delete_expired(harness.clock.ms) > 0
    expected, first = contents(harness, store), store.queue_range("t", 0)
    assert first[0] > 0
    store.close()
    lose_queue(harness.directory)
    again = harness.open(queue_segment_bytes=400, retention_hours=0)
    assert contents(harness, again) == expected
    assert again.queue_range("t", 0) == first


def test_a_recreated_topic_has_only_its_new_messages(harness: Any) -> None:
    store = harness.open()
    fill(harness, store)
    store.delete_topic("t")
    fill(harness, store, 60, begin=COUNT)
    expected = contents(harness, store)
    store.close()
    lose_queue(harness.directory)
    again = harness.open()
    assert contents(harness, again) == expected


def test_a_deleted_topic_does_not_come_back(harness: Any) -> None:
    store = harness.open()
    fill(harness, store)
    store.delete_topic("t")
    store.close()
    flip(min((harness.directory / "consumequeue" / "u" / "1").iterdir()), 6)
    again = harness.open()
    assert again.topics() == ["u"]
    assert len(again.recovery.repaired) == 1


def index_files(directory: Path) -> list[Path]:
    return sorted((directory / "index").iterdir())


def found(store: Store) -> list[int]:
    return [len(store.by_key("tu"[n % 2], f"k{n}")) for n in range(COUNT)]


def zero(path: Path) -> None:
    path.write_bytes(bytes(path.stat().st_size))


@pytest.mark.parametrize(
    ("damage", "which"), [*itertools.product([cut, zero, Path.unlink], [0, 1, -1])]
)
def test_the_key_index_is_rebuilt_after_a_crash(
    harness: Any, damage: Callable[[Path], None], which: int
) -> None:
    sizes = {"index_enabled": True, "index_slots": 64, "index_entries": 101}
    store = harness.open(**sizes)
    fill(harness, store, COUNT - 30)
    store.flush_queues()
    fill(harness, store, 30, begin=COUNT - 30)
    image = harness.crash()
    damage(index_files(image)[which])
    assert [one for one in verify_store(image).problems if one.part == "index"]
    again = harness.open(image, **sizes)
    assert found(again) == [1] * COUNT
    assert [text for text in again.recovery.repaired if "key index" in text]
    again.close()
    third = harness.open(image, **sizes)
    assert (third.recovery.repaired, found(third)) == ((), [1] * COUNT)


@pytest.mark.parametrize(
    "damage",
    [
        lambda path: flip(path, 45),
        lambda path: flip(path, path.stat().st_size - 5),
        lambda path: flip(path, 39),
        cut,
        Path.unlink,
    ],
    ids=["slot", "entry", "head", "cut", "missing"],
)
@pytest.mark.parametrize("which", [0, -1])
def test_the_key_index_is_rebuilt(harness: Any, damage: Callable[[Path], None], which: int) -> None:
    sizes = {"index_enabled": True, "index_slots": 64, "index_entries": 101}
    store = harness.open(**sizes)
    fill(harness, store)
    assert found(store) == [1] * COUNT
    store.close()
    files = index_files(harness.directory)
    assert len(files) == 3
    damage(files[which])
    again = harness.open(**sizes)
    assert found(again) == [1] * COUNT
    assert [text for text in again.recovery.repaired if "key index" in text]
    again.close()
    third = harness.open(**sizes)
    assert third.recovery.repaired == ()
    assert found(third) == [1] * COUNT


@pytest.mark.parametrize("number", [0, 1, 2, -1])
def test_a_missing_log_file_is_reported(harness: Any, number: int) -> None:
    store = harness.open(verify_bytes=1000)
    fill(harness, store, 2 * COUNT)
    before = contents(harness, store)
    store.close()
    files = sorted((harness.directory / "commitlog").iterdir())
    assert len(files) > 4
    lost = files[1:-1][number] if number >= 0 else files[-1]
    begin = int(lost.name)
    end = begin + SEGMENT if number >= 0 else store.end_offset
    lost.unlink()
    again = harness.open(verify_bytes=1000)
    report = again.recovery
    assert report.clean
    assert report.damage == (DamagedRange(begin, end, "a file is missing"),)
    after = contents(harness, again)
    missing = sum(map(len, before.values())) - sum(map(len, after.values()))
    assert report.lost == missing > 0
    (text,) = report.problems()
    assert f"Bytes {begin} to {end} of the log are lost: a file is missing" in text
    assert f"Lost messages: {missing};" in text
    assert again.end_offset == store.end_offset
    assert again.append([harness.draft(1, "t", 0)])[0].queue_offset == 100
