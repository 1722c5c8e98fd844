"""A clock that is not set: times that are compared, and shown as times of day."""

from __future__ import annotations

import sys
import time

if sys.platform == "linux":

    def _ticks_ns() -> int:
        # Counts while the machine sleeps, and so do the locks that its brokers keep.
        return time.clock_gettime_ns(time.CLOCK_BOOTTIME)

else:
    _ticks_ns = time.monotonic_ns

_BEGAN_NS = time.time_ns() - _ticks_ns()


def now_ms() -> int:
    """Milliseconds since 1970, by the time of day when the program began and what passed since.

    So it never jumps, whatever becomes of the machine's clock.

    >>> abs(now_ms() - time.time() * 1000) < 60_000
    True
    """
    return (_BEGAN_NS + _ticks_ns()) // 1_000_000
