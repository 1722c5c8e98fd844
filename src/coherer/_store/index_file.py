"""One file of the key index.

A file has a head of 40 bytes, a table of slots (4 bytes: the newest entry of the slot, 0 for none)
and entries (20 bytes: hash, log offset, seconds since the file's first record, the slot's entry
before this one). QueueEntry 0 is never used. Files are sparse.

Everything is read and written by position; a mapping of a hole on a full disk could kill the
process.
"""

from __future__ import annotations

import struct
import sys
from array import array
from collections.abc import Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Final
from zlib import crc32

from coherer._store.files import Files
from coherer._store.keys import Keys
from coherer._store.slots import PAGE_SLOTS, SLOT, SlotTable

HEAD: Final = struct.Struct(">qqqqii")
ENTRY: Final = struct.Struct(">iqii")
_HASHES = struct.Struct(">i16x")
_CHUNK_ENTRIES = 50_000
_CHECK_BYTES = 1 << 20
_INT_MAX = (1 << 31) - 1


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

    def check_sum(self) -> int:
        """Give a check sum of all that is in the file."""
        end = self._entry_at(self.count)
        value = 0
        for at in range(0, end, _CHECK_BYTES):
            value = crc32(self._files.read(self.open(), min(_CHECK_BYTES, end - at), at), value)
        return value

    def put(self, keys: Keys) -> int:
        """Write the entries of as many keys as there is room for; give their count.

        What else has changed waits for `save`.

        Raises:
            OSError: the file is as it was before.
        """
        keys = keys.first(self._entries - self.count)
        if not keys:
            return 0
        table = self._slots_in_memory()
        limit, number = self._slots, self.count
        touched = [value % limit for value in keys.hashes]
        previous = _chain(table.slots, touched, number)
        first_ms = self.begin_ms if number > 1 else keys.times_ms[0]
        seconds = {ms: min(max((ms - first_ms) // 1000, 0), _INT_MAX) for ms in set(keys.times_ms)}
        fields = [0] * (4 * len(keys))
        fields[::4] = keys.hashes
        fields[1::4] = keys.offsets
        fields[2::4] = [seconds[ms] for ms in keys.times_ms]
        fields[3::4] = previous
        self.dirty = self._unsaved = True
        try:
            entries = _entries(len(keys)).pack(*fields)
            self._files.write(self.open(), entries, self._entry_at(number))
        except BaseException:
            for slot, before in zip(reversed(touched), reversed(previous), strict=True):
                table.slots[slot] = before
            raise
        table.changed(touched)
        if number == 1:
            self.begin_ms, self.begin_offset = first_ms, keys.offsets[0]
        self.end_ms, self.end_offset = max(self.end_ms, *seconds), keys.offsets[-1]
        self.used_slots += previous.count(0)
        self.count = number + len(keys)
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


def _chain(slots: memoryview, touched: Sequence[int], number: int) -> list[int]:
    """Put entries, from `number` on, into their slots; give what was there before each."""
    previous: list[int] = []
    for entry, slot in enumerate(touched, number):
        before = slots[slot]
        previous.append(before if 0 < before < entry else 0)
        slots[slot] = entry
    return previous
