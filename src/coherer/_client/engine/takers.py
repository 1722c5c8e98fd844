"""Waiting until there may be something to take."""

from __future__ import annotations

import asyncio


class Waiters:
    """Everybody who waits; all are woken at a time, and look for themselves."""

    def __init__(self) -> None:
        self._waiting: set[asyncio.Future[None]] = set()

    def wake(self) -> None:
        """Let everybody who waits look again."""
        for taker in self._waiting:
            if not taker.done():
                taker.set_result(None)

    async def wait(self) -> None:
        """Wait for the next `wake`."""
        taker: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.add(taker)
        try:
            await taker
        finally:
            self._waiting.discard(taker)
