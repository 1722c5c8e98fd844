"""How long the log is kept: by age and by size, whole files, and never the one being written."""

from __future__ import annotations

from coherer.record.layout import store_ms_of
from coherer.store.log import CommitLog
from coherer.store.model import StoreOptions

_HOUR_MS = 3_600_000


def first_is_over(log: CommitLog, options: StoreOptions, now_ms: int, last_ms: int) -> bool:
    """Tell whether the oldest file of the log is to be deleted.

    Args:
        log: the log.
        options: how long and how much is kept.
        now_ms: ms since 1970.
        last_ms: the store time of the last record.
    """
    segments = log.segments
    if len(segments) < 2:
        return False
    if options.retention_bytes is not None and log.end - log.begin > options.retention_bytes:
        return True
    if options.retention_hours is None:
        return False
    following = log.record_at(segments[1].begin)  # the first that is younger than all
    youngest_ms = last_ms if following is None else store_ms_of(following)
    return youngest_ms <= now_ms - options.retention_hours * _HOUR_MS
