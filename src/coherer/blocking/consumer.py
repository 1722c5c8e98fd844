"""The consumer without asyncio."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from contextlib import closing

from coherer.blocking.using import Used
from coherer.client.tubemq.consumer import Consumer as AsyncConsumer
from coherer.client.tubemq.consumer import Handler
from coherer.client.tubemq.consumer_options import Progress
from coherer.errors import ClosedError
from coherer.message import ReceivedMessage
from coherer.tubemq.delivery import MessageBatch
from coherer.tubemq.names import Partition


class Consumer(Used[AsyncConsumer]):
    """Receives messages as a member of a group. Made by `Client.consumer`; use it with `with`.

    `for message in consumer` and `for batch in consumer.batches()` confirm as their asyncio
    counterparts do: a package is confirmed when what comes after it is asked for.

    Listeners to assignments are called in the loop's thread and may not wait for the client.

    Args:
        portal: the way to the event loop.
        inner: does the work there.
    """

    @property
    def group(self) -> str:
        """The group."""
        return self._inner.group

    @property
    def assignment(self) -> frozenset[Partition]:
        """The partitions that are ours now."""
        return self._portal.do(lambda: self._inner.assignment)

    @property
    def progress(self) -> dict[Partition, Progress]:
        """How far each partition has been read."""
        return self._portal.do(lambda: self._inner.progress)

    @property
    def paused(self) -> frozenset[str]:
        """The keys of paused partitions."""
        return self._inner.paused

    def start(self) -> None:
        """See `coherer.client.tubemq.consumer.Consumer.start`."""
        self._portal.call(self._inner.start)

    def wait_assigned(self, timeout_ms: int | None = None) -> frozenset[Partition]:
        """Wait until at least one partition is ours; returns them.

        Raises:
            RequestTimeoutError: that took too long.
        """
        return self._portal.call(lambda: self._inner.wait_assigned(timeout_ms))

    def receive(self, timeout_ms: int | None = None) -> MessageBatch | None:
        """The next package, to be passed to `confirm` or `reject`; None when time is up.

        Args:
            timeout_ms: how long to wait; None for ever, 0 not at all.

        Raises:
            ClosedError: the consumer was closed.
            RefusedError: the master does not want us any more.
        """
        return self._portal.call(lambda: self._inner.receive(timeout_ms))

    def confirm(self, batch: MessageBatch) -> int:
        """Say that a package is dealt with; returns the group's new offset in the partition.

        Raises:
            UsageError: it has been confirmed or rejected already.
            RefusedError: the partition is not ours any more; the package comes again.
            UnavailableError: no answer; the package may come again.
        """
        return self._portal.call(lambda: self._inner.confirm(batch))

    def reject(self, batch: MessageBatch) -> int:
        """Say that a package could not be dealt with; it will be read again.

        Raises:
            UsageError: it has been confirmed or rejected already.
            RefusedError: the partition is not ours any more; the package comes again anyway.
            UnavailableError: no answer; the package comes again.
        """
        return self._portal.call(lambda: self._inner.reject(batch))

    def done(self, batch: MessageBatch) -> None:
        """Like `confirm`, but the confirmation rides on the next get: cheaper, and no answer."""
        self._portal.post(lambda: self._inner.done(batch))

    def put_back(self, batch: MessageBatch) -> None:
        """Give a package back unread: it is received again from here."""
        self._portal.post(lambda: self._inner.put_back(batch))

    def batches(self) -> Generator[MessageBatch]:
        """Packages for `for`; each is confirmed when the loop asks for the next.

        A package that a loop left early, by `break` or an error, is received again.
        """
        batch: MessageBatch | None = None
        try:
            while True:
                batch = self._next(batch)
                if batch is None:
                    return
                yield batch
        finally:
            if batch is not None and self._portal.usable:
                self.put_back(batch)

    def __iter__(self) -> Iterator[ReceivedMessage]:
        with closing(self.batches()) as batches:
            for batch in batches:
                yield from batch

    def run(self, handler: Handler, *, workers: int = 1) -> None:
        """Have every package dealt with by `handler`, until the consumer is closed.

        Args:
            handler: gets a package, in a thread. When it returns, the package is confirmed; when
                it raises, it is logged and the package comes again.
            workers: packages dealt with at a time, of different partitions.

        Raises:
            RefusedError: the master does not want us any more.
        """
        self._portal.call(lambda: self._inner.run(handler, workers=workers))

    def pause(self, *partitions: Partition | str) -> None:
        """Fetch and deliver nothing of these partitions until `resume`; without any, of none."""
        self._portal.do(lambda: self._inner.pause(*partitions))

    def resume(self, *partitions: Partition | str) -> None:
        """Undo `pause` for these partitions; without any, for all."""
        self._portal.do(lambda: self._inner.resume(*partitions))

    def close(self) -> None:
        """Give everything back and leave the group. Packages not confirmed come again."""
        if self._portal.usable:
            self._portal.call(self._inner.close)

    def _next(self, batch: MessageBatch | None) -> MessageBatch | None:
        """Confirms a package and waits for the next, in one handover."""

        async def work() -> MessageBatch | None:
            if batch is not None:
                self._inner.done(batch)
            try:
                return await self._inner.receive()
            except ClosedError:
                return None

        return self._portal.call(work)
