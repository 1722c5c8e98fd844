"""The consumers of RocketMQ: `Consumer`, and `PullConsumer`.

See docs/protocol/rocketmq.md, sections 8.8 to 8.16.

A `Consumer` receives messages and acknowledges each of them or whole batches. Delivery is at least
once, per message: a message that is neither acknowledged nor retried is delivered again. How
batches get to the application is in `engine.consumer`, which queues are assigned is in
`assignment`, and the pulls and offsets of each queue are in `assigned_queue`. Java calls it a push
consumer.

A `PullConsumer` shares the queues of topics with its group (`topics`) or reads queues that the
application chooses (`assign`). It can go to any offset (`seek`). Messages are not retried, so it
has no dead letters. The next poll, or without `auto_commit` a `commit`, moves the offsets behind
the messages of the polls before it. They are stored every few seconds, by `commit`, and by `close`.
Java calls it a lite pull consumer.
"""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Callable, Collection
from datetime import datetime, timedelta
from functools import partial
from typing import ClassVar, Final, Literal

from coherer._client.engine.arguments import check_offset, checked
from coherer._client.engine.assigned import delivery_of
from coherer._client.engine.assignments import Assignments, PrefetchBuffer
from coherer._client.engine.consumer import BaseConsumer, Progress
from coherer._client.engine.lifecycle import Lifecycle
from coherer._client.engine.metrics import ROCKETMQ, meters_of
from coherer._client.engine.tasks import every
from coherer._client.rocketmq.consuming.assigned_queue import AssignedQueue
from coherer._client.rocketmq.consuming.membership import GroupMembership, Memberships
from coherer._client.rocketmq.consuming.trace import ConsumerTrace
from coherer._client.rocketmq.instance import Instance
from coherer._client.rocketmq.options import ConsumerOptions, Selection, Topics, selector_of
from coherer._client.rocketmq.received import ReceivedBatch, ReceivedMessage, message_at
from coherer._client.rocketmq.start_position import Edge
from coherer._client.rocketmq.tracing import Tracer
from coherer._common.clock import now_ms
from coherer._common.logs import Log
from coherer._common.moments import floor_ms
from coherer._common.renamed import old_keywords
from coherer._wire.rocketmq.bodies import CONSUME_ACTIVELY, CONSUME_PASSIVELY
from coherer._wire.rocketmq.names import Queue, with_namespace
from coherer._wire.rocketmq.pulling import LITE, SUBSCRIPTION, SUSPEND
from coherer._wire.rocketmq.subscription import SQL92, Subscription
from coherer.errors import CohererError, UsageError

_log = Log(logging.getLogger(__name__))

OVERDUE_LEVEL: Final = 3
"""The delay level of messages that are not acknowledged in time."""

OVERDUE_CHECK_MS: Final = 60_000

POLL_MS: Final = 5_000


class _Member(Lifecycle):
    """What both consumers have as members of a group."""

    _instance: Instance
    _membership: GroupMembership

    @property
    def group(self) -> str:
        """The group."""
        return self._membership.group

    @property
    def topics(self) -> Collection[str]:
        """The topics, including the group's retry topic if there is one."""
        return self._membership.topics

    @property
    def assignment(self) -> frozenset[Queue]:
        """The assigned queues."""
        return self._membership.assignment

    @property
    def progress(self) -> dict[Queue, Progress]:
        """How far each assigned queue has been processed."""
        return self._membership.progress

    @property
    def errors(self) -> list[CohererError]:
        """The errors that keep the consumer from receiving now; it keeps trying.

        Refused heartbeats, and the error of each queue in `progress`.
        """
        return self._membership.errors

    async def wait_assigned(self, timeout_ms: int | None = None) -> frozenset[Queue]:
        """Wait until at least one queue of the topics is assigned; returns all that are.

        Raises:
            RequestTimeoutError: there was none in time. The group may have more members than
                queues.
            ClosedError: the consumer was closed.
        """
        self.check()
        return await self._membership.wait_assigned(timeout_ms, self.check)

    def _check_client(self) -> None:
        self._instance.pool.check()


