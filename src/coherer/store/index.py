"""The key index: which records have a key, by its hash.

A file has a head of 40 bytes, a table of slots (4 bytes: the newest entry of the slot, 0 for none)
and entries (20 bytes: hash, log offset, seconds since the file's first record, the slot's entry
before this one). Entry 0 is never used. Files are sparse and made when the first key comes.

Keys are taken in memory (`add`) and written together (`write`), by whichever thread comes first:
one lock guards everything here. What a crash takes away is rebuilt from the log. Everything is
read and written by position; a mapping of a hole on a full disk could kill the process.
"""

from __future__ import annotations

import struct
import sys
import threading
import time
from array import array
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Final

from coherer.record.hashing import java_hash
from coherer.store.batch import IndexKey
from coherer.store.checkpoint import Checkpoint
from coherer.store.files import Files
from coherer.store.slots import PAGE_SLOTS, SLOT, SlotTable

HEAD: Final = struct.Struct(">qqqqii")
ENTRY: Final = struct.Struct(">iqii")
_HASHES = struct.Struct(">i16x")
_CHUNK_ENTRIES = 50_000
_PIECE_KEYS = 1_000
_MANY_KEYS = 5_000
_INT_MIN = -(1 << 31)
_LONG = 20
_HEADS_KEPT = 4_096
_POWERS = {count: pow(31, count, 1 << 32) for count in (2, 4, 8)}
_INT_MAX = (1 << 31) - 1


def key_hash(topic: str, key: str) -> int:
    """Give the hash that a key is indexed by.

    >>> key_hash("TopicTest", "k1")
    2746024
    """
    return _hashes(topic).of(key)


class _Hashes:
    """The hashes of a topic's keys.

    Of the ids that a client makes only the ends differ, and the hash of a text is made of those of
    its parts: so of most keys two pairs of characters are looked up, and what is before them.
    """

    __slots__ = ("_heads", "_topic")

    def __init__(self, topic: str) -> None:
        self._topic = topic + "#"
        self._heads: dict[str, int] = {}

    def of(self, key: str) -> int:
        if len(key) > _LONG and key.isascii():
            text = key[:-4]
            head = self._heads.get(text)
            if head is None:
                head = self._learn(text)
            value = (head + _PAIRS[key[-4:-2]] * _P2 + _PAIRS[key[-2:]]) & 0xFFFFFFFF
            if value < 0x80000000:
                return value
            return 0x100000000 - value if value != 0x80000000 else 0
        value = java_hash(self._topic + key)
        return 0 if value == _INT_MIN else abs(value)

    def _learn(self, text: str) -> int:
        # What is before the last eight stays the same for as long as a client lives.
        value = _hash_of(self._topic, text[:-8]) * _POWERS[8] + java_hash(text[-8:])
        head = (value * _POWERS[4]) & 0xFFFFFFFF
        if len(self._heads) >= _HEADS_KEPT:
            self._heads.clear()
        self._heads[text] = head
        return head


class _Pairs(dict[str, int]):
    """The hashes of two ASCII characters."""

    def __missing__(self, pair: str) -> int:
        value = self[pair] = java_hash(pair)
        return value


_PAIRS = _Pairs()
_P2 = _POWERS[2]
_hashes = lru_cache(maxsize=256)(_Hashes)


@lru_cache(maxsize=8192)
def _hash_of(before: str, text: str) -> int:
    return java_hash(before + text)


