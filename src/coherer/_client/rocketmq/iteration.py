"""`async for` over the messages of a consumer."""

from __future__ import annotations

from collections.abc import AsyncGenerator

from coherer._client.engine.iteration import Source
from coherer._client.rocketmq.received import ConsumedMessage, ReceivedBatch
from coherer.errors import ClosedError


async def messages(consumer: Source[ReceivedBatch]) -> AsyncGenerator[ConsumedMessage]:
    """Messages; each is confirmed when the next is asked for, unless it is wanted again.

    What a loop that is left by `break` or an error had not confirmed is received again.
    """
    while True:
        try:
            batch = await consumer.receive()
        except ClosedError:
            return
        assert batch is not None  # noqa: S101 - without a timeout there is a batch
        claim = batch.claim
        assert claim is not None  # noqa: S101 - it has been received
        try:
            for message in batch:
                yield message
                if claim.over:  # its queue rests after a failure, or all of it is dealt with
                    break
                claim.seen += 1
        except BaseException:
            claim.put_back()
            raise
        claim.finish()
