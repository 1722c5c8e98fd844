"""`async for` over the messages of a consumer."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

from coherer.client.iteration import Source
from coherer.client.rocketmq.received import Claim, ConsumedMessage, ReceivedBatch
from coherer.errors import ClosedError


class MessageIterator(AsyncIterator[ConsumedMessage]):
    """Messages; each is confirmed when the next is asked for, unless it is wanted again."""

    def __init__(self, consumer: Source[ReceivedBatch]) -> None:
        self._consumer = consumer
        self._claim: Claim | None = None
        self._messages: Iterator[ConsumedMessage] = iter(())
        self._count = 0

    def __aiter__(self) -> MessageIterator:
        return self

    async def __anext__(self) -> ConsumedMessage:
        claim = self._claim
        if claim is not None:
            self._count += 1
            # Not if all is dealt with, the queue rests after a failure, or is not ours any more.
            if claim.passed(self._count):
                for message in self._messages:
                    return message
                claim.finish()
            self._claim = None
        while True:
            try:
                batch = await self._consumer.receive()
            except ClosedError:
                raise StopAsyncIteration from None
            assert batch is not None  # noqa: S101 - without a timeout there is a batch
            assert batch.claim is not None  # noqa: S101 - it has been received
            self._claim = claim = batch.claim
            self._count = 0
            self._messages = iter(batch)
            for message in self._messages:
                return message
            claim.finish()  # all of it was damaged

    def __del__(self) -> None:
        # The loop was left: by `break`, `return` or an error.
        if self._claim is not None:
            self._claim.put_back()
