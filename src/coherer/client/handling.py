"""Having batches dealt with by a function of the user's, several at a time."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable
from typing import TypeVar

from coherer.client.iteration import Source
from coherer.client.tasks import cancel
from coherer.errors import ClosedError, UsageError
from coherer.logs import Log

_log = Log(logging.getLogger(__name__))

B = TypeVar("B")


async def handle(
    consumer: Source[B],
    handler: Callable[[B], Awaitable[None] | None],
    failed: Callable[[B], Awaitable[None]],
    workers: int,
) -> None:
    """Have every batch dealt with, until the consumer is closed.

    Args:
        consumer: where they come from, and who is told that one is dealt with.
        handler: deals with a batch; a plain function runs in a thread. An exception says that it
            could not.
        failed: told of the batches that it could not deal with.
        workers: how many batches at a time.

    Raises:
        UsageError: there is no worker.
    """
    if workers < 1:
        raise UsageError("There has to be a worker.")
    tasks = [
        asyncio.create_task(_work(consumer, handler, failed), name=f"worker {number}")
        for number in range(workers)
    ]
    try:
        await asyncio.gather(*tasks)
    finally:
        await cancel(*tasks)


async def _work(
    consumer: Source[B],
    handler: Callable[[B], Awaitable[None] | None],
    failed: Callable[[B], Awaitable[None]],
) -> None:
    while True:
        try:
            batch = await consumer.receive()
        except ClosedError:
            return
        assert batch is not None  # noqa: S101 - without a timeout there is a batch
        try:
            if inspect.iscoroutinefunction(handler):
                await handler(batch)
            else:
                answer = await asyncio.to_thread(handler, batch)
                if answer is not None:
                    await answer
        except Exception as error:  # noqa: BLE001 - theirs; the messages come again
            _log.exception(
                "The handler failed; the messages will be delivered again", about=repr(error)
            )
            await failed(batch)
        except BaseException:  # we have been cancelled
            consumer.put_back(batch)
            raise
        else:
            consumer.done(batch)
