"""Passing batches to a function of the application, several at a time.

`run` ends when the consumer is closed, and in an orderly way on SIGTERM: handlers that are running
finish, their batches are confirmed, and no new batch is taken.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import signal
import threading
from collections.abc import Awaitable, Callable, Generator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import TypeVar

from coherer._client.engine.iteration import Source
from coherer._client.engine.tasks import cancel
from coherer._common.logs import Log
from coherer.errors import ClosedError, UsageError

_log = Log(logging.getLogger(__name__))

B = TypeVar("B")


class Stop:
    """Ends `handle` early: handlers that are running finish, and no new batch is taken."""

    def __init__(self) -> None:
        self._event = asyncio.Event()
        self._idle: set[asyncio.Task[None]] = set()

    def request(self) -> None:
        """Stop; to be called in the thread of the event loop."""
        self._event.set()
        for task in self._idle:
            task.cancel()

    def is_requested(self) -> bool:
        """Whether it was asked for."""
        return self._event.is_set()

    @contextmanager
    def waiting(self) -> Generator[None]:
        """Inside, the current task waits for a batch and may be cancelled."""
        task = asyncio.current_task()
        assert task is not None  # noqa: S101 - workers are tasks
        self._idle.add(task)
        try:
            yield
        finally:
            self._idle.discard(task)


@contextmanager
def on_sigterm(action: Callable[[], object]) -> Generator[None]:
    """Inside, the first SIGTERM calls `action` instead of ending the process; the second ends it.

    Only the main thread can do so, and a handler that the application has set is left alone.

    Args:
        action: called in the main thread between two instructions of Python.
    """
    number = signal.SIGTERM
    in_main = threading.current_thread() is threading.main_thread()
    if not in_main or signal.getsignal(number) is not signal.SIG_DFL:
        yield
        return

    def terminate(number: int, frame: FrameType | None) -> None:
        del frame
        signal.signal(number, signal.SIG_DFL)
        _log.info("SIGTERM: finishing what is in hand, then stopping")
        action()

    signal.signal(number, terminate)
    try:
        yield
    finally:
        if signal.getsignal(number) is terminate:
            signal.signal(number, signal.SIG_DFL)


async def handle(
    consumer: Source[B],
    handler: Callable[[B], Awaitable[None] | None],
    failed: Callable[[B], Awaitable[None]],
    workers: int,
    stop: Stop | None = None,
) -> None:
    """Pass every batch to the handler, until the consumer is closed or SIGTERM arrives.

    Args:
        consumer: where batches come from, and where they are confirmed.
        handler: handles a batch; a plain function runs in a thread. An exception means that the
            batch was not handled.
        failed: called with each batch that was not handled.
        workers: how many batches at a time.
        stop: ends it from outside; a facade that waits in another thread sees SIGTERM itself.

    Raises:
        UsageError: `workers` is less than 1.
    """
    if workers < 1:
        raise UsageError("There has to be at least one worker.")
    loop, until = asyncio.get_running_loop(), stop or Stop()
    tasks = [
        asyncio.create_task(_work(consumer, handler, failed, until), name=f"worker {number}")
        for number in range(workers)
    ]
    try:
        with on_sigterm(lambda: loop.call_soon_threadsafe(until.request)):
            await asyncio.gather(*tasks)
    finally:
        await cancel(*tasks)


async def _work(
    consumer: Source[B],
    handler: Callable[[B], Awaitable[None] | None],
    failed: Callable[[B], Awaitable[None]],
    stop: Stop,
) -> None:
    while not stop.is_requested():
        try:
            with stop.waiting():
                batch = await consumer.receive()
        except ClosedError:
            return
        except asyncio.CancelledError:
            if stop.is_requested():
                return
            raise
        assert batch is not None  # noqa: S101 - without a timeout there is a batch
        try:
            if inspect.iscoroutinefunction(handler):
                await handler(batch)
            else:
                answer = await asyncio.to_thread(handler, batch)
                if answer is not None:
                    await answer
        except Exception as error:  # noqa: BLE001 - the application's; the messages come again
            _log.exception(
                "The handler failed; the messages will be delivered again", about=repr(error)
            )
            await failed(batch)
        except BaseException:  # this task was cancelled
            with suppress(ClosedError):
                consumer.put_back(batch)
            raise
        else:
            with suppress(ClosedError):  # closed meanwhile: the messages come again
                consumer.done(batch)
