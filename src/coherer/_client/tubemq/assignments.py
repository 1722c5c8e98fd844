"""The partitions that a consumer holds: taking them, giving them up, losing them.

Rules:

* A partition is held when its broker says so, from then on until it is given up or lost.
* Before it is given up, the application may finish the package that it has in hand and confirm it,
  for `release_ms`. What is not confirmed then is rolled back: it comes again, to whoever holds the
  partition next.
* A broker that has forgotten us (code 411, it was restarted) is asked at once to take us again:
  the master still believes that the partition is ours. (Java drops the partition and waits for the
  next balance.)
* A broker gets heartbeats at every period. One that does not answer has its connection cut, so
  that everything begins anew with a fresh one.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from typing import Final

import msgspec

from coherer._client.engine.tasks import cancel, waits
from coherer._client.tubemq.assignment import Assignment
from coherer._client.tubemq.broker_rpc import BrokerRpc
from coherer._client.tubemq.broker_rpc import Place as Start
from coherer._client.tubemq.fetching import Fetcher, FetchOptions, Held
from coherer._client.tubemq.flow_control import FlowControl
from coherer._client.tubemq.inbox import Inbox
from coherer._client.tubemq.link import Pool
from coherer._client.tubemq.positions import Positions
from coherer._common.logs import Log
from coherer._wire.tubemq.codes import ResultCode
from coherer._wire.tubemq.names import BrokerInfo, Partition
from coherer.errors import CohererError, RefusedError, RequestTimeoutError

_log = Log(logging.getLogger(__name__))

TAKE_TRIES: Final = 7
"""Tries to register a partition with its broker; then it is left to the next balance."""

Listener = Callable[[frozenset[Partition]], Awaitable[None] | None]
"""Told about partitions that came or go."""


class HoldOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How partitions are held.

    Args:
        heartbeat_ms: period of heartbeats to brokers.
        release_ms: how long the application may finish a package before its partition goes.
        on_assigned: told which partitions have come.
        on_revoked: told which partitions go, while they can still be confirmed; after a loss,
            which have gone.
    """

    heartbeat_ms: int = 13_000
    release_ms: int = 3_000
    on_assigned: Listener | None = None
    on_revoked: Listener | None = None


