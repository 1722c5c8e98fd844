"""Shared and cancelled tasks, periodic work, pauses between attempts, and waiting for changes."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from typing import Any, Final, TypeVar

from coherer._common.upkeep import Upkeep
from coherer.errors import ClosedError

T = TypeVar("T")

RETRY_MS_FIRST: Final = 10
RETRY_MS_MAX: Final = 1000
"""The first and the longest pause between attempts; each pause is twice the one before."""


def shared(work: Coroutine[Any, Any, T], name: str) -> asyncio.Task[T]:
    """Start a task for which any number of callers wait, each with `joined`.

    If all of them are cancelled before it fails, nobody sees its error. asyncio would log that.
    """
    task = asyncio.create_task(work, name=name)
    task.add_done_callback(retrieve)
    return task


async def joined(task: asyncio.Task[T]) -> T:
    """Wait for a shared task, which goes on if this caller is cancelled.

    Raises:
        ClosedError: the task was cancelled, because the client was closed. The caller was not, so
            a `CancelledError` would be taken for an order that nobody has given.
    """
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError as error:
        if task.cancelled() and not is_order(error):
            raise ClosedError("The client is closed.") from None
        raise


async def together(works: Iterable[Coroutine[Any, Any, object]], name: str) -> None:
    """Run coroutines at the same time, and wait for all of them.

    If the caller is cancelled, each of them is, once it has begun: `asyncio.gather` cancels those
    that have not begun, too, and these do nothing at all. A caller that is cancelled again leaves
    them behind.
    """
    tasks = [shared(work, name) for work in works]
    if not tasks:
        return
    try:
        await asyncio.wait(tasks)
    except asyncio.CancelledError:
        for task in tasks:
            asyncio.get_running_loop().call_soon(task.cancel)
        await asyncio.wait(tasks)
        raise
    for task in tasks:
        task.result()


def is_order(error: BaseException) -> bool:
    """Whether an exception tells the current task, or the program, to end.

    A `CancelledError` does so only if the current task was cancelled. If the application's code
    waits for another task, and that one is cancelled, the application's code has failed.
    """
    if isinstance(error, asyncio.CancelledError):
        task = asyncio.current_task()
        return task is not None and task.cancelling() > 0
    return not isinstance(error, Exception)


def retrieve(ended: asyncio.Future[Any]) -> None:
    """Mark the error of a task or future that has ended as seen."""
    if not ended.cancelled():
        ended.exception()


async def cancel(*tasks: asyncio.Task[Any] | None) -> None:
    """Cancel tasks and wait until they have ended."""
    running = [task for task in tasks if task is not None and task is not asyncio.current_task()]
    for task in running:
        task.cancel()
    await asyncio.gather(*running, return_exceptions=True)


async def every(
    upkeep: Upkeep, name: str, period_ms: int, work: Callable[[], Awaitable[None]]
) -> None:
    """Run `work` periodically, until cancelled.

    Args:
        upkeep: counts and logs failures.
        name: what `work` does, such as `sending heartbeats`.
        period_ms: the pause before each run.
        work: a coroutine function.
    """
    while True:
        await asyncio.sleep(period_ms / 1000)
        with upkeep.guard(name):
            await work()


def backoff(limit_ms: int = RETRY_MS_MAX) -> Callable[[], float]:
    """Make a function that returns the pause before the next attempt, in seconds.

    >>> wait = backoff()
    >>> [wait() for _ in range(7)]
    [0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64]
    """
    next_ms = RETRY_MS_FIRST

    def wait() -> float:
        nonlocal next_ms
        now_ms, next_ms = next_ms, min(next_ms * 2, limit_ms)
        return now_ms / 1000

    return wait


class Waiters:
    """Tasks that wait for a change. Each one checks its own condition when it is woken."""

    def __init__(self) -> None:
        self._waiting: dict[asyncio.Future[None], None] = {}

    def wake(self) -> None:
        """Wake all waiting tasks."""
        for waiter in self._waiting:
            if not waiter.done():
                waiter.set_result(None)

    async def wait(self) -> None:
        """Wait for the next `wake`."""
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting[waiter] = None
        try:
            await waiter
        finally:
            self._waiting.pop(waiter, None)
