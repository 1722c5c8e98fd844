"""Entries of consume queues in memory: visible at once, limited, written in batches."""

from __future__ import annotations

import errno
import itertools
import random
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from coherer._store import OsFiles
from coherer.errors import StoreError, StoreFullError

TOPICS = 300


class Counting(OsFiles):
    """Counts operations on files of queues."""

    def __init__(self) -> None:
        self.writes: list[str] = []
        self.opened = 0
        self.synced: list[str] = []
        self._paths: dict[int, Path] = {}

    def open(self, path: Path, *, create: bool = False) -> int:
        handle = super().open(path, create=create)
        self._paths[handle] = path
        self.opened += "consumequeue" in path.parts
        return handle

    def close(self, handle: int) -> None:
        super().close(handle)
        self.opened -= "consumequeue" in self._paths.pop(handle).parts

    def write(self, handle: int, data: bytes, offset: int) -> None:
        super().write(handle, data, offset)
        self.writes.append(self._paths[handle].parent.parent.name)

    def sync(self, handle: int) -> None:
        super().sync(handle)
        self.synced.append(self._paths[handle].parent.parent.name)

    def sync_all(self, path: Path) -> bool:
        self.synced.append("all")
        return super().sync_all(path)


def spread(harness: Any, begin: int, count: int, topics: int = TOPICS) -> list[Any]:
    return [harness.draft(n, f"t{n % topics}", size=50) for n in range(begin, begin + count)]


def test_a_batch_over_many_topics_is_one_write(harness: Any) -> None:
    files = Counting()
    store = harness.open(files=files, segment_bytes=1 << 20)
    store.append(spread(harness, 0, 1))
    store.delete_topic("t0")  # the first append has reserved offsets
    files.writes.clear()
    for number in range(5):
        store.append(spread(harness, number * TOPICS, TOPICS))
    assert files.writes == ["store"] * 5  # the log
    assert len(harness.everything(store)) == TOPICS
    assert harness.labels(store, "t7") == {at: f"t7/0/{at * TOPICS + 7}" for at in range(5)}
    files.writes.clear()
    store.flush_queues()
    topics = {f"t{n}" for n in range(TOPICS)}
    queues = [name for name in files.writes if name in topics]
    assert sorted(queues) == sorted(topics)  # one for each


def test_many_files_are_synced_by_one_call(harness: Any) -> None:
    files = Counting()
    store = harness.open(files=files)
    store.append(spread(harness, 0, 3))
    store.flush_queues()
    assert {"t0", "t1", "t2"} <= set(files.synced)
    assert "all" not in files.synced
    store.append(spread(harness, 3, TOPICS))
    files.synced.clear()
    store.flush_queues()
    assert "all" in files.synced


def test_reads_cover_file_and_memory(harness: Any) -> None:
    store = harness.open(queue_segment_bytes=2000)
    for number in range(0, 60, 10):
        store.append([harness.draft(number + n, tag="ab"[n % 2]) for n in range(10)])
        if number == 30:
            store.flush_queues()
    for first in range(60):
        for count in (1, 7, 60):
            read = store.read("t", 0, first, max_bytes=1 << 20, max_count=count)
            assert read.offsets == [*range(first, min(first + count, 60))]
            found = [harness.label(record) for record in read.records]
            assert found == [f"t/0/{offset}" for offset in read.offsets]
            entries = store.entries("t", 0, first, count)
            assert [entry.offset for entry in entries] == read.offsets
    tagged = store.read("t", 0, 0, max_bytes=1 << 20, max_count=99, tags=frozenset([98]))
    assert tagged.offsets == [*range(1, 60, 2)]


def test_the_writer_writes_when_too_many_entries_are_pending(
    harness: Any, monkeypatch: Any, full_files: Any
) -> None:
    store = harness.open(files=full_files, segment_bytes=1 << 20, pending_entries_max=1000)
    store.append(spread(harness, 0, 1000))
    assert not (harness.directory / "consumequeue" / "t0").exists()
    store.append(spread(harness, 1000, 10))
    assert (harness.directory / "consumequeue" / "t0").exists()
    store.append(spread(harness, 1010, 1000))
    before = harness.everything(store)

    class Refusing:
        """No disk space for queues, only for the log."""

        def __call__(self, path: Path) -> None:
            raise OSError(28, "No space left on device", str(path))

    with monkeypatch.context() as patch:
        patch.setattr(full_files, "make_directory", Refusing())
        patch.setattr(full_files, "fail_at", 0)  # the first write
        with pytest.raises(StoreFullError, match="consume queues"):
            store.append(spread(harness, 2010, 10))
        assert harness.everything(store) == before
    store.append(spread(harness, 2010, 10))
    store.close()
    again = harness.open(segment_bytes=1 << 20)
    assert sum(map(len, harness.everything(again).values())) == 2020
    assert again.recovery.clean


def test_a_tick_writes_early_when_many_entries_are_pending(harness: Any) -> None:
    store = harness.open(segment_bytes=1 << 20, pending_entries_max=200)
    store.tick()
    store.append(spread(harness, 0, 99))
    store.tick()
    assert not (harness.directory / "consumequeue" / "t0").exists()
    store.append(spread(harness, 99, 1))
    store.tick()
    assert (harness.directory / "consumequeue" / "t0").exists()


