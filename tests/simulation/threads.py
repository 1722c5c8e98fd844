"""Threads of nodes that go on in steps, so that they meet what happens meanwhile.

A function for one of the store's executors runs in a greenlet, and pauses before each change of a
file. Meanwhile the loop goes on: it appends, reads and closes files, or its program is killed.
Nobody waits for a lock: who needs one lets the function that holds it go on until it is free.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine, Generator
from contextlib import ExitStack, contextmanager
from contextvars import copy_context
from functools import partial
from types import SimpleNamespace
from typing import Any, Final, TypeVar
from unittest import mock

from greenlet import getcurrent, greenlet

from coherer._common import machine
from coherer._server.core import appending, deferred_saver, disk
from coherer._store import (
    checkpointer,
    commit_log,
    config_files,
    consume_queue,
    files,
    index,
)
from coherer.testing.simulation import SimulatedLoop

T = TypeVar("T")

LOCKING: Final = (checkpointer, commit_log, config_files, consume_queue, disk, files, index)
"""The modules with locks that both the loop and these functions take."""

_kept: Final[set[_Job]] = set()
"""All functions that have begun: to collect one of a killed program would run its `finally`."""


class _Job(greenlet):
    """A function for an executor.

    Attributes:
        paused: whether it waits until it goes on.
    """

    def __init__(self, function: Callable[[], object], pool: Pool, pause_s: float) -> None:
        super().__init__(function)
        self.gr_context = copy_context()  # so that it belongs to the process of its caller
        self.paused = True
        self._loop = asyncio.get_running_loop()
        self._pool = pool
        self._pause_s = pause_s
        self._timer: asyncio.Handle | None = None
        _kept.add(self)

    def later(self) -> None:
        """Go on after a while."""
        self._timer = self._loop.call_later(machine.random.random() * self._pause_s, self.go_on)

    def go_on(self) -> None:
        """Run to the next pause, or to the end."""
        if self._timer is not None:
            self._timer.cancel()
        self._go_on(self.switch)

    def _go_on(self, switch: Callable[[], object]) -> None:
        self.paused, self.parent = False, getcurrent()
        waits_for = switch()
        if self.dead:
            _kept.discard(self)
            self._pool.ended()
        elif isinstance(waits_for, Coroutine):  # from `blocking.wait`: it asks ZooKeeper
            self._loop.create_task(self._wait(waits_for))

    async def _wait(self, work: Coroutine[Any, Any, object]) -> None:
        try:
            result = await work
        except Exception as error:  # noqa: BLE001 - it is the function's
            self._go_on(partial(self.throw, error))
        else:
            self._go_on(partial(self.switch, result))

    def pause(self) -> None:
        """Let the others run."""
        self.paused = True
        self.later()
        assert self.parent is not None
        self.parent.switch()


def pause() -> None:
    """Let the others run, if this is called in such a function."""
    if isinstance(now := getcurrent(), _Job):
        now.pause()


class Pool:
    """As a `ThreadPoolExecutor` with one thread."""

    pause_s = 0.0

    def __init__(self, workers: int, name: str) -> None:
        assert workers == 1, name
        self._jobs: deque[_Job] = deque()

    def start(self, function: Callable[[], T]) -> asyncio.Future[T]:
        """Run a function after the others."""
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._jobs.append(_Job(partial(_into, future, function), self, self.pause_s))
        if len(self._jobs) == 1:
            self._jobs[0].later()
        return future

    def ended(self) -> None:
        """A function has ended."""
        self._jobs.popleft()
        if self._jobs:
            self._jobs[0].later()

    def shutdown(self) -> None:
        """Wait until all functions have ended."""
        while self._jobs:
            self._jobs[0].go_on()


def _into(future: asyncio.Future[T], function: Callable[[], T]) -> None:
    """Put the result of a function into a future, if somebody still wants it."""
    if future.cancelled():
        return
    try:
        result = function()
    except BaseException as error:  # noqa: BLE001 - it is the future's, as in a thread
        if not future.cancelled():
            future.set_exception(error)
    else:
        if not future.cancelled():
            future.set_result(result)


class Lock:
    """As `threading.Lock`, or `threading.RLock`."""

    def __init__(self, *, again: bool = False) -> None:
        self._again = again
        self._holder: greenlet | None = None
        self._count = 0

    def __enter__(self) -> None:
        now = getcurrent()
        if self._holder is now and not self._again:
            raise RuntimeError("This thread has the lock already, and waits for itself.")
        while self._holder is not None and self._holder is not now:
            if not (isinstance(self._holder, _Job) and self._holder.paused):
                raise RuntimeError("Two threads wait for each other.")
            self._holder.go_on()
        self._holder, self._count = now, self._count + 1

    def __exit__(self, *_: object) -> None:
        self._count -= 1
        if not self._count:
            self._holder = None


@contextmanager
def stepping(pause_s: float) -> Generator[None]:
    """Let the threads of nodes go on in steps.

    Args:
        pause_s: how long they pause at most; 0 runs each function in one step.
    """
    if not pause_s:
        yield
        return
    at_once = SimulatedLoop.run_in_executor

    def run_in_executor(
        loop: SimulatedLoop, executor: object, func: Callable[..., T], *args: Any
    ) -> asyncio.Future[T]:
        if isinstance(executor, Pool):
            return executor.start(partial(func, *args))
        return at_once(loop, executor, func, *args)

    locks = SimpleNamespace(Lock=Lock, RLock=partial(Lock, again=True))
    with ExitStack() as patches:
        for module in LOCKING:
            patches.enter_context(mock.patch.object(module, "threading", locks))
        for user in (appending, deferred_saver):
            patches.enter_context(mock.patch.object(user, "ThreadPoolExecutor", Pool))
        patches.enter_context(mock.patch.object(SimulatedLoop, "run_in_executor", run_in_executor))
        patches.enter_context(mock.patch.object(Pool, "pause_s", pause_s))
        yield
