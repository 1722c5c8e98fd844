"""Remembers which transactions have ended, in about one bit each.

A transaction is named by the queue offset of its half message. Almost all transactions end, so the
offsets are kept as pages of bits, and a page whose transactions have all ended takes no more than
its number. Memory is limited: `PAGES_MAX` other pages take 32 MiB, and cover 268 million half
messages. Beyond that the oldest transactions count as ended, so that none of them is ended twice.
"""

from __future__ import annotations

from typing import Final

_PAGE_BITS: Final = 1 << 15
PAGES_MAX: Final = 8_192


class OffsetSet:
    """A set of queue offsets.

    >>> ended = OffsetSet()
    >>> ended.add(7)
    >>> 7 in ended, 8 in ended, -1 in ended
    (True, False, False)
    """

    def __init__(self) -> None:
        self._pages: dict[int, bytearray] = {}
        self._counts: dict[int, int] = {}
        self._full: set[int] = set()
        self._floor = 0  # all offsets in pages before this one count as members

    def __contains__(self, offset: int) -> bool:
        page, bit = divmod(offset, _PAGE_BITS)
        if page in self._full:
            return True
        bits = self._pages.get(page)
        if bits is None:
            return 0 <= page < self._floor
        return bool(bits[bit >> 3] & 1 << (bit & 7))

    def add(self, offset: int) -> None:
        """Add an offset; it must not be negative."""
        if offset in self:
            return
        page, bit = divmod(offset, _PAGE_BITS)
        bits = self._pages.get(page)
        if bits is None:
            bits = self._pages[page] = bytearray(_PAGE_BITS // 8)
            self._counts[page] = 0
        bits[bit >> 3] |= 1 << (bit & 7)
        self._counts[page] += 1
        if self._counts[page] == _PAGE_BITS:
            self._drop(page)
            self._full.add(page)
        elif len(self._pages) > PAGES_MAX:
            oldest = min(self._pages)
            self._drop(oldest)
            self._floor = oldest + 1
            self._full = {each for each in self._full if each > oldest}

    def _drop(self, page: int) -> None:
        del self._pages[page], self._counts[page]
