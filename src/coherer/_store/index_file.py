"""Keys of messages on their way to the index: their hashes, and where the messages lie.

Of a key the index holds only the hash; who looks a key up compares the messages that are found.
So the hash is all that is kept of a key from the moment when its message is stored.


The slots of the index file that is being written, in memory.

Keys hit slots all over the table: one by one in the file each would cost two calls of the system.
Here a slot costs a look into memory, and `save` writes the touched pages, neighbours together.

The memory is that of untouched zero pages, until a slot in them is used.


One file of the key index.

A file has a head of 40 bytes, a table of slots (4 bytes: the newest entry of the slot, 0 for none)
and entries (20 bytes: hash, log offset, seconds since the file's first record, the slot's entry
before this one). QueueEntry 0 is never used. Files are sparse.

Everything is read and written by position; a mapping of a hole on a full disk could kill the
process.
"""

from __future__ import annotations

import mmap
import struct
import sys
from array import array
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Final
from zlib import crc32

from coherer._record.properties import java_hash
from coherer._store.files import Files

_INT_MIN = -(1 << 31)
_LONG = 20
_HEADS_KEPT = 4_096
_POWERS = {count: pow(31, count, 1 << 32) for count in (2, 8)}


class Keys:
    """Keys in the order of the log: three lists of equal length.

    One thread may add keys behind the others (`extend`) while another takes the first ones and
    drops them: a key is there when it is in the last list, and lists grow and shrink at once.
    (Many small objects instead would keep the garbage collector busy.)

    Attributes:
        hashes: of the keys.
        offsets: where the messages lie in the log.
        times_ms: when they were stored.

    >>> len(Keys([key_hash("TopicTest", "k1")], [4096], [9]))
    1
    """

    __slots__ = ("hashes", "offsets", "times_ms")

    def __init__(self, hashes: list[int], offsets: list[int], times_ms: list[int]) -> None:
        self.hashes = hashes
        self.offsets = offsets
        self.times_ms = times_ms

    def __len__(self) -> int:
        return len(self.times_ms)

    def extend(self, other: Keys) -> None:
        """Take what another one has behind these."""
        self.hashes += other.hashes
        self.offsets += other.offsets
        self.times_ms += other.times_ms

    def first(self, count: int) -> Keys:
        """Give the first keys, up to `count`."""
        count = min(count, len(self))  # what is only in the other lists is being added
        return Keys(self.hashes[:count], self.offsets[:count], self.times_ms[:count])

    def drop(self, count: int) -> None:
        """Forget the first keys."""
        del self.hashes[:count], self.offsets[:count], self.times_ms[:count]


def key_hash(topic: str, key: str) -> int:
    """Give the hash that a key is indexed by.

    >>> key_hash("TopicTest", "k1")
    2746024
    """
    (value,) = hashes_of(topic).of((key,))
    return value


class Hashes:
    """The hashes of a topic's keys.

    The hash of a text is made of those of its parts. So what the topic adds is worked out once for
    each length of a key, and of the ids that a client makes, only whose ends differ, mostly the
    last two characters are looked up, and what is before them: whatever topics they go to.
    """

    __slots__ = ("_terms", "_topic")

    def __init__(self, topic: str) -> None:
        self._topic = topic + "#"
        self._terms: dict[int, int] = {}

    def of(self, keys: Iterable[str]) -> list[int]:
        """Give the hash of each key."""
        heads, pairs, terms = _HEADS, _PAIRS, self._terms
        hashes: list[int] = []
        for key in keys:
            length = len(key)
            if length > _LONG and key.isascii():
                term = terms.get(length)
                if term is None:
                    term = terms[length] = java_hash(self._topic) * pow(31, length, 1 << 32)
                value = (term + heads[key[:-2]] + pairs[key[-2:]]) & 0xFFFFFFFF
                if value >= 0x80000000:
                    value = 0x100000000 - value if value != 0x80000000 else 0
            else:
                value = java_hash(self._topic + key)
                value = 0 if value == _INT_MIN else abs(value)
            hashes.append(value)
        return hashes


class _Heads(dict[str, int]):
    """What all but the last two characters of a key add to its hash."""

    def __missing__(self, text: str) -> int:
        # What is before the last eight stays the same for as long as a client lives.
        value = _hash_of(text[:-8]) * _POWERS[8] + java_hash(text[-8:])
        head = (value * _POWERS[2]) & 0xFFFFFFFF
        if len(self) >= _HEADS_KEPT:
            self.clear()
        self[text] = head
        return head


class _Pairs(dict[str, int]):
    """The hashes of two ASCII characters."""

    def __missing__(self, pair: str) -> int:
        value = self[pair] = java_hash(pair)
        return value


_HEADS = _Heads()
_PAIRS = _Pairs()
hashes_of = lru_cache(maxsize=256)(Hashes)
"""The hashes of a topic's keys; the same object for the same topic."""


@lru_cache(maxsize=8192)
def _hash_of(text: str) -> int:
    return java_hash(text)


SLOT: Final = struct.Struct(">i")
PAGE_SLOTS: Final = 1024
_LOAD_BYTES: Final = 1 << 20
_PAGES_AT_ONCE: Final = 64
"""More would keep the event loop waiting while their bytes are turned round."""


class SlotTable:
    """The table of one file.

    Args:
        files: how to reach the file.
        handle: the file.
        begin: where the table begins in it.
        count: how many slots it has.
    """

    def __init__(self, files: Files, handle: int, begin: int, count: int) -> None:
        self._files = files
        self._handle = handle
        self._begin = begin
        self._count = count
        self._memory = mmap.mmap(-1, count * SLOT.size)
        self._dirty: set[int] = set()
        self.slots = memoryview(self._memory).cast("i")
        try:
            self._load()
        except OSError:
            self.close()
            raise

    def changed(self, slots: Iterable[int]) -> None:
        """Note which slots were changed since: they are to be saved."""
        self._dirty.update([slot // PAGE_SLOTS for slot in slots])

    def save(self) -> None:
        """Write what was changed.

        Raises:
            OSError: not everything could be written; the next call tries again.
        """
        pages = sorted(self._dirty)
        first = 0
        for at, page in enumerate(pages, 1):
            if at == len(pages) or pages[at] != page + 1 or at - first >= _PAGES_AT_ONCE:
                self._write(pages[first], page + 1)
                self._dirty.difference_update(pages[first:at])
                first = at

    def close(self) -> None:
        """Give the memory back."""
        self.slots.release()
        self._memory.close()

    def _write(self, first: int, end: int) -> None:
        begin = first * PAGE_SLOTS
        # As bytes: of a view it would take one number after the other.
        part = array("i", self.slots[begin : min(end * PAGE_SLOTS, self._count)].tobytes())
        if sys.byteorder == "little":
            part.byteswap()
        self._files.write(self._handle, part.tobytes(), self._begin + begin * SLOT.size)

    def _load(self) -> None:
        size = self._count * SLOT.size
        for at in range(0, size, _LOAD_BYTES):
            data = self._files.read(self._handle, min(_LOAD_BYTES, size - at), self._begin + at)
            if data.count(0) == len(data):
                continue  # nothing there yet: the memory stays untouched
            part = array("i", data)
            if sys.byteorder == "little":
                part.byteswap()
            first = at // SLOT.size
            self.slots[first : first + len(part)] = memoryview(part)


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
