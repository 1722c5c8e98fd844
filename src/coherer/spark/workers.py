"""Connections in Spark's Python processes.

Spark forks its workers and uses them again for task after task, so a connection made by one task
serves the next. Rules:

1. One queue per process and `Access`. The process id is part of the key: a forked child never
   uses its parent's connection.
2. A queue in use when an exception came is closed and forgotten; the next task starts anew.
3. The heap is frozen once per process. Spark's daemon collects garbage after every task, which
   takes 20 to 35 ms with pyarrow loaded, and next to nothing when what is loaded is frozen.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
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
