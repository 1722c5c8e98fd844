"""What a test has left behind: clients, nodes, tasks and threads that it has not closed or ended.

The plugin looks after each test that uses one of its fixtures. What a fixture of a wider scope
opens lives longer than a test, so it does not count.
"""

from __future__ import annotations

import asyncio
import inspect
import threading
import weakref
from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from coherer._common.opened import watch
from coherer._net.descriptors import connections, listening, sockets
from coherer.testing.simulation.process import Process, process_of
from coherer.testing.waiting import is_ours, is_users

_SPARK: Final = str(Path(__file__).parents[1] / "spark")


class LeftBehindWarning(UserWarning):
    """A test has left something open that it opened. The text says what, and where."""


class Leftovers:
    """Looks for what one test leaves behind, from now until `end`."""

    def __init__(self) -> None:
        self._sockets = sockets()
        self._ports: set[int] = set()
        self._things: dict[
            int, tuple[weakref.ref[object], Callable[[Any], bool], str, Process | None]
        ] = {}
        self._places: dict[int, tuple[weakref.ref[object], str, Process | None]] = {}
        """Where objects were opened, by their ids and by those of what they wrap."""
        self._threads = set(threading.enumerate())
        self._paused = False
        self._found: dict[str, None] = {}
        self._end = watch(self)

    def opened(
        self, thing: object, is_open: Callable[[Any], bool], instead_of: object = None
    ) -> None:
        """An object was opened; see `coherer._common.opened`."""
        self._things.pop(id(instead_of), None)
        if (known := self._places.get(id(thing))) is not None and known[0]() is not thing:
            del self._places[id(thing)]  # of an object that is gone
        if self._paused or _is_sparks():
            return
        if place := _place():
            self._things[id(thing)] = (weakref.ref(thing), is_open, place, process_of())
            for one in (thing,) if instead_of is None else (thing, instead_of):
                self._places[id(one)] = (weakref.ref(one), place, process_of())

    def lost(self, thing: object) -> None:
        """An object that was not closed is being garbage-collected."""
        _, place, process = self._places.pop(id(thing), (None, "", None))
        if place and (process is None or process.alive):
            self._found[_opened_at(thing, place)] = None

    @contextmanager
    def wider(self) -> Generator[None]:
        """Ignore what the block opens: a fixture that several tests share."""
        before, self._paused = self._paused, True
        try:
            yield
        finally:
            self._paused = before
            self._threads |= set(threading.enumerate())
            self._sockets |= sockets()

    def look_at_ports(self) -> None:
        """Note the ports of the nodes, before fixtures stop them."""
        self._ports = listening()

    def look(self) -> None:
        """Note what is open now. In an event loop, note the tasks of the test, too."""
        for number, (reference, is_open, place, process) in list(self._things.items()):
            thing = reference()
            killed = process is not None and not process.alive
            if thing is not None and not killed and is_open(thing):
                self._found[_opened_at(thing, place)] = None
            del self._things[number]
        self._places.clear()

    def look_at_tasks(self, tasks: Iterable[asyncio.Task[Any]]) -> None:
        """Note those tasks that are not Coherer's own; they end with what has started them."""
        for task in tasks:
            frames = [] if task.done() else task.get_stack(limit=1)
            if frames and not is_ours(frames[0].f_code.co_filename):
                name = getattr(task.get_coro(), "__qualname__", task.get_name())
                where = f"{frames[0].f_code.co_filename}:{frames[0].f_lineno}"
                self._found[f"task {name}, which waits at {where}"] = None

    def end(self) -> list[str]:
        """End looking; returns what was left behind, each with its place."""
        self._end()
        self.look()
        self._found.update(dict.fromkeys(connections(self._sockets, self._ports | listening())))
        for thread in set(threading.enumerate()) - self._threads:
            if (code := _code_of(thread)) is not None:
                where = f"{code.co_filename}:{code.co_firstlineno}"
                self._found[f"thread {thread.name}, which runs {code.co_qualname} of {where}"] = (
                    None
                )
        return list(self._found)


def _opened_at(thing: object, place: str) -> str:
    return f"{thing!r}, opened at {place}"


def _code_of(thread: threading.Thread) -> Any:
    """The function of a thread; None for those of executors, of libraries and of Coherer."""
    function = getattr(thread, "_target", None) or type(thread).run
    code = getattr(getattr(function, "__func__", function), "__code__", None)
    if code is None or is_ours(code.co_filename) or "concurrent" in code.co_filename:
        return None
    if code.co_qualname == "BaseEventLoop._do_shutdown":  # asyncio's, which ends an executor
        return None
    # Those of libraries may live as long as the process, as Spark's do. Code of compiled ones, such
    # as uvloop's thread that ends an executor, has no absolute path.
    library = "site-packages" in code.co_filename or code.co_filename.endswith(".pyx")
    return None if library else code


def _is_sparks() -> bool:
    """Whether a task of Spark is running; its client stays open for the next task."""
    frame = inspect.currentframe()
    while frame is not None and not frame.f_code.co_filename.startswith(_SPARK):
        frame = frame.f_back
    return frame is not None


def _place() -> str:
    """Where the user's own code is, as `file:line`; empty if this thread runs none of it."""
    frame = inspect.currentframe()  # as `traceback`, at a hundredth of its cost
    while frame is not None:
        file = frame.f_code.co_filename
        if is_users(file):
            return f"{file}:{frame.f_lineno}"
        frame = frame.f_back
    return ""
