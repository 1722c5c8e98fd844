"""The key index: which records have a key, by its hash.

Files (`index_file`) are made when the first key comes. Keys are taken in memory (`add`) and written
together (`write`), by whichever thread comes first: one lock guards everything here. What a crash
takes away is rebuilt from the log.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

if TYPE_CHECKING:
    from coherer._store.checkpoint import Checkpoint
from coherer._store.files import Files
from coherer._store.index_file import IndexFile, Keys, key_hash

_PIECE_KEYS = 1_000
_MANY_KEYS = 5_000


class IndexContent(msgspec.Struct, frozen=True, array_like=True):
    """What an index file holds: its name, how many entries, and their check sum."""

    name: int
    count: int
    crc: int


class KeyIndex:
    """The files under `index/`."""

    PENDING_MAX: Final = 100_000
    """Keys held in memory while they cannot be written; then appends are refused."""

    def __init__(self, files: Files, directory: Path, slots: int, entries: int) -> None:
        self._files = files
        self._directory = directory
        self._slots = slots
        self._entries = entries
        self._all: list[IndexFile] = []
        self._pending = Keys([], [], [])
        self._guard = threading.RLock()
        self._new_names = False
        self._end_ms = 0

    def load(self, checkpoint: Checkpoint, *, clean: bool) -> list[str]:
        """Find the files, go back to what the checkpoint vouches for; give notes."""
        notes: list[str] = []
        self._end_ms = checkpoint.index_ms
        for name in self._files.names(self._directory):
            if not name.isdecimal():
                continue
            file = IndexFile(self._files, self._directory / name, self._slots, self._entries)
            if not file.load():
                notes.append(f"index file {name} is not used: its size or head is wrong")
            elif clean or self._keep(file, checkpoint):
                self._all.append(file)
            else:
                self._files.remove(file.path)
        return notes

    def _keep(self, file: IndexFile, checkpoint: Checkpoint) -> bool:
        if checkpoint.offset is None:
            return file.end_ms <= checkpoint.index_ms
        if file.number == checkpoint.index_file:
            file.restore(min(checkpoint.index_count, self._entries))
        return file.number <= checkpoint.index_file

    def contents(self, known: Sequence[IndexContent] = ()) -> list[IndexContent]:
        """Give what is in the files, written.

        Args:
            known: what was there before: full files do not change.
        """
        with self._guard:
            full = {one.name: one for one in known if one.count >= self._entries}
            return [
                full.get(file.number) or IndexContent(file.number, file.count, file.check_sum())
                for file in self._all
            ]

    def is_whole(self, known: Sequence[IndexContent]) -> bool:
        """Whether the files hold what they should."""
        with self._guard:
            found = {file.number: file for file in self._all}
            for one in reversed(known):
                file = found.get(one.name)
                if file is None or file.count != one.count or file.check_sum() != one.crc:
                    return False
        return True

    def restart(self, known: Sequence[IndexContent]) -> None:
        """Delete all files, and those that should be there: the keys are to be added again.

        Raises:
            OSError: a file could not be deleted.
        """
        with self._guard:
            for file in self._all:
                file.close()
                self._files.remove(file.path)
            self._all.clear()
            for one in known:
                self._files.remove(self._directory / str(one.name))

    @property
    def indexed_to(self) -> int:
        """The log offset of the last record in the files; -1 for none."""
        return self._all[-1].end_offset if self._all and self._all[-1].count > 1 else -1

    def catch_up(self, now_ms: int) -> None:
        """Write the entries of the keys that were taken if they are more than a few.

        Raises:
            OSError: some could not be written; they are kept for the next time.
        """
        if len(self._pending) >= _MANY_KEYS:
            self._put(now_ms)

    def make_room(self, now_ms: int) -> None:
        """Write the keys that were taken if they have become many.

        Raises:
            OSError: they could not be written: take no more.
        """
        if len(self._pending) >= self.PENDING_MAX:
            self._put(now_ms)

    def add(self, keys: Keys) -> None:
        """Take keys, in the order of the log."""
        self._pending.extend(keys)  # without the lock: see there

    def write(self, now_ms: int) -> None:
        """Write the keys that were taken.

        Raises:
            OSError: some could not be written; they are kept for the next time.
        """
        self._put(now_ms)
        with self._guard:
            if self._all:
                self._all[-1].save()

    def _put(self, now_ms: int) -> None:
        # The slots stay in memory: keys hit them all over the file, and `write` comes every few
        # seconds.
        pending = self._pending
        while pending:
            with self._guard:  # not for all of them: the writer must not wait long
                if pending and (not self._all or self._all[-1].full):
                    self._start_file(now_ms)
                if pending:
                    pending.drop(self._all[-1].put(pending.first(_PIECE_KEYS)))

    def _start_file(self, now_ms: int) -> None:
        if self._all:
            self._all[-1].finish()
        second, ms = divmod(now_ms, 1000)
        name = time.strftime("%Y%m%d%H%M%S", time.localtime(second)) + f"{ms:03d}"
        number = max(int(name), self._all[-1].number + 1 if self._all else 0)
        path = self._directory / str(number)
        file = IndexFile(self._files, path, self._slots, self._entries)
        try:
            file.open()
        except OSError:
            with suppress(OSError):
                self._files.remove(path)
            raise
        self._all.append(file)
        self._new_names = True

    def mark(self) -> tuple[int, int, int]:
        """Give the newest file's end time, number and count, for the checkpoint."""
        with self._guard:
            if not self._all:
                return self._end_ms, 0, 0
            file = self._all[-1]
            return max(each.end_ms for each in self._all), file.number, file.count

    def sync(self) -> None:
        """Make what is written durable.

        Raises:
            OSError: the disk failed.
        """
        with self._guard:
            files, new_names = list(self._all), self._new_names
            self._new_names = False  # before the sync: another file may be made meanwhile
        try:
            for file in files:
                if not file.dirty:
                    continue
                file.dirty = False  # before the sync: what is put meanwhile makes it dirty again
                try:
                    handle = self._files.open(file.path)  # our own: the writer may close its one
                except FileNotFoundError:  # deleted meanwhile
                    continue
                except OSError:
                    file.dirty = True
                    raise
                try:
                    self._files.sync(handle)
                finally:
                    self._files.close(handle)
            if new_names:
                self._files.sync_directory(self._directory)
        except OSError:
            self._new_names |= new_names
            raise

    def find(
        self,
        topic: str,
        key: str,
        span_ms: tuple[int, int],
        accept: Callable[[int], bool],
        max_count: int,
    ) -> None:
        """Offer the log offsets of records that may have a key, newest first.

        Args:
            topic: the topic.
            key: the key.
            span_ms: the first and the last store time that are wanted.
            accept: told an offset, says whether it was one; stops after `max_count` of them.
            max_count: see there.
        """
        with self._guard:
            for offset in self._candidates(topic, key, *span_ms):
                max_count -= accept(offset)
                if max_count <= 0:
                    return

    def _candidates(self, topic: str, key: str, begin_ms: int, end_ms: int) -> Iterator[int]:
        value = key_hash(topic, key)
        keys = self._pending
        for at, store_ms in reversed([*enumerate(keys.times_ms)]):
            if keys.hashes[at] == value and begin_ms <= store_ms <= end_ms:
                yield keys.offsets[at]
        for file in reversed(self._all):
            if file.begin_ms <= end_ms and file.end_ms + 999 >= begin_ms:
                yield from file.find(value, begin_ms, end_ms)
            if file.begin_ms < begin_ms:
                return

    def trim(self, log_begin: int) -> None:
        """Delete files of records that the log has no longer."""
        with self._guard:
            while len(self._all) > 1 and self._all[0].end_offset < log_begin:
                file = self._all.pop(0)
                file.close()
                self._files.remove(file.path)

    def close(self) -> None:
        """Close the files."""
        with self._guard:
            for file in self._all:
                file.close()
