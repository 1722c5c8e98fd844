"""When messages were stored, by a clock that is not set.

Records carry the time of day. Somebody may set that clock while a message waits, so the distance
between two times of day says nothing about the time that passed. `ClockHistory` remembers, by place
in the log, how far the time of day and the store time were from the clock that is not set; a new
entry is made only when these distances change. For records that an earlier process stored the
distances at the opening of the store count.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from typing import Final

_TOLERANCE_MS: Final = 50
"""Smaller changes of a distance are not noted: clocks are corrected by small steps all day."""

_NOTES_MAX: Final = 100_000
"""Enough for more than an hour of store times that stand still; then the older half is dropped."""


class ClockHistory:
    """Turns times that records carry into times of the clock that is not set.

    Args:
        end: where the log ends when the store is opened.
        now_ms: the clock that is not set, then.
        wall_ms: the time of day, then.

    Attributes:
        opened_ms: when the store was opened, or took the last piece of another store's log, by the
            clock that is not set.

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
        self._places = array("q", (0,))
        self._walls = array("q", (self._wall_ahead_ms,))
        self._stores = array("q", (self._store_ahead_ms,))

    def note(self, physical_offset: int, now_ms: int, wall_ms: int, store_ms: int) -> None:
        """A batch is stored from this place of the log on; call it for each, in order."""
        wall, stored = wall_ms - now_ms, store_ms - now_ms
        if (
            abs(wall - self._wall_ahead_ms) <= _TOLERANCE_MS
            and abs(stored - self._store_ahead_ms) <= _TOLERANCE_MS
        ):
            return
        if len(self._places) >= _NOTES_MAX:
            for notes in (self._places, self._walls, self._stores):
                del notes[1 : _NOTES_MAX // 2]
        self._wall_ahead_ms, self._store_ahead_ms = wall, stored
        self._places.append(physical_offset)
        self._walls.append(wall)
        self._stores.append(stored)

    def copied(self, end: int, now_ms: int) -> None:
        """What lies before this place was stored elsewhere, by another machine's clock."""
        self._end, self.opened_ms = end, now_ms

    def is_older(self, physical_offset: int) -> bool:
        """Whether an earlier process, or another one, stored the record at this place."""
        return physical_offset < self._end

    def stored_ms(self, physical_offset: int, store_ms: int) -> int:
        """A record's store time, or one counted from it, by the clock that is not set."""
        return store_ms - self._stores[bisect_right(self._places, physical_offset) - 1]

    def born_ms(self, physical_offset: int, born_ms: int) -> int:
        """A time of day when the record at this place was stored, by the clock that is not set."""
        return born_ms - self._walls[bisect_right(self._places, physical_offset) - 1]
