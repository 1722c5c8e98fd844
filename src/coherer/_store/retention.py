"""How long the log is kept: by age and by size, whole files, and never the one being written.

A limit in bytes can only be kept as exactly as files are small, because whole files are deleted.
So the size of new files is chosen for the limit (`segment_bytes_for`), and a limit that has no room
for two files is refused.
"""

from __future__ import annotations

from coherer._record.layout import store_ms_of
from coherer._store.commit_log import CommitLog
from coherer._store.model import GIB, StoreOptions
from coherer.errors import UsageError

_HOUR_MS = 3_600_000
_FILES_WANTED = 8
_FILES_LEAST = 2
_PAGE = 4096
_AROUND_BODY_BYTES = 64 * 1024
"""A record's head, properties and topic, with some room."""


def segment_bytes_for(retention_bytes: int | None, message_bytes_max: int) -> int:
    """Choose the size of a file of a new log: an eighth of the limit, and 1 GiB without one.

    Args:
        retention_bytes: how large the log may become; None for no limit.
        message_bytes_max: the largest message must fit into a file.

    Raises:
        UsageError: there is no room for two such files.

    >>> segment_bytes_for(None, 1 << 20), segment_bytes_for(1 << 30, 1 << 20)
    (1073741824, 134217728)
    """
    if retention_bytes is None:
        return GIB
    pages = -(-(message_bytes_max + _AROUND_BODY_BYTES) // _PAGE)
    size = max(pages, min(retention_bytes // _FILES_WANTED, GIB) // _PAGE) * _PAGE
    check_retention(retention_bytes, size)
    return size


def check_retention(retention_bytes: int | None, segment_bytes: int) -> None:
    """Refuse a limit that cannot be kept with files of this size.

    Raises:
        UsageError: there is no room for two of them.

    >>> check_retention(4_000, 4_096)
    Traceback (most recent call last):
    coherer.errors.UsageError: retention_bytes is 4,000; with log files of 4,096 bytes it must be \
8,192 or more. The log is deleted file by file.
    """
    least = _FILES_LEAST * segment_bytes
    if retention_bytes is not None and retention_bytes < least:
        raise UsageError(
            f"retention_bytes is {retention_bytes:,}; with log files of {segment_bytes:,} bytes "
            f"it must be {least:,} or more.",
            hint="The log is deleted file by file.",
        )


def is_too_large(log: CommitLog, options: StoreOptions) -> bool:
    """Tell whether the log has reached its limit in bytes, so that files are to be deleted."""
    limit = options.retention_bytes
    return limit is not None and log.end - log.begin > limit


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
    if is_too_large(log, options):
        return True
    if options.retention_hours is None:
        return False
    following = log.record_at(segments[1].begin)  # the first that is younger than all
    youngest_ms = last_ms if following is None else store_ms_of(following)
    return youngest_ms <= now_ms - options.retention_hours * _HOUR_MS