@checked
class Consumer(_Member, BaseConsumer[Queue, Queue, AssignedQueue, ReceivedBatch, ReceivedMessage]):
    """Receives messages as a member of a group. Made by `Client.consumer`; use `async with`.

    Args:
        instance: the connections and routes.
        memberships: all memberships of the client; this one's while it is open.
        group: the group; its members share the queues of its topics.
        topics: the topics and filters.
        options: see `ConsumerOptions`.
        make_tracer: makes a tracer from a name and the option `trace`.
    """

    _RETRY: ClassVar[timedelta | None] = None

    def __init__(
        self,
        instance: Instance,
        memberships: Memberships,
        group: str,
        topics: Topics,
        options: ConsumerOptions,
        make_tracer: Callable[[str, bool | str], Tracer],
    ) -> None:
        self._options = options
        super().__init__(options.prefetch_bytes, count_in_hand=True)
        # The blocking API sets its own class.
        self._make_batch: Callable[..., ReceivedBatch] = ReceivedBatch
        self._instance = instance
        self._membership = GroupMembership(
            instance,
            memberships,
            group,
            topics,
            options,
            self._assignments,
            consume_type=CONSUME_PASSIVELY,
            flags=SUSPEND,
        )
        if not self._membership.subscriptions:
            raise UsageError("A consumer needs at least one topic.")
        meters = meters_of(instance.options.metrics)
        if meters is not None:
            self._meter = meters.consumer(
                ROCKETMQ, lambda: instance.client_id, self.group, self._assignments
            )
        self._trace: ConsumerTrace | None = None
        if options.trace:
            tracer = make_tracer(f"{self.group}-CONSUME", options.trace)
            self._trace = ConsumerTrace(tracer, self.group)

    def __repr__(self) -> str:
        return self._membership.describe("Consumer", self._state)

    async def start(self) -> None:
        """Join the group; queues are assigned soon after (`wait_assigned`).

        Raises:
            UnavailableError: no name server could be reached.
            RefusedError: a broker does not accept an SQL92 expression.
            StoreError: a broadcast consumer cannot read its file.
        """
        self._membership.make_batch = self._make_batch
        services = {}
        if self._options.consume_ms and not self._options.orderly:
            services["overdue"] = partial(
                every,
                self._membership.upkeep,
                "retrying overdue messages",
                OVERDUE_CHECK_MS,
                self._retry_overdue,
            )
        join = partial(self._membership.join, retry_topic=True, services=services)
        await self._start_with(join, self._membership.leave)

    async def receive(self, timeout_ms: int | None = None) -> ReceivedBatch | None:
        """The next batch, to be acknowledged with `batch.ack()` or `commit`.

        Args:
            timeout_ms: how long to wait; None for ever, 0 not at all.

        Returns:
            A batch; None on timeout.

        Raises:
            ClosedError: the consumer was closed.
        """
        batch = await super().receive(timeout_ms)
        delivery = None if batch is None else delivery_of(batch)
        if self._trace is not None and delivery is not None:
            delivery.on_done = self._trace.begin(delivery.batch)
        return batch

    async def commit(self, *batches: ReceivedBatch) -> dict[Queue, int]:
        """Acknowledge batches, and store the offsets of their queues now.

        Without `commit`, offsets are stored with pulls and every `persist_ms`, which is cheaper.

        Args:
            batches: acknowledged first. Without any, all assigned queues are committed.

        Returns:
            The group's new offset in each of the queues: all messages before it are acknowledged or
            sent back.

        Raises:
            UsageError: a batch was acknowledged or retried before.
            RefusedError: a queue is not assigned any more; its messages are delivered again.
            UnavailableError: a broker did not answer; the messages may be delivered again.
            StoreError: a broadcast consumer cannot write its file.
        """
        self.check()
        queues = {batch.queue for batch in batches} or set(self.assignment)
        for batch in batches:
            self._acknowledge(batch)
        return await _commit(self._membership, queues)

    async def seek(
        self, partition: Queue, offset: int | datetime | Edge | Literal["earliest", "latest"]
    ) -> int:
        """Continue at another position of an assigned queue.

        Batches from before cannot be acknowledged any more.

        Args:
            partition: an assigned queue.
            offset: an offset, a time, or an end of the queue; `Edge.OLDEST` and `Edge.END` are the
                same as `earliest` and `latest`.

        Returns:
            The offset.

        Raises:
            UsageError: the queue is not assigned, or the offset is negative.
            UnavailableError, RefusedError: the broker did not resolve the position.
        """
        self.check()
        return await _seek(self._membership, partition, offset)

    async def close(self) -> None:
        """Leave the group. Messages that are not acknowledged are delivered again.

        Calling it again does nothing.
        """
        try:
            if self._end():
                self._assignments.wake()
                await self._membership.leave()
        finally:  # the producer of the trace is not the application's: nobody else closes it
            if self._trace is not None:
                await self._trace.close()

    def _key(self, partition: Queue) -> Queue:
        return partition

    def _after_failure(self, batch: ReceivedBatch) -> str:
        delivery, limit = delivery_of(batch), self._options.max_retries
        numbers = delivery.open_numbers if delivery is not None else []
        if not numbers:
            return f"all messages of the batch of {batch.topic} were acknowledged or retried before"
        first = message_at(batch, numbers[0])
        keys = f", key {' '.join(first.keys)}" if first.keys else ""
        rest = f" and {len(numbers) - 1} more" if len(numbers) > 1 else ""
        if self._options.model == "broadcast":
            then = "is not delivered again, as in each broadcast group"
        elif 0 <= limit <= first.attempt:
            then = f"moves to the dead-letter queue after {first.attempt + 1} deliveries"
        elif limit < 0 and not self._options.orderly:
            then = "will be delivered again, until the group's limit of redeliveries"
        else:
            then = "will be delivered again"
        return (
            f"message {first.unique_id or first.id} of {batch.topic}{keys}, attempt "
            f"{first.attempt + 1}{rest}, in group {self.group} {then}"
        )

    async def _retry_overdue(self) -> None:
        """Retry batches that the application has not acknowledged in time (section 8.11)."""
        before_ms = now_ms() - self._options.consume_ms
        for queue in self._assignments:
            for delivery in queue.state.overdue(before_ms):
                _log.warning("%s: a batch was not acknowledged in time", queue.queue)
                await delivery.retry(None, OVERDUE_LEVEL)


