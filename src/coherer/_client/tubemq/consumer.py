"""The consumer of TubeMQ, and the assignment of its partitions.

`membership` receives the master's instructions, `AssignmentManager` carries them out with the
brokers, `fetching` fetches from each assigned partition, and `engine.consumer` delivers batches to
the application. A batch contains the messages of one get: of one partition, in order. Delivery is
at least once, per batch.

Rules for assigned partitions:

* A partition is assigned from the time its broker accepts the registration until it is given up or
  lost.
* Before a partition is given up, the application has `release_ms` to acknowledge its current batch.
  A batch that is not acknowledged by then is rolled back: it is delivered again, to the next owner
  of the partition.
* If a broker has forgotten this member (code 411, it was restarted), the partition is registered
  again at once, because it is still assigned according to the master. (Java drops the partition and
  waits for the next rebalance.)
* Brokers get a heartbeat in every interval. If one does not answer, its connection is aborted, and
  a new one is opened.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping
from datetime import datetime, timedelta
from typing import ClassVar, Final, Literal, TypeAlias

from coherer._client.engine.arguments import check_offset, checked
from coherer._client.engine.assignments import Assignments
from coherer._client.engine.consumer import BaseConsumer, Progress
from coherer._client.engine.metrics import TUBEMQ, meters_of
from coherer._client.engine.tasks import backoff, cancel, is_order
from coherer._client.tubemq.broker_rpc import BrokerRpc, StartPosition
from coherer._client.tubemq.cluster import Cluster, Pool
from coherer._client.tubemq.fetching import PartitionFetcher, ReceivedBatch
from coherer._client.tubemq.flow_control import FlowControl
from coherer._client.tubemq.membership import REPORT, Instruction, Membership, Subscription
from coherer._client.tubemq.options import (
    ConsumerOptions,
    Listener,
    StartPositions,
    Topics,
    topics_of,
)
from coherer._common import clock
from coherer._common.logs import Log
from coherer._common.upkeep import Upkeep
from coherer._wire.tubemq.codes import ResultCode
from coherer._wire.tubemq.names import BrokerInfo, Partition
from coherer.errors import CohererError, RefusedError, RequestTimeoutError, UsageError
from coherer.message import ReceivedMessage

_log = Log(logging.getLogger(__name__))


REGISTER_TRIES: Final = 7
"""Attempts to register a partition with its broker, before waiting for the next rebalance."""


class AssignmentManager:
    """Takes and gives up the partitions of one consumer.

    Args:
        assignments: the assigned partitions, shared with the consumer.
        pool: the connections, to abort dead ones.
        positions: decides where to begin.
        membership: reports to the master, and has the group's flow rules.
        topics: topic to the accepted tags; no tags for all messages.
        heartbeat_ms: interval of heartbeats to brokers.
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
        make_batch: Callable[..., ReceivedBatch],
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
        self._make_batch = make_batch
        # What brokers may keep for this member, and whether the last batch is acknowledged.
        self._held: dict[Partition, bool] = {}
        self._turn = asyncio.Lock()  # an instruction and a loss may concern the same partition
        self._losses: set[asyncio.Task[None]] = set()
        self.upkeep = Upkeep()
        self._heartbeats = asyncio.create_task(self._send_heartbeats(), name="broker heartbeats")

    async def take(self, partitions: Iterable[Partition]) -> None:
        """Register partitions with their brokers; failures are left to the next rebalance."""
        async with self._turn:
            missing = self._reported.missing(partitions)
            self._held.update(dict.fromkeys(missing, False))
            starts = await asyncio.gather(*(self._register(partition) for partition in missing))
            taken = {
                partition: start
                for partition, start in zip(missing, starts, strict=True)
                if start is not None
            }
            for partition in taken:
                self._reported.add(partition)
            await _call(self._options.on_assigned, taken)
            for partition, start in taken.items():
                self._begin(partition, start)

    async def give_up(self, partitions: Iterable[Partition], *, wait: bool = True) -> None:
        """Give partitions back to their brokers.

        Args:
            partitions: those that are not assigned are ignored.
            wait: wait until the application has acknowledged its current batches.
        """
        async with self._turn:
            fetchers = self._assignments.fetchers
            going = [fetchers[one.key] for one in partitions if one.key in fetchers]
            self._assignments.drain(going)
            await cancel(*[fetcher.end() for fetcher in going])
            if wait:
                await _call(self._options.on_revoked, [fetcher.partition for fetcher in going])
                await self._wait_acknowledged(going)
            for fetcher in going:
                self._remove(fetcher)
                self._held[fetcher.partition] = fetcher.ack_pending
            await asyncio.gather(*(self._unregister(fetcher.partition) for fetcher in going))

    async def seek(self, fetcher: PartitionFetcher, offset: int) -> int:
        """Continue at another offset of an assigned partition; see `PartitionFetcher.seek`."""
        async with self._turn:
            # Registering it again, after it was given up, would take it from its new owner.
            if self._assignments.fetchers.get(fetcher.key) is not fetcher:
                raise RefusedError(
                    "The partition is not assigned to this consumer any more.",
                    topic=fetcher.partition.topic,
                    partition=fetcher.partition.id,
                )
            return await fetcher.seek(offset)

    async def close(self) -> None:
        """Give up all partitions, without waiting for the application."""
        # All of it at once: a caller that is cancelled comes no further, and a partition that is
        # still fetched from, or has heartbeats, is kept from the others.
        fetching = [fetcher.end() for fetcher in self._assignments]
        await cancel(self._heartbeats, *self._losses, *fetching)
        await self.give_up([fetcher.partition for fetcher in self._assignments], wait=False)
        # Those that it was taking or giving up. Where there is no connection any more, the lease
        # ends by itself: closing does not wait for a broker that is away.
        held = [one for one in self._held if self._pool.find(one.broker.host, one.broker.port)]
        await asyncio.gather(*map(self._unregister, held))

    # -- inside

    async def _register(self, partition: Partition) -> StartPosition | None:
        """Register a partition; None if that is left to the next rebalance."""
        wait = backoff()
        for tries_left in reversed(range(REGISTER_TRIES)):
            status, offset = self._positions.of(partition.key)
            try:
                age_ms = self._positions.age_ms(partition.key)
                start = await self._rpc.register(partition, status, offset, age_ms=age_ms)
            except CohererError as error:
                refused = error.code == ResultCode.CERTIFICATE_FAILURE
                if refused or not tries_left:
                    _log.warning(
                        "Cannot register %s: %s", partition.key, error, about=partition.key
                    )
                    return None
                _log.info("Cannot register %s yet: %s", partition.key, error, about=partition.key)
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
            self._make_batch,
            self._lost,
        )
        self._assignments.add(fetcher.key, fetcher)
        fetcher.begin()

    def _remove(self, fetcher: PartitionFetcher) -> None:
        self._assignments.remove(fetcher.key)
        self._reported.remove(fetcher.key)

    async def _wait_acknowledged(self, going: list[PartitionFetcher]) -> None:
        """Wait at most `release_ms` until the application has acknowledged its current batches."""
        in_hand = [fetcher.wait_acknowledged() for fetcher in going if fetcher.state.in_hand]
        if not in_hand:
            return
        try:
            async with asyncio.timeout(self._options.release_ms / 1000):
                await asyncio.gather(*in_hand)
        except TimeoutError:
            keys = ", ".join(fetcher.key for fetcher in going if fetcher.state.in_hand)
            _log.warning("Not acknowledged in time, to be delivered again: %s", keys)

    async def _unregister(self, partition: Partition) -> None:
        try:
            await self._rpc.unregister(partition, consumed=self._held[partition])
        except CohererError as error:
            _log.info("Unregistering %s failed: %s", partition.key, error, about=partition.key)
        self._held.pop(partition, None)

    def _lost(self, fetcher: PartitionFetcher, error: CohererError) -> None:
        """A broker does not assign a partition to this member any more."""
        if self._assignments.fetchers.get(fetcher.key) is not fetcher:
            return
        _log.info("Lost %s: %s", fetcher.key, error, about=fetcher.key)
        self._remove(fetcher)
        self._reported.loss = error
        self._held.pop(fetcher.partition, None)
        task = asyncio.create_task(
            self._after_loss(fetcher, error), name=f"after loss of {fetcher.key}"
        )
        self._losses.add(task)
        task.add_done_callback(self._losses.discard)

    async def _after_loss(self, fetcher: PartitionFetcher, error: CohererError) -> None:
        await cancel(fetcher.end())
        await _call(self._options.on_revoked, [fetcher.partition])
        if error.code == ResultCode.HB_NO_NODE:
            await self.take([fetcher.partition])
        if fetcher.key not in self._assignments.fetchers:
            self._membership.hurry()

    async def _send_heartbeats(self) -> None:
        while True:
            await asyncio.sleep(self._heartbeat_ms / 1000)
            with self.upkeep.guard("sending heartbeats to brokers"):
                brokers = {fetcher.partition.broker for fetcher in self._assignments}
                await asyncio.gather(*(self._send_heartbeat(broker) for broker in brokers))

    async def _send_heartbeat(self, broker: BrokerInfo) -> None:
        here = {one.key: one for one in self._assignments if one.partition.broker == broker}
        try:
            failures = await self._rpc.heartbeat(broker, [one.partition for one in here.values()])
        except RequestTimeoutError as error:
            _log.warning("A heartbeat was not answered: %s", error, about=broker)
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
                    refusal = RefusedError(
                        "The broker has not assigned the partition to this member.",
                        server=f"{broker.host}:{broker.port}",
                        topic=failure.partition.topic,
                        partition=failure.partition.id,
                        code=failure.code,
                    )
                    self._lost(lost, refusal)


