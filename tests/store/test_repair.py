"""Damaged queues and indexes are rebuilt from the log; a damaged log is reported."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from coherer._store import DamagedRange, Store

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


@pytest.mark.parametrize("damage", [cut_first, cut_last, lose_middle, lose_last])
def test_queues_are_rebuilt_after_a_crash(harness: Any, damage: Callable[[Path], None]) -> None:
    store = harness.open(queue_segment_bytes=400)
    fill(harness, store)
    store.flush_queues()
    fill(harness, store, 30, begin=COUNT)
    expected = contents(harness, store)
    image = harness.crash()
    damage(image)
    again = harness.open(image, queue_segment_bytes=400)
    assert contents(harness, again) == expected
    assert len(again.recovery.repaired) == 1


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
    ("damage", "which"), [(cut, 0), (zero, 0), (cut, -1), (zero, -1), (Path.unlink, -1)]
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
