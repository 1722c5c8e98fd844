"""Which files of the log may be deleted: the oldest ones, by age and by the size of the log."""

from __future__ import annotations

from typing import Final

from coherer._record.layout import store_ms_of
from coherer._store.commit_log import CommitLog
from coherer._store.model import StoreOptions

_HOUR_MS: Final = 3_600_000


def exceeds_limit(log: CommitLog, options: StoreOptions) -> bool:
    """Whether the log is larger than `retention_bytes`."""
    limit = options.retention_bytes
    return limit is not None and log.end - log.begin > limit


def first_file_is_expired(log: CommitLog, options: StoreOptions, last_ms: int, now_ms: int) -> bool:
    """Whether the oldest file may be deleted; the file that is being written never expires.

    Args:
        log: the log.
        options: the options with the retention.
        last_ms: the store time of the last record.
        now_ms: the current time.
    """
    if len(log.segments) < 2:
        return False
    if exceeds_limit(log, options):
        return True
    if options.retention_hours is None:
        return False
    following = log.record_at(log.segments[1].begin)  # it is younger than the whole file
    youngest_ms = last_ms if following is None else store_ms_of(following)
    return youngest_ms <= now_ms - options.retention_hours * _HOUR_MS
