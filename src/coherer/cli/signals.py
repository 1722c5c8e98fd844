"""Stopping in order: SIGTERM is taken like Ctrl-C."""

from __future__ import annotations

import signal
import threading
from collections.abc import Generator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def signals_interrupt() -> Generator[None]:
    """Inside, SIGTERM raises `KeyboardInterrupt` as Ctrl-C does, so that everything is closed.

    Only the main thread can be told; in another one nothing is changed.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, _interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _interrupt(number: int, frame: FrameType | None) -> None:
    del number, frame
    raise KeyboardInterrupt
