"""The consumer of TubeMQ.

Theory: `membership` talks with the master and gets instructions; `holdings` carries them out with
the brokers; a fetcher per partition puts packages into the inbox; the application takes them from
there. A package is what one get brought: some messages of one partition, in order. Delivery is at
least once, package by package: what was not confirmed comes again.

Ways to consume:

| | a package is confirmed |
|---|---|
| `receive` and `confirm` | by you; the answer is the group's new offset |
| `async for message in consumer` | when the loop asks for the message after its last |
| `async for batch in consumer.batches()` | when the loop asks for the next batch |
| `run(handler)` | when the handler returns |

The last three let the confirmation ride on the next get of the partition.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from typing import ClassVar, Final

from coherer._client.engine.handling import Stop, handle
from coherer._client.engine.iteration import BatchIterator
from coherer._client.engine.lifecycle import Lifecycle
from coherer._client.engine.tasks import cancel
from coherer._client.tubemq.assignment import Event
from coherer._client.tubemq.assignments import AssignmentManager, HoldOptions
from coherer._client.tubemq.broker_rpc import BrokerRpc
from coherer._client.tubemq.cluster import Cluster
from coherer._client.tubemq.consumer_options import ConsumerOptions, Progress, Topics, topics_of
from coherer._client.tubemq.fetching import FetchOptions, Held
from coherer._client.tubemq.flow_control import FlowControl
from coherer._client.tubemq.inbox import Inbox
from coherer._client.tubemq.iteration import MessageIterator
from coherer._client.tubemq.membership import Membership, Subscription
from coherer._client.tubemq.positions import Positions
from coherer._common import clock
from coherer._common.logs import Log
from coherer._wire.tubemq.codes import ResultCode
from coherer._wire.tubemq.delivery import MessageBatch
from coherer._wire.tubemq.names import Partition
from coherer.errors import ClosedError, RefusedError, RequestTimeoutError, UsageError

_log = Log(logging.getLogger(__name__))

Handler = Callable[[MessageBatch], Awaitable[None] | None]
"""Deals with a package; an exception says that it could not."""

RETRY_MS: Final = 1_000
"""How long a package rests after its handler failed."""


class Consumer(Lifecycle):
    """Receives messages as a member of a group. Made by `Client.consumer`; use `async with`.

    Args:
        cluster: the way to the cluster.
        group: the group; its members share the partitions of its topics.
        topics: what to receive.
        options: how.
    """

    _KIND: ClassVar[str] = "consumer"

    def __init__(
        self,
        cluster: Cluster,
        group: str,
        topics: Topics,
        options: ConsumerOptions | None = None,
    ) -> None:
        self._cluster = cluster
        self._options = options or ConsumerOptions()
        self._positions = Positions(self._options.start)
        self._subscription = Subscription(
            group=group, topics=topics_of(topics), bound=self._positions.bound
        )
        self._membership = Membership(cluster, self._subscription, self)
        self._inbox = Inbox(self._options.prefetch_bytes)
        self._events: asyncio.Queue[Event] = asyncio.Queue()
        self._working: asyncio.Task[None] | None = None
        self._state = "new"
        self._rpc: BrokerRpc
        self._manager: AssignmentManager

    def __repr__(self) -> str:
        what = f"<Consumer of {', '.join(self._subscription.topics)} in {self._subscription.group}"
        if self._state != "open":
            return f"{what}: {self._state}>"
        held = self._manager.held.values()
        in_use = sum(one.in_use for one in held)
        paused = sum(one.key in self._manager.paused for one in held)
        return (
            f"{what}: {len(held)} partitions, {in_use} of them to be confirmed, {paused} paused, "
            f"{len(self._inbox)} packages waiting>"
        )

    @property
    def group(self) -> str:
        """The group."""
        return self._subscription.group

    @property
    def assignment(self) -> frozenset[Partition]:
        """The partitions that are ours now."""
        if self._state != "open":
            return frozenset()
        return frozenset(held.partition for held in self._manager.held.values())

    @property
    def progress(self) -> dict[Partition, Progress]:
        """How far each partition has been read."""
        if self._state != "open":
            return {}
        return {
            held.partition: Progress(
                held.offset, held.max_offset, held.backlog_bytes, held.exact, held.left_out
            )
            for held in self._manager.held.values()
        }

    def check(self) -> None:
        """Check that the consumer can be used here and now; any thread may ask.

        Raises:
            ClosedError: it, or its client, was closed.
            UsageError: it was not started.
            RefusedError: the master does not want us any more.
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
        self._check_new()
        self._state = "starting"
        membership = self._membership
        try:
            await membership.start()
        except BaseException:
            self._state = "closed"
            await membership.stop()
            raise
        if not membership.not_allocated:
            self._positions.group_began()
        topics = self._subscription.topics
        self._rpc = BrokerRpc(
            self._cluster, membership.member, self.group, membership.credentials, topics
        )
        self._manager = AssignmentManager(
            self._rpc,
            self._cluster.pool,
            self._positions,
            membership.assignment,
            self._inbox,
            lambda filtered: FlowControl(
                membership, filtered=filtered, wall_ms=lambda _: clock.wall_ms()
            ),
            lambda topic: topics[topic] or None,
            membership.hurry,
            HoldOptions(
                heartbeat_ms=self._cluster.options.heartbeat_ms,
                release_ms=self._options.release_ms,
                on_assigned=self._options.on_assigned,
                on_revoked=self._options.on_revoked,
            ),
            FetchOptions(poll_ms=self._options.poll_ms, empty_ms=self._options.empty_ms),
        )
        if self._state != "starting":
            await membership.stop()
            raise ClosedError("The consumer was closed while it started.")
        self._working = asyncio.create_task(self._work(), name="rebalance")
        self._state = "open"
        membership.begin()

    async def wait_assigned(self, timeout_ms: int | None = None) -> frozenset[Partition]:
        """Wait until at least one partition is ours; returns them.

        Raises:
            RequestTimeoutError: that took too long. The master may balance once a minute only, or
                the group has more members than partitions.
        """
        self.check()
        try:
            async with asyncio.timeout(None if timeout_ms is None else timeout_ms / 1000):
                await self._manager.any()
        except TimeoutError:
            raise RequestTimeoutError(
                f"No partition was assigned within {timeout_ms} ms.",
                hint="The master may not have balanced yet, or the group has members enough.",
            ) from None
        return self.assignment

    async def receive(self, timeout_ms: int | None = None) -> MessageBatch | None:
        """The next package, to be passed to `confirm` or `reject`.

        Args:
            timeout_ms: how long to wait; None for ever, 0 not at all.

        Returns:
            A package; None when time is up.

        Raises:
            ClosedError: the consumer was closed.
            RefusedError: the master does not want us any more.
        """
        self.check()
        loop = asyncio.get_running_loop()
        deadline = None if timeout_ms is None else loop.time() + timeout_ms / 1000
        while (batch := self._take()) is None:
            try:
                async with asyncio.timeout_at(deadline):
                    await self._inbox.changed()
            except TimeoutError:
                return None
            self.check()
        return batch

    async def confirm(self, batch: MessageBatch) -> int:
        """Say that a package is dealt with; it will not come again.

        Returns:
            The group's new offset in the partition: where the next package begins.

        Raises:
            UsageError: it has been confirmed or rejected already.
            RefusedError: the partition is not ours any more; the package comes again.
            UnavailableError: no answer; the package may come again.
        """
        return await self._commit(batch, consumed=True)

    async def reject(self, batch: MessageBatch) -> int:
        """Say that a package could not be dealt with; it will be read again, by us if nothing else.

        Returns:
            The group's offset in the partition.

        Raises:
            UsageError: it has been confirmed or rejected already.
            RefusedError: the partition is not ours any more; the package comes again anyway.
            UnavailableError: no answer; the package comes again.
        """
        return await self._commit(batch, consumed=False)

    def done(self, batch: MessageBatch) -> None:
        """Like `confirm`, but the confirmation rides on the next get: cheaper, and no answer.

        If that get is lost, or the partition is not ours any more, the package comes again.
        """
        self.check()
        held = self._manager.held.get(_key(batch))
        if held is not None and held.package is batch and held.in_use:
            held.finish(confirmed=True)

    def put_back(self, batch: MessageBatch) -> None:
        """Give a package back unread: it is received again from here, without asking the broker."""
        self.check()
        self._give_back(batch)

    def _give_back(self, batch: MessageBatch) -> None:
        held = self._manager.held.get(_key(batch))
        if held is not None and held.package is batch and held.in_use:
            held.in_use = False
            self._inbox.put(held.key, batch, first=True)

    def batches(self) -> BatchIterator[MessageBatch]:
        """Packages for `async for`; each is confirmed when the loop asks for the next.

        A package that a loop left early, by `break` or an error, is received again.
        """
        self.check()
        return BatchIterator(self)

    def __aiter__(self) -> MessageIterator:
        """Messages for `async for`; see `batches` for when they are confirmed."""
        self.check()
        return MessageIterator(self)

    async def run(self, handler: Handler, *, workers: int = 1, stop: Stop | None = None) -> None:
        """Have every package dealt with by `handler`, until the consumer is closed or SIGTERM.

        On SIGTERM, unless the application handles it itself, the batches in hand are finished and
        confirmed, and `run` returns; the end of the `async with` block leaves the group.

        Args:
            handler: gets a package; a plain function runs in a thread. When it returns, the
                package is confirmed; when it raises, it is logged and the package comes again.
            workers: packages dealt with at a time, of different partitions.
            stop: ends it from outside, for facades.

        Raises:
            RefusedError: the master does not want us any more.
        """
        self.check()
        await handle(self, handler, self._failed, workers, stop)

    def pause(self, *partitions: Partition | str) -> None:
        """Fetch and deliver nothing of these partitions until `resume`; without any, of none."""
        self.check()
        wanted = _keys(partitions) if partitions else frozenset(self._manager.held)
        self._manager.pause(self._manager.paused | wanted)

    def resume(self, *partitions: Partition | str) -> None:
        """Undo `pause` for these partitions; without any, for all."""
        self.check()
        wanted = _keys(partitions) if partitions else self._manager.paused
        self._manager.pause(self._manager.paused - wanted)

    @property
    def paused(self) -> frozenset[str]:
        """The keys of paused partitions."""
        return self._manager.paused if self._state == "open" else frozenset()

    async def close(self) -> None:
        """Give everything back and leave the group. Packages not confirmed come again.

        Calling it again does nothing.
        """
        opened, self._state = self._state == "open", "closed"
        if not opened:
            return
        self._inbox.wake()
        try:
            await cancel(self._working)
            await self._manager.close()
        finally:  # a member that reads nothing would keep its partitions from the others
            await self._membership.stop()

    # -- what the membership calls

    def instructed(self, event: Event) -> None:
        """The master wants partitions given up or taken."""
        self._events.put_nowait(event)

    def membership_ended(self) -> None:
        """The master refuses us for good."""
        self._inbox.wake()

    # -- inside

    def _check_client(self) -> None:
        self._cluster.pool.check()

    def _take(self) -> MessageBatch | None:
        while (entry := self._inbox.take()) is not None:
            key, batch = entry
            held = self._manager.held[key]
            held.report(batch)
            if len(batch):
                held.in_use = True
                return batch
            held.finish(confirmed=True)  # nothing of it can be delivered
        return None

    def _in_hand(self, batch: MessageBatch) -> Held:
        held = self._manager.held.get(_key(batch))
        if held is None:
            raise RefusedError(
                "The partition is not ours any more.",
                topic=batch.topic,
                partition=batch.partition,
                code=ResultCode.NOT_FOUND,
                hint="The package will be delivered again, to whoever holds the partition.",
            )
        if held.package is not batch or not held.in_use:
            raise UsageError(
                "The package has been confirmed, rejected or lost already.",
                topic=batch.topic,
                partition=batch.partition,
                code=ResultCode.BAD_REQUEST,
            )
        return held

    async def _commit(self, batch: MessageBatch, *, consumed: bool) -> int:
        self.check()
        held = self._in_hand(batch)
        held.in_use = False  # nobody else may confirm it
        try:
            link = await self._rpc.link(held.partition.broker)
            answer = self._rpc.commit(link, held.partition, consumed=consumed)
        finally:
            # From here on the next get may leave: it goes by the same connection, behind the
            # commit, so the broker sees them in order.
            held.finish(confirmed=False)
        told = self._rpc.committed(link, held.partition, await answer)
        if told.HasField("maxOffset"):
            held.max_offset = told.maxOffset
        return told.currOffset

    async def _failed(self, batch: MessageBatch) -> None:
        asyncio.get_running_loop().call_later(RETRY_MS / 1000, self._give_back, batch)

    async def _work(self) -> None:
        while True:
            event = await self._events.get()
            partitions = event.partitions
            try:
                if event.gives_up:
                    await self._manager.give_up(partitions)
                elif event.takes:
                    await self._manager.take(partitions)
                    self._positions.group_began()
                else:
                    _log.info("An instruction that is not for us: %r", event)
                    continue
            except Exception:  # noqa: BLE001 - the group waits for us
                _log.exception("Carrying out %r failed", event)
            self._membership.assignment.finished(event)
            self._membership.hurry()


def _key(batch: MessageBatch) -> str:
    return f"{batch.broker}:{batch.topic}:{batch.partition}"


def _keys(partitions: Iterable[Partition | str]) -> frozenset[str]:
    return frozenset(one if isinstance(one, str) else one.key for one in partitions)
