"""The connections of Spark's Python processes.

Spark forks its workers and reuses them for task after task, so a connection opened by one task
serves the next. Invariants:

1. There is one queue per process and `Access`. The process id is part of the key: a forked child
   never uses its parent's connection.
2. After an exception a queue is closed and forgotten; the next task opens a new one.
3. Spark ends its processes by closing their connections, possibly in the middle of a batch. That
   prints no traceback.
4. The heap is frozen for the first two tasks of a process: the first one imports what reading
   needs. Spark's daemon collects garbage after every task. That takes 20 to 35 ms with pyarrow
   loaded, and next to nothing with a frozen heap.
"""

from __future__ import annotations

import gc
import os
import sys
import traceback
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from types import TracebackType
from typing import Final

from coherer.errors import CohererError
from coherer.spark.options import Access
from coherer.spark.queue import Queue


def _tubemq(access: Access) -> Queue:
    from coherer.spark.tubemq import TubeMQQueue  # a worker loads one client

    return TubeMQQueue(access)


def _rocketmq(access: Access) -> Queue:
    from coherer.spark.rocketmq import RocketMQQueue  # a worker loads one client

    return RocketMQQueue(access)


OPENERS: Final[dict[str, Callable[[Access], Queue]]] = {"tubemq": _tubemq, "rocketmq": _rocketmq}
"""Opens a queue, by protocol."""

FREEZES: Final = 2
"""The number of tasks at which a process freezes its heap."""

_queues: Final[dict[tuple[int, Access], Queue]] = {}
_frozen: Final[dict[int, int]] = {}


@contextmanager
def shared_queue(access: Access) -> Generator[Queue]:
    """The process's queue for `access`, opened on first use.

    It stays open for the next task, unless the block raises an exception.
    """
    key = (os.getpid(), access)
    if key not in _queues:
        _queues[key] = OPENERS[access.protocol](access)
    freeze_heap()
    queue = _queues[key]
    try:
        yield queue
    except GeneratorExit:
        # A task that has read enough (`limit`) closes its generator: this is not an error.
        raise
    except BaseException:
        if _queues.get(key) is queue:
            del _queues[key]
        with suppress(CohererError, OSError):
            queue.close()
        raise


def freeze_heap() -> None:
    """Exclude all present objects from garbage collection, the first two times in a process."""
    times = _frozen.get(os.getpid(), 0)
    if times < FREEZES:
        _frozen[os.getpid()] = times + 1
        gc.collect()
        gc.freeze()


RUNNER: Final = "pyspark.sql.streaming.python_streaming_source_runner"
DAEMON: Final = "pyspark.daemon"
"""The main modules of a stream's driver side, and of the processes that find and plan sources. (For
tasks `configure` sets another one: `coherer.spark.daemon`.)"""

CUT_OFF: Final = (BrokenPipeError, ConnectionResetError)


def end_quietly() -> None:
    """In a process of Spark, suppress the traceback when Spark has closed the connection."""
    main = sys.modules["__main__"]
    name = None if main.__spec__ is None else main.__spec__.name
    if name == RUNNER:
        sys.excepthook = _print_error
    elif name == DAEMON:
        # Its loop calls `traceback.print_exc()` when a worker fails.
        vars(main)["traceback"] = _QuietTraceback()


def _print_error(
    kind: type[BaseException], error: BaseException, trace: TracebackType | None
) -> None:
    if not issubclass(kind, CUT_OFF):
        sys.__excepthook__(kind, error, trace)


class _QuietTraceback:
    """The part of the module `traceback` that PySpark's daemon uses."""

    format_exc = staticmethod(traceback.format_exc)

    def print_exc(self) -> None:
        """Print the traceback, unless Spark closed the connection."""
        if not isinstance(sys.exception(), CUT_OFF):
            traceback.print_exc()
