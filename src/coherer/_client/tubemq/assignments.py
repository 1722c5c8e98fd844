"""The assigned partitions of a consumer: taking them, giving them up, losing them.

Rules:

* A partition is assigned from when its broker has accepted the registration until it is given up or
  lost.
* Before it is given up, the application may finish and acknowledge the batch that it has in hand,
  for `release_ms`. A batch that is not acknowledged then is rolled back: it is delivered again, to
  the member that gets the partition next.
* If a broker has forgotten this member (code 411, it was restarted), the partition is registered
  again at once: the master still believes that it is assigned. (Java drops the partition and waits
  for the next balance.)
* Brokers get heartbeats at every period. If one does not answer, its connection is cut, so that
  everything starts over on a new one.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Final

from coherer._client.engine.assignments import Assignments
from coherer._client.engine.tasks import cancel, waits
from coherer._client.tubemq.broker_rpc import BrokerRpc, StartPosition
from coherer._client.tubemq.fetching import PartitionFetcher, ReceivedBatch
from coherer._client.tubemq.flow_control import FlowControl
from coherer._client.tubemq.link import Pool
from coherer._client.tubemq.membership import Membership
from coherer._client.tubemq.options import ConsumerOptions, Listener, StartPositions
from coherer._common import clock
from coherer._common.logs import Log
from coherer._wire.tubemq.codes import ResultCode
from coherer._wire.tubemq.names import BrokerInfo, Partition
from coherer.errors import CohererError, RefusedError, RequestTimeoutError

_log = Log(logging.getLogger(__name__))

REGISTER_TRIES: Final = 7
"""Attempts to register a partition with its broker; then it is left to the next balance."""


class AssignmentManager:
    """Takes and gives up the partitions of one consumer.

    Args:
        assignments: where they are kept.
        rpc: the calls to brokers.
        pool: the connections, to cut one that is dead.
        positions: where to begin.
        membership: reports to the master, and knows the group's flow rules.
        topics: topic to the tags that are wanted; none means all messages.
        options: the consumer's options.
        heartbeat_ms: period of heartbeats to brokers.
        make: makes batches.
    """

    def __init__(
        self,
        assignments: Assignments[str, PartitionFetcher],
        rpc: BrokerRpc,
        pool: Pool,
        positions: StartPositions,
        membership: Membership,
        topics: Mapping[str, frozenset[str]],
        options: ConsumerOptions,
        heartbeat_ms: int,
        make: Callable[..., ReceivedBatch],
    ) -> None:
        self._assignments = assignments
        self._rpc = rpc
        self._pool = pool
        self._positions = positions
        self._membership = membership
        self._reported = membership.assignment
        self._topics = topics
        self._options = options
        self._heartbeat_ms = heartbeat_ms
        self._make = make
        self._turn = asyncio.Lock()  # an instruction and a loss may want the same partition
        self._losses: set[asyncio.Task[None]] = set()
        self._heartbeats = asyncio.create_task(self._send_heartbeats(), name="broker heartbeats")

    async def take(self, partitions: Iterable[Partition]) -> None:
        """Register partitions with their brokers; those that cannot be registered are left out."""
        async with self._turn:
            missing = self._reported.missing(partitions)
            starts = await asyncio.gather(*(self._register(partition) for partition in missing))
            taken = {
                partition: start
                for partition, start in zip(missing, starts, strict=True)
                if start is not None
            }
            for partition in taken:
                self._reported.hold(partition)
            await _call(self._options.on_assigned, taken)
            for partition, start in taken.items():
                self._begin(partition, start)

    async def give_up(self, partitions: Iterable[Partition], *, wait: bool = True) -> None:
        """Give partitions back to their brokers.

        Args:
            partitions: which ones; those that are not assigned are ignored.
            wait: let the application finish the batches that it has in hand.
        """
        async with self._turn:
            fetchers = self._assignments.fetchers
            going = [fetchers[one.key] for one in partitions if one.key in fetchers]
            self._assignments.drain(going)
            await asyncio.gather(*(fetcher.end() for fetcher in going))
            if wait:
                await _call(self._options.on_revoked, [fetcher.partition for fetcher in going])
                await self._settle(going)
            for fetcher in going:
                self._remove(fetcher)
            await asyncio.gather(*(self._unregister(fetcher) for fetcher in going))

    async def seek(self, fetcher: PartitionFetcher, offset: int) -> None:
        """Go on at another offset of an assigned partition; see `PartitionFetcher.seek`."""
        async with self._turn:
            await fetcher.seek(offset)

    async def close(self) -> None:
        """Give everything back, at once."""
        await cancel(self._heartbeats, *self._losses)
        await self.give_up([fetcher.partition for fetcher in self._assignments], wait=False)

    # -- inside

    async def _register(self, partition: Partition) -> StartPosition | None:
        """Register a partition; None when it is left to the next balance."""
        wait = waits()
        for tries_left in reversed(range(REGISTER_TRIES)):
            status, offset = self._positions.of(partition.key)
            try:
                start = await self._rpc.register(partition, status, offset)
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

    def _begin(self, partition: Partition, start: StartPosition) -> None:
        accepted = self._topics[partition.topic] or None
        flow = FlowControl(
            self._membership, filtered=accepted is not None, wall_ms=lambda _: clock.wall_ms()
        )
        fetcher = PartitionFetcher(
            partition,
            start,
            accepted,
            flow,
            self._rpc,
            self._assignments.buffer,
            self._options,
            self._make,
            self._lost,
        )
        self._assignments.add(fetcher.key, fetcher)
        fetcher.begin()

    def _remove(self, fetcher: PartitionFetcher) -> None:
        self._assignments.remove(fetcher.key)
        self._reported.drop(fetcher.key)

    async def _settle(self, going: list[PartitionFetcher]) -> None:
        """Wait until the application has finished what it has in hand, for `release_ms`."""
        in_hand = [fetcher.settle() for fetcher in going if fetcher.state.in_hand]
        if not in_hand:
            return
        try:
            async with asyncio.timeout(self._options.release_ms / 1000):
                await asyncio.gather(*in_hand)
        except TimeoutError:
            keys = ", ".join(fetcher.key for fetcher in going if fetcher.state.in_hand)
            _log.warning("Not acknowledged in time, will be delivered again: %s", keys)

    async def _unregister(self, fetcher: PartitionFetcher) -> None:
        try:
            await self._rpc.unregister(fetcher.partition, consumed=fetcher.ack_pending)
        except CohererError as error:
            _log.info("Giving up %s: %s", fetcher.key, error, about=fetcher.key)

    def _lost(self, fetcher: PartitionFetcher, error: CohererError) -> None:
        """A broker does not hold a partition for this member any more."""
        if self._assignments.fetchers.get(fetcher.key) is not fetcher:
            return
        _log.info("Lost %s: %s", fetcher.key, error, about=fetcher.key)
        self._remove(fetcher)
        task = asyncio.create_task(
            self._after_loss(fetcher, error), name=f"after loss of {fetcher.key}"
        )
        self._losses.add(task)
        task.add_done_callback(self._losses.discard)

    async def _after_loss(self, fetcher: PartitionFetcher, error: CohererError) -> None:
        await fetcher.end()
        await _call(self._options.on_revoked, [fetcher.partition])
        if error.code == ResultCode.HB_NO_NODE:
            await self.take([fetcher.partition])
        if fetcher.key not in self._assignments.fetchers:
            self._membership.hurry()

    async def _send_heartbeats(self) -> None:
        while True:
            await asyncio.sleep(self._heartbeat_ms / 1000)
            brokers = {fetcher.partition.broker for fetcher in self._assignments}
            await asyncio.gather(*(self._send_heartbeat(broker) for broker in brokers))

    async def _send_heartbeat(self, broker: BrokerInfo) -> None:
        here = {one.key: one for one in self._assignments if one.partition.broker == broker}
        try:
            failures = await self._rpc.heartbeat(broker, [one.partition for one in here.values()])
        except RequestTimeoutError as error:
            _log.warning("No answer to a heartbeat: %s", error, about=broker)
            link = self._pool.find(broker.host, broker.port)
            if link is not None:
                link.connection.abort()
        except CohererError as error:
            _log.warning("A heartbeat failed: %s", error, about=broker)
            if error.code == ResultCode.CERTIFICATE_FAILURE:
                for fetcher in here.values():
                    self._lost(fetcher, error)
        else:
            for failure in failures:
                lost = here.get(failure.partition.key)
                if lost is not None:
                    refusal = RefusedError("The broker does not hold it.", code=failure.code)
                    self._lost(lost, refusal)


async def _call(listener: Listener | None, partitions: Iterable[Partition]) -> None:
    told = frozenset(partitions)
    if listener is None or not told:
        return
    try:
        answer = listener(told)
        if answer is not None:
            await answer
    except Exception:  # noqa: BLE001 - the application's; the group still has to be balanced
        _log.exception("A listener to assignments failed")
