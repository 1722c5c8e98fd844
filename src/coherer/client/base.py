"""What clients of both protocols, and what they make, have in common: a beginning and an end."""

from __future__ import annotations

import asyncio
import weakref
from abc import ABC, abstractmethod
from types import TracebackType
from typing import Self


class Ending(ABC):
    """Ends with its `async with` block."""

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    @abstractmethod
    async def close(self) -> None:
        """Leave. Calling it again does nothing."""


class Startable(Ending):
    """What a client makes: `start` makes it ready, `close` ends it, `async with` does both."""

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    @abstractmethod
    async def start(self) -> None:
        """Make it ready; once."""


class BaseClient(Ending):
    """What clients of both protocols have in common."""

    def __init__(self) -> None:
        # Weak, because a client may make many of them; one that is in use is held by its tasks.
        self._made: weakref.WeakSet[Ending] = weakref.WeakSet()

    async def __aenter__(self) -> Self:
        return self

    async def close(self) -> None:
        """Close what the client made and its connections. Calling it again does nothing."""
        try:
            await asyncio.gather(*(one.close() for one in self._made))
        finally:
            await self._disconnect()

    @abstractmethod
    async def _disconnect(self) -> None:
        """Close the connections."""