@checked
class PullConsumer(_Member):
    """Receives messages on request. Made by `Client.pull_consumer`; use `async with`.

    Args:
        instance: the connections and routes.
        memberships: all memberships of the client; this one's while it is open.
        group: the group whose offsets are used.
        topics: the topics to share with the group; nothing if `assign` is used.
        options: see `ConsumerOptions`; those about order, retries and attempts are ignored.
        auto_commit: whether a poll commits the messages of the polls before it.
    """

    _KIND: ClassVar[str] = "consumer"

    def __init__(
        self,
        instance: Instance,
        memberships: Memberships,
        group: str,
        topics: Topics,
        options: ConsumerOptions,
        *,
        auto_commit: bool,
    ) -> None:
        if options.orderly:
            raise UsageError("A pull consumer has no option `orderly`: its polls are in order.")
        self._buffer = PrefetchBuffer[ReceivedBatch](options.prefetch_bytes, count_in_hand=True)
        self._assignments = Assignments[Queue, AssignedQueue](self._buffer)
        # The blocking API sets its own class.
        self._make_batch: Callable[..., ReceivedBatch] = ReceivedBatch
        self._instance = instance
        self._membership = GroupMembership(
            instance,
            memberships,
            group,
            topics,
            options,
            self._assignments,
            consume_type=CONSUME_ACTIVELY,
            flags=SUSPEND | SUBSCRIPTION | LITE,
        )
        self._shares = bool(self._membership.subscriptions)
        self._auto_commit = auto_commit
        self._polled: dict[Queue, int] = {}  # one after the last message of the polls
        self._state = "new"

    def __repr__(self) -> str:
        return self._membership.describe("PullConsumer", self._state)

    @property
    def paused(self) -> frozenset[Queue]:
        """The paused queues."""
        return self._assignments.paused

    async def start(self) -> None:
        """Join the group; queues are assigned soon after (`wait_assigned`).

        Raises:
            UnavailableError: no name server could be reached.
            RefusedError: a broker does not accept an SQL92 expression.
            StoreError: a broadcast consumer cannot read its file.
        """
        self._membership.make_batch = self._make_batch
        join = partial(self._membership.join, retry_topic=False, services={})
        await self._start_with(join, self._membership.leave)

    def pause(self, *partitions: Queue) -> None:
        """Stop pulling and delivering these queues until `resume`; without any, all of them."""
        self.check()
        chosen = frozenset(partitions) or self.assignment
        self._assignments.pause(self._assignments.paused | chosen)

    def resume(self, *partitions: Queue) -> None:
        """Undo `pause` for these queues; without any, for all of them."""
        self.check()
        chosen = frozenset(partitions) or self._assignments.paused
        self._assignments.pause(self._assignments.paused - chosen)

    async def poll(self, timeout_ms: int | None = POLL_MS) -> ReceivedBatch | None:
        """The next messages; None on timeout.

        Args:
            timeout_ms: how long to wait; None for ever, 0 not at all.

        Raises:
            ClosedError: the consumer is closed.
        """
        self.check()
        if self._auto_commit:
            self._move_offsets()
        loop = asyncio.get_running_loop()
        deadline = None if timeout_ms is None else loop.time() + timeout_ms / 1000
        while (batch := self._buffer.take()) is None:
            try:
                async with asyncio.timeout_at(deadline):
                    await self._buffer.changed()
            except TimeoutError:
                return None
            self.check()
        if delivery_of(batch) is not None:
            batch.ack()
            self._polled[batch.queue] = batch.next_offset
        return batch

    async def commit(self) -> dict[Queue, int]:
        """Store the offsets behind the messages of the polls.

        Returns:
            The offsets that are committed now.

        Raises:
            UnavailableError, RefusedError: a broker has not stored them.
            StoreError: a broadcast consumer cannot write its file.
        """
        self.check()
        self._move_offsets()
        return await _commit(self._membership, set(self.assignment))

    async def committed(self, queue: Queue) -> int | None:
        """The group's stored offset, or None if it has not stored one.

        Raises:
            UnavailableError, RefusedError: it cannot be read now.
        """
        self.check()
        return await self._membership.manager.store.read(queue)

    def position(self, queue: Queue) -> int:
        """The offset of the next message of a queue that a poll returns.

        Raises:
            UsageError: the queue is not assigned.
        """
        self.check()
        return _assigned(self._membership, queue).state.commit_offset

    async def assign(self, queues: Collection[Queue], selection: Selection = None) -> None:
        """Read exactly these queues, without rebalancing.

        If the start of a queue cannot be determined because its broker is down, this is retried.

        Args:
            queues: all queues to read from now on.
            selection: the filter: tags, or SQL92.

        Raises:
            UsageError: the consumer shares topics with its group.
            RefusedError: a broker does not accept the SQL92 expression.
        """
        self.check()
        if self._shares:
            raise UsageError(
                "The consumer shares topics with its group.",
                hint="To choose queues, make it without topics: client.pull_consumer(group).",
            )
        by_topic: defaultdict[str, list[Queue]] = defaultdict(list)
        for queue in queues:
            by_topic[queue.topic].append(queue)
        membership = self._membership
        selector = selector_of(selection)
        new = [
            Subscription.of(topic, selector, version_ms=now_ms())
            for topic in by_topic
            if topic not in membership.subscriptions
        ]
        for subscription in new:
            if subscription.kind == SQL92:
                await membership.check_topic(subscription)
        membership.subscriptions.update((one.topic, one) for one in new)
        membership.manager.manual = by_topic
        if not await membership.manager.rebalance():
            membership.rebalance_soon()
        for topic in membership.subscriptions.keys() - by_topic.keys():
            del membership.subscriptions[topic]

    @old_keywords(queue="partition", to="offset")
    async def seek(
        self, partition: Queue, offset: int | datetime | Edge | Literal["earliest", "latest"]
    ) -> int:
        """Continue at another position of an assigned queue.

        Args:
            partition: an assigned queue.
            offset: an offset, a time, or an end of the queue; `Edge.OLDEST` and `Edge.END` are the
                same as `earliest` and `latest`.

        Returns:
            The offset.

        Raises:
            UsageError: the queue is not assigned, or the offset is negative.
            UnavailableError, RefusedError: the broker did not resolve the position.
        """
        self.check()
        found = await _seek(self._membership, partition, offset)
        self._polled.pop(partition, None)
        return found

    async def offset_of(
        self, queue: Queue, to: int | datetime | Edge | Literal["earliest", "latest"]
    ) -> int:
        """The offset of a position in any queue; see `seek`."""
        self.check()
        return await _resolve(self._membership, queue, to)

    async def queues(self, topic: str) -> list[Queue]:
        """The readable queues of a topic.

        Raises:
            RefusedError: the topic does not exist.
        """
        self.check()
        full = with_namespace(self._instance.options.namespace, topic)
        return list((await self._instance.routes.look_up(full)).readable)

    async def close(self) -> None:
        """Store the offsets and leave the group. Calling it again does nothing."""
        if self._end():
            self._assignments.wake()
            await self._membership.leave(self._move_offsets if self._auto_commit else lambda: None)

    def _unpoll(self, batch: ReceivedBatch | None) -> None:
        """Undo a poll whose messages nobody got: the thread that polled was interrupted."""
        assigned = None if batch is None else self._membership.manager.queues.get(batch.queue)
        if batch is not None and assigned is not None:
            assigned.seek(batch.offset)
            self._polled[batch.queue] = batch.offset

    def _move_offsets(self) -> None:
        """Move the offsets behind the polls, or to the next pull if nothing is buffered."""
        table = self._membership.manager.store.table
        for queue, assigned in self._assignments.fetchers.items():
            polled = self._polled.pop(queue, None)
            if assigned.state.empty:
                table.move(queue, assigned.state.next_offset)
            elif polled is not None:
                table.move(queue, polled)


