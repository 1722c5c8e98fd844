"""Ctrl-C, SIGTERM and other signals of a command."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, contextmanager
from types import FrameType
from typing import Final

from coherer.cli.early import EARLY

STOP_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)


@contextmanager
def on_stop_signals(handler: Callable[[int, FrameType | None], None]) -> Generator[None]:
    """Call `handler` on Ctrl-C and SIGTERM. Outside the main thread, change nothing."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, handler) for number in STOP_SIGNALS}
    try:
        yield
    finally:
        for number, earlier in before.items():
            signal.signal(number, earlier)


def signals_interrupt() -> AbstractContextManager[None]:
    """Raise `KeyboardInterrupt` on the first Ctrl-C or SIGTERM, so that everything is closed.

    A second signal means that closing takes too long: the system ends the process at once.
    """
    return on_stop_signals(_interrupt)


def _interrupt(number: int, frame: FrameType | None) -> None:
    del number, frame
    let_signals_kill()
    raise KeyboardInterrupt


def let_signals_kill() -> None:
    """Restore the system's handling: the next signal ends the process at once."""
    for number in STOP_SIGNALS:
        signal.signal(number, signal.SIG_DFL)


@contextmanager
def stop_event() -> Generator[asyncio.Event]:
    """An event that the first SIGINT or SIGTERM sets.

    A second one is for a stop that takes too long, for example because a disk does not answer: the
    system ends the process at once, and the next start recovers.
    """
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()

    def stop(number: int, frame: FrameType | None) -> None:
        del number, frame
        let_signals_kill()
        loop.call_soon_threadsafe(stopped.set)

    with on_stop_signals(stop):
        yield stopped


@contextmanager
def on_signal(name: str, action: Callable[[], None]) -> Generator[None]:
    """Call `action` in the event loop on each signal of that name, if the system has it."""
    number = getattr(signal, name, None)
    if number is None or threading.current_thread() is not threading.main_thread():
        yield
        return
    loop = asyncio.get_running_loop()

    scheduled = False

    def run() -> None:
        nonlocal scheduled
        scheduled = False
        action()

    def arrived(number: int, frame: FrameType | None) -> None:
        nonlocal scheduled
        del number, frame
        if not scheduled:  # one call for all signals that arrive before it
            scheduled = True
            loop.call_soon_threadsafe(run)

    before = signal.signal(number, arrived)
    if name in EARLY:
        EARLY.discard(name)
        loop.call_soon(action)
    try:
        yield
    finally:
        signal.signal(number, before)
