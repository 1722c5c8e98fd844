"""Converts a `datetime` to milliseconds since 1970, exactly.

`int(time.timestamp() * 1000)` is not exact: before 2004 and from 2038 on the product of some times
is a little too small, and the result is one millisecond early.
"""

from __future__ import annotations

from datetime import datetime


def floor_ms(time: datetime) -> int:
    """The whole milliseconds since 1970 at a time, rounded down; a naive time is local.

    >>> from datetime import UTC, timedelta
    >>> floor_ms(datetime(2038, 1, 19, 3, 14, 9, 1999, UTC))
    2147483649001
    >>> floor_ms(datetime(1970, 1, 1, tzinfo=UTC) - timedelta(microseconds=1))
    -1
    """
    return int(time.replace(microsecond=0).timestamp()) * 1000 + time.microsecond // 1000


def ceil_ms(time: datetime) -> int:
    """The same, rounded up.

    >>> from datetime import UTC
    >>> ceil_ms(datetime(2038, 1, 19, 3, 14, 9, 1000, UTC))
    2147483649001
    >>> ceil_ms(datetime(2038, 1, 19, 3, 14, 9, 1001, UTC))
    2147483649002
    """
    return int(time.replace(microsecond=0).timestamp()) * 1000 - -time.microsecond // 1000
