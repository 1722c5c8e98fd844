"""Batches that the application receives, for both protocols."""

from __future__ import annotations

from collections.abc import Awaitable, Generator, Iterator
from typing import Any, Final, Protocol, TypeVar

from coherer._client.engine.assigned import Delivery, Fetched, RetryAfter

M_co = TypeVar("M_co", covariant=True)


class Done:
    """What `ack` returns, so that it can be awaited as `retry` must be."""

    def __await__(self) -> Generator[None]:
        yield from ()


DONE: Final = Done()


class ReceivedBatch(Fetched, Protocol[M_co]):
    """A batch that the application receives."""

    @property
    def topic(self) -> str:
        """The topic."""
        ...

    @property
    def partition(self) -> int:
        """The number of the partition or queue."""
        ...

    def __iter__(self) -> Iterator[M_co]: ...

    def ack(self) -> Awaitable[None]:
        """See `Acknowledgeable`."""
        ...

    async def retry(self, *, later: RetryAfter = None) -> None:
        """See `Acknowledgeable`."""
        ...


class Acknowledgeable:
    """Acknowledging and retrying a batch; the base class of both protocols' batches."""

    __slots__ = ()

    _delivery: Delivery[Any] | None

    def ack(self) -> Awaitable[None]:
        """Acknowledge the batch: its messages are not delivered again.

        It only makes a mark: `await` is optional.

        The acknowledgement goes to the server with the next fetch, or by `Consumer.commit`.
        Acknowledging a batch again, or after its partition moved to another member, has no effect.
        """
        if self._delivery is not None:
            self._delivery.acknowledge()
        return DONE

    async def retry(self, *, later: RetryAfter = None) -> None:
        """Have the messages that are not acknowledged delivered again.

        It asks a server: `await` it.

        Args:
            later: the delay; None for the protocol's default.
        """
        if self._delivery is not None:
            await self._delivery.retry(None, later)