class IndexFile:
    """One file of the index. The caller holds the lock."""

    def __init__(self, files: Files, path: Path, slots: int, entries: int) -> None:
        self._files = files
        self._slots = slots
        self._entries = entries
        self._handle: int | None = None
        self._table: SlotTable | None = None
        self._unsaved = False
        self.path = path
        self.number = int(path.name)
        self.begin_ms = self.end_ms = self.begin_offset = self.end_offset = self.used_slots = 0
        self.count = 1
        self.dirty = False

    @property
    def full(self) -> bool:
        """Whether no entry is free."""
        return self.count >= self._entries

    @property
    def size_bytes(self) -> int:
        """Size of the file."""
        return HEAD.size + self._slots * SLOT.size + self._entries * ENTRY.size

    def open(self) -> int:
        """Give the handle of the file, made at its full size when it is missing."""
        if self._handle is None:
            handle = self._files.open(self.path, create=True)
            try:
                if self._files.size(handle) < self.size_bytes:
                    self._files.resize(handle, self.size_bytes)
            except OSError:
                self._files.close(handle)
                raise
            self._handle = handle
        return self._handle

    def close(self) -> None:
        """Close the file."""
        self._forget_slots()
        if self._handle is not None:
            handle, self._handle = self._handle, None
            self._files.close(handle)

    def load(self) -> bool:
        """Read the head; False when the file cannot be one of ours."""
        handle = self._files.open(self.path)
        try:
            if self._files.size(handle) != self.size_bytes:
                return False
            head = HEAD.unpack(self._files.read(handle, HEAD.size, 0))
        finally:
            self._files.close(handle)
        self.begin_ms, self.end_ms, self.begin_offset, self.end_offset, used, count = head
        self.used_slots, self.count = used, max(count, 1)
        return self.count <= self._entries

    def _entry_at(self, number: int) -> int:
        return HEAD.size + self._slots * SLOT.size + number * ENTRY.size

    def _slot(self, slot: int) -> int:
        if self._table is not None:
            number = self._table.slots[slot]
        else:
            data = self._files.read(self.open(), SLOT.size, HEAD.size + slot * SLOT.size)
            (number,) = SLOT.unpack(data)
        return number if 0 < number < self.count else 0

    def put(self, keys: Sequence[IndexKey]) -> int:
        """Write the entries of as many keys as there is room for; give their count.

        What else has changed waits for `save`.

        Raises:
            OSError: the file is as it was before.
        """
        keys = keys[: self._entries - self.count]
        if not keys:
            return 0
        table = self._slots_in_memory()
        slots, count = table.slots, self._slots
        first_ms = self.begin_ms if self.count > 1 else keys[0].store_ms
        number, used, last_ms = self.count, 0, self.end_ms
        topic_before, hash_of = "", _hashes("").of
        fields: list[int] = []
        touched: list[int] = []
        for topic, key, physical_offset, store_ms in keys:
            if topic != topic_before:
                topic_before, hash_of = topic, _hashes(topic).of
            value = hash_of(key)
            slot = value % count
            previous = slots[slot]
            if not 0 < previous < number:
                previous = 0
                used += 1
            if store_ms > last_ms:
                last_ms = store_ms
            fields += (value, physical_offset, store_ms, previous)
            touched.append(slot)
            slots[slot] = number
            number += 1
        fields[2::4] = [min(max((ms - first_ms) // 1000, 0), _INT_MAX) for ms in fields[2::4]]
        self.dirty = self._unsaved = True
        try:
            entries = _entries(len(keys)).pack(*fields)
            self._files.write(self.open(), entries, self._entry_at(self.count))
        except BaseException:
            for slot, previous in zip(reversed(touched), fields[::-4], strict=True):
                slots[slot] = previous
            raise
        table.changed(touched)
        if self.count == 1:
            self.begin_ms, self.begin_offset = first_ms, keys[0].physical_offset
        self.end_ms, self.end_offset = last_ms, keys[-1].physical_offset
        self.used_slots += used
        self.count = number
        return len(keys)

    def save(self) -> None:
        """Write what `put` has left: the slots, then the head.

        Raises:
            OSError: not everything could be written; the next call tries again.
        """
        if self._table is not None and self._unsaved:
            self.dirty = True
            self._table.save()
            self._write_head()
            self._unsaved = False

    def finish(self) -> None:
        """Write everything: nothing more is put here.

        Raises:
            OSError: see `save`.
        """
        self.save()
        self._forget_slots()

    def _slots_in_memory(self) -> SlotTable:
        if self._table is None:
            self._table = SlotTable(self._files, self.open(), HEAD.size, self._slots)
        return self._table

    def _forget_slots(self) -> None:
        if self._table is not None:
            self._table.close()
            self._table = None

    def _write_head(self) -> None:
        head = HEAD.pack(
            self.begin_ms, self.end_ms, self.begin_offset, self.end_offset,
            self.used_slots, self.count,
        )  # fmt: skip
        self._files.write(self.open(), head, 0)

    def find(self, value: int, begin_ms: int, end_ms: int) -> Iterator[int]:
        """Give the log offsets of a hash, newest first."""
        number = self._slot(value % self._slots)
        while number:
            data = self._files.read(self.open(), ENTRY.size, self._entry_at(number))
            found, offset, seconds, previous = ENTRY.unpack(data)
            store_ms = self.begin_ms + seconds * 1000
            if store_ms + 999 < begin_ms:
                return
            if found == value and store_ms <= end_ms:
                yield offset
            number = previous if 0 < previous < number else 0

    def restore(self, count: int) -> None:
        """Go back to the first entries: make the slots from them, whatever a crash left there."""
        self._forget_slots()
        handle = self.open()
        slots = array("i", bytes(SLOT.size * self._slots))
        self.used_slots = 0
        for first in range(1, count, _CHUNK_ENTRIES):
            wanted = min(_CHUNK_ENTRIES, count - first)
            data = self._files.read(handle, wanted * ENTRY.size, self._entry_at(first))
            for number, (value,) in enumerate(_HASHES.iter_unpack(data), first):
                slot = value % self._slots
                self.used_slots += not slots[slot]
                slots[slot] = number
        if sys.byteorder == "little":
            slots.byteswap()
        for first in range(0, self._slots, PAGE_SLOTS):
            page = slots[first : first + PAGE_SLOTS].tobytes()
            at = HEAD.size + first * SLOT.size
            if self._files.read(handle, len(page), at) != page:
                self._files.write(handle, page, at)
        self.count = count
        if count > 1:
            data = self._files.read(handle, ENTRY.size, self._entry_at(count - 1))
            _, self.end_offset, seconds, _ = ENTRY.unpack(data)
            self.end_ms = self.begin_ms + seconds * 1000
        self._write_head()
        self.dirty = True


@lru_cache(maxsize=8)
def _entries(count: int) -> struct.Struct:
    return struct.Struct(">" + "iqii" * count)


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
        self._pending: list[IndexKey] = []
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

    def add(self, keys: list[IndexKey]) -> None:
        """Take keys, in the order of the log."""
        self._pending += keys  # at once, so that the writer need not wait for the lock

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
        while self._pending:
            with self._guard:  # not for all of them: the writer must not wait long
                if self._pending and (not self._all or self._all[-1].full):
                    self._start_file(now_ms)
                if self._pending:
                    done = self._all[-1].put(self._pending[:_PIECE_KEYS])
                    del self._pending[:done]

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
        for file in files:
            if not file.dirty:
                continue
            file.dirty = False  # before the sync: what is put meanwhile makes it dirty again
            with suppress(FileNotFoundError):  # deleted meanwhile
                handle = self._files.open(file.path)  # our own: the writer may close its one
                try:
                    self._files.sync(handle)
                finally:
                    self._files.close(handle)
        if new_names:
            self._files.sync_directory(self._directory)
            self._new_names = False

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
        for taken in reversed(self._pending):
            if (taken.topic, taken.key) == (topic, key) and begin_ms <= taken.store_ms <= end_ms:
                yield taken.physical_offset
        value = key_hash(topic, key)
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
