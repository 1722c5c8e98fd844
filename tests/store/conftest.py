"""Fixtures: stores, a clock, disks that fill up, and disks that lose power."""

from __future__ import annotations

import errno
import functools
import itertools
import random
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Concatenate, ParamSpec, TypeVar

import pytest

from coherer._record.layout import decode
from coherer._record.properties import encode
from coherer._store import Draft, Files, OsFiles, ReadResult, Store, StoreOptions
from coherer.errors import StoreError
from tests.copies import copy_tree

SECTOR = 512
PAGE = 4096


class Clock:
    """A clock that the test sets."""

    def __init__(self) -> None:
        self.ms = 1_650_000_000_000

    def __call__(self) -> int:
        return self.ms


class FullFiles(OsFiles):
    """A disk with space for `free_sectors` sectors; None for no limit. Holes take no space.

    `fail_at` makes the n-th changing operation from now on fail, whatever it is, once.
    """

    def __init__(self) -> None:
        self.free_sectors: int | None = None
        self.fail_at: int | None = None
        self.operations = 0
        self._taken: set[tuple[int, int]] = set()

    def _step(self) -> None:
        self.operations += 1
        if self.fail_at is not None:
            self.fail_at -= 1
            if self.fail_at < 0:
                self.fail_at = None
                raise OSError(errno.ENOSPC, "No space left on device")

    def open(self, path: Path, *, create: bool = False) -> int:
        if create and not path.exists():
            self._step()
        return super().open(path, create=create)

    def resize(self, handle: int, size: int) -> None:
        self._step()
        super().resize(handle, size)

    def make_directory(self, path: Path) -> None:
        if not path.exists():
            self._step()
        super().make_directory(path)

    def write(self, handle: int, data: bytes, offset: int) -> None:
        import os

        self._step()
        inode = os.fstat(handle).st_ino
        for sector in range(offset // SECTOR, (offset + len(data) - 1) // SECTOR + 1):
            data_at = self.next_data(handle, sector * SECTOR)
            if (inode, sector) in self._taken or data_at == sector * SECTOR:
                continue
            if self.free_sectors is not None:
                if self.free_sectors <= 0:
                    part = max(sector * SECTOR - offset, 0)
                    super().write(handle, data[:part], offset)
                    raise OSError(errno.ENOSPC, "No space left on device")
                self.free_sectors -= 1
            self._taken.add((inode, sector))
        super().write(handle, data, offset)


class _Inode:
    def __init__(self) -> None:
        self.content = bytearray()  # as processes see it
        self.durable = bytearray()  # as it was at the last sync
        self.pending: list[tuple[int, bytes]] = []  # writes since then; (size, b"") is a resize
        self.has_dropped = False  # a sync failed: pages count as clean that are not on the disk

    def sync(self) -> None:
        if self.has_dropped:
            _resize(self.durable, len(self.content))
            for page in {
                page
                for offset, data in self.pending
                for page in range(offset // PAGE, (offset + len(data) - 1) // PAGE + 1)
            }:
                at = slice(page * PAGE, (page + 1) * PAGE)
                self.durable[at] = self.content[at]
        else:
            self.durable[:] = self.content
        self.pending.clear()

    def drop(self) -> None:
        """Count what was written as synced, though it is not."""
        _resize(self.durable, len(self.content))
        self.has_dropped |= any(data for _, data in self.pending)
        self.pending.clear()


BOOTS = itertools.count(1)

P = ParamSpec("P")
T = TypeVar("T")


def _at_once(
    method: Callable[Concatenate[PowerFiles, P], T],
) -> Callable[Concatenate[PowerFiles, P], T]:
    def alone(self: PowerFiles, *args: P.args, **kwargs: P.kwargs) -> T:
        with self.turn:
            return method(self, *args, **kwargs)

    return functools.update_wrapper(alone, method)


class PowerFiles(OsFiles):
    """Files whose unsynced changes a power cut may lose, in any order, sector by sector.

    What a file system with a journal promises is kept: names change in order within a directory,
    and a file's size is set before what is written later. The power fails between two calls: a
    store calls from several threads, and a copy made during a call shows a disk that never was.
    """

    def __init__(self) -> None:
        self.turn = threading.RLock()
        self.boot = next(BOOTS).to_bytes(16, "big")
        self._inodes: dict[int, _Inode] = {}
        self._handles: dict[int, _Inode] = {}
        self._names: dict[Path, _Inode | None] = {}  # None is a directory
        self._durable_names: dict[Path, _Inode | None] = {}
        self._pending_names: list[tuple[Path, _Inode | None, bool]] = []
        self.before: Callable[[], None] = lambda: None  # called before anything changes

    @_at_once
    def adopt(self, root: Path) -> None:
        """Treat existing files as durable."""
        for path in [root, *sorted(root.rglob("*"))]:
            inode = None if not path.is_file() else _Inode()
            if inode is not None:
                inode.content[:] = inode.durable[:] = path.read_bytes()
            self._names[path] = self._durable_names[path] = inode

    @_at_once
    def open(self, path: Path, *, create: bool = False) -> int:
        if create and path not in self._names:
            inode = _Inode()
            self._names[path] = inode
            self._pending_names.append((path, inode, True))
        handle = super().open(path, create=create)
        found = self._names[path]
        assert found is not None
        self._handles[handle] = found
        return handle

    @_at_once
    def resize(self, handle: int, size: int) -> None:
        self.before()
        super().resize(handle, size)
        inode = self._handles[handle]
        _resize(inode.content, size)
        inode.pending.append((size, b""))

    @_at_once
    def write(self, handle: int, data: bytes, offset: int) -> None:
        self.before()
        super().write(handle, data, offset)
        inode = self._handles[handle]
        _write(inode.content, data, offset)
        inode.pending.append((offset, bytes(data)))

    @_at_once
    def sync(self, handle: int) -> None:
        self.before()
        self._handles[handle].sync()

    @_at_once
    def drop(self, handle: int | None = None) -> None:
        """Do as Linux does when a sync fails: the pages of a file, or of all, count as clean.

        Readers still see their content, the next sync succeeds, and a power cut takes them.
        """
        for inode in self._inodes_of(handle):
            inode.drop()

    @_at_once
    def rot(self, path: Path, at: int, bit: int) -> None:
        """A bit of a file has changed on the disk."""
        if (inode := self._names.get(path)) is not None:
            for content in (inode.content, inode.durable):
                if at < len(content):
                    content[at] ^= bit

    def _inodes_of(self, handle: int | None) -> list[_Inode]:
        if handle is not None:
            return [self._handles[handle]]
        return list({id(one): one for one in self._names.values() if one}.values())

    @_at_once
    def make_directory(self, path: Path) -> None:
        super().make_directory(path)
        for directory in [*reversed(path.parents), path]:
            if directory not in self._names:
                self._names[directory] = None
                self._pending_names.append((directory, None, True))

    @_at_once
    def sync_directory(self, path: Path) -> None:
        self.before()
        rest: list[tuple[Path, _Inode | None, bool]] = []
        for name, inode, there in self._pending_names:
            if name.parent == path:
                _name(self._durable_names, name, inode, there)
            else:
                rest.append((name, inode, there))
        self._pending_names = rest

    @_at_once
    def sync_all(self, path: Path) -> bool:
        self.before()
        for inode in self._inodes_of(None):
            inode.sync()
        for name, named, there in self._pending_names:
            _name(self._durable_names, name, named, there)
        self._pending_names = []
        return True

    @_at_once
    def replace(self, source: Path, target: Path) -> None:
        self.before()
        super().replace(source, target)
        if self._names[source] is self._names.get(target):
            return  # two names of one file: nothing happens
        inode = self._names.pop(source)
        self._names[target] = inode
        self._pending_names.append((target, inode, True))
        self._pending_names.append((source, inode, False))

    @_at_once
    def link(self, source: Path, target: Path) -> None:
        self.before()
        super().link(source, target)
        self._names[target] = self._names[source]
        self._pending_names.append((target, self._names[source], True))

    @_at_once
    def remove(self, path: Path) -> None:
        self.before()
        super().remove(path)
        if path in self._names:
            self._pending_names.append((path, self._names.pop(path), False))

    @_at_once
    def remove_tree(self, path: Path) -> None:
        super().remove_tree(path)
        for name in [name for name in self._names if path in (name, *name.parents)]:
            self._pending_names.append((name, self._names.pop(name), False))

    def boot_id(self) -> bytes:
        return self.boot

    @_at_once
    def cut(self, root: Path, image: Path, chance: random.Random) -> None:
        """Write the state of `root` after a power cut now to `image`."""
        names = dict(self._durable_names)
        below = {name.parent for name, _, _ in self._pending_names if root in name.parents}
        for directory in sorted(below):
            pending = [entry for entry in self._pending_names if entry[0].parent == directory]
            for name, inode, there in pending[: chance.randint(0, len(pending))]:
                _name(names, name, inode, there)
        image.mkdir(parents=True, exist_ok=True)
        for name, inode in names.items():
            if root not in name.parents:
                continue
            parents = [parent for parent in name.parents if root in parent.parents]
            if any(parent not in names for parent in parents):
                continue
            target = image / name.relative_to(root)
            if inode is None:
                target.mkdir(parents=True, exist_ok=True)
            else:
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(_torn(inode, chance))


def _name(names: dict[Path, _Inode | None], name: Path, inode: _Inode | None, there: bool) -> None:
    if there:
        names[name] = inode
    else:
        names.pop(name, None)


def _resize(content: bytearray, size: int) -> None:
    del content[size:]
    content.extend(bytes(size - len(content)))


def _write(content: bytearray, data: bytes, offset: int) -> None:
    if len(content) < offset + len(data):
        content.extend(bytes(offset + len(data) - len(content)))
    content[offset : offset + len(data)] = data


def _torn(inode: _Inode, chance: random.Random) -> bytes:
    content = bytearray(inode.durable)
    mode = chance.choice(["none", "all", "some", "some", "first"])
    keep = chance.random()
    last = {"none": 0, "all": len(inode.pending)}.get(mode, chance.randint(0, len(inode.pending)))
    for offset, data in inode.pending[: len(inode.pending) if mode == "some" else last]:
        if not data:
            _resize(content, offset)
            continue
        end = offset + len(data)
        for sector in range(offset // SECTOR * SECTOR, end, SECTOR):
            if mode != "some" or random.Random(f"{sector}{keep}").random() < keep:
                begin, stop = max(sector, offset), min(sector + SECTOR, end)
                _write(content, data[begin - offset : stop - offset], begin)
    return bytes(content)


def tiny(**changes: object) -> StoreOptions:
    """Options with small files, so that a test fills several."""
    defaults: dict[str, object] = {
        "segment_bytes": 16_384,
        "queue_segment_bytes": 400,
        "index_slots": 50,
        "index_entries": 40,
        "verify_bytes": 8_192,
    }
    return StoreOptions(**{**defaults, **changes})  # type: ignore[arg-type]


def draft(
    number: int,
    topic: str = "t",
    queue_id: int = 0,
    *,
    size: int = 100,
    tag: str = "",
    key: str = "",
) -> Draft:
    """A message with a unique body."""
    from coherer._record.properties import tag_code

    properties = {name: text for name, text in (("TAGS", tag), ("KEYS", key)) if text}
    body = f"{topic}/{queue_id}/{number};".encode()
    return Draft(
        topic,
        queue_id,
        body + b"." * max(size - len(body), 0),
        encode(properties),
        tag_code=tag_code(tag),
        keys=tuple(key.split()),
    )


def label(record: memoryview) -> str:
    """The label of the message in a record, verified by its checksum."""
    return bytes(decode(record).body).split(b";")[0].decode()


class Harness:
    """Opens stores and closes them at the end of the test."""

    def __init__(self, directory: Path, clock: Clock) -> None:
        self.directory = directory / "store"
        self.clock = clock
        self._root = directory
        self._open: list[Store] = []

    def open(
        self, directory: Path | None = None, *, files: Files | None = None, **changes: object
    ) -> Store:
        store = Store.open(
            directory or self.directory,
            tiny(**changes),
            now_ms=self.clock,
            files=files or OsFiles(),
        )
        self._open.append(store)
        return store

    def crash(self, name: str = "crashed") -> Path:
        """Return a copy of the directory, as if the process had died."""
        import shutil

        target = self._root / name
        shutil.rmtree(target, ignore_errors=True)
        copy_tree(self.directory, target)
        return target

    def write_queues(self, store: Store) -> None:
        """Write the queues' entries to their files, without a checkpoint."""
        checkpoint = store.directory / "checkpoint"
        before = checkpoint.read_bytes() if checkpoint.exists() else None
        store.flush_queues()
        if before is None:
            checkpoint.unlink()
        else:
            checkpoint.write_bytes(before)

    def close(self) -> None:
        for store in self._open:
            with suppress(StoreError):  # its directory or disk may be gone
                store.close()

    draft = staticmethod(draft)
    label = staticmethod(label)

    def labels(self, store: Store, topic: str = "t", queue_id: int = 0) -> dict[int, str]:
        """The labels of all messages in a queue by queue offset."""
        found: dict[int, str] = {}
        at, end = store.queue_range(topic, queue_id)
        while at < end:
            slices: ReadResult = store.read(topic, queue_id, at, max_bytes=1 << 20, max_count=100)
            assert slices.next_offset > at
            for offset, record in zip(slices.offsets, slices.records, strict=True):
                found[offset] = label(record)
                assert decode(record).queue_offset == offset
            at = slices.next_offset
        return found

    def everything(self, store: Store) -> dict[tuple[str, int], dict[int, str]]:
        """The labels of all messages in a store."""
        return {
            (topic, queue_id): self.labels(store, topic, queue_id)
            for topic in store.topics()
            for queue_id in store.queues(topic)
        }


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def harness(tmp_path: Path, clock: Clock) -> Iterator[Harness]:
    made = Harness(tmp_path, clock)
    yield made
    made.close()


@pytest.fixture
def full_files() -> FullFiles:
    return FullFiles()


@pytest.fixture
def power_files() -> Callable[[], PowerFiles]:
    return PowerFiles