def test_slow_flushes_run_less_often(harness: Any, clock: Any) -> None:
    class Slow(Counting):
        def sync(self, handle: int) -> None:
            super().sync(handle)
            clock.ms += 200

    files = Slow()
    store = harness.open(files=files)
    flushes: list[int] = []
    begin_ms = clock.ms
    for number in range(200):
        store.append([harness.draft(number)])
        files.synced.clear()
        store.tick()
        if "t" in files.synced:
            flushes.append(clock.ms - begin_ms)
        clock.ms += 500
    pauses = [later - earlier for earlier, later in itertools.pairwise(flushes)]
    assert len(pauses) > 3
    assert min(pauses) >= 20 * 400  # log and one queue are synced, and more the first time
    assert max(pauses[1:]) < 30_000


@pytest.mark.parametrize("seed", range(4))
def test_writing_entries_concurrently_with_appends(harness: Any, seed: int) -> None:
    """One thread appends and reads while another writes the queues."""
    chance = random.Random(seed)
    store = harness.open(segment_bytes=1 << 18, queue_segment_bytes=200, open_files=3)
    stop = threading.Event()

    def flush() -> None:
        while not stop.is_set():
            store.flush_queues()

    other = threading.Thread(target=flush)
    other.start()
    counts = [0] * 20
    try:
        for _ in range(150):
            drafts = []
            for _ in range(chance.randint(1, 30)):
                number = chance.randrange(20)
                drafts.append(harness.draft(counts[number], f"t{number}", size=20))
                counts[number] += 1
            store.append(drafts)
            number = chance.randrange(20)
            expected = {at: f"t{number}/0/{at}" for at in range(counts[number])}
            assert harness.labels(store, f"t{number}") == expected
    finally:
        stop.set()
        other.join()
    store.append([harness.draft(count, f"t{n}", size=20) for n, count in enumerate(counts)])
    expected = harness.everything(store)
    assert {key[0]: len(found) for key, found in expected.items()} == {
        f"t{n}": count + 1 for n, count in enumerate(counts)
    }
    crashed = harness.open(harness.crash())
    assert crashed.recovery.replayed >= 20
    assert harness.everything(crashed) == expected
    crashed.close()
    store.close()
    assert harness.everything(harness.open()) == expected


def test_deleting_a_topic_with_pending_entries(harness: Any) -> None:
    store = harness.open()
    store.append([harness.draft(n, "tu"[n % 2]) for n in range(10)])
    store.delete_topic("t")
    assert store.topics() == ["u"]
    store.append([harness.draft(0)])
    assert harness.labels(store) == {0: "t/0/0"}
    crashed = harness.open(harness.crash())
    assert harness.everything(crashed) == harness.everything(store)


def test_a_topic_whose_files_cannot_be_deleted_is_deleted_later(
    harness: Any, monkeypatch: Any
) -> None:
    files = OsFiles()
    store = harness.open(files=files)
    store.append([harness.draft(n, "tu"[n % 2]) for n in range(10)])
    kept = harness.labels(store, "u")

    def refuse(path: Path) -> None:
        raise PermissionError(13, "in use", str(path))

    with monkeypatch.context() as patch:
        patch.setattr(files, "remove", refuse)
        with pytest.raises(StoreError):
            store.delete_topic("t")
    store.delete_topic("t")
    assert not (harness.directory / "consumequeue" / "t").exists()
    store.append([harness.draft(10), harness.draft(11, "u")])
    assert harness.labels(store) == {0: "t/0/10"}
    assert harness.labels(store, "u").items() > kept.items()
    crashed = harness.open(harness.crash())
    assert harness.everything(crashed) == harness.everything(store)


def failing_from(number: int, works: Callable[[Path], None]) -> Callable[[Path], None]:
    calls = itertools.count()

    def call(path: Path) -> None:
        if "consumequeue" in path.parts and next(calls) >= number:
            raise OSError(errno.EIO, "Input/output error", str(path))
        works(path)

    return call


@pytest.mark.parametrize("method", ["remove", "remove_tree"])
def test_what_a_failed_deletion_leaves_can_be_read_and_continued(
    harness: Any, monkeypatch: Any, tmp_path: Path, method: str
) -> None:
    """Whichever file or directory could not be deleted."""
    for failing in range(9):
        directory = tmp_path / str(failing)
        files = OsFiles()
        store = harness.open(directory, files=files)
        store.append([harness.draft(n, queue_id=n // 50) for n in range(100)])
        store.append([harness.draft(0, "u")])
        with monkeypatch.context() as patch:
            patch.setattr(files, method, failing_from(failing, getattr(files, method)))
            try:
                store.delete_topic("t")
            except StoreError:
                pass
            else:
                break
        left = harness.labels(store)
        assert list(left) == list(range(*store.queue_range("t", 0)))
        store.append([harness.draft(200), harness.draft(1, "u")])
        assert list(harness.labels(store).values()) == [*left.values(), "t/0/200"]
        store.flush_queues()
        expected = harness.everything(store)
        store.close()
        store = harness.open(directory)
        assert harness.everything(store) == expected
        store.delete_topic("t")
        assert [*harness.everything(store)] == [("u", 0)]
        assert not (directory / "consumequeue" / "t").exists()
    assert failing > 2


def test_the_number_of_open_files_is_limited(harness: Any, clock: Any) -> None:
    from coherer._store import Store

    files, most = Counting(), 100
    options = harness.open(harness.directory / "other").options
    store = Store.open(
        harness.directory, options, now_ms=clock, files=files, open_files=lambda: most
    )
    store.append(spread(harness, 0, TOPICS))
    store.flush_queues()
    assert files.opened == 100
    most = 10  # other parts of the process need files now
    store.tick()
    assert files.opened == 10
    assert len(harness.everything(store)) == TOPICS
    store.close()
    assert files.opened == 0
