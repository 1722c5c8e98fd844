"""What handlers have received, and waiting for it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

WITHIN_S = 30.0


class Received(list[Any]):
    """A list that can be waited for."""

    def __init__(self) -> None:
        super().__init__()
        self._changed = asyncio.Event()

    def add(self, item: Any) -> None:
        self.append(item)
        self._changed.set()

    async def wait(self, count: int) -> list[Any]:
        async with asyncio.timeout(WITHIN_S):
            while len(self) < count:
                self._changed.clear()
                await self._changed.wait()
        return list(self)


async def until(true: Callable[[], object]) -> None:
    """Wait for what no event reports."""
    async with asyncio.timeout(WITHIN_S):
        while not true():  # noqa: ASYNC110
            await asyncio.sleep(0.001)
