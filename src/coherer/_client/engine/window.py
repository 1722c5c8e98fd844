"""How much may be on its way at a time: the back-pressure of a producer."""

from __future__ import annotations

import asyncio
from typing import Final

from coherer.errors import UsageError

WINDOW_MAX: Final = 300_000
"""Java's producers begin to leave brokers out at so many messages under way; we stop there."""


def check_window(messages: int, size_bytes: int) -> None:
    """See that a window makes sense.

    Raises:
        UsageError: it does not.
    """
    if not 1 <= messages <= WINDOW_MAX:
        raise UsageError(f"A window is 1 to {WINDOW_MAX} messages, not {messages}.")
    if size_bytes < 1:
        raise UsageError(f"A window of {size_bytes} bytes?")


class Window:
    """Counts messages without an outcome, and their bytes.

    Who waits for room is woken when an eighth of the window is free, not for each free place: so
    messages leave in groups, and a group costs one write.

    Args:
        limit: so many messages at a time.
        limit_bytes: and so many bytes; one message more may be under way.

    Attributes:
        limit: so many messages at a time.
        used: so many now.
        used_bytes: their bytes.
    """

    __slots__ = (
        "_empty",
        "_limit_bytes",
        "_low",
        "_low_bytes",
        "_room",
        "limit",
        "used",
        "used_bytes",
    )

    def __init__(self, limit: int, limit_bytes: int) -> None:
        self.limit = limit
        self.used = 0
        self.used_bytes = 0
        self._limit_bytes = limit_bytes
        self._low = limit - max(1, limit // 8)
        self._low_bytes = limit_bytes - max(1, limit_bytes // 8)
        self._room: asyncio.Future[None] | None = None
        self._empty: asyncio.Future[None] | None = None

    @property
    def full(self) -> bool:
        """Whether there is no room."""
        return self.used >= self.limit or self.used_bytes >= self._limit_bytes

    def take(self, size_bytes: int) -> None:
        """A message is on its way."""
        self.used += 1
        self.used_bytes += size_bytes

    def settle(self, size_bytes: int) -> None:
        """The outcome of one is known."""
        self.used -= 1
        self.used_bytes -= size_bytes
        if self._room is not None and self.used <= self._low and self.used_bytes <= self._low_bytes:
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
