"""The two clocks of a process: one that is never set, and the time of day.

What is compared inside a process (leases, timeouts, "seen since") uses `now_ms`. What people and
messages call a time (stored at, created at, signed at) is `wall_ms`. Operators and time servers
set the time of day, forwards and backwards; `now_ms` does not notice.
"""

from __future__ import annotations

import sys
import time

if sys.platform == "linux":

    def _ticks_ns() -> int:
        # Counts while the machine sleeps, and so do the leases that other machines keep.
        return time.clock_gettime_ns(time.CLOCK_BOOTTIME)

elif sys.platform == "darwin":

    def _ticks_ns() -> int:
        # `time.monotonic` stands still while a Mac sleeps; this one does not.
        return time.clock_gettime_ns(time.CLOCK_MONOTONIC)

else:
    _ticks_ns = time.monotonic_ns

_BEGAN_NS = time.time_ns() - _ticks_ns()


def now_ms() -> int:
    """Milliseconds since 1970: the time of day when the program began, plus what has passed since.

    It never jumps, whatever becomes of the machine's clock.

    >>> abs(now_ms() - wall_ms()) < 60_000
    True
    """
    return (_BEGAN_NS + _ticks_ns()) // 1_000_000


def wall_ms() -> int:
    """The time of day, milliseconds since 1970. It jumps when somebody sets the clock."""
    return time.time_ns() // 1_000_000
