"""Resources of the process: event loop, open files and memory."""

from __future__ import annotations

import asyncio
import importlib
import logging
import mmap
import sys
from collections.abc import Coroutine
from functools import cache
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar

from coherer._common.logs import Log
from coherer.errors import UsageError

T = TypeVar("T")

_log = Log(logging.getLogger(__name__))

_OPEN_FILES_WANTED: Final = 65_536
"""Open files that a server asks the system for: its connections and the files of its store."""

_RETAINED_BYTES: Final = 8 * 1024 * 1024
"""Freed memory that the allocator keeps instead of returning it to the system."""


def new_event_loop() -> asyncio.AbstractEventLoop:
    """Create an event loop: uvloop or winloop where installed, asyncio's own otherwise."""
    name = "winloop" if sys.platform == "win32" else "uvloop"
    try:
        fast = importlib.import_module(name)
    except ImportError:
        return asyncio.new_event_loop()
    loop = fast.new_event_loop()
    assert isinstance(loop, asyncio.AbstractEventLoop)  # noqa: S101 - narrows an untyped result
    return loop


def running_loop() -> asyncio.AbstractEventLoop:
    """Return the running event loop.

    Raises:
        UsageError: no asyncio loop is running, for example because the caller runs on trio.
    """
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        raise UsageError(
            "Coherer's clients run on asyncio, and no asyncio event loop is running here.",
            hint="With trio or curio, use `coherer.blocking` in a thread "
            "(trio.to_thread.run_sync); anyio works on its asyncio backend.",
        ) from None


def check_loop(home: asyncio.AbstractEventLoop | None, what: str) -> None:
    """Check that the running event loop is the one to which an object belongs.

    Args:
        home: the loop of the object; None if it has none yet.
        what: the object, for the error.

    Raises:
        UsageError: another loop runs in this thread, or none.
    """
    try:
        running = asyncio.get_running_loop()
    except RuntimeError:
        running = None
    if home is None or running is home:
        return
    if running is None:
        raise UsageError(
            f"{what} was made in an event loop, and is used in a thread without one.",
            hint="Use `loop.call_soon_threadsafe` or `asyncio.run_coroutine_threadsafe`, or a "
            "client of `coherer.blocking`, which all threads may use.",
        )
    raise UsageError(
        f"{what} was made in another event loop.",
        hint="Connect again in this loop (each `asyncio.run` makes a new one), or use a client of "
        "`coherer.blocking`, which all threads may use.",
    )


def run(main: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine to completion in a new event loop, as `asyncio.run` does.

    >>> async def answer() -> int:
    ...     return 42
    >>> run(answer())
    42
    """
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        return runner.run(main)


if sys.platform == "win32":

    def open_files_max() -> int:
        """Return how many files and sockets the process may open; Windows sets no limit."""
        return _OPEN_FILES_WANTED

    def raise_open_files_limit() -> int:
        """Return how many files the process may open."""
        return open_files_max()

else:
    import resource

    def open_files_max() -> int:
        """Return how many files and sockets the process may open."""
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        return _OPEN_FILES_WANTED if soft == resource.RLIM_INFINITY else soft

    def raise_open_files_limit() -> int:
        """Raise the limit of open files as far as the system allows and a server can use.

        Call it only in a process that does nothing but serve.

        Returns:
            How many files the process may open.
        """
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        wanted = _OPEN_FILES_WANTED if hard == resource.RLIM_INFINITY else hard
        wanted = min(wanted, _OPEN_FILES_WANTED)
        if soft not in (resource.RLIM_INFINITY, wanted) and soft < wanted:
            try:
                resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
            except (OSError, ValueError) as error:  # macOS reports a higher limit than it grants
                _log.plain.warning("Cannot open more than %d files: %s", soft, error)
        return open_files_max()


class Memory(NamedTuple):
    """The memory of the process in bytes; None where the system has no /proc.

    Args:
        resident: the resident size.
        mapped: the part that the system can drop at any time: pages of mapped files.
    """

    resident: int | None
    mapped: int | None


def memory() -> Memory:
    """Return the memory of the process."""
    try:
        pages = Path("/proc/self/statm").read_text(encoding="ascii").split()
    except OSError:
        return Memory(None, None)
    return Memory(*(int(count) * mmap.PAGESIZE for count in pages[1:3]))


@cache
def retain_freed_memory() -> None:
    """Make glibc's allocator keep a few MiB of freed memory. Repeated calls do nothing.

    Answers of a few hundred KiB are built, copied into frames and freed many times a second. glibc
    returns freed blocks of more than 128 KiB to the system and requests them again page by page,
    which costs more than the copying (measured on the broker: 0.51 µs of 0.67 µs per 1 KiB
    message). It raises that threshold when a larger block is freed, so one is. Other allocators
    are not affected.
    """
    bytes(_RETAINED_BYTES)  # never touched, so it takes no memory; freed at once