class AssignmentManager:
    """The partitions of one consumer.

    Args:
        rpc: the way to brokers.
        pool: the connections, to cut one that is dead.
        positions: where to begin.
        assignment: what the master is told.
        inbox: where packages go.
        pace: makes the pace of a partition, told whether it is filtered.
        accepted: topic to the tags that are wanted, None for all.
        hurry: called when the master should be told soon.
        options: how partitions are held.
        fetching: how they are fetched from.

    Attributes:
        held: by partition key.
        paused: keys of partitions that are not fetched from.
    """

    def __init__(
        self,
        rpc: BrokerRpc,
        pool: Pool,
        positions: Positions,
        assignment: Assignment,
        inbox: Inbox,
        pace: Callable[[bool], FlowControl],
        accepted: Callable[[str], frozenset[str] | None],
        hurry: Callable[[], None],
        options: HoldOptions,
        fetching: FetchOptions,
    ) -> None:
        self.held: dict[str, Held] = {}
        self.paused: frozenset[str] = frozenset()
        self._rpc = rpc
        self._pool = pool
        self._positions = positions
        self._assignment = assignment
        self._inbox = inbox
        self._pace = pace
        self._accepted = accepted
        self._hurry = hurry
        self._options = options
        self._fetching = fetching
        self._pausing = asyncio.Event()
        self._any = asyncio.Event()
        self._turn = asyncio.Lock()  # an instruction and a loss may want the same partition
        self._retaking: set[asyncio.Task[None]] = set()
        self._beating = asyncio.create_task(self._beat_on(), name="broker heartbeats")

    async def take(self, partitions: Iterable[Partition]) -> None:
        """Register partitions with their brokers; those that cannot be taken are left out."""
        async with self._turn:
            await self._take(partitions)

    async def give_up(self, partitions: Iterable[Partition], *, wait: bool = True) -> None:
        """Give partitions back to their brokers.

        Args:
            partitions: which ones; those that are not held are passed over.
            wait: let the application finish what it has in hand.
        """
        async with self._turn:
            await self._give_up(partitions, wait=wait)

    async def any(self) -> None:
        """Wait until at least one partition is held."""
        await self._any.wait()

    def pause(self, keys: frozenset[str]) -> None:
        """Fetch from these partitions no more, and from all others."""
        self.paused = keys
        self._inbox.pause(keys)
        pausing, self._pausing = self._pausing, asyncio.Event()
        pausing.set()

    async def close(self) -> None:
        """Give everything back, at once."""
        await cancel(self._beating, *self._retaking)
        await self.give_up([held.partition for held in self.held.values()], wait=False)

    # -- what fetchers call

    def open(self, held: Held) -> bool:
        """Whether a partition may be fetched from."""
        return held.key not in self.paused

    async def reopened(self) -> None:
        """Wait until the paused partitions are others."""
        await self._pausing.wait()

    def lost(self, held: Held, error: CohererError) -> None:
        """A partition is not ours any more."""
        if self.held.get(held.key) is not held:
            return
        _log.info("Lost %s: %s", held.key, error, about=held.key)
        self._remove(held)
        task = asyncio.create_task(self._after_loss(held, error), name=f"after loss of {held.key}")
        self._retaking.add(task)
        task.add_done_callback(self._retaking.discard)

    # -- inside

    async def _take(self, partitions: Iterable[Partition]) -> None:
        missing = self._assignment.missing(partitions)
        starts = await asyncio.gather(*(self._start(partition) for partition in missing))
        taken = {
            partition: start
            for partition, start in zip(missing, starts, strict=True)
            if start is not None
        }
        for partition in taken:
            self._assignment.hold(partition)
        await _tell(self._options.on_assigned, taken)
        for partition, start in taken.items():
            self._begin(partition, start)

    async def _give_up(self, partitions: Iterable[Partition], *, wait: bool) -> None:
        going = [self.held[partition.key] for partition in partitions if partition.key in self.held]
        await cancel(*(held.task for held in going))
        for held in going:
            if self._inbox.drop(held.key):
                held.package = None
        if wait:
            await _tell(self._options.on_revoked, [held.partition for held in going])
            await self._released(going)
        for held in going:
            self._remove(held)
        await asyncio.gather(*(self._hand_back(held) for held in going))

    async def _start(self, partition: Partition) -> Start | None:
        """Register a partition; None when it is left to the next balance."""
        wait = waits()
        for tries_left in reversed(range(TAKE_TRIES)):
            status, offset = self._positions.of(partition.key)
            try:
                start = await self._rpc.take(partition, status, offset)
            except CohererError as error:
                refused = error.code == ResultCode.CERTIFICATE_FAILURE
                if refused or not tries_left:
                    _log.warning("Cannot take %s: %s", partition.key, error, about=partition.key)
                    return None
                _log.info("Cannot take %s yet: %s", partition.key, error, about=partition.key)
                await asyncio.sleep(wait())
            else:
                self._positions.taken(partition.key)
                return start
        return None

    def _begin(self, partition: Partition, start: Start) -> None:
        accepted = self._accepted(partition.topic)
        held = Held(partition, start, accepted, self._pace(accepted is not None))
        self.held[held.key] = held
        self._any.set()
        fetcher = Fetcher(held, self._rpc, self._inbox, self, self._fetching)
        held.task = asyncio.create_task(fetcher.run(), name=f"fetch {held.key}")

    def _remove(self, held: Held) -> None:
        self.held.pop(held.key, None)
        self._assignment.drop(held.key)
        self._inbox.drop(held.key)
        if not self.held:
            self._any.clear()

    async def _released(self, going: list[Held]) -> None:
        waiting = [held.free.wait() for held in going if held.in_use]
        if not waiting:
            return
        try:
            async with asyncio.timeout(self._options.release_ms / 1000):
                await asyncio.gather(*waiting)
        except TimeoutError:
            keys = ", ".join(held.key for held in going if held.in_use)
            _log.warning("Not confirmed in time, will be delivered again: %s", keys)

    async def _hand_back(self, held: Held) -> None:
        try:
            await self._rpc.give_up(held.partition, consumed=held.consumed)
        except CohererError as error:
            _log.info("Giving up %s: %s", held.key, error, about=held.key)

    async def _after_loss(self, held: Held, error: CohererError) -> None:
        await cancel(held.task)
        await _tell(self._options.on_revoked, [held.partition])
        if error.code == ResultCode.HB_NO_NODE:
            await self.take([held.partition])
        if held.key not in self.held:
            self._hurry()

    async def _beat_on(self) -> None:
        while True:
            await asyncio.sleep(self._options.heartbeat_ms / 1000)
            brokers = {held.partition.broker for held in self.held.values()}
            await asyncio.gather(*(self._beat(broker) for broker in brokers))

    async def _beat(self, broker: BrokerInfo) -> None:
        here = {key: held for key, held in self.held.items() if held.partition.broker == broker}
        try:
            failures = await self._rpc.beat(broker, [held.partition for held in here.values()])
        except RequestTimeoutError as error:
            _log.warning("No answer to a heartbeat: %s", error, about=broker)
            link = self._pool.find(broker.host, broker.port)
            if link is not None:
                link.connection.abort()
        except CohererError as error:
            _log.warning("A heartbeat failed: %s", error, about=broker)
            if error.code == ResultCode.CERTIFICATE_FAILURE:
                for held in here.values():
                    self.lost(held, error)
        else:
            for failure in failures:
                held_or_none = here.get(failure.partition.key)
                if held_or_none is not None:
                    refusal = RefusedError("The broker does not hold it.", code=failure.code)
                    self.lost(held_or_none, refusal)


async def _tell(listener: Listener | None, partitions: Iterable[Partition]) -> None:
    told = frozenset(partitions)
    if listener is None or not told:
        return
    try:
        answer = listener(told)
        if answer is not None:
            await answer
    except Exception:  # noqa: BLE001 - theirs must not keep a group from being balanced
        _log.exception("A listener to assignments failed")
