"""Converts the times in records to a monotonic clock.

Records carry the time of day. That clock may be set while a message waits, so the difference of two
times of day says nothing about the time that passed. `ClockHistory` remembers, by log offset, how
far the time of day and the store time were ahead of the monotonic clock. It adds an entry only when
these differences change. For records of an earlier process it uses the differences at open.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from typing import Final

_TOLERANCE_MS: Final = 50
"""Smaller changes are ignored: clocks are corrected by small steps all day."""

_ENTRIES_MAX: Final = 100_000
"""Enough for more than an hour of constant store times; then the older half is dropped."""


class ClockHistory:
    """Converts the times in records to a monotonic clock.

    Args:
        end: the end of the log when the store is opened.
        now_ms: the monotonic clock at open.
        wall_ms: the time of day at open.

    Attributes:
        opened_ms: the monotonic time when the store was opened, or when a replica last received a
            part of its master's log.

    >>> times = ClockHistory(100, now_ms=5_000, wall_ms=5_000)
    >>> times.note(100, now_ms=6_000, wall_ms=6_000, store_ms=6_000)
    >>> times.note(180, now_ms=7_000, wall_ms=2_000, store_ms=6_000)  # set back by five seconds
    >>> times.stored_ms(100, 6_000), times.stored_ms(180, 6_000), times.born_ms(180, 2_000)
    (6000, 7000, 7000)
    """

    def __init__(self, end: int, now_ms: int, wall_ms: int) -> None:
        self.opened_ms = now_ms
        self._end = end
        self._wall_ahead_ms = self._store_ahead_ms = wall_ms - now_ms
        self._offsets = array("q", (0,))
        self._walls = array("q", (self._wall_ahead_ms,))
        self._stores = array("q", (self._store_ahead_ms,))

    def note(self, physical_offset: int, now_ms: int, wall_ms: int, store_ms: int) -> None:
        """Note the clocks for a batch that begins at a log offset. Called for each, in order."""
        wall, stored = wall_ms - now_ms, store_ms - now_ms
        if (
            abs(wall - self._wall_ahead_ms) <= _TOLERANCE_MS
            and abs(stored - self._store_ahead_ms) <= _TOLERANCE_MS
        ):
            return
        if len(self._offsets) >= _ENTRIES_MAX:
            for column in (self._offsets, self._walls, self._stores):
                del column[1 : _ENTRIES_MAX // 2]
        self._wall_ahead_ms, self._store_ahead_ms = wall, stored
        self._offsets.append(physical_offset)
        self._walls.append(wall)
        self._stores.append(stored)

    def note_copy(self, end: int, now_ms: int) -> None:
        """Note that records before this log offset were stored by another machine."""
        self._end, self.opened_ms = end, now_ms

    def is_older(self, physical_offset: int) -> bool:
        """Whether another process stored the record at this log offset."""
        return physical_offset < self._end

    def stored_ms(self, physical_offset: int, store_ms: int) -> int:
        """Convert a record's store time, or a time computed from it."""
        return store_ms - self._stores[bisect_right(self._offsets, physical_offset) - 1]

    def age_ms(self, physical_offset: int, store_ms: int, now_ms: int) -> int:
        """How long at least the record at this log offset has been stored, by the monotonic clock.

        >>> times = ClockHistory(100, now_ms=5_000, wall_ms=5_000)
        >>> times.age_ms(0, 9_000_000, 7_000), times.age_ms(100, 6_000, 7_000)
        (2000, 1000)
        """
        if self.is_older(physical_offset):
            # For a record of another process only the time since the start is certain.
            return now_ms - self.opened_ms
        return now_ms - self.stored_ms(physical_offset, store_ms)

    def born_ms(self, physical_offset: int, born_ms: int) -> int:
        """Convert a time of day that was current when the record was stored."""
        return born_ms - self._walls[bisect_right(self._offsets, physical_offset) - 1]
