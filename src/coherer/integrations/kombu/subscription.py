"""This process's membership in the group of a queue.

* The group has the name of the queue. Its members share the queue's messages; when one dies or
  leaves, the others receive what it has not acknowledged.
* A message is in one of three places: in the inbox, in kombu's hands (`Inbox.in_hand`), or settled.
* A partition that is being given up (`_leaving`) adds nothing to the inbox any more.
* While kombu has messages from a partition that is given up, this process locks it at the broker.
  The next owner waits until the lock is released, for at most `handover_ms`.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from contextlib import suppress
from typing import Final

from coherer import rocketmq
from coherer._common.logs import Log
from coherer.errors import ClosedError, CohererError, RequestTimeoutError
from coherer.integrations.kombu import names, payload
from coherer.integrations.kombu.inbox import Delivery, Inbox
from coherer.integrations.kombu.membership import Membership
from coherer.integrations.kombu.queues import QueueSpec
from coherer.integrations.kombu.session import Session
from coherer.integrations.kombu.sharing import few_moves
from coherer.rocketmq import Message, Queue, StoredMessage

_log = Log(logging.getLogger(__name__))

JOIN_S: Final = 10.0
"""How long a first look into a queue waits for the group to assign partitions."""

PARTIAL_S: Final = 1.0
"""How long it waits for partitions of the other topics of the queue, once it has some."""

RETRY_S: Final = 1.0
"""The pause before joining a group is tried again."""

HANDOVER_S: Final = 0.5
"""How long a new owner of partitions waits for the old one to say that it has tasks from them."""

POLL_S: Final = 0.01
"""How often to check progress that nothing reports: of messages that a consumer's filter leaves
out, and of those that other threads settle."""


class Subscription(Membership):
    """This process's membership in the group of a queue.

    Attributes:
        users: how many consumers of kombu read the queue.
        inbox: its waiting messages.
        timer: leaves the group when nobody has read the queue for a while.
        leaving: closes the subscription in the background.
    """

    def __init__(self, session: Session, spec: QueueSpec) -> None:
        super().__init__(session)
        self.spec = spec
        self.users = 0
        self.inbox = Inbox(session.signal)
        self.timer: asyncio.TimerHandle | None = None
        self.leaving: asyncio.Task[None] | None = None
        self._ends: dict[Queue, int] = {}  # of partitions, when they were assigned
        self._seen: dict[Queue, int] = {}
        self._leaving: set[Queue] = set()
        self._committing: asyncio.Task[None] | None = None

    async def close(self) -> None:
        """End the task and leave the group."""
        if self.timer is not None:
            self.timer.cancel()
        await super().close()

    async def leave(self) -> None:
        """Leave the group for now; this stores acknowledgements, too."""
        committing, self._committing = self._committing, None
        if committing is not None:
            committing.cancel()
        await super().leave()

    async def run(self) -> None:
        """Join the group and fill the inbox, until cancelled."""
        while True:
            with self.session.upkeep.guard(f"consuming {self.spec.name}"):
                await self._run_once()
            await asyncio.sleep(RETRY_S)

    async def _run_once(self) -> None:
        opening: asyncio.Task[None] | None = None
        try:
            consumer = await self._join()
            opening = asyncio.create_task(self._begin(), name="open inbox")
            await self._receive(consumer)
        finally:
            if opening is not None:
                opening.cancel()
            await self.leave()

    async def open(self) -> None:
        """Open the inbox when everything that is in the partitions now has arrived.

        Raises:
            CohererError: a server does not answer.
        """
        with suppress(RequestTimeoutError):
            await self._reach_end()
        self.inbox.open = True

    async def _reach_end(self) -> None:
        deadline = time.monotonic() + JOIN_S
        partial = deadline - JOIN_S + PARTIAL_S
        while (missing := self._unassigned()) and time.monotonic() < deadline:
            if len(missing) < len(self.spec.subscription()) and time.monotonic() > partial:
                break
            await asyncio.sleep(POLL_S)
        if self.consumer is None:
            return
        ends = await self.session.ends(self.spec.subscription())
        while time.monotonic() < deadline:
            progress = self.consumer.progress
            if all(
                max(one.offset, self._seen.get(queue, 0)) >= ends.get(queue, 0)
                for queue, one in progress.items()
            ):
                return
            await asyncio.sleep(POLL_S)

    def commit_soon(self) -> None:
        """Store acknowledgements, in a while together with those that follow."""
        if self._committing is None:
            self._committing = asyncio.create_task(self._commit(), name="commit")

    async def _commit(self) -> None:
        await asyncio.sleep(self.session.options.commit_ms / 1000)
        self._committing = None
        if self.consumer is not None:
            with suppress(CohererError):  # tried again by the consumer
                await self.consumer.commit()

    def _unassigned(self) -> set[str]:
        """The topics of which this process has no partition (yet)."""
        assigned: frozenset[Queue] = frozenset()
        if self.consumer is not None:
            assigned = self.consumer.assignment
        return self.spec.subscription().keys() - {queue.topic for queue in assigned}

    async def _join(self) -> rocketmq.Consumer:
        topics = self.spec.subscription()
        await asyncio.gather(*map(self.session.ensure, topics))
        consumer = self.make(
            self.spec.topic,
            topics,
            start="earliest",
            strategy=few_moves,
            on_assigned=self._assigned,
            on_revoked=self._revoked,
        )
        await consumer.start()
        self.consumer = consumer
        return consumer

    async def _begin(self) -> None:
        with suppress(CohererError):
            await self.open()
        self.inbox.open = True
        self.session.signal.set()
        if self.consumer is not None and not self.consumer.assignment and await self._shared():
            _log.warning(
                "No partition of queue %s is left for this process: others have all of them. Its "
                "topic needs more partitions (transport option `partitions`, or `coherer topics "
                "alter`).",
                self.spec.name,
            )

    async def _shared(self) -> bool:
        """Whether the group has other members."""
        with suppress(CohererError):
            found = await self.session.client.admin().groups.consumers(self.spec.topic)
            return found is not None and len(found.members) > 1
        return False

    async def _receive(self, consumer: rocketmq.Consumer) -> None:
        while (batch := await consumer.receive()) is not None:
            fresh: list[Delivery] = []
            for message in batch:
                delivery = await self._sort(message, batch.queue)
                if delivery is not None:
                    fresh.append(delivery)
            if batch.queue in self._leaving:
                continue  # its next owner delivers them
            self.inbox.add(*fresh)
            self._seen[batch.queue] = batch.next_offset

    async def _sort(self, message: rocketmq.ReceivedMessage, source: Queue) -> Delivery | None:
        """A message for the inbox, or None after settling one that does not belong there."""
        stored = message.detach()
        try:
            content = payload.decode(stored.body)
        except ValueError as error:
            _log.error("A message of %s is dead: %s (%s)", self.spec.name, error, stored.id)
            await message.dead_letter(reason=str(error))
            return None
        if not self.spec.accepts(stored, payload.delivery_info(content)):
            await message.ack()
            return None
        if self.session.due(content) is not None:
            await self._send_on(message, stored, content)
            return None
        # Another process may have received what was stored before the partition was assigned.
        if stored.attempt or (stored.offset or 0) < self._ends.get(source, math.inf):
            payload.delivery_info(content)["redelivered"] = True
        return Delivery(self.spec.name, content, message, stored, source, self.spec.ttl_ms)

    async def _send_on(
        self, message: rocketmq.ReceivedMessage, stored: StoredMessage, content: payload.Payload
    ) -> None:
        """Send a message again for the rest of its delay.

        If that fails, the broker delivers it again: an error would end the membership, and others
        would repeat what this process has in hand.
        """
        try:
            await self.session.send(self._again(stored), content)
        except ClosedError:
            raise
        except CohererError as error:
            _log.warning(
                "The delay of a message of %s is continued later: %s (%s)",
                self.spec.name,
                error,
                stored.id,
            )
            await message.retry(reason=str(error))
        else:
            await message.ack()

    def _again(self, stored: StoredMessage) -> Message:
        """A message for the rest of its delay, to this queue only."""
        topic = stored.topic if stored.topic in self.spec.own_topics else self.spec.topic
        return Message(topic, stored.body, tag=names.QUEUE_TAG, keys=stored.keys)

    async def _assigned(self, queues: list[Queue]) -> None:
        """Take partitions over: let their old owners finish what they have from them."""
        self._leaving -= {*queues}
        with suppress(CohererError):
            await self._await_owners(queues)
        for queue in queues:
            self._ends.pop(queue, None)
        with suppress(CohererError):
            topics = self.spec.subscription().keys() & {queue.topic for queue in queues}
            ends = await self.session.ends(topics)
            self._ends.update({queue: ends[queue] for queue in queues if queue in ends})

    async def _await_owners(self, queues: list[Queue]) -> None:
        groups, group = self.session.client.admin().groups, self.spec.topic
        if not await self._shared():
            return
        await asyncio.sleep(HANDOVER_S)  # the others hear of the change at the same time
        deadline = time.monotonic() + HANDOVER_S + self.session.options.handover_ms / 1000
        waiting = {*queues}
        while waiting and time.monotonic() < deadline:
            free = await groups.lock(group, waiting)
            await groups.unlock(group, free)
            waiting -= {*free}
            await asyncio.sleep(HANDOVER_S / 5 if waiting else 0)
        [state] = await groups.list(group)
        committed = {one.key: one.committed for one in state.partitions}
        if self.consumer is not None:
            for queue in queues:
                offset = committed.get(queue.key)
                if offset is not None and offset > self.consumer.progress[queue].offset:
                    await self.consumer.seek(queue, offset)

    async def _revoked(self, queues: list[Queue]) -> None:
        """Give partitions up: finish what this process has from them, but not for too long."""
        lost = {*queues}
        self._leaving |= lost
        self.inbox.drop(lambda one: one.source in lost)
        for queue in lost:
            self._seen.pop(queue, None)
        mine = self.inbox.in_hand.keys() & lost
        if not mine or self.consumer is None:
            return
        groups, group = self.session.client.admin().groups, self.spec.topic
        with suppress(CohererError):
            await groups.lock(group, mine)
            try:
                deadline = time.monotonic() + self.session.options.handover_ms / 1000
                # Another thread settles them.
                while self.inbox.in_hand.keys() & mine and time.monotonic() < deadline:  # noqa: ASYNC110
                    await asyncio.sleep(POLL_S)
                await self.consumer.commit()
            finally:
                await groups.unlock(group, mine)
