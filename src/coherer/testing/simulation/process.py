"""Programs of a simulation, which can be killed.

All code of a program runs in callbacks of the loop, and each callback has a context, which refers
to the program. Tasks and callbacks that the program creates inherit it. The loop leaves out the
callbacks of a killed program. So no `finally` and no `close` runs, as after SIGKILL. Those of a
frozen program wait until it goes on, as after SIGSTOP; its connections stay open meanwhile.
"""

from __future__ import annotations

import asyncio
import ctypes
from asyncio.tasks import _unregister_task  # pyright: ignore[reportPrivateUsage] - documented
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterable
from contextvars import Context, ContextVar, copy_context
from typing import Any, Final, TypeVar
from weakref import WeakSet

T = TypeVar("T")

_running: Final[ContextVar[Process | None]] = ContextVar("process", default=None)

_kept: Final[list[object]] = []
"""The tasks and generators of killed programs. Collecting them would run their `finally` blocks."""

ctypes.pythonapi.Py_IncRef(ctypes.py_object(_kept))  # so the interpreter's end does not, either


class Process:
    """A program of the simulation. `kill` ends it with all tasks that it has started.

    Args:
        name: shown in its `repr`.

    Attributes:
        alive: whether it was not killed.
        clock_s: how far its time of day is ahead of the simulation's. Its monotonic clock is right.
        reads_bytes_s: how many bytes a second each of its connections reads; 0 for no limit.

    >>> from coherer.testing import simulate
    >>> async def forever(said: list[str]) -> None:
    ...     try:
    ...         while said.append("tick") is None:
    ...             await asyncio.sleep(2)
    ...     finally:
    ...         said.append("closed")
    >>> async def main() -> list[str]:
    ...     said: list[str] = []
    ...     process = Process("clock")
    ...     process.start(forever(said))
    ...     await asyncio.sleep(5)
    ...     process.kill()
    ...     await asyncio.sleep(100)
    ...     return said
    >>> simulate(main())
    ['tick', 'tick', 'tick']
    """

    def __init__(self, name: str = "") -> None:
        self.name = name
        self.alive = True
        self.clock_s = 0.0
        self.reads_bytes_s = 0
        self._held: list[asyncio.Handle] | None = None
        self._context = copy_context()
        self._context.run(_running.set, self)
        self._tasks: WeakSet[asyncio.Task[Any]] = WeakSet()
        self._generators: WeakSet[AsyncGenerator[Any]] = WeakSet()
        self._at_kill: dict[Callable[[], object], None] = {}

    def __repr__(self) -> str:
        return f"<Process {self.name}: {'alive' if self.alive else 'killed'}>"

    def start(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Start a task of this program. Waiting for a task of a killed program never ends."""
        return asyncio.get_running_loop().create_task(work, context=self._context.copy())

    def kill(self) -> None:
        """End the program at once: none of its code runs any more; its connections are reset."""
        if not self.alive:
            return
        self.alive = False
        abandon(self._tasks, self._generators)
        for ended in list(self._at_kill):
            ended()

    def own(self, thing: asyncio.Task[Any] | AsyncGenerator[Any]) -> None:
        """Count a task or generator among those of the program."""
        if isinstance(thing, asyncio.Task):
            self._tasks.add(thing)
        else:
            self._generators.add(thing)

    def at_kill(self, ended: Callable[[], object]) -> None:
        """Call a function when the program is killed."""
        self._at_kill[ended] = None

    def not_at_kill(self, ended: Callable[[], object]) -> None:
        """Undo `at_kill`."""
        self._at_kill.pop(ended, None)

    def freeze(self) -> None:
        """Run none of its code until `go_on`; time passes, and data that arrives for it waits."""
        if self._held is None:
            self._held = []

    def go_on(self) -> None:
        """End `freeze`."""
        held, self._held = self._held or [], None
        if held and self.alive:
            loop = asyncio.get_running_loop()
            loop.again(held)  # type: ignore[attr-defined]

    def may_run(self, handle: asyncio.Handle) -> bool:
        """Whether a callback of the program runs now."""
        if self._held is not None:
            self._held.append(handle)
            return False
        return self.alive


class Callback(asyncio.Handle):
    """A callback that runs if its program does."""

    __slots__ = ()

    _context: Context

    def _run(self) -> None:
        process = self._context.get(_running)
        if process is None or process.may_run(self):
            super()._run()


class Timer(asyncio.TimerHandle):
    """A callback at a time, that runs if its program does.

    Attributes:
        periodic: whether it is for heartbeats, polls and the like; see `SimulatedLoop.leap`.
    """

    __slots__ = ("periodic",)

    _context: Context
    _scheduled: bool
    _when: float
    periodic: bool

    def _run(self) -> None:
        process = self._context.get(_running)
        if process is None or process.may_run(self):
            super()._run()


def abandon(
    tasks: Iterable[asyncio.Task[Any]], generators: Iterable[AsyncGenerator[Any]] = ()
) -> None:
    """Let tasks and generators never run again, not even their `finally` blocks."""
    tasks = list(tasks)
    for task in tasks:
        _unregister_task(task)  # so that the loop does not cancel it when it ends
    _kept.extend((tasks, list(generators)))


def process_of(context: Context | None = None) -> Process | None:
    """The program that a context, or the current one, belongs to; None outside of programs."""
    return _running.get() if context is None else context.get(_running)
