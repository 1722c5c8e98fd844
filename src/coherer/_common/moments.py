"""Converts between `datetime` and milliseconds since 1970.

`int(time.timestamp() * 1000)` is not exact: before 2004 and from 2038 on the product of some times
is a little too small, and the result is one millisecond early.
"""

from __future__ import annotations

from datetime import UTC, datetime

from coherer.errors import UsageError


def floor_ms(time: datetime) -> int:
    """The whole milliseconds since 1970 at a time, rounded down; a naive time is local.

    >>> from datetime import UTC, timedelta
    >>> floor_ms(datetime(2038, 1, 19, 3, 14, 9, 1999, UTC))
    2147483649001
    >>> floor_ms(datetime(1970, 1, 1, tzinfo=UTC) - timedelta(microseconds=1))
    -1

    Raises:
        UsageError: it is within a day of the first or the last time that `datetime` has.
    """
    return _seconds(time) * 1000 + time.microsecond // 1000


def ceil_ms(time: datetime) -> int:
    """The same, rounded up.

    >>> from datetime import UTC
    >>> ceil_ms(datetime(2038, 1, 19, 3, 14, 9, 1000, UTC))
    2147483649001
    >>> ceil_ms(datetime(2038, 1, 19, 3, 14, 9, 1001, UTC))
    2147483649002
    """
    return _seconds(time) * 1000 - -time.microsecond // 1000


def _seconds(time: datetime) -> int:
    try:
        return int(time.replace(microsecond=0).timestamp())
    except (ValueError, OverflowError) as error:  # of a local time, which Python looks for nearby
        raise UsageError(f"The time {time} is out of range: {error}.") from None


def moment(time_ms: float) -> datetime:
    """The time so many milliseconds after 1970, in UTC.

    One that Python cannot represent becomes 1970: a sender chooses the time of a message, and a
    flipped bit on a disk can change the time when it was stored.

    >>> moment(1_700_000_000_123).isoformat()
    '2023-11-14T22:13:20.123000+00:00'
    >>> moment(1 << 62).year
    1970
    """
    try:
        return datetime.fromtimestamp(time_ms / 1000, UTC)
    except (ValueError, OverflowError, OSError):
        return datetime.fromtimestamp(0, UTC)
