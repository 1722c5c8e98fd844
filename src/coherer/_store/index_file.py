"""Index files: the keys of messages, by hash.

A file has a header of 40 bytes, a table of slots (4 bytes: the newest entry of the slot, 0 for an
empty slot) and entries (20 bytes: hash, log offset, seconds since the file's first record, the
previous entry of the slot). Entry 0 is never used. Files are sparse.

The index holds only the hash of a key; a lookup compares the keys of the messages it finds. So the
hash is all that is kept of a key once its message is stored (`IndexKeys`, `KeyHasher`).

Keys hit slots all over the table. Updating each in the file would cost two system calls per key, so
the table of the file that is being written is in memory (`SlotTable`), and `save` writes the pages
that were changed, neighbours together. Untouched pages of the table take no memory.

Files are read and written by position: with a mapping, a hole on a full disk could kill the
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

from coherer._common.checksum import crc32
from coherer._record.properties import java_hash
from coherer._store.files import Files

_INT_MIN = -(1 << 31)
_LONG = 20
_PREFIXES_MAX = 1_024
"""A client has a new prefix every 256 messages, so that old ones are of no use."""
_POWERS = {count: pow(31, count, 1 << 32) for count in (2, 8)}


class IndexKeys:
    """Keys of messages in the order of the log: three lists of equal length.

    One thread may append keys (`extend`) while another takes and drops the first ones: a key
    counts when it is in the last list, and each list grows and shrinks atomically. (Many small
    objects would keep the garbage collector busy.)

    Attributes:
        times_ms: their store times.

    >>> len(IndexKeys([key_hash("TopicTest", "k1")], [4096], [9]))
    1
    """

    __slots__ = ("hashes", "offsets", "times_ms")

    def __init__(self, hashes: list[int], offsets: list[int], times_ms: list[int]) -> None:
        self.hashes = hashes
        self.offsets = offsets
        self.times_ms = times_ms

    def __len__(self) -> int:
        return len(self.times_ms)

    def extend(self, other: IndexKeys) -> None:
        """Append other keys."""
        self.hashes += other.hashes
        self.offsets += other.offsets
        self.times_ms += other.times_ms

    def first(self, count: int) -> IndexKeys:
        """Return the first keys, up to `count`."""
        count = min(count, len(self))  # longer lists mean that a key is being added
        return IndexKeys(self.hashes[:count], self.offsets[:count], self.times_ms[:count])

    def drop(self, count: int) -> None:
        """Remove the first keys."""
        del self.hashes[:count], self.offsets[:count], self.times_ms[:count]


def key_hash(topic: str, key: str) -> int:
    """Return the hash that a key is indexed by.

    >>> key_hash("TopicTest", "k1")
    2746024
    """
    (value,) = key_hasher(topic).hash_all((key,))
    return value


class KeyHasher:
    """Hashes the keys of a topic.

    The hash of a text is a sum over its parts. So the share of the topic is computed once for each
    length of a key. The unique ids of a client differ only at their ends, so the hash of the last
    two characters and the share of the rest are cached, for all topics.
    """

    __slots__ = ("_terms", "_topic")

    def __init__(self, topic: str) -> None:
        self._topic = topic + "#"
        self._terms: dict[int, int] = {}

    def hash_all(self, keys: Iterable[str]) -> list[int]:
        """Return the hash of each key."""
        prefixes, suffixes, terms = _PREFIXES, _SUFFIXES, self._terms
        hashes: list[int] = []
        for key in keys:
            length = len(key)
            if length > _LONG and key.isascii():
                term = terms.get(length)
                if term is None:
                    term = terms[length] = java_hash(self._topic) * pow(31, length, 1 << 32)
                value = (term + prefixes[key[:-2]] + suffixes[key[-2:]]) & 0xFFFFFFFF
                if value >= 0x80000000:
                    value = 0x100000000 - value if value != 0x80000000 else 0
            else:
                value = java_hash(self._topic + key)
                value = 0 if value == _INT_MIN else abs(value)
            hashes.append(value)
        return hashes


class _PrefixHashes(dict[str, int]):
    """The share of all but the last two characters in the hash of a key."""

    def __missing__(self, text: str) -> int:
        # Of a unique id, everything before the last eight characters is constant for a client.
        value = _hash_of(text[:-8]) * _POWERS[8] + java_hash(text[-8:])
        share = (value * _POWERS[2]) & 0xFFFFFFFF
        if len(self) >= _PREFIXES_MAX:
            self.clear()
        self[text] = share
        return share


class _SuffixHashes(dict[str, int]):
    """The hashes of pairs of ASCII characters."""

    def __missing__(self, pair: str) -> int:
        value = self[pair] = java_hash(pair)
        return value


_PREFIXES = _PrefixHashes()
_SUFFIXES = _SuffixHashes()
key_hasher = lru_cache(maxsize=256)(KeyHasher)
"""Returns the `KeyHasher` of a topic, cached."""


@lru_cache(maxsize=1024)
def _hash_of(text: str) -> int:
    return java_hash(text)


SLOT: Final = struct.Struct(">i")
PAGE_SLOTS: Final = 1024
_LOAD_BYTES: Final = 1 << 20
_PAGES_AT_ONCE: Final = 64
"""More pages would block the event loop while their bytes are swapped."""


class SlotTable:
    """The slots of one file, in memory.

    Args:
        begin: the position of the table in the file.
    """

    def __init__(self, files: Files, handle: int, begin: int, count: int) -> None:
        self._files = files
        self._handle = handle
        self._begin = begin
        self._count = count
        self._memory = mmap.mmap(-1, count * SLOT.size)
        self._changed_pages: set[int] = set()
        self.slots = memoryview(self._memory).cast("i")
        try:
            self._load()
        except OSError:
            self.close()
            raise

    def mark_changed(self, slots: Iterable[int]) -> None:
        """Note which slots were changed, for `save`."""
        self._changed_pages.update([slot // PAGE_SLOTS for slot in slots])

    def save(self) -> None:
        """Write the pages that were changed.

        Raises:
            OSError: some could not be written; the next call tries again.
        """
        pages = sorted(self._changed_pages)
        first = 0
        for at, page in enumerate(pages, 1):
            if at == len(pages) or pages[at] != page + 1 or at - first >= _PAGES_AT_ONCE:
                self._write(pages[first], page + 1)
                self._changed_pages.difference_update(pages[first:at])
                first = at

    def close(self) -> None:
        """Release the memory."""
        self.slots.release()
        self._memory.close()

    def _write(self, first: int, end: int) -> None:
        begin = first * PAGE_SLOTS
        # As bytes: from a view, `array` would take the numbers one by one.
        part = array("i", self.slots[begin : min(end * PAGE_SLOTS, self._count)].tobytes())
        if sys.byteorder == "little":
            part.byteswap()
        self._files.write(self._handle, part.tobytes(), self._begin + begin * SLOT.size)

    def _load(self) -> None:
        size = self._count * SLOT.size
        for at in range(0, size, _LOAD_BYTES):
            data = self._files.read(self._handle, min(_LOAD_BYTES, size - at), self._begin + at)
            if data.count(0) == len(data):
                continue  # empty: the pages stay untouched
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
    """One file of the index. The caller holds the lock of the index."""

    def __init__(self, files: Files, path: Path, slots: int, entries: int) -> None:
        self._files = files
        self._slots = slots
        self._entries = entries
        self._handle: int | None = None
        self._table: SlotTable | None = None
        self._has_unsaved_slots = False
        self.path = path
        self.number = int(path.name)
        self.begin_ms = self.end_ms = self.begin_offset = self.end_offset = self.used_slots = 0
        self.count = 1
        self.is_unsynced = False

    @property
    def full(self) -> bool:
        """Whether all entries are used."""
        return self.count >= self._entries

    @property
    def size_bytes(self) -> int:
        """The size of the file."""
        return HEAD.size + self._slots * SLOT.size + self._entries * ENTRY.size

    def open(self) -> int:
        """Return the handle of the file; create it at its full size if it is missing."""
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
        self._close_slots()
        if self._handle is not None:
            handle, self._handle = self._handle, None
            self._files.close(handle)

    def load(self) -> bool:
        """Read the header; return False if the size or the header of the file is wrong."""
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

    def checksum(self) -> int:
        """Return a checksum of the content of the file."""
        end = self._entry_at(self.count)
        value = 0
        for at in range(0, end, _CHECK_BYTES):
            value = crc32(self._files.read(self.open(), min(_CHECK_BYTES, end - at), at), value)
        return value

    def put(self, keys: IndexKeys) -> int:
        """Write the entries of as many keys as fit; return their number.

        `save` writes the slots and the header.

        Raises:
            OSError: the disk failed; the file is unchanged.
        """
        keys = keys.first(self._entries - self.count)
        if not keys:
            return 0
        table = self._slots_in_memory()
        limit, number = self._slots, self.count
        touched = [value % limit for value in keys.hashes]
        previous = _link(table.slots, touched, number)
        first_ms = self.begin_ms if number > 1 else keys.times_ms[0]
        seconds = {ms: min(max((ms - first_ms) // 1000, 0), _INT_MAX) for ms in set(keys.times_ms)}
        fields = [0] * (4 * len(keys))
        fields[::4] = keys.hashes
        fields[1::4] = keys.offsets
        fields[2::4] = [seconds[ms] for ms in keys.times_ms]
        fields[3::4] = previous
        self.is_unsynced = self._has_unsaved_slots = True
        try:
            entries = _entries(len(keys)).pack(*fields)
            self._files.write(self.open(), entries, self._entry_at(number))
        except BaseException:
            for slot, before in zip(reversed(touched), reversed(previous), strict=True):
                table.slots[slot] = before
            raise
        table.mark_changed(touched)
        if number == 1:
            self.begin_ms, self.begin_offset = first_ms, keys.offsets[0]
        self.end_ms, self.end_offset = max(self.end_ms, *seconds), keys.offsets[-1]
        self.used_slots += previous.count(0)
        self.count = number + len(keys)
        return len(keys)

    def save(self) -> None:
        """Write the slots that `put` changed, then the header.

        Raises:
            OSError: some could not be written; the next call tries again.
        """
        if self._table is not None and self._has_unsaved_slots:
            self.is_unsynced = True
            self._table.save()
            self._write_header()
            self._has_unsaved_slots = False

    def finish(self) -> None:
        """Write everything; the file gets no more keys.

        Raises:
            OSError: see `save`.
        """
        self.save()
        self._close_slots()

    def _slots_in_memory(self) -> SlotTable:
        if self._table is None:
            self._table = SlotTable(self._files, self.open(), HEAD.size, self._slots)
        return self._table

    def _close_slots(self) -> None:
        if self._table is not None:
            self._table.close()
            self._table = None

    def _write_header(self) -> None:
        head = HEAD.pack(
            self.begin_ms,
            self.end_ms,
            self.begin_offset,
            self.end_offset,
            self.used_slots,
            self.count,
        )
        self._files.write(self.open(), head, 0)

    def find(self, value: int, begin_ms: int, end_ms: int) -> Iterator[int | None]:
        """Return the log offsets of a hash, newest first; None for each entry of another one."""
        number = self._slot(value % self._slots)
        while number:
            data = self._files.read(self.open(), ENTRY.size, self._entry_at(number))
            found, offset, seconds, previous = ENTRY.unpack(data)
            store_ms = self.begin_ms + seconds * 1000
            if store_ms + 999 < begin_ms:
                return
            yield offset if found == value and store_ms <= end_ms else None
            number = previous if 0 < previous < number else 0

    def restore(self, count: int) -> None:
        """Keep the first `count` entries and rebuild the slots from them, after a crash."""
        self._close_slots()
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
        self._write_header()
        self.is_unsynced = True


@lru_cache(maxsize=8)
def _entries(count: int) -> struct.Struct:
    return struct.Struct(">" + "iqii" * count)


def _link(slots: memoryview, touched: Sequence[int], number: int) -> list[int]:
    """Put entries, from `number` on, into their slots; return the previous entry of each."""
    previous: list[int] = []
    for entry, slot in enumerate(touched, number):
        before = slots[slot]
        previous.append(before if 0 < before < entry else 0)
        slots[slot] = entry
    return previous
