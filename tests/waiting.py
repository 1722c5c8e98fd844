"""Waiting for conditions that no event reports."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Callable

POLL_S = 0.002


async def until(holds: Callable[[], object], timeout_s: float = 20) -> None:
    """Poll until a condition holds.

    Args:
        holds: the condition, or a coroutine function for it.
        timeout_s: time after which the test fails.
    """
    async with asyncio.timeout(timeout_s):
        while True:
            found = holds()
            if inspect.isawaitable(found):
                found = await found
            if found:
                return
            await asyncio.sleep(POLL_S)


def wait_until(holds: Callable[[], object], timeout_s: float = 30) -> None:
    """Poll until a condition holds, without an event loop."""
    end = time.monotonic() + timeout_s
    while not holds():
        assert time.monotonic() < end, "it never held"
        time.sleep(0.05)
