"""PySpark's daemon, without a traceback for each task that Spark cut off. Set by `configure`.

When a query is stopped in the middle of a batch, the JVM closes the sockets of its tasks. PySpark's
workers then fail to write, and the daemon would print a traceback for each, although nothing is
wrong: the reader of the rest is gone. Other errors of a worker still go to the JVM.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import ParamSpec

from pyspark import daemon

P = ParamSpec("P")


def unless_cut_off(worker: Callable[P, int]) -> Callable[P, int]:
    """Wraps PySpark's worker to exit with code 1 when the JVM has closed its connection.

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
    daemon.worker = unless_cut_off(daemon.worker)
    daemon.manager()
