"""Loading many modules at once."""

from __future__ import annotations

import gc
from collections.abc import Generator
from contextlib import contextmanager


@contextmanager
def collector_paused() -> Generator[None]:
    """Pause the garbage collector's search for cycles.

    Modules that load make many objects and no garbage. The searches that this triggers take a
    sixth of the time, and more in a process that holds much else, such as pytest.
    """
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
