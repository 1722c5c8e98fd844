"""Which files of the log may be deleted: the oldest ones, by age and by the size of the log.

Invariant: a file that holds a record which somebody still needs is never deleted, even if the log
grows beyond its limits or the disk fills up. *Holders* declare what they need: each is a function
that returns the lowest log offset that it still has to read (`Holds`).

So that old files become free in spite of messages that wait for days, holders *carry* their records
forward: they store them again at the end of the log. `next_to_go` says which files will be deleted
soon; a holder carries what it has there. Carrying makes the log longer, and a log full of waiting
messages would be written again and again. So carried records may take at most as many bytes as
everything else that is appended (`Holds.room`). A log that is at most half full of waiting
messages keeps its limits. A fuller one grows beyond them, and `Holds.held_bytes` says by how much.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Final, TypeAlias

from coherer._record.layout import store_ms_of
from coherer._store.commit_log import CommitLog, Segment
from coherer._store.model import StoreOptions

_HOUR_MS: Final = 3_600_000
_CARRY_AHEAD_MS: Final = 120_000
"""How long before a file expires its waiting messages are carried forward."""

Holder: TypeAlias = Callable[[], int | None]
"""Returns the lowest log offset that is still needed, None if no record is. From call to call the
offset only grows; None may be followed by an offset of a record that was appended since."""


class Holds:
    """The records of a log that must not be deleted.

    Attributes:
        held_bytes: the size of the files that should have been deleted at the last attempt.
        held_by: the holder that needed the first of them; empty if there were none.
    """

    def __init__(self, log: CommitLog) -> None:
        self.held_bytes, self.held_by = 0, ""
        self._log = log
        self._holders: dict[str, Holder] = {}
        self._lowest: dict[str, int] = {}  # by holder: it needs nothing before this offset
        self._credit = 0  # the bytes that may be carried now
        self._seen = -1  # the end of the log when the credit was last computed

    def add(self, name: str, holder: Holder) -> None:
        """Register a holder.

        Args:
            name: what it holds, for people: "delayed messages".
            holder: see `Holder`.
        """
        self._holders[name] = holder

    def holder_before(self, offset: int) -> str:
        """The name of a holder that needs a record before a log offset; empty if no holder does."""
        for name, holder in self._holders.items():
            if self._lowest.get(name, 0) >= offset:
                continue
            durable = self._log.durable
            lowest = holder()
            self._lowest[name] = durable if lowest is None else lowest
            if lowest is not None and lowest < offset:
                return name
        return ""

    def room(self) -> int:
        """How many bytes of records may be stored again now."""
        end, most = self._log.end, (self._log.end - self._log.begin) // 2
        fresh = most if self._seen < 0 else end - self._seen
        self._credit = min(self._credit + fresh, max(most, self._log.segment_bytes))
        self._seen = end
        return self._credit

    def carried(self, size: int) -> None:
        """Count bytes that are about to be stored again; at most `room`."""
        self._credit -= 2 * size  # the copies come back as growth of the log


Age: TypeAlias = Callable[[int, int], int]
"""Returns how long a record has been stored at least, from its log offset and its store time."""


def exceeds_limit(log: CommitLog, options: StoreOptions) -> bool:
    """Whether the log is larger than `retention_bytes`."""
    limit = options.retention_bytes
    return limit is not None and log.end - log.begin > limit


def first_file_is_expired(
    log: CommitLog, options: StoreOptions, last_ms: int, now_ms: int, age_ms: Age
) -> bool:
    """Whether the oldest file may be deleted; the file that is being written never expires.

    Args:
        last_ms: the store time of the last record.
    """
    segments = log.segments
    if len(segments) < 2:
        return False
    return exceeds_limit(log, options) or _is_old(
        log, segments[1], options, last_ms, now_ms, age_ms
    )


def next_to_go(
    log: CommitLog, options: StoreOptions, last_ms: int, now_ms: int, age_ms: Age
) -> int:
    """The log offset before which all files expire soon, or have expired.

    By size, that is when the log has grown by half a file more; by age, in two minutes.
    """

    def soon_ms(physical_offset: int, store_ms: int) -> int:
        return age_ms(physical_offset, store_ms) + _CARRY_AHEAD_MS

    limit, to, end = options.retention_bytes, log.begin, log.end + log.segment_bytes // 2
    for segment, following in pairwise(log.segments):
        if (limit is None or end - segment.begin <= limit) and not _is_old(
            log, following, options, last_ms, now_ms + _CARRY_AHEAD_MS, soon_ms
        ):
            break
        to = following.begin
    return to


def _is_old(
    log: CommitLog,
    following: Segment,
    options: StoreOptions,
    last_ms: int,
    now_ms: int,
    age_ms: Age,
) -> bool:
    """Whether the file before another one is older than `retention_hours`."""
    if options.retention_hours is None:
        return False
    first = log.record_at(following.begin)  # it is younger than the whole file before
    youngest_ms = last_ms if first is None else store_ms_of(first)
    keep_ms = options.retention_hours * _HOUR_MS
    # A clock that was wrong has left store times in the future, or has made the present the past.
    return youngest_ms <= now_ms - keep_ms or age_ms(following.begin, youngest_ms) >= keep_ms
