"""PySpark's daemon, without a trace for each task that Spark cut off. Set by `configure`.

When a query is stopped in the middle of a batch, the JVM closes the sockets of its tasks. PySpark's
workers then fail to write, and the daemon prints a trace for each. Nothing has gone wrong: whoever
would read the rest is gone. What a worker has to report otherwise still goes to the JVM.
"""

from __future__ import annotations

import socket

from pyspark import daemon

_serve = daemon.worker


def worker(sock: socket.socket, authenticated: bool) -> int:
    """Serves one task, as PySpark's own does.

    Args:
        sock: the connection to the JVM.
        authenticated: whether the JVM need not prove who it is.

    Returns:
        The exit code; not 0 where the worker cannot be used again.
    """
    try:
        return _serve(sock, authenticated)
    except (BrokenPipeError, ConnectionResetError):
        return 1


if __name__ == "__main__":
    daemon.worker = worker
    daemon.manager()
