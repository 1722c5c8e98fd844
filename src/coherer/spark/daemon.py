"""PySpark's daemon, with two changes for the workers that it forks. Set by `configure`.

It prints no traceback for a task that Spark cut off. When a query is stopped in the middle of a
batch, the JVM closes the sockets of its tasks. PySpark's workers then fail to write, and the daemon
would print a traceback for each, although nothing is wrong. Other errors of a worker still go to
the JVM.

Its workers keep freed memory. A batch needs several buffers of 2 MiB. glibc would return each of
them to the kernel, which then has to clear their pages again for the next batch. That took up to a
tenth of a worker's CPU time.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from contextlib import suppress
from functools import wraps
from typing import Final, ParamSpec

from pyspark import daemon

P = ParamSpec("P")

M_TRIM_THRESHOLD: Final = -1
M_MMAP_THRESHOLD: Final = -3
"""Parameters of mallopt(3)."""

KEPT_BYTES: Final = 256 << 20
"""The amount of free memory that a worker keeps."""


def keep_freed_memory() -> None:
    """Have glibc keep freed memory; do nothing with another C library."""
    with suppress(AttributeError, OSError, TypeError):
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(M_MMAP_THRESHOLD, 32 << 20)  # the most that glibc allows
        mallopt(M_TRIM_THRESHOLD, KEPT_BYTES)


def unless_cut_off(worker: Callable[P, int]) -> Callable[P, int]:
    """Wrap PySpark's worker to exit with code 1 when the JVM has closed its connection.

    >>> def worker() -> int:
    ...     raise BrokenPipeError
    >>> unless_cut_off(worker)()
    1
    """

    @wraps(worker)
    def served(*args: P.args, **options: P.kwargs) -> int:
        try:
            return worker(*args, **options)
        except (BrokenPipeError, ConnectionResetError):
            return 1

    return served


if __name__ == "__main__":
    keep_freed_memory()
    daemon.worker = unless_cut_off(daemon.worker)
    daemon.manager()
