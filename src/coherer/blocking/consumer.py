"""The consumer of TubeMQ without asyncio."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator, Iterator
from functools import partial
from typing import Any, TypeVar

from coherer._client.engine.assigned import RetryAfter
from coherer._client.engine.consumer import Progress, Stop, on_sigterm
from coherer._client.tubemq.consumer import Consumer as AsyncConsumer
from coherer._client.tubemq.options import Progress
from coherer._wire.tubemq.names import Partition
from coherer.blocking.portal import Portal
from coherer.blocking.using import Used
from coherer.message import ReceivedMessage

T = TypeVar("T")


class ReceivedBatch(AsyncBatch):
    """The messages of one get; see the one for asyncio."""

    __slots__ = ("_portal",)

    def __init__(self, body: bytes, *, portal: Portal, **fields: Any) -> None:
        super().__init__(body, **fields)
        self._portal = portal

    def ack(self) -> None:
        """Acknowledge the batch; see the one for asyncio."""
        if self._portal.usable:
            self._portal.post(super().ack)
        else:  # in the loop's thread, or closed; then it has no effect
            super().ack()

    def retry(self, *, later: RetryAfter = None) -> None:  # type: ignore[override]
        """Have the messages delivered again; see the one for asyncio."""
        inner = super().retry
        self._portal.call(lambda: inner(later=later))


class Consumer(Used[AsyncConsumer]):
    """Receives messages as a member of a group. Made by `Client.consumer`; use it with `with`.

    `for message in consumer` and `for batch in consumer.batches()` acknowledge as their asyncio
    counterparts do: a batch is acknowledged when what comes after it is asked for.

    Listeners to assignments are called in the loop's thread and may not wait for the client.

    Args:
        portal: the way to the event loop.
        inner: does the work there.
    """

    def __init__(self, portal: Portal, inner: AsyncConsumer) -> None:
        super().__init__(portal, inner)
        inner.make = partial(ReceivedBatch, portal=portal)

    @property
    def group(self) -> str:
        """The group."""
        return self._inner.group

    @property
    def assignment(self) -> frozenset[Partition]:
        """The partitions that are assigned to this consumer now."""
        return self._portal.do(lambda: self._inner.assignment)

    @property
    def progress(self) -> dict[Partition, Progress]:
        """How far each assigned partition has been read."""
        return self._portal.do(lambda: self._inner.progress)

    @property
    def paused(self) -> frozenset[str]:
        """The keys of paused partitions."""
        return self._inner.paused

    def wait_assigned(self, timeout_ms: int | None = None) -> frozenset[Partition]:
        """Wait until at least one partition is assigned; returns all that are.

        Raises:
            RequestTimeoutError: that took too long.
        """
        return self._portal.call(lambda: self._inner.wait_assigned(timeout_ms))

    def receive(self, timeout_ms: int | None = None) -> ReceivedBatch | None:
        """The next batch; see the one for asyncio."""
        return _mine(self._portal.call(lambda: self._inner.receive(timeout_ms)))

    def batches(self) -> Generator[ReceivedBatch]:
        """Batches for `for`; see the one for asyncio.

        Raises:
            ClosedError: the consumer is closed. A loop that is running ends without an error.
        """
        self._inner.check()
        batches = self._portal.do(self._inner.batches)
        return self._iterate(lambda: self._portal.call(lambda: _next(batches.__anext__)))

    def __iter__(self) -> Iterator[ReceivedMessage]:
        for batch in self.batches():
            yield from batch

    def run(
        self, handler: Callable[[ReceivedBatch], Awaitable[None] | None], *, workers: int = 1
    ) -> None:
        """Pass every batch to `handler`, in a thread; see the one for asyncio."""
        stop = Stop()

        def handle(batch: AsyncBatch) -> Awaitable[None] | None:
            mine = _mine(batch)
            assert mine is not None  # noqa: S101 - there is a batch
            return handler(mine)

        with on_sigterm(lambda: self._portal.post(stop.request)):
            self._portal.call(lambda: self._inner.run(handle, workers=workers, stop=stop))

    def commit(self, *batches: ReceivedBatch) -> dict[Partition, int]:
        """Acknowledge batches, and wait until the brokers know; see the one for asyncio."""
        return self._portal.call(lambda: self._inner.commit(*batches))

    def seek(self, partition: Partition | str, offset: int) -> None:
        """Go on at another offset of an assigned partition; see the one for asyncio."""
        self._portal.call(lambda: self._inner.seek(partition, offset))

    def pause(self, *partitions: Partition | str) -> None:
        """Fetch and hand out nothing of these partitions until `resume`; without any, of none."""
        self._portal.do(lambda: self._inner.pause(*partitions))

    def resume(self, *partitions: Partition | str) -> None:
        """Undo `pause` for these partitions; without any, for all."""
        self._portal.do(lambda: self._inner.resume(*partitions))

    @staticmethod
    def _iterate(take: Callable[[], AsyncBatch | None]) -> Generator[ReceivedBatch]:
        while (batch := _mine(take())) is not None:
            yield batch


async def _next(take: Callable[[], Awaitable[T]]) -> T | None:
    try:
        return await take()
    except StopAsyncIteration:
        return None


def _mine(batch: AsyncBatch | None) -> ReceivedBatch | None:
    assert batch is None or isinstance(batch, ReceivedBatch)  # noqa: S101 - see `make`
    return batch
