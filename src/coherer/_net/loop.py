"""The event loop: uvloop or winloop where installed, asyncio's own otherwise."""

from __future__ import annotations

import asyncio
import importlib
import sys
from collections.abc import Coroutine
from typing import Any, TypeVar

from coherer.errors import UsageError

T = TypeVar("T")


def new_event_loop() -> asyncio.AbstractEventLoop:
    """A fresh event loop, of the fastest kind that is installed."""
    name = "winloop" if sys.platform == "win32" else "uvloop"
    try:
        fast = importlib.import_module(name)
    except ImportError:
        return asyncio.new_event_loop()
    loop = fast.new_event_loop()
    assert isinstance(loop, asyncio.AbstractEventLoop)  # noqa: S101 - narrows an untyped result
    return loop


def running_loop() -> asyncio.AbstractEventLoop:
    """The event loop that runs now.

    Raises:
        UsageError: none runs: the caller is not asyncio, but trio for example.
    """
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        raise UsageError(
            "Coherer's clients run on asyncio, and no asyncio event loop is running here.",
            hint="With trio or curio, use `coherer.blocking` in a thread "
            "(trio.to_thread.run_sync); anyio works on its asyncio backend.",
        ) from None


def run(main: Coroutine[Any, Any, T]) -> T:
    """Run `main` to its end in a fresh loop, as `asyncio.run` does.

    >>> async def answer() -> int:
    ...     return 42
    >>> run(answer())
    42
    """
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        return runner.run(main)
