"""Packages that have been fetched and wait for the application.

Each partition has at most one package here or in the application's hands, so the packages are
bounded by the number of partitions; `limit_bytes` bounds their size. Pure but for the waiting.
"""

from __future__ import annotations

import asyncio
from collections import deque

from coherer._client.engine.tasks import Waiters
from coherer._wire.tubemq.delivery import MessageBatch


class Inbox:
    """A queue of packages, oldest first; those of paused partitions wait aside.

    Args:
        limit_bytes: no more is fetched while so much waits to be taken.
    """

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._waiting: deque[tuple[str, MessageBatch]] = deque()
        self._paused: frozenset[str] = frozenset()
        self._takers = Waiters()
        self._room: asyncio.Event = asyncio.Event()
        self._room.set()

    def __len__(self) -> int:
        return len(self._waiting)

    def put(self, key: str, batch: MessageBatch, *, first: bool = False) -> None:
        """Add the package of partition `key`; `first` for one that was taken and given back."""
        if first:
            self._waiting.appendleft((key, batch))
        else:
            self._waiting.append((key, batch))
        self._count()
        self.wake()

    def take(self) -> tuple[str, MessageBatch] | None:
        """The oldest package of a partition that is not paused, and its key."""
        for place, entry in enumerate(self._waiting):
            if entry[0] not in self._paused:
                return self._remove(place)
        return None

    def drop(self, key: str) -> bool:
        """Forget the package of a partition; whether there was one."""
        for place, entry in enumerate(self._waiting):
            if entry[0] == key:
                self._remove(place)
                return True
        return False

    def pause(self, keys: frozenset[str]) -> None:
        """Hold back the packages of these partitions, and of no others."""
        self._paused = keys
        self._count()
        self.wake()

    def wake(self) -> None:
        """Let everybody who waits look again."""
        self._takers.wake()

    async def changed(self) -> None:
        """Wait until there may be something to take."""
        await self._takers.wait()

    async def room(self) -> None:
        """Wait until more may be fetched."""
        await self._room.wait()

    def _remove(self, place: int) -> tuple[str, MessageBatch]:
        entry = self._waiting[place]
        del self._waiting[place]
        self._count()
        return entry

    def _count(self) -> None:
        # There are as many entries as partitions at most, so adding up is cheap for a package.
        # Those of paused partitions do not count: they must not keep the others from coming.
        size_bytes = sum(
            batch.size_bytes for key, batch in self._waiting if key not in self._paused
        )
        if size_bytes < self._limit_bytes:
            self._room.set()
        else:
            self._room.clear()
