"""The slots of the index file that is being written, in memory.

IndexKeys hit slots all over the table: one by one in the file each would cost two calls of the system.
Here a slot costs a look into memory, and `save` writes the touched pages, neighbours together.

The memory is that of untouched zero pages, until a slot in them is used.
"""

from __future__ import annotations

import mmap
import struct
import sys
from array import array
from collections.abc import Iterable
from typing import Final

from coherer._store.files import Files

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
