"""What blocking consumers of both protocols have in common: batches, and what becomes of them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator
from contextlib import suppress
from typing import Generic, Protocol, TypeVar

from coherer._client.engine.handling import Stop, on_sigterm
from coherer.blocking.portal import Portal
from coherer.errors import ClosedError, CohererError

B = TypeVar("B")


class AsyncConsumer(Protocol[B]):
    """A consumer for asyncio."""

    def check(self) -> None:
        """Check that it can be used; any thread may ask."""
        ...

    async def receive(self, timeout_ms: int | None = None) -> B | None:
        """The next batch."""
        ...

    async def confirm(self, batch: B) -> int:
        """Say that a batch is dealt with."""
        ...

    async def reject(self, batch: B) -> int:
        """Say that a batch could not be dealt with."""
        ...

    def done(self, batch: B) -> None:
        """Like `confirm`, without an answer."""
        ...

    def put_back(self, batch: B) -> None:
        """Give a batch back unread."""
        ...

    async def run(
        self,
        handler: Callable[[B], Awaitable[None] | None],
        *,
        workers: int = 1,
        stop: Stop | None = None,
    ) -> None:
        """Have every batch dealt with."""
        ...


class Receiving(Generic[B]):
    """Receives batches of messages of one partition or queue, of either protocol.

    To be inherited beside `Used`, whose portal it goes through; a kind sets `_source`.
    """

    _portal: Portal
    _source: AsyncConsumer[B]

    def receive(self, timeout_ms: int | None = None) -> B | None:
        """The next batch, to be passed to `confirm` or `reject`; None when time is up.

        Args:
            timeout_ms: how long to wait; None for ever, 0 not at all.

        Raises:
            ClosedError: the consumer was closed.
            RefusedError: the cluster does not want us any more.
        """
        return self._portal.call(lambda: self._source.receive(timeout_ms))

    def confirm(self, batch: B) -> int:
        """Say that a batch is dealt with, and wait until a server has heard it.

        Returns:
            The group's new offset in the partition or queue.

        Raises:
            UsageError: it has been confirmed or rejected already.
            RefusedError: the partition or queue is not ours any more; the messages come again.
            UnavailableError: no answer; the messages may come again.
        """
        return self._portal.call(lambda: self._source.confirm(batch))

    def reject(self, batch: B) -> int:
        """Say that a batch could not be dealt with: what is open of it comes again.

        Returns:
            The offset before which everything is dealt with.

        Raises:
            UsageError: it has been confirmed or rejected already.
            RefusedError: the partition or queue is not ours any more; the messages come again.
            UnavailableError: no answer; the messages come again.
        """
        return self._portal.call(lambda: self._source.reject(batch))

    def done(self, batch: B) -> None:
        """Like `confirm`, but it is told with the next request for messages: no answer, cheaper."""
        self._source.check()
        self._portal.post(lambda: _unless_closed(self._source.done, batch))

    def put_back(self, batch: B) -> None:
        """Give a batch back unread: what is open of it is received again from here."""
        self._source.check()
        self._portal.post(lambda: _unless_closed(self._source.put_back, batch))

    def batches(self) -> Generator[B]:
        """Batches for `for`; each is confirmed when the loop asks for the next.

        A batch that a loop left early, by `break` or an error, is received again.

        Raises:
            ClosedError: the consumer is closed. A loop that is running ends without an error.
        """
        self._source.check()
        return self._batches()

    def _batches(self) -> Generator[B]:
        batch: B | None = None
        try:
            while True:
                batch = self._next(batch)
                if batch is None:
                    return
                yield batch
        finally:
            if batch is not None and self._portal.usable:
                with suppress(CohererError):  # closed: the messages come again anyway
                    self.put_back(batch)

    def run(self, handler: Callable[[B], Awaitable[None] | None], *, workers: int = 1) -> None:
        """Have every batch dealt with by `handler`, until the consumer is closed or SIGTERM.

        On SIGTERM, unless the application handles it itself, the batches in hand are finished and
        confirmed, and `run` returns; the end of the `with` block leaves the group.

        Args:
            handler: gets a batch, in a thread. When it returns, the batch is confirmed; when it
                raises, that is logged, and what is open of it comes again.
            workers: batches dealt with at a time; in order, one of each partition or queue.

        Raises:
            UsageError: there is no worker.
            RefusedError: the cluster does not want us any more.
        """
        stop = Stop()
        with on_sigterm(lambda: self._portal.post(stop.request)):
            self._portal.call(lambda: self._source.run(handler, workers=workers, stop=stop))

    def _next(self, batch: B | None) -> B | None:
        """Confirms a batch and waits for the next, in one handover; None when it is closed."""

        async def work() -> B | None:
            try:
                if batch is not None:
                    self._source.done(batch)
                return await self._source.receive()
            except ClosedError:
                return None

        return self._portal.call(work)


def _unless_closed(work: Callable[[B], object], batch: B) -> None:
    """Runs in the loop, where nobody would see the error of a consumer closed meanwhile."""
    with suppress(ClosedError):
        work(batch)
