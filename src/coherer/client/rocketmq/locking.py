"""Locks of an orderly consumer on its queues (8.14).

The broker keeps a lock for 60 s; it is asked for again every `LOCK_MS`. Without an answer we
believe in a lock for `held.LOCK_LIFE_MS`, so nobody else can have it while we do.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Final

from coherer.client.rocketmq.door import Door
from coherer.client.rocketmq.held import Held, now_ms
from coherer.errors import CohererError
from coherer.rocketmq.names import Queue

_log = logging.getLogger(__name__)

LOCK_MS: Final = 20_000


class Locks:
    """Locks and unlocks the queues of one group.

    Args:
        door: the way to brokers.
        group: the group.
        held: the queues that we hold.
        locked: called with each queue that has become locked again.
    """

    def __init__(
        self,
        door: Door,
        group: str,
        held: Mapping[Queue, Held],
        locked: Callable[[Held], None],
    ) -> None:
        self._door = door
        self._group = group
        self._held = held
        self._locked = locked

    async def lock(self, queues: Collection[Queue]) -> frozenset[Queue]:
        """Lock queues; those that are locked now."""
        locked: set[Queue] = set()
        for broker, theirs in _by_broker(queues).items():
            try:
                locked.update(await self._door.lock(self._group, broker, theirs))
            except CohererError as error:
                _log.warning("Locking queues of %s: %s", broker, error)
        return frozenset(locked)

    async def renew(self) -> None:
        """Lock all that we hold again; what a broker refuses is not ours at the moment."""
        for broker, theirs in _by_broker(self._held).items():
            try:
                locked = set(await self._door.lock(self._group, broker, theirs))
            except CohererError as error:
                _log.warning("Locking queues of %s: %s", broker, error)
                continue
            for queue in theirs:
                held = self._held.get(queue)
                if held is None:
                    continue
                was, held.locked_ms = held.locked, now_ms() if queue in locked else 0
                if held.locked and not was:
                    self._locked(held)

    async def unlock(self, queues: Collection[Queue], *, wait: bool = False) -> None:
        """Unlock queues."""
        for broker, theirs in _by_broker(queues).items():
            await self._door.unlock(self._group, broker, theirs, wait=wait)


def _by_broker(queues: Iterable[Queue]) -> dict[str, list[Queue]]:
    found: defaultdict[str, list[Queue]] = defaultdict(list)
    for queue in queues:
        found[queue.broker].append(queue)
    return found
