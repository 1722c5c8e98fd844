"""How many messages may be on their way at a time: the back-pressure of a producer."""

from __future__ import annotations

import asyncio


class Window:
    """Counts messages without an outcome.

    Who waits for room is woken when an eighth of the window is free, not for each free place: so
    messages leave in groups, and a group costs one write.

    Args:
        limit: so many at a time.

    Attributes:
        limit: so many at a time.
        used: so many now.
    """

    __slots__ = ("_empty", "_low", "_room", "limit", "used")

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.used = 0
        self._low = limit - max(1, limit // 8)
        self._room: asyncio.Future[None] | None = None
        self._empty: asyncio.Future[None] | None = None

    @property
    def full(self) -> bool:
        """Whether there is no room."""
        return self.used >= self.limit

    def settle(self) -> None:
        """The outcome of one is known."""
        self.used -= 1
        if self._room is not None and self.used <= self._low:
            room, self._room = self._room, None
            if not room.done():
                room.set_result(None)
        if self.used == 0 and self._empty is not None:
            empty, self._empty = self._empty, None
            if not empty.done():
                empty.set_result(None)

    async def room(self) -> None:
        """Wait until there is room."""
        while self.full:
            if self._room is None:
                self._room = asyncio.get_running_loop().create_future()
            await asyncio.shield(self._room)

    async def empty(self) -> None:
        """Wait until every outcome is known."""
        while self.used:
            if self._empty is None:
                self._empty = asyncio.get_running_loop().create_future()
            await asyncio.shield(self._empty)
