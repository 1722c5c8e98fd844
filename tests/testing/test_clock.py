"""A clock that is moved by hand."""

from __future__ import annotations

import asyncio
import math
import sys
import threading

import pytest

from coherer.errors import UsageError
from coherer.testing import ManualClock


def test_it_stands_still_until_moved() -> None:
    clock = ManualClock(1_000)
    assert (clock.now_ms(), clock.now_ms()) == (1_000, 1_000)
    assert clock.advance(5) == clock.now_ms() == 1_005
    assert clock.set(7) == clock.now_ms() == 7
    assert repr(clock) == "ManualClock(7)"


def test_going_back_is_said_aloud() -> None:
    with pytest.raises(UsageError, match="set"):
        ManualClock().advance(-1)


async def test_sleepers_wake_in_their_order() -> None:
    clock = ManualClock()
    woken: list[str] = []

    async def sleep(name: str, for_ms: int) -> None:
        await clock.sleep(for_ms)
        woken.append(name)

    late, soon, now, soon_too = (
        asyncio.create_task(sleep(name, for_ms))
        for name, for_ms in (("late", 300), ("soon", 100), ("now", 0), ("soon too", 100))
    )
    await now
    await clock.wait_sleepers(3)
    clock.advance(99)
    assert (clock.sleepers, woken) == (3, ["now"])
    clock.advance(1)
    await asyncio.gather(soon, soon_too)
    assert (clock.sleepers, woken) == (1, ["now", "soon", "soon too"])
    clock.advance(1_000)
    await late
    assert woken[-1] == "late"


async def test_a_cancelled_sleeper_is_forgotten() -> None:
    clock = ManualClock()
    task = asyncio.create_task(clock.sleep(10))
    await clock.wait_sleepers(1)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert clock.sleepers == 0
    assert clock.advance(10) == clock.now_ms()


async def test_another_thread_moves_the_clock() -> None:
    clock = ManualClock(0)
    asyncio.get_running_loop().set_debug(True)  # then asyncio refuses what is not thread-safe
    sleeper = asyncio.create_task(clock.sleep(1_000))
    await clock.wait_sleepers(1)
    assert await asyncio.to_thread(clock.advance, 1_000) == 1_000
    await sleeper
    assert clock.sleepers == 0


def test_several_threads_move_the_clock() -> None:
    """No move is lost, and each sees the sum of those before."""
    clock, together = ManualClock(0), threading.Barrier(4)
    seen: list[int] = []
    clock.watch(lambda: seen.append(clock.now_ms()))

    def move() -> None:
        together.wait()
        for _ in range(5_000):
            clock.advance(1)

    threads = [threading.Thread(target=move) for _ in range(4)]
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for one in threads:
            one.start()
        for one in threads:
            one.join()
    finally:
        sys.setswitchinterval(before)
    assert seen == list(range(1, 20_001))


@pytest.mark.parametrize("days", [1e12, math.inf, math.nan])
def test_a_time_that_no_calendar_has(days: float) -> None:
    clock = ManualClock(5)
    with pytest.raises(UsageError, match="9999"):
        clock.advance(days=days)
    with pytest.raises(UsageError, match="9999"):
        clock.set(1 << 62)
    assert clock.now_ms() == 5
