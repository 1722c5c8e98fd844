"""Connections in Spark's Python processes.

Spark forks its workers and uses them again for task after task, so a connection made by one task
serves the next. Rules:

1. One queue per process and `Access`. The process id is part of the key: a forked child never
   uses its parent's connection.
2. A queue in use when an exception came is closed and forgotten; the next task starts anew.
3. Spark ends its processes by closing their connections, in the middle of a batch where a query is
   stopped. That is no reason for a trace.
4. The heap is frozen once per process. Spark's daemon collects garbage after every task, which
   takes 20 to 35 ms with pyarrow loaded, and next to nothing when what is loaded is frozen.
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
    from coherer.spark.tubemq import TubeMQQueue

    return TubeMQQueue(access)


def _rocketmq(access: Access) -> Queue:
    from coherer.spark.rocketmq import RocketMQQueue

    return RocketMQQueue(access)


OPENERS: Final[dict[str, Callable[[Access], Queue]]] = {"tubemq": _tubemq, "rocketmq": _rocketmq}
"""Protocol to what opens its queues."""

_queues: Final[dict[tuple[int, Access], Queue]] = {}
_frozen: Final[set[int]] = set()


@contextmanager
def queue(access: Access) -> Generator[Queue]:
    """The process's queue for `access`, opened on first use.

    It stays open for the next user, unless the block ends with an error.
    """
    place = (os.getpid(), access)
    if place not in _queues:
        _queues[place] = OPENERS[access.protocol](access)
        freeze_heap()
    held = _queues[place]
    try:
        yield held
    except GeneratorExit:
        # A task that has read enough (`limit`) closes its generator: nothing is wrong.
        raise
    except BaseException:
        if _queues.get(place) is held:
            del _queues[place]
        with suppress(CohererError, OSError):
            held.close()
        raise


def freeze_heap() -> None:
    """Takes what is loaded by now out of the garbage collector's sight, once per process."""
    if os.getpid() not in _frozen:
        _frozen.add(os.getpid())
        gc.collect()
        gc.freeze()


RUNNER: Final = "pyspark.sql.streaming.python_streaming_source_runner"
DAEMON: Final = "pyspark.daemon"
"""The modules that run as a stream's driver side, and as what finds and plans sources. (For tasks
`configure` names another: `coherer.spark.daemon`.)"""

CUT_OFF: Final = (BrokenPipeError, ConnectionResetError)


def end_quietly() -> None:
    """In a process of Spark's, prints no trace when Spark has closed the connection to it."""
    main = sys.modules["__main__"]
    name = None if main.__spec__ is None else main.__spec__.name
    if name == RUNNER:
        sys.excepthook = _tell
    elif name == DAEMON:
        # Its loop prints what ends a worker, with `traceback.print_exc()`.
        vars(main)["traceback"] = _Traces()


def _tell(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    if not issubclass(kind, CUT_OFF):
        sys.__excepthook__(kind, error, trace)


class _Traces:
    """What PySpark's daemon needs of the module `traceback`."""

    format_exc = staticmethod(traceback.format_exc)

    def print_exc(self) -> None:
        """Print the trace of the exception that is being handled, unless Spark cut us off."""
        if not isinstance(sys.exception(), CUT_OFF):
            traceback.print_exc()
