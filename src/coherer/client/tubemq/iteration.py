"""`async for` over a consumer: batches, and messages."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import Protocol

from coherer.errors import ClosedError
from coherer.message import ReceivedMessage
from coherer.tubemq.delivery import MessageBatch


class Source(Protocol):
    """The consumer, as its iterators see it."""

    async def receive(self) -> MessageBatch | None:
        """The next package."""
        ...

    def done(self, batch: MessageBatch) -> None:
        """The package is dealt with."""
        ...

    def put_back(self, batch: MessageBatch) -> None:
        """The package is not; it is to be received again."""
        ...


class BatchIterator(AsyncIterator[MessageBatch]):
    """Packages, each confirmed when the next is asked for."""

    def __init__(self, consumer: Source) -> None:
        self._consumer = consumer
        self._open: MessageBatch | None = None

    def __aiter__(self) -> BatchIterator:
        return self

    async def __anext__(self) -> MessageBatch:
        if self._open is not None:
            self._consumer.done(self._open)
            self._open = None
        try:
            batch = await self._consumer.receive()
        except ClosedError:
            raise StopAsyncIteration from None
        assert batch is not None  # noqa: S101 - without a timeout there is a package
        self._open = batch
        return batch

    def __del__(self) -> None:
        # The loop was left: by `break`, `return` or an error.
        if self._open is not None:
            self._consumer.put_back(self._open)


class MessageIterator(AsyncIterator[ReceivedMessage]):
    """Messages; a package is confirmed when the message after its last is asked for."""

    def __init__(self, consumer: Source) -> None:
        self._batches = BatchIterator(consumer)
        self._messages: Iterator[ReceivedMessage] = iter(())

    def __aiter__(self) -> MessageIterator:
        return self

    async def __anext__(self) -> ReceivedMessage:
        while True:
            for message in self._messages:
                return message
            self._messages = iter(await self._batches.__anext__())
