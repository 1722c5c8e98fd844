"""Where a group is in each of its queues, and where that is kept (8.15).

A store has a table in memory. The consumer moves it on as messages are dealt with, and has it
written down every few seconds, when a queue goes, and at the end: with the brokers for a group that
shares its queues (`remote_offsets`), in a file for one whose members all read everything
(`local_offsets`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable

from coherer._wire.rocketmq.names import Queue


class OffsetTable:
    """Offsets in memory, and which of them are not written down yet.

    >>> table, queue = OffsetTable(), Queue("flights", "broker-a", 0)
    >>> table.move(queue, 5)
    >>> table.unsaved()
    {Queue(...): 5}
    >>> table.saved(queue, 5)
    >>> table.unsaved()
    {}
    """

    def __init__(self) -> None:
        self._offsets: dict[Queue, int] = {}
        self._saved: dict[Queue, int] = {}

    def get(self, queue: Queue) -> int | None:
        """Where we are in the queue; None when nothing was dealt with yet."""
        return self._offsets.get(queue)

    def move(self, queue: Queue, offset: int) -> None:
        """We are there now, which may be further back than before."""
        self._offsets[queue] = offset

    def news(self, queue: Queue) -> int | None:
        """Where we are in the queue, if that is not written down."""
        offset = self._offsets.get(queue)
        return None if offset == self._saved.get(queue) else offset

    def saved(self, queue: Queue, offset: int) -> None:
        """That offset has been written down."""
        self._saved[queue] = offset

    def unsave(self, queue: Queue) -> None:
        """What has been written down may be lost."""
        self._saved.pop(queue, None)

    def forget(self, queue: Queue) -> None:
        """The queue is not ours any more."""
        self._offsets.pop(queue, None)
        self._saved.pop(queue, None)

    def unsaved(self, queues: Collection[Queue] | None = None) -> dict[Queue, int]:
        """The offsets that are not written down yet, of these queues or of all."""
        return {
            queue: offset
            for queue, offset in self._offsets.items()
            if self._saved.get(queue) != offset and (queues is None or queue in queues)
        }

    def of_topic(self, topic: str) -> dict[Queue, int]:
        """The offsets of one topic."""
        return {queue: at for queue, at in self._offsets.items() if queue.topic == topic}


class OffsetStore(ABC):
    """Where offsets are kept.

    Attributes:
        table: the offsets in memory.
    """

    def __init__(self) -> None:
        self.table = OffsetTable()

    @abstractmethod
    async def load(self) -> None:
        """Make it ready; called once."""

    @abstractmethod
    async def read(self, queue: Queue, *, exact: bool = True) -> int | None:
        """The offset that is written down; None when there is none.

        Args:
            queue: the queue.
            exact: whether 0 and None mean different things to the caller; to tell them apart may
                take another request.

        Raises:
            CohererError: it cannot be told now.
        """

    @abstractmethod
    async def persist(self, queues: Collection[Queue] | None = None) -> None:
        """Write down what is not, of these queues or of all. What fails is tried again later."""

    @abstractmethod
    async def confirm(self, queue: Queue) -> None:
        """Write down where we are in a queue.

        Raises:
            CohererError: it may not be written down.
        """

    def forget(self, queue: Queue) -> None:
        """The queue is not ours any more."""
        self.table.forget(queue)

    # -- offsets that ride on pulls, where that is a way to write them down

    def ride(self, queue: Queue) -> int | None:
        """What the pull that leaves now shall tell; None for nothing."""
        del queue
        return None

    def landed(self, queue: Queue) -> None:
        """The pull has been answered."""
        del queue

    def lost(self, queue: Queue, *, died: bool) -> None:
        """The pull was refused, or (`died`) the broker may have died with what it was told."""
        del queue, died

    async def settled(self, queues: Iterable[Queue]) -> None:
        """Wait until nothing that rides is still to be booked."""
        del queues
