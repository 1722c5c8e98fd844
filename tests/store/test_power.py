"""Power cuts: unsynced writes are lost or torn, and flushed messages survive."""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from coherer._record.layout import properties_of
from coherer._rules.common.origins import Origin
from coherer._server.core.core import Core
from coherer._store import Store
from coherer.errors import StoreError, StoreFullError
from tests.copies import copy_tree
from tests.simulation.machines import Disk
from tests.store.conftest import tiny

SEEDS = int(os.environ.get("COHERER_POWER_SEEDS", "60"))


def run(
    harness: Any, store: Store, chance: random.Random, number: int, saved: list[bytes]
) -> tuple[int, dict[str, int]]:
    """Append, flush and delete; return the next number and the log offset of each message."""
    log_offsets: dict[str, int] = {}
    for _ in range(chance.randint(1, 25)):
        step = chance.random()
        if step < 0.6:
            drafts = [
                harness.draft(
                    number + n,
                    chance.choice("tu"),
                    chance.randrange(3),
                    size=chance.choice([20, 100, 700, 3000]),
                    tag="a",
                    key=chance.choice(["", "k", f"k{number}"]),
                )
                for n in range(chance.randint(1, 12))
            ]
            number += len(drafts)
            for draft, placed in zip(drafts, store.append(drafts), strict=True):
                log_offsets[draft.body.split(b";")[0].decode()] = placed.physical_offset
        elif step < 0.75:
            store.flush()
        elif step < 0.85:
            store.flush_queues()
        elif step < 0.9:
            store.save_config("topics.json", b"%09d" % number)
            saved.append(b"%09d" % number)
        harness.clock.ms += chance.choice([0, 1, 1000])
    return number, log_offsets


class Cut:
    """Cuts the power once, at some operation or on request."""

    def __init__(
        self, store: Store, files: Any, root: Path, image: Path, chance: random.Random
    ) -> None:
        self._store = store
        self._files = files
        self._root = root
        self._image = image
        self._chance = random.Random(chance.random())
        self._left = self._chance.choice([5, 20, 60, 200, 10_000])
        self._left = self._chance.randint(0, self._left)
        self.durable = 0
        self.saved = [store.read_config("topics.json", bytes) or b""]
        self.config = b""
        files.before = self._step

    def _step(self) -> None:
        self._left -= 1
        if self._left < 0:
            self.now()

    def now(self) -> None:
        """Cut the power if it was not cut before."""
        if not self._image.exists():
            self._files.before = lambda: None
            self.durable = self._store.durable_offset
            self.config = self.saved[-1]
            self._files.cut(self._root, self._image, self._chance)


def with_key(harness: Any, store: Store, topic: str) -> list[str]:
    """The messages of a topic with the key "k"."""
    found: list[str] = []
    for queue_id in store.queues(topic):
        at = store.queue_range(topic, queue_id)[0]
        end = store.queue_range(topic, queue_id)[1]
        slices = store.read(topic, queue_id, at, max_bytes=1 << 30, max_count=9999)
        while at < end:
            at = slices.next_offset
            found += [
                harness.label(record)
                for record in slices.records
                if bytes(properties_of(record)).endswith(b"KEYS\x01k")
            ]
            limits = {"max_bytes": 1 << 30, "max_count": 9999}
            slices = store.read(topic, queue_id, slices.next_offset, **limits)
    return found


@pytest.mark.parametrize("seed", range(SEEDS))
def test_flushed_messages_survive_a_power_cut(
    harness: Any, power_files: Callable[[], Any], tmp_path: Path, seed: int
) -> None:
    """Three runs on one disk, each ended by a power cut."""
    chance = random.Random(seed)
    directory, number = tmp_path / "life0", 0
    kept: dict[str, int] = {}
    config = b""
    for life in range(3):
        files = power_files()
        files.adopt(directory)
        store = harness.open(directory, files=files)
        before = {name for queue in harness.everything(store).values() for name in queue.values()}
        assert kept.keys() <= before
        assert not store.recovery.clean or life == 0
        assert (store.read_config("topics.json", bytes) or b"") >= config
        image = tmp_path / f"life{life + 1}"
        cut = Cut(store, files, directory, image, chance)
        number, log_offsets = run(harness, store, chance, number, cut.saved)
        cut.now()
        # Recovery has synced everything that it found.
        kept = dict.fromkeys(before, 0)
        kept |= {name: at for name, at in log_offsets.items() if at < cut.durable}
        config = cut.config
        directory = image
    store = harness.open(directory)
    found = harness.everything(store)
    names = [name for queue in found.values() for name in queue.values()]
    assert len(names) == len(set(names))
    assert kept.keys() <= set(names)
    assert not [piece for piece in store.recovery.damage if "queue" in piece.reason]
    # Queues have the order of the log, index and tags agree with it, and appends work.
    for (topic, queue_id), queue in found.items():
        numbers = [int(name.split("/")[2]) for name in queue.values()]
        assert numbers == sorted(numbers)
        at = store.queue_range(topic, queue_id)[0]
        tagged = store.read(
            topic, queue_id, at, max_bytes=1 << 30, max_count=9999, tags=frozenset([97])
        )
        assert set(tagged.offsets) <= queue.keys()
    for topic in store.topics():
        labels = [harness.label(record) for record in store.by_key(topic, "k", max_count=9999)]
        assert sorted(labels) == sorted(with_key(harness, store, topic))
    store.append([harness.draft(10**6)])
    store.close()
    again = harness.open(directory)
    assert sum(map(len, harness.everything(again).values())) == len(names) + 1


