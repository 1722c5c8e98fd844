"""The key index: finds the records that have a key, by its hash.

A file (`index_file`) is created for its first key. Keys are kept in memory (`add`) and
written in batches, by any thread; one lock guards everything here. Keys that a crash loses are
rebuilt from the log.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from itertools import islice
from pathlib import Path

import msgspec
from msgspec.structs import replace

from coherer._store.checkpoint import Checkpoint
from coherer._store.files import Files
from coherer._store.index_file import IndexFile, IndexKeys, key_hash

_PIECE_KEYS = 1_000
_MANY_KEYS = 5_000
_SLICE_ENTRIES = 200


class IndexFileContent(msgspec.Struct, frozen=True, array_like=True):
    """The content of an index file: its name, the number of entries, and a checksum."""

    name: int
    count: int
    crc: int


class KeyIndex:
    """The files under `index/`.

    Args:
        pending_max: how many keys may wait in memory; then appends write them or fail.

    Attributes:
        is_lost: whether `load` did not find all files with keys that the checkpoint covers.
    """

    def __init__(
        self, files: Files, directory: Path, slots: int, entries: int, pending_max: int = 100_000
    ) -> None:
        self._files = files
        self._directory = directory
        self._slots = slots
        self._entries = entries
        self._pending_max = pending_max
        self._index_files: list[IndexFile] = []
        self._unusable: list[Path] = []
        self._pending = IndexKeys([], [], [])
        self._guard = threading.RLock()
        self._has_new_names = True  # perhaps, of a process that was killed
        self.is_lost = False
        self._end_ms = 0

    def load(
        self,
        checkpoint: Checkpoint,
        *,
        clean: bool,
        log_begin: int = 0,
        changing: bool = True,
    ) -> list[str]:
        """Find the files; restore entries before the checkpoint. Return notes for the report.

        Args:
            log_begin: the first offset of the log. Files with older keys only may be missing.
            changing: whether files may be changed.
        """
        notes: list[str] = []
        self._end_ms = checkpoint.index_ms
        expected = {number for number, end in checkpoint.index_files if end >= log_begin}
        if checkpoint.offset is not None:
            expected |= {checkpoint.index_file} - {0}
        newest = max(expected, default=0)
        for name in self._files.names(self._directory):
            if not name.isdecimal():
                continue
            file = IndexFile(self._files, self._directory / name, self._slots, self._entries)
            if not file.load() or (file.number <= newest and not file.end_ms):
                notes.append(f"index file {name} is not used: its size or header is wrong")
                if file.number <= newest:
                    expected.add(file.number)
                    self._unusable.append(file.path)
                continue
            self._index_files.append(file)  # before it is opened: `close` closes it
            if clean or not changing or self._keep(file, checkpoint):
                expected.discard(file.number)
            else:
                self._index_files.pop()
                self._files.remove(file.path)
        self.is_lost = bool(expected)
        return notes

    def _keep(self, file: IndexFile, checkpoint: Checkpoint) -> bool:
        if checkpoint.offset is None:
            return file.end_ms <= checkpoint.index_ms
        if file.number == checkpoint.index_file:
            file.restore(min(checkpoint.index_count, self._entries))
        return file.number <= checkpoint.index_file

    def contents(self, known: Sequence[IndexFileContent] = ()) -> list[IndexFileContent]:
        """Return the content of the files; all keys are written.

        Args:
            known: the content at open: full files do not change.
        """
        with self._guard:
            full = {one.name: one for one in known if one.count >= self._entries}
            return [
                full.get(file.number) or IndexFileContent(file.number, file.count, file.checksum())
                for file in self._index_files
            ]

    def matches(self, known: Sequence[IndexFileContent]) -> bool:
        """Whether the files have this content."""
        with self._guard:
            found = {file.number: file for file in self._index_files}
            for one in reversed(known):
                file = found.get(one.name)
                if file is None or file.count != one.count or file.checksum() != one.crc:
                    return False
        return True

    def reset(self, known: Sequence[IndexFileContent]) -> None:
        """Delete all files, also known ones that were not loaded; the keys will be added again.

        Raises:
            OSError: a file could not be deleted.
        """
        with self._guard:
            for file in self._index_files:
                file.close()
                self._files.remove(file.path)
            self._index_files.clear()
            for path in self._unusable:
                self._files.remove(path)
            for one in known:
                self._files.remove(self._directory / str(one.name))

    @property
    def indexed_to(self) -> int:
        """The log offset of the last record in the files; -1 if they are empty."""
        return (
            self._index_files[-1].end_offset
            if self._index_files and self._index_files[-1].count > 1
            else -1
        )

    def write_if_many(self, now_ms: int) -> None:
        """Write the entries of the keys in memory if there are many.

        Raises:
            OSError: some could not be written; they stay in memory for the next time.
        """
        if len(self._pending) >= _MANY_KEYS:
            self._put(now_ms)

    @property
    def is_full(self) -> bool:
        """Whether too many keys are in memory."""
        return len(self._pending) >= self._pending_max

    def write_if_full(self, now_ms: int) -> None:
        """Write the entries of the keys in memory if there are too many.

        Raises:
            OSError: they could not be written; accept no more messages.
        """
        if self.is_full:
            self._put(now_ms)

    def add(self, keys: IndexKeys) -> None:
        """Add keys, in the order of the log."""
        self._pending.extend(keys)  # without the lock: see `IndexKeys`

    def write(self, now_ms: int) -> None:
        """Write the keys in memory.

        Raises:
            OSError: some could not be written; they stay in memory for the next time.
        """
        self._put(now_ms)
        with self._guard:
            if self._index_files:
                self._index_files[-1].save()

    def _put(self, now_ms: int) -> None:
        # The slots stay in memory until `write`, which runs every few seconds.
        pending = self._pending
        while pending:
            with self._guard:  # for a part of the keys, so that the writer does not wait long
                if pending and (not self._index_files or self._index_files[-1].full):
                    self._start_file(now_ms)
                if pending:
                    pending.drop(self._index_files[-1].put(pending.first(_PIECE_KEYS)))

    def _start_file(self, now_ms: int) -> None:
        if self._index_files:
            self._index_files[-1].finish()
        second, ms = divmod(now_ms, 1000)
        name = time.strftime("%Y%m%d%H%M%S", time.localtime(second)) + f"{ms:03d}"
        number = max(int(name), self._index_files[-1].number + 1 if self._index_files else 0)
        path = self._directory / str(number)
        file = IndexFile(self._files, path, self._slots, self._entries)
        try:
            file.open()
        except OSError:
            with suppress(OSError):
                self._files.remove(path)
            raise
        self._index_files.append(file)
        self._has_new_names = True

    def cover(self, checkpoint: Checkpoint) -> Checkpoint:
        """Return a checkpoint that covers the entries in the files."""
        with self._guard:
            files = self._index_files
            if not files:
                return replace(checkpoint, index_ms=self._end_ms)
            return replace(
                checkpoint,
                index_ms=max(each.end_ms for each in files),
                index_file=files[-1].number,
                index_count=files[-1].count,
                index_files=tuple((each.number, each.end_offset) for each in files[:-1]),
            )

    def sync(self) -> None:
        """Sync written entries.

        Raises:
            OSError: the disk failed.
        """
        with self._guard:
            files, new_names = list(self._index_files), self._has_new_names
            self._has_new_names = False  # before the sync: another file may be created meanwhile
        try:
            for file in files:
                if not file.is_unsynced:
                    continue
                file.is_unsynced = False  # before the sync: `put` may run meanwhile
                try:
                    handle = self._files.open(file.path)  # the writer may close its own handle
                except FileNotFoundError:  # deleted meanwhile
                    continue
                except OSError:
                    file.is_unsynced = True
                    raise
                try:
                    self._files.sync(handle)
                finally:
                    self._files.close(handle)
            if new_names:
                self._files.sync_directory(self._directory)
        except OSError:
            self._has_new_names |= new_names
            raise

    def find(
        self,
        topic: str,
        key: str,
        span_ms: tuple[int, int],
        accept: Callable[[int], bool],
        max_count: int,
    ) -> None:
        """Pass the log offsets of records that may have a key to `accept`, newest first.

        Args:
            span_ms: the first and the last store time.
            accept: called with an offset; returns whether the record has the key.
            max_count: stop after this many records.
        """
        for some in self.slices(topic, key, span_ms):
            for offset in some:
                max_count -= accept(offset)
                if max_count <= 0:
                    return

    def slices(self, topic: str, key: str, span_ms: tuple[int, int]) -> Iterator[list[int]]:
        """Return what `find` passes on, in parts for which few entries are read.

        Millions of entries can have to be passed over: other keys may have the same hash. Between
        two parts keys may be added, and files deleted.
        """
        candidates = self._candidates(topic, key, *span_ms)
        while True:
            with self._guard:
                some = list(islice(candidates, _SLICE_ENTRIES))
            if not some:
                return
            yield [offset for offset in some if offset is not None]

    def _candidates(self, topic: str, key: str, begin_ms: int, end_ms: int) -> Iterator[int | None]:
        """Log offsets, and None for each entry that is passed over. The caller has the guard."""
        value = key_hash(topic, key)
        keys = self._pending
        yield from [
            keys.offsets[at]
            for at, store_ms in reversed([*enumerate(keys.times_ms)])
            if keys.hashes[at] == value and begin_ms <= store_ms <= end_ms
        ]
        for file in reversed(self._index_files.copy()):
            if file in self._index_files and (
                file.begin_ms <= end_ms and file.end_ms + 999 >= begin_ms
            ):
                for offset in file.find(value, begin_ms, end_ms):
                    yield offset
                    if file not in self._index_files:
                        break
            if file.begin_ms < begin_ms:
                return

    def trim(self, log_begin: int) -> None:
        """Delete the files whose records are no longer in the log."""
        with self._guard:
            while len(self._index_files) > 1 and self._index_files[0].end_offset < log_begin:
                file = self._index_files.pop(0)
                file.close()
                self._files.remove(file.path)

    def close(self) -> None:
        """Close the files."""
        with self._guard:
            for file in self._index_files:
                file.close()
