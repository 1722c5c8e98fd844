"""The lock that lets only one replay of a group's dead letters run at a time.

Like an orderly consumer, a replay locks queues at their brokers: those of the dead letters, for the
group `REPLAY_GROUP`. A lock ends after a minute without renewal.

A replay that hangs, or a send that the network holds up, must not store anything after another
replay has begun:

* A send names the lock (`ReplayLock.of`). Coherer's broker stores the message only while the replay
  holds it. Java's brokers ignore this.
* Nothing is sent later than `SEND_S` after the last renewal. So a send has at least 20 s to arrive.
* After a send without an answer the lock is not released, but expires.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from itertools import groupby
from operator import attrgetter
from typing import Final

from coherer._administration.access import RocketCluster
from coherer._common import machine
from coherer._record.system_topics import SYSTEM_GROUP_PREFIX
from coherer.errors import CohererError, UnavailableError
from coherer.rocketmq import Queue, QueueLock

REPLAY_GROUP: Final = f"{SYSTEM_GROUP_PREFIX}COHERER_REPLAY"
"""The group that holds the locks of the dead letters."""

LOCK_WAIT_S: Final = 65.0
"""A little more than the lifetime of a lock."""
RENEWAL_S: Final = 15.0
SEND_S: Final = 40.0
"""How long after a renewal messages are sent; the lock ends 20 s later."""
PAUSE_S: Final = 1.0


class ReplayLock:
    """The locks of one replay.

    Args:
        cluster: the cluster.
        queues: the queues of the dead letters.

    Attributes:
        unanswered: whether a send was not answered, so that it may still arrive.
    """

    def __init__(self, cluster: RocketCluster, queues: Sequence[Queue]) -> None:
        self.unanswered = False
        self._groups = cluster.admin.groups
        self._queues = sorted(queues, key=attrgetter("broker", "id"))
        self._holder = machine.secret.randbytes(8).hex()
        self._renewed_s = float("-inf")
        self._lost = False

    @asynccontextmanager
    async def held(self, wait_s: float, waiting: Callable[[], object]) -> AsyncGenerator[None]:
        """Hold the locks.

        Args:
            wait_s: the longest wait for another replay.
            waiting: called while it waits.

        Raises:
            UnavailableError: another replay holds them, or a broker does not answer.
        """
        deadline_s = _now_s() + wait_s
        while not await self._acquire():
            if _now_s() >= deadline_s:
                raise UnavailableError(
                    "Another replay of these dead letters runs, or ended in the last minute "
                    "without the answers to its sends.",
                    topic=self._queues[0].topic,
                    hint="Run it again later.",
                )
            waiting()
            await asyncio.sleep(min(PAUSE_S, max(deadline_s - _now_s(), 0)))
        renewing = asyncio.create_task(self._renew(), name="coherer-renew-locks")
        try:
            yield
        finally:
            renewing.cancel()
            await asyncio.gather(renewing, return_exceptions=True)
            if not (self.unanswered or self._lost):
                await self._release()

    def check(self) -> None:
        """Check that this replay still holds the locks; call it right before a send.

        Raises:
            UnavailableError: another replay may hold them.
        """
        if self._lost or _now_s() > self._renewed_s + SEND_S:
            raise UnavailableError(
                "The locks of the dead letters could not be renewed in time.",
                topic=self._queues[0].topic,
                hint="Is the connection slow, or was this process suspended?",
            )

    def of(self, broker: str) -> QueueLock | None:
        """The lock at a broker; None if it has none of the queues."""
        return next(
            (
                QueueLock(REPLAY_GROUP, queue, self._holder)
                for queue in self._queues
                if queue.broker == broker
            ),
            None,
        )

    async def _acquire(self) -> bool:
        """Acquire or renew all locks, or none."""
        asked_s = _now_s()
        try:
            # In one order, and none after one that another replay holds: two replays that begin at
            # the same time would otherwise keep locks from each other for ever.
            for _, some in groupby(self._queues, attrgetter("broker")):
                queues = list(some)
                owned = await self._groups.lock(REPLAY_GROUP, queues, holder=self._holder)
                if len(owned) < len(queues):
                    await self._release_unused()
                    return False
        except CohererError:
            await self._release_unused()
            raise
        self._renewed_s = asked_s
        return True

    async def _release_unused(self) -> None:
        """Release locks under which nothing was sent; others expire if they are not renewed."""
        if self._renewed_s == float("-inf"):
            await self._release()

    async def _release(self) -> None:
        for _, some in groupby(self._queues, attrgetter("broker")):
            with suppress(CohererError):  # they expire
                await self._groups.unlock(REPLAY_GROUP, list(some), holder=self._holder)

    async def _renew(self) -> None:
        while not self._lost:
            await asyncio.sleep(RENEWAL_S)
            with suppress(CohererError):  # a lock lasts for several renewals
                self._lost = not await self._acquire()


def _now_s() -> float:
    return machine.ticks_ns() / 1e9
