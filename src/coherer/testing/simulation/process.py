"""Programs of a simulation, which can be killed.

What a program does, it does in callbacks of the loop, and each callback has a context. The context
names the program; so do the contexts of all tasks and callbacks that come from it. The loop leaves
out the callbacks of a program that was killed: as after SIGKILL, no `finally` and no `close` runs.
"""

from __future__ import annotations

import asyncio
import ctypes
from asyncio.tasks import _unregister_task  # pyright: ignore[reportPrivateUsage] - documented
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextvars import Context, ContextVar, copy_context
from typing import Any, Final, TypeVar
from weakref import WeakSet

T = TypeVar("T")

_running: Final[ContextVar[Process | None]] = ContextVar("process", default=None)

_graves: Final[list[object]] = []
"""Whatever belonged to killed programs. If it were collected, its `finally` blocks would run."""

ctypes.pythonapi.Py_IncRef(ctypes.py_object(_graves))  # not at the end of the interpreter, either


class Process:
    """A program of the simulation. What it starts, in any depth, ends with `kill`.

    Args:
        name: for people.

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
        self._context = copy_context()
        self._context.run(_running.set, self)
        self._tasks: WeakSet[asyncio.Task[Any]] = WeakSet()
        self._generators: WeakSet[AsyncGenerator[Any]] = WeakSet()
        self._at_kill: list[Callable[[], object]] = []

    def __repr__(self) -> str:
        return f"<Process {self.name}: {'alive' if self.alive else 'killed'}>"

    def start(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Start a task of this program."""
        return asyncio.get_running_loop().create_task(work, context=self._context.copy())

    def kill(self) -> None:
        """End it at once: nothing of it runs any more, and its connections are reset."""
        if not self.alive:
            return
        self.alive = False
        for task in self._tasks:
            _unregister_task(task)  # the end of the loop cancels those that it knows
        _graves.extend((list(self._tasks), list(self._generators)))
        for ended in self._at_kill:
            ended()

    def own(self, thing: asyncio.Task[Any] | AsyncGenerator[Any]) -> None:
        """Keep it for ever if the process is killed before it ends."""
        if isinstance(thing, asyncio.Task):
            self._tasks.add(thing)
        else:
            self._generators.add(thing)

    def at_kill(self, ended: Callable[[], object]) -> None:
        """Have a function called when it is killed."""
        self._at_kill.append(ended)

    def call(self, callback: Callable[..., object], *args: object) -> None:
        """Run a callback, unless the program was killed."""
        if self.alive:
            callback(*args)


def process_of(context: Context | None = None) -> Process | None:
    """The program that a context belongs to, or the one that runs now; None for the simulation."""
    return _running.get() if context is None else context.get(_running)
