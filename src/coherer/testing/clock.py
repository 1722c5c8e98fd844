"""A clock that only moves when a test moves it."""

from __future__ import annotations

import asyncio
import heapq
import itertools
import threading
from collections.abc import Callable
from typing import Any, Final

from coherer._common import clock as machine_clock
from coherer.errors import UsageError

LATEST_MS: Final = 253_402_300_799_999
"""The last moment that `datetime` knows."""


def call_in(loop: asyncio.AbstractEventLoop, function: Callable[..., object], *args: Any) -> None:
    """Call a function in the thread of a loop: at once if this is the thread."""
    try:
        here = asyncio.get_running_loop() is loop
    except RuntimeError:
        here = False
    if here:
        function(*args)
    elif not loop.is_closed():
        loop.call_soon_threadsafe(function, *args)


def _wake(sleeper: asyncio.Future[None]) -> None:
    if not sleeper.done():
        sleeper.set_result(None)


def _too_late(ms: float) -> UsageError:
    return UsageError(
        f"A clock cannot be moved to {ms:g} ms: the year 9999 is the last.",
        hint="Start a new clock for a test that moves it far.",
    )


class WallClock:
    """The time of day as both clocks: in a simulation it leaps, and leases do not notice."""

    now_ms = staticmethod(machine_clock.wall_ms)
    wall_ms = staticmethod(machine_clock.wall_ms)


class ManualClock:
    """A clock for code that takes its clock as an argument.

    Args:
        start_ms: the initial time, ms since 1970.

    >>> clock = ManualClock(1_000)
    >>> clock.advance(250)
    1250
    >>> clock.now_ms()
    1250
    """

    def __init__(self, start_ms: int = 1_700_000_000_000) -> None:
        self._now_ms = start_ms
        self._ahead_ms = 0
        self._order = itertools.count()
        self._sleepers: list[tuple[int, int, asyncio.Future[None]]] = []
        self._fell_asleep = asyncio.Event()
        self._watchers: list[Callable[[], object]] = []
        self._moving = threading.RLock()

    def __repr__(self) -> str:
        return f"ManualClock({self._now_ms})"

    def now_ms(self) -> int:
        """The time, ms since 1970. Pass this method where a clock is expected."""
        return self._now_ms

    def wall_ms(self) -> int:
        """The wall clock, ms since 1970: equal to `now_ms` until `turn` changes it."""
        return self._now_ms + self._ahead_ms

    def turn(self, by_ms: int) -> int:
        """Set the wall clock forward or back, as administrators do; returns its new time.

        `now_ms` does not change.

        >>> clock = ManualClock(10_000)
        >>> clock.turn(-3_000), clock.advance(500), clock.wall_ms()
        (7000, 10500, 7500)
        """
        self._ahead_ms += by_ms
        return self.wall_ms()

    def advance(
        self,
        by_ms: int = 0,
        *,
        days: float = 0,
        hours: float = 0,
        minutes: float = 0,
        seconds: float = 0,
    ) -> int:
        """Move the clock forward and wake the sleepers that are due; returns the new time.

        >>> clock = ManualClock(0)
        >>> clock.advance(hours=1, minutes=30)
        5400000

        Raises:
            UsageError: the time is negative, or ends after the year 9999; `set` can move the clock
                back.
        """
        exact_ms = by_ms + 1000 * (seconds + 60 * (minutes + 60 * (hours + 24 * days)))
        if exact_ms < 0:
            raise UsageError(
                "A clock cannot be advanced by a negative time.", hint="Use `set` to go back."
            )
        if not exact_ms <= LATEST_MS:  # also if it is NaN
            raise _too_late(exact_ms)
        with self._moving:
            return self.set(self._now_ms + round(exact_ms))

    def set(self, now_ms: int) -> int:
        """Set the clock, forward or back; returns the new time. Any thread may do it.

        Raises:
            UsageError: the time is after the year 9999.
        """
        if not now_ms <= LATEST_MS:
            raise _too_late(now_ms)
        with self._moving:
            self._now_ms = now_ms
            while self._sleepers and self._sleepers[0][0] <= now_ms:
                *_, sleeper = heapq.heappop(self._sleepers)
                call_in(sleeper.get_loop(), _wake, sleeper)
            for moved in tuple(self._watchers):
                moved()
        return now_ms

    def watch(self, moved: Callable[[], object]) -> Callable[[], None]:
        """Call `moved` each time the clock has been moved; returns a function that ends this."""
        self._watchers.append(moved)
        return lambda: self._watchers.remove(moved)

    async def sleep(self, for_ms: int) -> None:
        """Wait until the clock has moved forward by `for_ms`."""
        if for_ms <= 0:
            await asyncio.sleep(0)
            return
        sleeper: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        with self._moving:
            heapq.heappush(self._sleepers, (self._now_ms + for_ms, next(self._order), sleeper))
        self._fell_asleep.set()
        await sleeper

    @property
    def sleepers(self) -> int:
        """The number of tasks that wait in `sleep`."""
        return sum(not sleeper.done() for *_, sleeper in self._sleepers)

    async def wait_sleepers(self, count: int) -> None:
        """Wait until at least `count` tasks wait in `sleep`; then the clock can be moved."""
        while self.sleepers < count:
            self._fell_asleep.clear()
            await self._fell_asleep.wait()
