"""Connections in Spark's Python processes.

Spark forks its workers and uses them again for task after task, so a connection made by one task
serves the next. Rules:

1. One queue per process and `Access`. The process id is part of the key: a forked child never
   uses its parent's connection.
2. A queue in use when an exception came is closed and forgotten; the next task starts anew.
3. A stream's driver side (PySpark's runner process) ends when Spark closes its connection. That is
   how a query stops, and no reason for a trace.
4. The heap is frozen once per process. Spark's daemon collects garbage after every task, which
   takes 20 to 35 ms with pyarrow loaded, and next to nothing when what is loaded is frozen.
"""

from __future__ import annotations

import gc
import os
import sys
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
        settle()
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


def settle() -> None:
    """Takes what is loaded by now out of the garbage collector's sight, once per process."""
    if os.getpid() not in _frozen:
        _frozen.add(os.getpid())
        gc.collect()
        gc.freeze()


RUNNER: Final = "pyspark.sql.streaming.python_streaming_source_runner"
"""The module that runs as a stream's driver side."""


def end_quietly() -> None:
    """In a stream's driver side, prints no trace when Spark has closed the connection to it."""
    main = sys.modules["__main__"]
    if main.__spec__ is not None and main.__spec__.name == RUNNER:
        sys.excepthook = _unless_cut_off


def _unless_cut_off(
    kind: type[BaseException], error: BaseException, trace: TracebackType | None
) -> None:
    if not issubclass(kind, BrokenPipeError | ConnectionResetError):
        sys.__excepthook__(kind, error, trace)
