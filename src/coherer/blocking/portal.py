"""The way from threads into an event loop in the background.

Rules:

* A portal has one thread, and in it one event loop. Any number of threads may call.
* A call waits for its result. When the waiting thread is interrupted (Ctrl-C), what it waits for
  is cancelled.
* A call from the loop's own thread (a callback) would wait for itself: it is refused.
* After a fork the thread is not there in the child: calls are refused.
"""

from __future__ import annotations

import asyncio
import os
import sys
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from typing import Any, Final, TypeVar

from coherer import _net as net
from coherer.errors import ClosedError, ForkedError, UsageError

T = TypeVar("T")

WINDOWS_WAIT_S: Final = 0.5
"""On Windows a waiting thread notices Ctrl-C only between waits."""


class Portal:
    """An event loop in a thread of its own."""

    def __init__(self) -> None:
        self._process = os.getpid()
        self._ready = threading.Event()
        self._loop: asyncio.AbstractEventLoop
        self._stop: asyncio.Event
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="coherer", daemon=True)
        self._thread.start()
        self._ready.wait()

    @property
    def usable(self) -> bool:
        """Whether calls can be made from this thread, in this process."""
        return (
            not self._closed
            and self._process == os.getpid()
            and threading.get_ident() != self._thread.ident
        )

    def check(self) -> None:
        """See that calls can be made.

        Raises:
            ForkedError: the portal was made in another process.
            ClosedError: it is closed.
            UsageError: this is the loop's own thread.
        """
        if self.usable:
            return
        if self._process != os.getpid():
            raise ForkedError(
                "The client was made before a fork, in another process.",
                hint="Connect again in this process.",
            )
        if self._closed:
            raise ClosedError("The client is closed.")
        raise UsageError(
            "A callback may not wait for the client that calls it.",
            hint="Hand the work over to another thread.",
        )

    def call(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Run `work` in the loop and wait for its result."""
        self.check()
        future = asyncio.run_coroutine_threadsafe(work(), self._loop)
        return wait_for(future)

    def do(self, work: Callable[[], T]) -> T:
        """Call a plain function in the loop's thread and wait for its result."""

        async def once() -> T:
            return work()

        return self.call(once)

    def post(self, work: Callable[[], object]) -> None:
        """Have a plain function called in the loop's thread, and do not wait."""
        self.check()
        self._loop.call_soon_threadsafe(work)

    def leave(self, work: Callable[[], Coroutine[Any, Any, object]]) -> None:
        """Have `work` run in the loop, and do not wait; for `__del__`, which may not fail."""
        if self.usable:
            asyncio.run_coroutine_threadsafe(work(), self._loop)

    def close(self) -> None:
        """Stop the loop and wait until its thread has ended. Calling it again does nothing."""
        if not self.usable:
            return
        self._closed = True
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join()

    def _run(self) -> None:
        net.run(self._main())

    async def _main(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._stop = asyncio.Event()
        self._ready.set()
        await self._stop.wait()


def wait_for(future: Future[T]) -> T:
    """The result of a future; cancels it when the wait is interrupted."""
    try:
        while sys.platform == "win32":
            try:
                return future.result(WINDOWS_WAIT_S)
            except TimeoutError:
                if future.done():
                    return future.result()
        return future.result()
    except BaseException:
        future.cancel()
        raise
