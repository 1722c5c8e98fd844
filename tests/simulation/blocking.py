"""Runs programs that use blocking clients in the thread of the simulation.

A program runs in a greenlet of its own. To wait, it passes a coroutine to the task that has started
it, which awaits the coroutine in the loop and passes the result back; so SQLAlchemy runs blocking
code in asyncio. `Portal` is what the blocking clients stand on.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import suppress
from contextvars import copy_context
from typing import Any, Final, Protocol, TypeVar

from greenlet import getcurrent, greenlet

from coherer.errors import ClosedError
from coherer.testing.simulation.process import process_of

T = TypeVar("T")

_kept: Final[set[greenlet]] = set()
"""All programs that run: to collect one that was killed would run its `finally` blocks."""


class _Closable(Protocol):
    async def close(self) -> None: ...


async def run_blocking(program: Callable[[], T]) -> T:
    """Run a program that waits with `wait`, and return its result."""
    running = greenlet(program)
    running.gr_context = copy_context()  # so that it belongs to the process of its task
    _kept.add(running)
    waits_for = running.switch()
    while not running.dead:
        try:
            result = await waits_for
        except BaseException as error:  # noqa: BLE001 - it is the program's
            waits_for = running.throw(error)
        else:
            waits_for = running.switch(result)
    _kept.discard(running)
    return waits_for  # type: ignore[no-any-return] - the last one is the result


def wait(work: Coroutine[Any, Any, T]) -> T:
    """Wait for a coroutine, in a program of `run_blocking`."""
    return getcurrent().parent.switch(work)  # type: ignore[union-attr, no-any-return]


def sleep(for_s: float) -> None:
    """Let virtual time pass, in a program of `run_blocking`."""
    wait(asyncio.sleep(for_s))


class Thread:
    """As `threading.Thread`: a program of its own."""

    def __init__(self, target: Callable[[], object], **_: object) -> None:
        self._target = target
        self._task: asyncio.Task[object]

    def start(self) -> None:
        """Start the program."""
        self._task = asyncio.get_running_loop().create_task(run_blocking(self._target))

    def join(self) -> None:
        """Wait for its end."""
        wait(asyncio.wait({self._task}))


class Event:
    """As `threading.Event`."""

    def __init__(self) -> None:
        self._event = asyncio.Event()
        self.set, self.clear = self._event.set, self._event.clear

    def wait(self, timeout: float) -> None:
        """Wait until it is set, but not longer."""
        with suppress(TimeoutError):
            wait(asyncio.wait_for(self._event.wait(), timeout))


class Lock:
    """As `threading.Lock`, for `with`."""

    def __init__(self) -> None:
        self._lock = asyncio.Lock()

    def __enter__(self) -> None:
        wait(self._lock.acquire())

    def __exit__(self, *_: object) -> None:
        self._lock.release()


class Portal:
    """The way from blocking clients into the loop: `coherer.blocking._portal.Portal`."""

    def __init__(self) -> None:
        self.alive = True
        self._owned: _Closable | None = None
        if (process := process_of()) is not None:
            process.at_kill(self._end)

    @property
    def usable(self) -> bool:
        """Whether calls can be made."""
        return self.alive

    def _end(self) -> None:
        self.alive = False

    def own(self, owned: _Closable) -> None:
        """Close this with the portal."""
        self._owned = owned

    def check(self) -> None:
        """Check that calls can be made.

        Raises:
            ClosedError: the portal is closed.
        """
        if not self.alive:
            raise ClosedError("The client is closed.")

    def call(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Wait for a coroutine function."""
        self.check()
        return wait(work())

    def do(self, work: Callable[[], T]) -> T:
        """Call a plain function."""
        self.check()
        return work()

    def post(self, work: Callable[[], object]) -> None:
        """Call a plain function in the next turn of the loop."""
        self.check()
        asyncio.get_running_loop().call_soon(work)

    def post_if_usable(self, work: Callable[[], object]) -> None:
        """The same; nothing when closed."""
        if self.alive:
            self.post(work)

    def close(self) -> None:
        """Close the client."""
        if self.alive:
            self.alive = False
            if self._owned is not None:
                wait(self._owned.close())
