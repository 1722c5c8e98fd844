"""`async for` over the messages of a consumer."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

from coherer._client.engine.iteration import BatchIterator, Source
from coherer._wire.tubemq.delivery import MessageBatch
from coherer.message import ReceivedMessage


class MessageIterator(AsyncIterator[ReceivedMessage]):
    """Messages; a package is confirmed when the message after its last is asked for."""

    def __init__(self, consumer: Source[MessageBatch]) -> None:
        self._batches = BatchIterator(consumer)
        self._messages: Iterator[ReceivedMessage] = iter(())

    def __aiter__(self) -> MessageIterator:
        return self

    async def __anext__(self) -> ReceivedMessage:
        while True:
            for message in self._messages:
                return message
            self._messages = iter(await self._batches.__anext__())
