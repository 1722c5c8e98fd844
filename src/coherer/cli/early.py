"""Signals that arrive before a command has a handler for them.

The entry point imports this module first, so it imports little.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Generator
from contextlib import contextmanager
from types import FrameType
from typing import Final

EARLY: Final[set[str]] = set()
"""The signals that arrived before they had a handler."""


@contextmanager
def remembered(name: str) -> Generator[None]:
    """Remember a signal for `on_signal`; without a handler it would end the process.

    A signal that arrives later, while the node stops, is ignored.
    """
    number = getattr(signal, name, None)
    if number is None or threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(number, lambda _number, _frame: EARLY.add(name))
    try:
        yield
    finally:
        signal.signal(number, before)
        EARLY.discard(name)


def terminated_as_interrupted() -> None:
    """Do on SIGTERM what Ctrl-C does at that moment; a second SIGTERM ends the process at once."""
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, _interrupt)


def _interrupt(number: int, frame: FrameType | None) -> None:
    signal.signal(number, signal.SIG_DFL)
    interrupt = signal.getsignal(signal.SIGINT)  # in an event loop, asyncio's, which cancels
    if callable(interrupt):
        interrupt(signal.SIGINT, frame)
    else:  # `nohup` and some shells ignore Ctrl-C in what they start
        raise KeyboardInterrupt
