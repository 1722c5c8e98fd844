"""Queues of which something can be taken, in turn."""

from __future__ import annotations

from collections import deque

from coherer._client.engine.tasks import Waiters
from coherer._client.rocketmq.claimed import ClaimedBatch
from coherer._client.rocketmq.held import Held


class Inbox:
    """Gives batches, queue after queue, so that none has to wait for another to be empty.

    Args:
        limit_bytes: no more is pulled while so much is here.
    """

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._ready: deque[Held] = deque()
        self._direct: deque[ClaimedBatch] = deque()
        self._takers = Waiters()
        self._full: set[Held] = set()
        self.size_bytes = 0

    def add(self, held: Held) -> None:
        """Something can be taken from the queue."""
        if not held.listed and held.can_take:
            held.listed = True
            self._ready.append(held)
            self._takers.wake()

    def insert(self, batch: ClaimedBatch) -> None:
        """Add a batch that comes from no queue (309); it is the next to be taken."""
        self._direct.append(batch)
        self._takers.wake()

    def withdraw(self, batch: ClaimedBatch) -> None:
        """Undo `insert`, if the batch has not been taken."""
        if batch in self._direct:
            self._direct.remove(batch)

    def take(self) -> ClaimedBatch | None:
        """The next batch."""
        if self._direct:
            return self._direct.popleft()
        ready = self._ready
        while ready:
            held = ready.popleft()
            held.listed = False
            batch = held.take() if held.can_take else None
            if batch is not None:
                self.add(held)
                return batch
        return None

    def wake(self) -> None:
        """Let everybody who waits look again."""
        self._takers.wake()

    async def changed(self) -> None:
        """Wait until there may be something to take."""
        await self._takers.wait()

    def has_room(self, held: Held) -> bool:
        """Whether more may be pulled; if not, the queue is kicked when it may."""
        if self.size_bytes < self._limit_bytes:
            return True
        self._full.add(held)
        return False

    def cached(self, size_bytes: int) -> None:
        """So many bytes more are here, or fewer."""
        self.size_bytes += size_bytes
        if self._full and self.size_bytes < self._limit_bytes:
            full, self._full = self._full, set()
            for held in full:
                held.kick()
