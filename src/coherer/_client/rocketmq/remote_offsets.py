"""Offsets of a group that shares its queues: with the brokers (8.15).

They get there in two ways: riding on a pull, or by a request of their own (15). Java's brokers deal
with both side by side, in several threads: of two words under way about a queue, the older may be
booked last, and stay. Rules:

* There is one word under way about a queue at most. While one is stored, nothing rides; while one
  rides, nothing is stored, until the pull is answered or has been under way for `BOOKED_MS`.
* What is stored is answered (Java's client does not ask for that): only so we know that it is
  booked, and that the next may leave.
* The first words of a group about a topic go to a broker one by one, and none rides: Java's broker
  makes the table for them without a lock, and of two at once may keep one (it said yes to both: 9
  times in 263).
* Who gives up waiting for an answer does not end the word: the next still waits for it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Collection, Iterable
from contextlib import asynccontextmanager, suppress
from typing import Final, Protocol

from coherer._client.rocketmq.offsets import OffsetStore
from coherer._common.logs import Log
from coherer._wire.rocketmq.names import Queue
from coherer.errors import CohererError

_log = Log(logging.getLogger(__name__))

BOOKED_MS: Final = 500
"""After so long a pull's offset is booked, even if the broker holds the pull for a message."""


class Positions(Protocol):
    """Calls to brokers about offsets."""

    async def stored(self, group: str, queue: Queue, *, exact: bool = True) -> int | None:
        """What the broker has for a group (14); None when nothing (22).

        `exact` says whether 0 and None mean different things to the caller.
        """
        ...

    async def store(self, group: str, queue: Queue, offset: int) -> None:
        """Tell the broker where a group is (15), and wait until it has heard it."""
        ...


class _Word:
    """What is under way about one queue.

    Attributes:
        turn: held by who stores.
        riding: what the pull under way tells; None for nothing.
    """

    def __init__(self) -> None:
        self.turn = asyncio.Lock()
        self.riding: int | None = None
        self._free = asyncio.Event()
        self._free.set()
        self._booked = 0.0

    def begin(self, offset: int | None) -> None:
        """A pull leaves that tells this."""
        self.end()
        self.riding = offset
        if offset is not None:
            self._booked = asyncio.get_running_loop().time() + BOOKED_MS / 1000
            self._free.clear()

    def end(self) -> None:
        """Nothing rides any more."""
        self.riding = None
        self._free.set()

    async def settled(self) -> None:
        """Wait until what rides is booked."""
        if not self._free.is_set():
            with suppress(TimeoutError):
                async with asyncio.timeout_at(self._booked):
                    await self._free.wait()


class _Table:
    """A broker's table of our offsets in one topic.

    Attributes:
        there: whether it has been made.
    """

    def __init__(self) -> None:
        self.there = False
        self._making = asyncio.Lock()

    @asynccontextmanager
    async def made(self) -> AsyncGenerator[None]:
        """While the table is not there, one stores at a time."""
        if self.there:
            yield
            return
        async with self._making:
            yield
            self.there = True


class RemoteOffsets(OffsetStore):
    """Offsets with the brokers.

    Args:
        group: the group.
        positions: the way to the brokers.
    """

    def __init__(self, group: str, positions: Positions) -> None:
        super().__init__()
        self._group = group
        self._positions = positions
        self._words: dict[Queue, _Word] = {}
        self._tables: dict[tuple[str, str], _Table] = {}

    async def load(self) -> None:
        """Nothing to do."""

    async def read(self, queue: Queue, *, exact: bool = True) -> int | None:
        """See `OffsetStore.read`."""
        return await self._positions.stored(self._group, queue, exact=exact)

    async def persist(self, queues: Collection[Queue] | None = None) -> None:
        """See `OffsetStore.persist`."""
        unsaved = self.table.unsaved(queues)
        if unsaved:
            await asyncio.wait([self._begin(queue) for queue in unsaved])

    async def confirm(self, queue: Queue) -> None:
        """See `OffsetStore.confirm`."""
        storing = self._begin(queue)
        await asyncio.wait([storing])
        error = storing.result()
        if error is not None:
            raise error

    def forget(self, queue: Queue) -> None:
        """See `OffsetStore.forget`."""
        super().forget(queue)
        word = self._words.get(queue)
        if word is not None and not word.turn.locked():
            del self._words[queue]

    def ride(self, queue: Queue) -> int | None:
        """See `OffsetStore.ride`."""
        word = self._words.setdefault(queue, _Word())
        # Java's clients say nothing of the offset 0 in this way, either (8.10).
        silent = word.turn.locked() or not self._table_of(queue).there
        offset = None if silent else self.table.news(queue) or None
        word.begin(offset)
        return offset

    def landed(self, queue: Queue) -> None:
        """See `OffsetStore.landed`."""
        word = self._words.get(queue)
        if word is not None and word.riding is not None:
            self.table.saved(queue, word.riding)
            word.end()

    def lost(self, queue: Queue, *, died: bool) -> None:
        """See `OffsetStore.lost`."""
        if died:
            self.table.unsave(queue)
            self._tables.pop((queue.broker, queue.topic), None)
        if queue in self._words:
            self._words[queue].end()

    async def settled(self, queues: Iterable[Queue]) -> None:
        """See `OffsetStore.settled`."""
        words = [self._words[queue] for queue in queues if queue in self._words]
        await asyncio.gather(*(word.settled() for word in words))

    def _begin(self, queue: Queue) -> asyncio.Task[CohererError | None]:
        """Store where we are; a task of its own, which goes on when nobody waits for it."""
        return asyncio.create_task(self._try(queue), name="store an offset")

    async def _try(self, queue: Queue) -> CohererError | None:
        try:
            await self._store(queue)
        except CohererError as error:  # it is told later, or the messages come again
            _log.info("Writing down where %s is in %s: %s", self._group, queue, error)
            return error
        return None

    async def _store(self, queue: Queue) -> None:
        word = self._words.setdefault(queue, _Word())
        async with word.turn:
            await word.settled()
            offset = self.table.news(queue)
            if offset is None:
                return
            async with self._table_of(queue).made():
                await self._positions.store(self._group, queue, offset)
            word.end()  # the pull that told an older one may still be held
            self.table.saved(queue, offset)

    def _table_of(self, queue: Queue) -> _Table:
        return self._tables.setdefault((queue.broker, queue.topic), _Table())
