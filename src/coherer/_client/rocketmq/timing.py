"""When a message is to be delivered: at a time, after a delay, or by a delay level.

Brokers of RocketMQ 5.x and Coherer's keep a message until any time. Those of 4.x only know delay
levels, and deliver a message with 5.x's properties at once. So a delay that is exactly a level's is
sent as that level to them, and any other time is refused here, before anything is sent.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from datetime import datetime, timedelta
from math import ceil

import msgspec

from coherer._client.rocketmq.link import NOTHING
from coherer._record.properties import DELAY, TIMER_DELAY_MS, TIMER_DELIVER_MS
from coherer._record.system_topics import DELAY_LEVELS, DELAY_LEVELS_MS
from coherer.errors import UsageError


class When(msgspec.Struct, frozen=True):
    """A wish: after a delay, or at a time.

    Args:
        delay_ms: counted from the arrival at the broker.
        deliver_ms: a time, ms since 1970.
    """

    delay_ms: int | None = None
    deliver_ms: int | None = None

    def timed(self) -> Mapping[str, str]:
        """The properties for a broker that keeps messages until any time.

        >>> When(delay_ms=1500).timed()
        {'TIMER_DELAY_MS': '1500'}
        """
        if self.delay_ms is not None:
            return {TIMER_DELAY_MS: str(self.delay_ms)}
        return {TIMER_DELIVER_MS: str(self.deliver_ms)}

    def level(self, broker: str) -> Mapping[str, str]:
        """The properties for a broker that only knows delay levels.

        Args:
            broker: its name, for the error.

        Raises:
            UsageError: no level is exactly that.

        >>> When(delay_ms=60_000).level("a"), When(deliver_ms=0).level("a")
        ({'DELAY': '5'}, {})
        """
        if self.delay_ms in DELAY_LEVELS_MS:
            return {DELAY: str(DELAY_LEVELS_MS.index(self.delay_ms) + 1)}
        if self.deliver_ms is not None and self.deliver_ms <= time.time_ns() // 1_000_000:
            return NOTHING
        raise UsageError(
            f"Broker {broker} is older than 5.0: it delays messages by levels only, and no level "
            "is exactly the time that was asked for.",
            hint=f"Use a delay of {DELAY_LEVELS.replace(' ', ', ')}, or delay_level=.",
        )


def when_of(
    delay_level: int, deliver_at: datetime | None, delay: timedelta | None
) -> Mapping[str, str] | When:
    """Give the wish that the arguments of a send hold, or the properties that say it.

    Args:
        delay_level: a level; 0 for none.
        deliver_at: a time; a naive one is local.
        delay: a delay.

    Raises:
        UsageError: there are several, or one cannot be.

    >>> when_of(3, None, None), when_of(0, None, None), when_of(0, None, timedelta(0))
    ({'DELAY': '3'}, {}, {})
    """
    if not delay_level and deliver_at is None and delay is None:
        return NOTHING
    if (delay_level != 0) + (deliver_at is not None) + (delay is not None) > 1:
        raise UsageError("Give one of delay_level, deliver_at and delay.")
    if delay_level < 0:
        raise UsageError(f"{delay_level} is no level of delay; they begin with 1, 0 is none.")
    if delay_level:
        return {DELAY: str(delay_level)}
    if delay is not None:
        if delay < timedelta(0):
            raise UsageError(f"A delay of {delay} is negative.")
        delay_ms = -(-delay // timedelta(milliseconds=1))  # rounded up: never too early
        return When(delay_ms=delay_ms) if delay_ms else NOTHING
    if deliver_at is not None:
        return When(deliver_ms=ceil(deliver_at.timestamp() * 1000))
    return NOTHING
