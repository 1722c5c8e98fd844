"""Delays of any length, on brokers that limit them.

A delay that a broker cannot keep at once is kept in steps: the message carries the time at which it
is due, and a consumer that receives it too early sends it again for the rest. A step is a timer of
up to `TIMER_MAX`, or a delay level on a broker of RocketMQ 4, which has no timers.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Final

from coherer._record.system_topics import DELAY_LEVELS_MS

TIMER_MAX: Final = timedelta(days=2, hours=23)
"""The longest timer that is asked of a broker; the limit of Coherer's is three days."""

LEVEL_MIN: Final = timedelta(milliseconds=DELAY_LEVELS_MS[0])
"""The shortest delay level."""

DELAY_MAX: Final = timedelta(days=100_000_000)
"""Longer delays are cut to this: due times then stay within Python's range."""

_MS: Final = timedelta(milliseconds=1)


def level_for(delay: timedelta) -> int:
    """Return the longest delay level that does not exceed a delay; at least level 1.

    >>> [level_for(timedelta(seconds=seconds)) for seconds in (0, 7, 10, 86_400)]
    [1, 2, 3, 18]
    """
    return max(sum(level_ms <= delay / _MS for level_ms in DELAY_LEVELS_MS), 1)
