"""The two clocks of a process: a monotonic one and the time of day.

Times that are only compared inside the process (leases, timeouts, "last seen") use `now_ms`. Times
that people or messages carry (stored at, created at, signed at) use `wall_ms`. Operators and time
servers set the time of day forwards and backwards; `now_ms` is not affected.
"""

from __future__ import annotations

from typing import Protocol

from coherer._common import machine

BEGAN_NS = machine.wall_ns() - machine.ticks_ns()
"""The time of day at which the ticks were 0."""


def now_ms() -> int:
    """Milliseconds since 1970: the time of day when the process started plus the time since then.

    It never jumps, even if the machine's clock is set.

    >>> abs(now_ms() - wall_ms()) < 60_000
    True
    """
    return (BEGAN_NS + machine.ticks_ns()) // 1_000_000


def wall_ms() -> int:
    """The time of day, milliseconds since 1970. It jumps when the clock is set."""
    return machine.wall_ns() // 1_000_000


class Clock(Protocol):
    """Both clocks in one object, such as the one that a test moves."""

    def now_ms(self) -> int:
        """The monotonic clock, ms since 1970."""
        ...

    def wall_ms(self) -> int:
        """The time of day, ms since 1970."""
        ...


class IntervalTimer:
    """Tells when a periodic task is due again.

    The caller passes the time. If that clock is set forward the task is due at once; if it is set
    back the task still runs after one interval.

    >>> timer = IntervalTimer(10_000, now_ms=50_000)
    >>> [timer.is_due(now_ms) for now_ms in (59_999, 60_000, 69_999, 70_500)]
    [False, True, False, True]
    >>> timer.is_due(20_000), timer.is_due(29_999), timer.is_due(30_000)
    (True, False, True)

    Args:
        interval_ms: the length of an interval.
        now_ms: when the first interval begins.
    """

    __slots__ = ("_begin_ms", "_interval_ms")

    def __init__(self, interval_ms: int, now_ms: int) -> None:
        self._interval_ms = interval_ms
        self._begin_ms = now_ms

    @property
    def next_ms(self) -> int:
        """When the task is due again."""
        return self._begin_ms + self._interval_ms

    def is_due(self, now_ms: int) -> bool:
        """Whether the interval is over; if so, the next one begins now."""
        if 0 <= now_ms - self._begin_ms < self._interval_ms:
            return False
        self._begin_ms = now_ms
        return True