async def _call(listener: Listener | None, partitions: Iterable[Partition]) -> None:
    affected = frozenset(partitions)
    if listener is None or not affected:
        return
    try:
        answer = listener(affected)
        if answer is not None:
            await answer
    except BaseException as error:  # raised by the application; rebalancing goes on
        if is_order(error):
            raise
        _log.exception("A rebalance listener failed")


Find: TypeAlias = Callable[[Partition, datetime | Literal["earliest", "latest"]], Awaitable[int]]
"""Looks up the offset of a time or an end of a partition."""


@checked
class Consumer(BaseConsumer[Partition, str, PartitionFetcher, ReceivedBatch, ReceivedMessage]):
    """Receives messages as a member of a group. Made by `Client.consumer`; use `async with`.

    ```python
    async with client.consumer("workers", "jobs", start="earliest") as consumer:
        async for batch in consumer.batches():
            work(batch.bodies())  # acknowledged when the loop asks for the next batch
    ```

    Args:
        cluster: the connections to the cluster.
        group: the group; its members share the partitions of its topics.
        topics: the topics and tags.
        options: see `ConsumerOptions`.
        find: looks up the offset of a time or an end of a partition.
    """

    _RETRY: ClassVar[timedelta | None] = timedelta(seconds=1)
    _NOT_ASSIGNED: ClassVar[int | None] = ResultCode.NOT_FOUND
    _NOT_IN_HAND: ClassVar[int | None] = ResultCode.BAD_REQUEST

    def __init__(
        self,
        cluster: Cluster,
        group: str,
        topics: Topics,
        options: ConsumerOptions | None = None,
        *,
        find: Find,
    ) -> None:
        self._cluster = cluster
        self._find = find
        self._options = options or ConsumerOptions()
        super().__init__(self._options.prefetch_bytes, count_in_hand=False)
        self._meters = meters_of(cluster.options.metrics)
        if self._meters is not None:
            self._meter = self._meters.consumer(TUBEMQ, str, group, self._assignments)
        self._positions = StartPositions(self._options.start)
        self._subscription = Subscription(
            group=group, topics=topics_of(topics), bound=self._positions.bound
        )
        # The blocking API sets its own class.
        self._make_batch: Callable[..., ReceivedBatch] = ReceivedBatch
        self._instructions: asyncio.Queue[Instruction] = asyncio.Queue()
        self._membership = Membership(
            cluster, self._subscription, self._instructions.put_nowait, self._assignments.wake
        )
        self._working: asyncio.Task[None] | None = None
        self._manager: AssignmentManager

    def __repr__(self) -> str:
        text = f"<Consumer of {', '.join(self._subscription.topics)} in {self._subscription.group}"
        if self._state != "open":
            return f"{text}: {self._state}>"
        fetchers = list(self._assignments)
        in_hand = sum(one.state.in_hand for one in fetchers)
        paused = sum(one.key in self.paused for one in fetchers)
        waiting = sum(not one.state.empty and not one.state.in_hand for one in fetchers)
        return (
            f"{text}: {len(fetchers)} partitions, {in_hand} with a batch to be acknowledged, "
            f"{paused} paused, {waiting} batches waiting>"
        )

    @property
    def group(self) -> str:
        """The group."""
        return self._subscription.group

    @property
    def assignment(self) -> frozenset[Partition]:
        """The partitions that are assigned to this consumer now."""
        return frozenset(fetcher.partition for fetcher in self._assignments)

    @property
    def progress(self) -> dict[Partition, Progress]:
        """How far each assigned partition has been read."""
        return {fetcher.partition: fetcher.progress for fetcher in self._assignments}

    @property
    def errors(self) -> list[CohererError]:
        """The errors that keep the consumer from receiving now; it keeps trying.

        The error of each partition in `progress`. While no partition is assigned, why the last one
        was lost, and why the master did not answer.
        """
        if self.assignment:
            return super().errors
        found = (self._membership.assignment.loss, self._membership.trouble)
        return [error for error in found if error is not None]

    async def start(self) -> None:
        """Join the group; partitions are assigned by the next rebalance (`wait_assigned`).

        Raises:
            UnavailableError: no master could be reached in time.
            RefusedError: the master refused, for example because the group has other topics.
        """
        self._positions.joining()
        await self._start_with(self._membership.start, self._membership.stop)
        membership = self._membership
        if not membership.not_allocated:
            self._positions.group_began()
        topics = self._subscription.topics
        rpc = BrokerRpc(
            self._cluster, membership.member, self.group, membership.credentials, topics
        )
        self._manager = AssignmentManager(
            self._assignments,
            rpc,
            self._cluster.pool,
            self._positions,
            membership,
            topics,
            self._options,
            self._cluster.options.heartbeat_ms,
            self._make_batch,
        )
        if self._meters is not None:
            self._meters.watch(self._manager.upkeep)
        self._working = asyncio.create_task(self._carry_out_instructions(), name="rebalance")
        membership.begin()

    async def wait_assigned(self, timeout_ms: int | None = None) -> frozenset[Partition]:
        """Wait until at least one partition is assigned; returns all that are.

        Raises:
            RequestTimeoutError: there was none in time. The master may rebalance only once a
                minute, or the group has more members than partitions.
            ClosedError: the consumer was closed.
            RefusedError: the cluster has permanently refused this member.
        """
        self.check()
        try:
            async with asyncio.timeout(None if timeout_ms is None else timeout_ms / 1000):
                await self._assignments.wait_any(self.check)
        except TimeoutError:
            raise RequestTimeoutError(
                f"This member of group {self.group} has no partition after {timeout_ms} ms.",
                hint="Has the master rebalanced? Does the group have more members than partitions?",
            ) from None
        return self.assignment

    async def commit(self, *batches: ReceivedBatch) -> dict[Partition, int]:
        """Acknowledge batches, and wait until the brokers know of all acknowledgements.

        Without `commit`, an acknowledgement is sent with the next get, which is cheaper. One that
        was sent with a get is not sent again.

        Args:
            batches: acknowledged first.

        Returns:
            The group's new offset in each committed partition: where the next batch begins.

        Raises:
            UsageError: a batch was acknowledged or retried before.
            RefusedError: a partition is not assigned to this consumer any more; its messages are
                delivered again.
            UnavailableError: a broker did not answer; the messages may be delivered again.
        """
        self.check()
        for batch in batches:
            self._acknowledge(batch)
        commits = {fetcher.partition: fetcher.commit() for fetcher in self._assignments}
        sent = {partition: task for partition, task in commits.items() if task is not None}
        offsets = await asyncio.gather(*map(asyncio.shield, sent.values()))
        return dict(zip(sent, offsets, strict=True))

    async def seek(
        self, partition: Partition | str, offset: int | datetime | Literal["earliest", "latest"]
    ) -> int:
        """Continue at another position of an assigned partition, by registering it again.

        The broker moves an offset that is out of range to the nearest one. Batches from before
        cannot be acknowledged any more.

        Args:
            partition: an assigned partition, or its key.
            offset: an offset, a time (see `Client.offsets_since`), or an end of the partition.

        Returns:
            The offset that the broker continues with.

        Raises:
            UsageError: the partition is not assigned to this consumer, the offset is negative, or
                the messages have no time.
            RefusedError: the broker does not assign the partition to this consumer any more.
            UnavailableError: the broker did not answer.
        """
        self.check()
        key = self._key(partition)
        fetcher = self._assignments.fetchers.get(key)
        if fetcher is None:
            raise UsageError(
                f"{key} is not assigned to this consumer.",
                hint="`assignment` has its partitions; a rebalance may have moved this one.",
            )
        if not isinstance(offset, int):
            offset = await self._find(fetcher.partition, offset)
        check_offset(offset, fetcher.partition.topic)
        return await self._manager.seek(fetcher, offset)

    async def close(self) -> None:
        """Leave the group. Messages that are not acknowledged are delivered again.

        Calling it again does nothing.
        """
        if not self._end():
            return
        self._assignments.wake()
        try:
            await cancel(self._working)
        finally:  # an absent member would keep its partitions from the others
            try:
                await self._manager.close()
            finally:
                await self._membership.stop()

    # -- inside

    def _check_client(self) -> None:
        self._cluster.pool.check()
        if self._membership.failure is not None:
            raise self._membership.failure

    def _key(self, partition: Partition | str) -> str:
        return partition if isinstance(partition, str) else partition.key

    async def _carry_out_instructions(self) -> None:
        """Carry out the master's instructions."""
        while True:
            instruction = await self._instructions.get()
            partitions = instruction.partitions
            try:
                if instruction.gives_up:
                    await self._manager.give_up(partitions)
                elif instruction.takes:
                    await self._manager.take(partitions)
                    self._positions.group_began()
                elif instruction.kind != REPORT:
                    _log.info("Ignored an instruction of the master: %r", instruction)
            except Exception:  # noqa: BLE001 - the group waits for this member
                _log.exception("Carrying out %r failed", instruction)
            # An instruction without an answer blocks the next ones: the master sends them one by
            # one. The answer lists the partitions, which is all that REPORT asks for.
            self._membership.assignment.finished(instruction)
            self._membership.hurry()
