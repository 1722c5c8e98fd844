"""What the package takes from the machine: the time, random numbers, and the id of its process.

Every other module asks this one, as `machine.wall_ns()`, so that a simulation can replace all of it
(`replaced`). Such a call costs what `time.time_ns()` costs: one attribute of a module.

The event loop has its own clock (`loop.time`) and its own sockets: a simulation brings its loop.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from random import Random, SystemRandom
from typing import NamedTuple
from uuid import UUID

if sys.platform == "linux":

    def _ticks_ns() -> int:
        # It counts while the machine sleeps, as do the leases that other machines keep.
        return time.clock_gettime_ns(time.CLOCK_BOOTTIME)

elif sys.platform == "darwin":

    def _ticks_ns() -> int:
        # `time.monotonic` stops while a Mac sleeps; this clock does not.
        return time.clock_gettime_ns(time.CLOCK_MONOTONIC)

else:
    _ticks_ns = time.monotonic_ns


wall_ns: Callable[[], int] = time.time_ns
"""The time of day, ns since 1970; it jumps when the clock is set."""
ticks_ns: Callable[[], int] = _ticks_ns
"""A monotonic clock; its numbers have no meaning but their differences."""
random: Random = Random()  # noqa: S311 - not for secrets
"""For choices that need not be secret."""
secret: Random = SystemRandom()
"""For keys, tokens, and ids that must be unique among machines."""

process_id: Callable[[], int] = os.getpid
"""The process, for the names that clients and messages get."""

if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=random.seed)


def uuid() -> UUID:
    """A random UUID of version 4.

    >>> uuid().version, uuid() == uuid()
    (4, False)
    """
    return UUID(bytes=secret.randbytes(16), version=4)


class Machine(NamedTuple):
    """A replacement; see the variables of the module."""

    wall_ns: Callable[[], int]
    ticks_ns: Callable[[], int]
    random: Random
    secret: Random
    process_id: Callable[[], int]


@contextmanager
def replaced(by: Machine) -> Generator[None]:
    """Use another machine in this process until the end of the block.

    >>> from coherer._common import machine
    >>> one = Random(1)
    >>> with machine.replaced(Machine(lambda: 7, lambda: 8, one, one, lambda: 9)):
    ...     machine.wall_ns(), machine.ticks_ns(), machine.process_id()
    (7, 8, 9)
    """
    global wall_ns, ticks_ns, random, secret, process_id
    before = Machine(wall_ns, ticks_ns, random, secret, process_id)
    wall_ns, ticks_ns, random, secret, process_id = by
    try:
        yield
    finally:
        wall_ns, ticks_ns, random, secret, process_id = before
