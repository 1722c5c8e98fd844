"""What blocking readers of both protocols have in common."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Generic, Protocol, TypeVar

from coherer.blocking.using import Used, Worker

B = TypeVar("B")
B_co = TypeVar("B_co", covariant=True)
Q = TypeVar("Q")
Q_co = TypeVar("Q_co", covariant=True)


class AsyncReader(Worker, Protocol[B_co, Q_co]):
    """A reader for asyncio."""

    @property
    def partition(self) -> Q_co:
        """What is read."""
        ...

    @property
    def exact(self) -> bool:
        """Whether offsets count messages."""
        ...

    @property
    def position(self) -> int:
        """The next offset to read."""
        ...

    @property
    def end(self) -> int | None:
        """The offset behind the last to read."""
        ...

    @property
    def left_out(self) -> int:
        """How many messages of the range are missing."""
        ...

    async def read(self) -> B_co | None:
        """The next messages."""
        ...


class BaseReader(Used[AsyncReader[B, Q]], Generic[B, Q]):
    """Reads a range of one partition or queue, of either protocol.

    Args:
        portal: the way to the event loop.
        inner: does the work there.
    """

    @property
    def partition(self) -> Q:
        """What is read."""
        return self._inner.partition

    @property
    def exact(self) -> bool:
        """Whether offsets count messages; known once it is open."""
        return self._inner.exact

    @property
    def position(self) -> int:
        """The next offset to read."""
        return self._inner.position

    @property
    def end(self) -> int | None:
        """The offset behind the last to read."""
        return self._inner.end

    @property
    def left_out(self) -> int:
        """How many messages of the range could not be delivered, or are not held any more."""
        return self._inner.left_out

    def start(self) -> None:
        """Find the range; see the asyncio reader's.

        Raises:
            UnavailableError: the broker could not be reached in time.
        """
        self._portal.call(self._inner.start)

    def read(self) -> B | None:
        """The next messages; None when the end is reached or there are no more.

        Raises:
            UnavailableError: the broker has not answered for as long as the timeout.
            RefusedError: the broker does not let us read.
        """
        return self._portal.call(self._inner.read)

    def __iter__(self) -> Iterator[B]:
        while (batch := self.read()) is not None:
            yield batch

    def close(self) -> None:
        """Give the partition back. Calling it again does nothing."""
        if self._portal.usable:
            self._portal.call(self._inner.close)
