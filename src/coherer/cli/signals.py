"""Stopping in order: SIGTERM is taken like Ctrl-C, and a second signal ends at once."""

from __future__ import annotations

import signal
import threading
from collections.abc import Generator
from contextlib import contextmanager
from types import FrameType
from typing import Final

_NUMBERS: Final = (signal.SIGINT, signal.SIGTERM)


@contextmanager
def signals_interrupt() -> Generator[None]:
    """Inside, Ctrl-C and SIGTERM raise `KeyboardInterrupt`, so that everything is closed.

    Once: a second one comes when that takes too long, and would only break it off in the middle;
    the system ends the process then, and what it started ends by itself.

    Only the main thread can be told; in another one nothing is changed.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, _interrupt) for number in _NUMBERS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _interrupt(number: int, frame: FrameType | None) -> None:
    del number, frame
    for second in _NUMBERS:
        signal.signal(second, signal.SIG_DFL)
    raise KeyboardInterrupt
