"""The entry point of the command `coherer`; loads the command line.

Loading takes tenths of a second, in which nothing can reload a configuration yet. So it imports
little at the top, and remembers a SIGHUP for `coherer serve` from the first moment.
"""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Generator
from contextlib import contextmanager, nullcontext
from typing import Final

EARLY: Final[set[str]] = set()
"""The signals that came before anything handled them."""


@contextmanager
def remembered(name: str) -> Generator[None]:
    """Let a signal that comes too early wait for `on_signal`; it would end the process otherwise.

    One that comes too late, while the node stops, is ignored.
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


def main() -> None:
    """Run the command that the arguments of the process name."""
    with remembered("SIGHUP") if sys.argv[1:2] == ["serve"] else nullcontext():
        from coherer.cli.main import main as run

        run()
