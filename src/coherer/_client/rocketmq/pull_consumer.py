"""The consumer that asks when it wants: what Java calls a lite pull consumer (8.16).

It shares queues with its group (`topics`), or reads those that it is told to (`assign`), and can
go to any offset (`seek`). Messages are not sent back: there are no retries and no dead letters.

An offset is committed when the poll after it begins, or, without `auto_commit`, by `commit`; it is
written down every few seconds, by `commit` at once, and when the consumer is closed.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Collection, Coroutine
from datetime import datetime
from typing import ClassVar, Final

from coherer._client.engine.tasks import every
from coherer._client.rocketmq.consumer_options import (
    ConsumerOptions,
    Selection,
    Topics,
    selector_of,
)
from coherer._client.rocketmq.held import Held
from coherer._client.rocketmq.instance import Instance
from coherer._client.rocketmq.member import Member
from coherer._client.rocketmq.received import ReceivedBatch
from coherer._client.rocketmq.start import Edge
from coherer._common.clock import now_ms
from coherer._wire.rocketmq.bodies import CONSUME_ACTIVELY
from coherer._wire.rocketmq.names import Queue, with_namespace
from coherer._wire.rocketmq.pulling import LITE, SUBSCRIPTION, SUSPEND
from coherer._wire.rocketmq.subscription import Subscription
from coherer.errors import UsageError

POLL_MS: Final = 5_000


class PullConsumer(Member):
    """Receives messages when asked. Made by `Client.pull_consumer`; use `async with`.

    Args:
        instance: the way to the cluster.
        group: the group whose offsets count.
        topics: what to share with the group; nothing when `assign` will say what to read.
        options: how; those that are about order, retries and attempts have no meaning here.
        auto_commit: whether a poll commits what the polls before it gave.
    """

    consume_type: ClassVar[str] = CONSUME_ACTIVELY
    flags: ClassVar[int] = SUSPEND | SUBSCRIPTION | LITE

    def __init__(
        self,
        instance: Instance,
        group: str,
        topics: Topics = (),
        options: ConsumerOptions | None = None,
        *,
        auto_commit: bool = True,
    ) -> None:
        options = options or ConsumerOptions()
        if options.orderly:
            raise UsageError("A pull consumer has one batch at a time: it is in order by itself.")
        super().__init__(instance, group, topics, options)
        self._shares = bool(self._subscriptions)
        self._auto_commit = auto_commit
        self._polled: dict[Queue, int] = {}  # behind what was given, and is not committed

    async def poll(self, timeout_ms: int | None = POLL_MS) -> ReceivedBatch | None:
        """The next messages; None when none came in time.

        Args:
            timeout_ms: how long to wait; None for ever, 0 not at all.

        Raises:
            ClosedError: the consumer is closed.
        """
        self.check()
        if self._auto_commit:
            self._note()
        batch = await self._receive(timeout_ms)
        if batch is not None and batch.claim is not None:
            batch.claim.finish()
            self._polled[batch.queue] = batch.next_offset
        return batch

    async def commit(self) -> dict[Queue, int]:
        """Write down that what the polls gave is dealt with.

        Returns:
            The offsets that are committed now.

        Raises:
            UnavailableError, RefusedError: a broker has not heard it.
        """
        self.check()
        self._note()
        store, queues = self._holdings.store, list(self._holdings.held)
        await asyncio.gather(*(store.confirm(queue) for queue in queues))
        offsets = {queue: store.table.get(queue) for queue in queues}
        return {queue: offset for queue, offset in offsets.items() if offset is not None}

    async def committed(self, queue: Queue) -> int | None:
        """The group's offset that is written down; None when there is none.

        Raises:
            UnavailableError, RefusedError: it cannot be told now.
        """
        self.check()
        return await self._holdings.store.read(queue)

    def position(self, queue: Queue) -> int:
        """The offset of the next message of a queue that a poll gives.

        Raises:
            UsageError: the queue is not ours.
        """
        self.check()
        return self._mine(queue).process.commit_offset

    async def assign(self, queues: Collection[Queue], selection: Selection = None) -> None:
        """Read these queues, and no others. The group's members are not asked.

        A queue whose broker cannot be asked where to begin follows when it can.

        Args:
            queues: all that shall be read from now on.
            selection: what is taken of them: tags, or SQL92.

        Raises:
            UsageError: the consumer shares topics with its group.
        """
        self.check()
        if self._shares:
            raise UsageError("The consumer shares topics with its group.")
        wanted: defaultdict[str, list[Queue]] = defaultdict(list)
        for queue in queues:
            wanted[queue.topic].append(queue)
        for topic in wanted.keys() - self._subscriptions.keys():
            selector = selector_of(selection)
            self._subscriptions[topic] = Subscription.of(topic, selector, version_ms=now_ms())
        self._holdings.assigned = wanted
        if not await self._holdings.rebalance():
            self.rebalance_soon()
        for topic in self._subscriptions.keys() - wanted.keys():
            del self._subscriptions[topic]

    async def seek(self, queue: Queue, to: int | datetime | Edge) -> int:
        """Read on from another place of a queue.

        Args:
            queue: one of ours.
            to: an offset, a time, or `Edge.OLDEST` or `Edge.END`.

        Returns:
            The offset.

        Raises:
            UsageError: the queue is not ours, or the offset is negative.
            UnavailableError, RefusedError: the broker does not tell where that is.
        """
        self.check()
        self._mine(queue)
        offset = await self.offset_of(queue, to)
        if offset < 0:
            raise UsageError(f"{offset} is no offset.")
        self._polled.pop(queue, None)
        self._mine(queue).restart(offset)
        return offset

    async def offset_of(self, queue: Queue, to: int | datetime | Edge) -> int:
        """The offset of a place in a queue, of ours or not; see `seek`."""
        self.check()
        if isinstance(to, datetime):
            time_ms = int(to.timestamp() * 1000)
            return await self._holdings.door.place(queue, Edge.TIME, time_ms)
        if isinstance(to, Edge):
            return await self._holdings.door.place(queue, to)
        return to

    async def queues(self, topic: str) -> list[Queue]:
        """The queues of a topic that can be read.

        Raises:
            RefusedError: the topic does not exist.
        """
        self.check()
        full = with_namespace(self._instance.options.namespace, topic)
        return list((await self._instance.look_up(full)).readable)

    # -- inside

    def _add_retry_topic(self) -> None:
        """Nothing is sent back, so nothing comes again."""

    def _services(self) -> dict[str, Coroutine[None, None, None]]:
        services = super()._services()
        services["offsets"] = every(self._options.persist_ms, self._holdings.persist)
        return services

    def _leaving(self) -> None:
        if self._auto_commit:
            self._note()

    def _mine(self, queue: Queue) -> Held:
        held = self._holdings.held.get(queue)
        if held is None:
            raise UsageError(f"{queue} is not ours.", topic=queue.topic, partition=queue.id)
        return held

    def _note(self) -> None:
        """What was given is dealt with; and so is what was passed over where nothing is left."""
        table = self._holdings.store.table
        for queue, held in self._holdings.held.items():
            polled = self._polled.pop(queue, None)
            if held.process.empty:
                table.move(queue, held.process.next_offset)
            elif polled is not None:
                table.move(queue, polled)
