"""Locks of an orderly consumer on its queues (8.14).

The broker keeps a lock for 60 s; it is asked for again every `LOCK_MS`. Without an answer we
believe in a lock for `held.LOCK_LIFE_MS`, so nobody else can have it while we do.
"""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping
from functools import partial
from typing import Final

from coherer._client.rocketmq.door import Door
from coherer._client.rocketmq.held import Held
from coherer._common.clock import now_ms
from coherer._common.logs import Log
from coherer._wire.rocketmq.names import Queue
from coherer.errors import CohererError

_log = Log(logging.getLogger(__name__))

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
        answers = await self._ask(queues)
        return frozenset(queue for _, locked in answers for queue in locked)

    async def renew(self) -> None:
        """Lock all that we hold again; what a broker refuses is not ours at the moment."""
        for theirs, locked in await self._ask(self._held):
            for queue in theirs:
                held = self._held.get(queue)
                if held is None:
                    continue
                was, held.locked_ms = held.locked, now_ms() if queue in locked else 0
                if held.locked and not was:
                    self._locked(held)

    async def unlock(self, queues: Collection[Queue], *, wait: bool = False) -> None:
        """Unlock queues; `wait` until the brokers that can be reached have heard it."""
        unlock = partial(self._door.unlock, self._group, wait=wait)
        await asyncio.gather(*(unlock(*theirs) for theirs in _by_broker(queues).items()))

    async def _ask(self, queues: Iterable[Queue]) -> list[tuple[list[Queue], frozenset[Queue]]]:
        """Ask all brokers at once, so that locks do not run out while one of them is away.

        Returns:
            For each broker that answered, what it was asked for and what is locked.
        """

        async def ask(broker: str, theirs: list[Queue]) -> frozenset[Queue] | None:
            try:
                return frozenset(await self._door.lock(self._group, broker, theirs))
            except CohererError as error:
                _log.warning("Locking queues of %s: %s", broker, error)
                return None

        asked = _by_broker(queues)
        answers = await asyncio.gather(*(ask(*theirs) for theirs in asked.items()))
        pairs = zip(asked.values(), answers, strict=True)
        return [(theirs, locked) for theirs, locked in pairs if locked is not None]


def _by_broker(queues: Iterable[Queue]) -> dict[str, list[Queue]]:
    found: defaultdict[str, list[Queue]] = defaultdict(list)
    for queue in queues:
        found[queue.broker].append(queue)
    return found