@pytest.mark.parametrize("seed", range(SEEDS // 3))
async def test_what_a_node_with_sync_flush_acknowledged_survives(
    harness: Any, power_files: Callable[[], Any], tmp_path: Path, seed: int
) -> None:
    """As servers use the store: sends of many connections, one flush for all that wait."""
    chance = random.Random(seed)
    files = power_files()
    files.adopt(harness.directory)
    core = Core(harness.open(files=files, flush="sync"), lambda: harness.clock.ms)
    acknowledged: list[str] = []
    kept: list[str] = []
    left = chance.randint(1, 120)

    def step() -> None:
        nonlocal left, kept
        left -= 1
        if left == 0:
            files.before = lambda: None
            kept = list(acknowledged)
            files.cut(harness.directory, tmp_path / "image", chance)

    files.before = step
    for number in range(0, 200, 4):
        drafts = [
            harness.draft(number + n, "tu"[n % 2], n % 3, size=chance.choice([20, 700, 3000]))
            for n in range(4)
        ]
        names = [draft.body.split(b";")[0].decode() for draft in drafts]
        core.appender.submit(
            drafts,
            lambda _, __, names=names: acknowledged.extend(names),
            origin=Origin.ROCKETMQ_CLIENT,
        )
        await asyncio.sleep(chance.choice([0, 0, 0.001]))
    await core.appender.close()
    await core.close()
    assert len(acknowledged) == 200
    assert left <= 0
    found = {name for queue in harness.everything(harness.open(tmp_path / "image")).values()
             for name in queue.values()}  # fmt: skip
    assert found.issuperset(kept)


@pytest.mark.parametrize("seed", range(8))
def test_after_close_nothing_is_lost(
    harness: Any, power_files: Callable[[], Any], tmp_path: Path, seed: int
) -> None:
    chance = random.Random(seed)
    files = power_files()
    store = harness.open(files=files)
    number, log_offsets = run(harness, store, chance, 0, [])
    expected = harness.everything(store)
    store.close()
    files.cut(harness.directory, tmp_path / "image", chance)
    again = harness.open(tmp_path / "image")
    assert harness.everything(again) == expected
    assert sum(map(len, expected.values())) == len(log_offsets) == number
    assert not again.recovery.damage


@pytest.mark.parametrize("seed", range(20))
def test_rejected_messages_do_not_come_back(
    harness: Any, power_files: Callable[[], Any], tmp_path: Path, seed: int
) -> None:
    """The bytes may have reached the disk before they were removed."""

    class Refusing(type(power_files())):  # type: ignore[misc]
        refuse = False

        def open(self, path: Path, *, create: bool = False) -> int:
            if self.refuse and create and "commitlog" in path.parts:
                raise OSError(28, "No space left on device")
            return int(super().open(path, create=create))

    files = Refusing()
    store = harness.open(files=files)
    store.append([harness.draft(0)])
    store.flush()
    files.refuse = True
    with pytest.raises(StoreFullError):
        store.append([harness.draft(1, size=9_000), harness.draft(0, "u", size=9_000)])
    store.flush()
    files.cut(harness.directory, tmp_path / "image", random.Random(seed))
    assert harness.everything(harness.open(tmp_path / "image")) == {("t", 0): {0: "t/0/0"}}


def test_a_power_cut_during_recovery(
    harness: Any, power_files: Callable[[], Any], tmp_path: Path
) -> None:
    """The power may fail at any write of a recovery."""
    store = harness.open()
    for number in range(40):
        store.append([harness.draft(number, queue_id=number % 3, size=500, key="k")])
    expected = harness.everything(store)
    image = harness.crash()

    class Dying(type(power_files())):  # type: ignore[misc]
        left = 10**9

        def _live(self) -> None:
            self.left -= 1
            if self.left < 0:
                raise OSError(5, "the machine is off")

        def write(self, handle: int, data: bytes, offset: int) -> None:
            self._live()
            super().write(handle, data, offset)

        def sync(self, handle: int) -> None:
            self._live()
            super().sync(handle)

    survived = 0
    for writes in range(60):
        files = Dying()
        target = tmp_path / f"try{writes}"
        copy_tree(image, target)
        files.adopt(target)
        files.left = writes
        try:
            opened = harness.open(target, files=files)
        except StoreError:
            pass
        else:
            survived += 1
            files.left = 10**9
            opened.close()
            continue
        finally:
            files.left = 10**9
        files.cut(target, tmp_path / f"cut{writes}", random.Random(writes))
        again = harness.open(tmp_path / f"cut{writes}")
        assert harness.everything(again) == expected
        assert len(again.by_key("t", "k", max_count=99)) == 40
        again.close()
    assert 0 < survived < 60


@pytest.mark.parametrize("seed", range(8))
def test_a_new_directory_survives(
    harness: Any, power_files: Callable[[], Any], tmp_path: Path, seed: int
) -> None:
    """A flush also makes the names of the directory and its parents durable."""
    disk = tmp_path / "disk"
    disk.mkdir()
    files = power_files()
    files.adopt(disk)
    store = harness.open(disk / "var" / "queue" / "data", files=files)
    store.append([harness.draft(0)])
    store.flush()
    files.cut(disk, tmp_path / "image", random.Random(seed))
    again = harness.open(tmp_path / "image" / "var" / "queue" / "data")
    assert harness.everything(again) == {("t", 0): {0: "t/0/0"}}


def test_a_directory_created_by_a_killed_process_survives(
    harness: Any, power_files: Callable[[], Any], tmp_path: Path
) -> None:
    """The process had only created the directory."""
    disk = tmp_path / "disk"
    disk.mkdir()
    files = power_files()
    files.adopt(disk)
    files.make_directory(disk / "data")
    harness.open(disk / "data", files=files).flush()
    files.cut(disk, tmp_path / "image", random.Random(1))
    assert (tmp_path / "image" / "data" / "abort").exists()


@pytest.mark.parametrize("seed", range(8))
def test_an_index_file_that_is_created_during_a_sync_survives(
    harness: Any, power_files: Callable[[], Any], tmp_path: Path, seed: int
) -> None:
    files = power_files()
    store = harness.open(files=files, pending_keys_max=10)  # so the writer writes keys itself
    store.append([harness.draft(n, key=f"k{n}") for n in range(10)])
    sync_directory = files.sync_directory

    def then_more(path: Path) -> None:
        sync_directory(path)
        if path.name == "index":
            files.sync_directory = sync_directory
            # The second file begins with the 40th key.
            for first, end in ((10, 35), (35, 45), (45, 46)):
                store.append([harness.draft(n, key=f"k{n}") for n in range(first, end)])

    files.sync_directory = then_more
    store.flush_queues()
    store.flush_queues()
    files.cut(harness.directory, tmp_path / "image", random.Random(seed))
    again = harness.open(tmp_path / "image")
    for number in range(46):
        assert len(again.by_key("t", f"k{number}")) == 1


@pytest.mark.parametrize("seed", range(10))
def test_names_that_a_killed_process_made_survive_a_power_cut(
    harness: Any, power_files: Callable[[], Any], tmp_path: Path, seed: int
) -> None:
    """It was killed before it synced them. The next process finds the files, and covers them."""
    chance = random.Random(seed)
    directory, image = tmp_path / "disk", tmp_path / "image"
    disk = Disk()
    disk.adopt(tmp_path)
    killed = Store.open(directory, tiny(), now_ms=harness.clock, files=disk)
    killed.append([harness.draft(0)])
    killed.flush_queues()
    for number in range(1, 60):  # they need new files of log, queues and index
        topic = chance.choice("tuv")
        killed.append([harness.draft(number, topic, number % 3, size=700, key=f"k{number}")])
    disk.close_all()
    store = Store.open(directory, tiny(), now_ms=harness.clock, files=disk)
    before = harness.everything(store)
    store.append([harness.draft(60)])
    store.flush_queues()
    disk.cut(directory, image, chance)
    files = power_files()
    files.adopt(image)
    found = harness.everything(harness.open(image, files=files))
    disk.close_all()
    assert {key: found.get(key, {}).get(0) for key in before} == {
        key: messages[0] for key, messages in before.items()
    }
    assert sum(map(len, found.values())) == 61


@pytest.mark.parametrize("keeps_checkpoint", [True, False])
def test_what_a_failed_sync_dropped_is_written_again(
    harness: Any, tmp_path: Path, *, keeps_checkpoint: bool
) -> None:
    """After a failed sync Linux counts the pages as clean: another sync does not write them."""
    disk = Disk()

    def start() -> Store:
        return Store.open(harness.directory, tiny(), now_ms=harness.clock, files=disk)

    store = start()
    store.append([harness.draft(number) for number in range(20)])
    if keeps_checkpoint:
        store.flush_queues()
    store.append([harness.draft(number, size=3_000) for number in range(20, 50)])
    disk.sick = disk.drops = True
    with pytest.raises(StoreError):
        store.flush()
    disk.sick = disk.drops = False
    disk.close_all()  # the process is killed; the system's memory still has everything
    again = start()
    assert list(harness.labels(again)) == list(range(50))
    assert again.durable_offset == again.end_offset
    disk.close_all()
    image = tmp_path / "after the power cut"
    disk.cut(harness.directory, image, random.Random(0))
    assert list(harness.labels(harness.open(image))) == list(range(50))
