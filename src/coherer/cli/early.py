"""Signals that arrive before they have a handler.

The entry point imports this module first, so it imports little.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Generator
from contextlib import contextmanager
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
