"""Cancelling tasks, periodic work, pauses between tries, and waiting for changes."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any, Final

from coherer._common.logs import Log
from coherer.errors import CohererError

_log = Log(logging.getLogger(__name__))

RETRY_MS_FIRST: Final = 10
RETRY_MS_MAX: Final = 1000
"""Pauses between tries of something that may succeed later: doubled from the first to the last."""


async def cancel(*tasks: asyncio.Task[Any] | None) -> None:
    """Cancel tasks and wait until they have ended."""
    running = [task for task in tasks if task is not None and task is not asyncio.current_task()]
    for task in running:
        task.cancel()
    await asyncio.gather(*running, return_exceptions=True)


async def every(period_ms: int, work: Callable[[], Awaitable[None]]) -> None:
    """Do some work periodically, for ever. Failures are logged.

    Args:
        period_ms: how long to wait before each time.
        work: what to do.
    """
    while True:
        await asyncio.sleep(period_ms / 1000)
        try:
            await work()
        except CohererError as error:
            _log.warning("%s", error)
        except Exception:  # noqa: BLE001 - a bug; the other services have to go on
            _log.exception("Unhandled error in a background task of the client")


def waits(limit_ms: int = RETRY_MS_MAX) -> Callable[[], float]:
    """Returns a function that returns the seconds to wait before the next try.

    >>> wait = waits()
    >>> [wait() for _ in range(7)]
    [0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64]
    """
    next_ms = RETRY_MS_FIRST

    def wait() -> float:
        nonlocal next_ms
        now_ms, next_ms = next_ms, min(next_ms * 2, limit_ms)
        return now_ms / 1000

    return wait


class Waiters:
    """Tasks that wait for a change; all of them are woken, and look for themselves."""

    def __init__(self) -> None:
        self._waiting: set[asyncio.Future[None]] = set()

    def wake(self) -> None:
        """Let every task that waits look again."""
        for waiter in self._waiting:
            if not waiter.done():
                waiter.set_result(None)

    async def wait(self) -> None:
        """Wait for the next `wake`."""
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.add(waiter)
        try:
            await waiter
        finally:
            self._waiting.discard(waiter)