def _assigned(membership: GroupMembership, queue: Queue) -> AssignedQueue:
    assigned = membership.manager.queues.get(queue)
    if assigned is None:
        raise UsageError(
            f"{queue} is not assigned to this consumer.",
            topic=queue.topic,
            partition=queue.id,
            hint="`assignment` has its queues; a rebalance may have moved this one.",
        )
    return assigned


async def _resolve(
    membership: GroupMembership,
    queue: Queue,
    to: int | datetime | Edge | Literal["earliest", "latest"],
) -> int:
    rpc = membership.manager.rpc
    if isinstance(to, datetime):
        return await rpc.resolve(queue, Edge.TIME, floor_ms(to))
    if isinstance(to, int):
        return to
    edge = to if isinstance(to, Edge) else Edge.OLDEST if to == "earliest" else Edge.END
    return await rpc.resolve(queue, edge)


async def _seek(
    membership: GroupMembership,
    queue: Queue,
    to: int | datetime | Edge | Literal["earliest", "latest"],
) -> int:
    _assigned(membership, queue)
    offset = await _resolve(membership, queue, to)
    check_offset(offset, queue.topic)
    _assigned(membership, queue).seek(offset)
    return offset


async def _commit(membership: GroupMembership, queues: Collection[Queue]) -> dict[Queue, int]:
    manager = membership.manager
    for queue in queues:
        assigned = manager.queues.get(queue)
        if assigned is not None:
            assigned.sync()
    await asyncio.gather(*(manager.store.commit(queue) for queue in queues))
    offsets = {queue: manager.store.table.get(queue) for queue in queues}
    return {queue: offset for queue, offset in offsets.items() if offset is not None}
