"""The consumer of TubeMQ.

`membership` talks to the master, which sends instructions; `assignments` carries them out with the
brokers; `fetching` fetches from each assigned partition; `engine.consumer` hands batches to the
application. A batch is what one get brought: messages of one partition, in order. Delivery is at
least once, batch by batch.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from datetime import timedelta
from typing import ClassVar

from coherer._client.engine.consumer import BaseConsumer, Progress
from coherer._client.engine.tasks import cancel
from coherer._client.tubemq.assignments import AssignmentManager
from coherer._client.tubemq.broker_rpc import BrokerRpc
from coherer._client.tubemq.cluster import Cluster
from coherer._client.tubemq.fetching import PartitionFetcher, ReceivedBatch
from coherer._client.tubemq.membership import Instruction, Membership, Subscription
from coherer._client.tubemq.options import ConsumerOptions, StartPositions, Topics, topics_of
from coherer._common.logs import Log
from coherer._wire.tubemq.codes import ResultCode
from coherer._wire.tubemq.names import Partition
from coherer.errors import RequestTimeoutError, UsageError
from coherer.message import ReceivedMessage

_log = Log(logging.getLogger(__name__))


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
        topics: what to receive.
        options: how.

    Attributes:
        make: makes batches; facades have their own.
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
    ) -> None:
        self._cluster = cluster
        self._options = options or ConsumerOptions()
        super().__init__(self._options.prefetch_bytes, count_in_hand=False)
        self._positions = StartPositions(self._options.start)
        self._subscription = Subscription(
            group=group, topics=topics_of(topics), bound=self._positions.bound
        )
        self.make: Callable[..., ReceivedBatch] = ReceivedBatch
        self._instructions: asyncio.Queue[Instruction] = asyncio.Queue()
        self._membership = Membership(
            cluster, self._subscription, self._instructions.put_nowait, self._prefetch.wake
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

    def check(self) -> None:
        """Check that the consumer can be used here and now; any thread may call it.

        Raises:
            ClosedError: it, or its client, was closed.
            UsageError: it was not started.
            RefusedError: the master has refused this member for good.
        """
        super().check()
        if self._membership.failure is not None:
            raise self._membership.failure

    async def start(self) -> None:
        """Join the group; partitions follow at the master's next balance (`wait_assigned`).

        Raises:
            UnavailableError: no master could be reached in time.
            RefusedError: the master refused, for example because the group reads other topics.
        """
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
            self.make,
        )
        self._working = asyncio.create_task(self._work_off(), name="rebalance")
        membership.begin()

    async def wait_assigned(self, timeout_ms: int | None = None) -> frozenset[Partition]:
        """Wait until at least one partition is assigned; returns all that are.

        Raises:
            RequestTimeoutError: that took too long. The master may balance once a minute only, or
                the group has more members than partitions.
        """
        self.check()
        try:
            async with asyncio.timeout(None if timeout_ms is None else timeout_ms / 1000):
                await self._assignments.wait_any()
        except TimeoutError:
            raise RequestTimeoutError(
                f"No partition was assigned within {timeout_ms} ms.",
                hint="The master may not have balanced yet, or the group has members enough.",
            ) from None
        return self.assignment

    async def commit(self, *batches: ReceivedBatch) -> dict[Partition, int]:
        """Acknowledge batches, and wait until the brokers know of all acknowledgements.

        Without `commit`, an acknowledgement rides on the next request for messages, which is
        cheaper. One that has left with such a request is not sent again.

        Args:
            batches: acknowledged first.

        Returns:
            The group's new offset in each partition that something was committed of: where the
            next batch begins.

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
        offsets = await asyncio.gather(*sent.values())
        return dict(zip(sent, offsets, strict=True))

    async def seek(self, partition: Partition | str, offset: int) -> None:
        """Go on at another offset of an assigned partition, by registering it there again.

        The broker moves an offset that it does not hold to the nearest one. Batches from before
        cannot be acknowledged any more.

        Raises:
            UsageError: the partition is not assigned to this consumer, or the offset is negative.
            RefusedError: the broker does not hold the partition for this consumer any more.
            UnavailableError: the broker did not answer.
        """
        self.check()
        key = self._key(partition)
        fetcher = self._assignments.fetchers.get(key)
        if fetcher is None:
            raise UsageError(f"{key} is not assigned to this consumer.")
        if offset < 0:
            raise UsageError(f"{offset} is not an offset.", topic=fetcher.partition.topic)
        await self._manager.seek(fetcher, offset)

    async def close(self) -> None:
        """Give everything back and leave the group; what is not acknowledged is delivered again.

        Calling it again does nothing.
        """
        if not self._end():
            return
        self._prefetch.wake()
        try:
            await cancel(self._working)
            await self._manager.close()
        finally:  # a member that reads nothing would keep its partitions from the others
            await self._membership.stop()

    # -- inside

    def _check_client(self) -> None:
        self._cluster.pool.check()

    def _key(self, partition: Partition | str) -> str:
        return partition if isinstance(partition, str) else partition.key

    async def _work_off(self) -> None:
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
                else:
                    _log.info("Ignored an instruction of the master: %r", instruction)
                    continue
            except Exception:  # noqa: BLE001 - the group waits for this member
                _log.exception("Carrying out %r failed", instruction)
            self._membership.assignment.finished(instruction)
            self._membership.hurry()
