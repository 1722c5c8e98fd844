"""The RocketMQ side of a kombu connection: an asyncio client in a thread of its own.

`Link` is used by the thread that uses kombu; its coroutines run in the thread of the event loop.

* A durable queue is a consumer group: `Subscription` is this process's member of it. Members share
  the messages; when one dies or leaves, the others get what it has not acknowledged.
* A transient queue (exclusive or auto-delete) that is bound to an exchange lives in this process
  only: a `Listener` reads the exchange's topic in a broadcast group and fills its inbox, from the
  moment it is bound.
* Nothing is published before its topic exists: topics are created on demand.

After a fork, the child's copy of a link does nothing; kombu connects again.
"""

from __future__ import annotations

import asyncio
import logging
import re
import shutil
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterable
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

import msgspec

from coherer import rocketmq
from coherer._common.logs import Log
from coherer._common.upkeep import Upkeep
from coherer._record.system_topics import DELAY_LEVELS_MS
from coherer.blocking._portal import Portal
from coherer.errors import CohererError, RefusedError, RequestTimeoutError, UsageError
from coherer.integrations.kombu import names, payload
from coherer.integrations.kombu.inbox import KEPT_MAX, Delivery, Inbox, Signal
from coherer.integrations.kombu.sharing import few_moves
from coherer.rocketmq import Message, Queue, StoredMessage

_log = Log(logging.getLogger(__name__))

EARLY: Final = timedelta(seconds=1)
"""Tasks that are due sooner are not delayed by the broker: the worker waits."""

TIMER_MAX: Final = timedelta(days=2, hours=23)
"""The longest delay that is asked of a broker at once; Coherer's have a limit of three days."""

JOIN_S: Final = 10.0
"""How long a first look into a queue waits for the group to assign partitions."""

PARTIAL_S: Final = 1.0
"""How long it waits for partitions of the other topics of the queue, once it has some."""

LINGER_S: Final = 1.0
"""How long a process stays in a queue's group after it stopped consuming."""

LEAVE_S: Final = 30.0
"""How long it stays for messages that are being processed, so that others do not repeat them."""

RETRY_S: Final = 1.0
"""The pause before joining a group is tried again."""

MEMBERS_MAX: Final = 300
"""The most consumers of a client: its heartbeats describe all, and servers limit their size."""

HANDOVER_S: Final = 0.5
"""How long a new owner of partitions waits for the old one to say that it has tasks from them."""

POLL_S: Final = 0.01

CREATIONS_MAX: Final = 50
"""How many topics are created at a time: a broker writes a file for each, or for several."""


class Binding(msgspec.Struct, frozen=True):
    """A queue's binding to an exchange.

    Args:
        topic: the exchange's topic.
        kind: the exchange's type, `direct`, `topic` or `fanout`.
        routing_key: the binding's routing key.
        pattern: the regular expression for routing keys, with a topic exchange.
    """

    topic: str
    kind: str
    routing_key: str = ""
    pattern: str | None = None

    def accepts(self, routing_key: str) -> bool:
        """Whether a message with this routing key belongs into the queue."""
        if self.kind == "fanout":
            return True
        if self.pattern is not None:
            return re.match(self.pattern, routing_key) is not None
        return routing_key == self.routing_key


class QueueSpec(msgspec.Struct, frozen=True):
    """A queue of kombu, as this process has declared it.

    Args:
        name: kombu's name.
        topic: its topic, and its group.
        steps: the priorities that have topics of their own; empty for none.
        ttl_ms: how long its messages wait at most; None for ever.
        bindings: the exchanges that it gets messages from.
    """

    name: str
    topic: str
    steps: tuple[int, ...] = ()
    ttl_ms: int | None = None
    bindings: frozenset[Binding] = frozenset()

    @property
    def own_topics(self) -> list[str]:
        """The topics of the queue itself."""
        higher = (names.priority_topic(self.topic, step) for step in self.steps if step)
        return [self.topic, *higher]

    def subscription(self) -> dict[str, str | None]:
        """The topics of its group, with the tags to read; None for all."""
        tags: dict[str, list[str] | None] = {one: [names.QUEUE_TAG] for one in self.own_topics}
        for binding in sorted(self.bindings, key=lambda one: (one.topic, one.routing_key)):
            known = tags.setdefault(binding.topic, [])
            if binding.kind != "direct":
                tags[binding.topic] = None
            elif known is not None:
                known.append(names.routing_tag(binding.routing_key))
        return {topic: None if some is None else " || ".join(some) for topic, some in tags.items()}

    def accepts(self, message: StoredMessage, info: dict[str, Any]) -> bool:
        """Whether a message of one of its topics belongs into the queue."""
        if message.tag == names.QUEUE_TAG:
            return message.topic in self.own_topics
        key = str(info.get("routing_key") or "")
        return any(one.topic == message.topic and one.accepts(key) for one in self.bindings)


class TransportOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Options of the transport: kombu's `transport_options`, Celery's `broker_transport_options`.

    The options of `coherer.rocketmq.connect`, `timeout_ms` for example, may stand beside them.

    Args:
        name_prefix: a prefix of the names of all topics and groups. Everybody must have the same.
        partitions: the partitions of new topics. At most so many processes share a queue.
        prefetch: how many unsettled messages of a partition this process holds at most.
        priority_steps: the priorities that have topics of their own, for every queue; a message
            goes to the highest step that does not exceed its priority. Without them, queues with
            `max_priority` have (0, 3, 6, 9), and others none.
        commit_ms: the interval of storing acknowledgements: after a crash, what was acknowledged
            in the last interval is delivered again.
        timers: whether the broker waits for a task's ETA; otherwise the worker does.
        handover_ms: how long a worker that gives a partition up to another one may finish the
            tasks that it has from it, before the other begins; longer ones run twice.
        dead_letters: whether rejected messages become dead letters; otherwise they are dropped.
    """

    name_prefix: str = ""
    partitions: int = 8
    prefetch: int = 1_000
    priority_steps: tuple[int, ...] = ()
    commit_ms: int = 200
    timers: bool = True
    handover_ms: int = 10_000
    dead_letters: bool = True


class _Member:
    """What `Subscription` and `Listener` have in common: a consumer that keeps trying to start."""

    def __init__(self, link: Link) -> None:
        self.link = link
        self.consumer: rocketmq.Consumer | None = None
        self.client: rocketmq.Client | None = None
        self.task: asyncio.Task[None] | None = None

    async def close(self) -> None:
        """Leave the group."""
        task, self.task = self.task, None
        if task is not None:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task
        await self.leave()

    async def leave(self) -> None:
        """Leave the group for now."""
        consumer, self.consumer = self.consumer, None
        if consumer is not None:
            await consumer.close()
        client, self.client = self.client, None
        if client is not None:
            self.link.members[client] -= 1


class Subscription(_Member):
    """This process's membership in the group of a queue.

    Attributes:
        users: how many consumers of kombu read the queue.
        inbox: its waiting messages.
    """

    def __init__(self, link: Link, spec: QueueSpec) -> None:
        super().__init__(link)
        self.spec = spec
        self.users = 0
        self.inbox = Inbox(link.signal)
        self.timer: asyncio.TimerHandle | None = None
        self.leaving: asyncio.Task[None] | None = None
        self._assigned_ms: dict[Queue, int] = {}
        self._seen: dict[Queue, int] = {}
        self._leaving: set[Queue] = set()
        self._committing: asyncio.Task[None] | None = None

    async def leave(self) -> None:
        """Leave the group for now; this stores acknowledgements, too."""
        committing, self._committing = self._committing, None
        if committing is not None:
            committing.cancel()
        await super().leave()

    async def run(self) -> None:
        """Join the group and fill the inbox, until cancelled."""
        while True:
            with self.link.upkeep.guard(f"consuming {self.spec.name}"):
                await self._run_once()
            await asyncio.sleep(RETRY_S)

    async def _run_once(self) -> None:
        opening: asyncio.Task[None] | None = None
        try:
            consumer = await self._join()
            opening = asyncio.create_task(self._open(), name="open inbox")
            await self._receive(consumer)
        finally:
            if opening is not None:
                opening.cancel()
            await self.leave()

    async def reach_end(self, timeout_s: float) -> None:
        """Wait until everything that is in its partitions now has arrived, or something has."""
        deadline = time.monotonic() + timeout_s
        partial = deadline - timeout_s + PARTIAL_S
        while (missing := self._unassigned()) and time.monotonic() < deadline:
            if len(missing) < len(self.spec.subscription()) and time.monotonic() > partial:
                break
            await asyncio.sleep(POLL_S)
        if self.consumer is None:
            return
        ends = await self.link.ends(self.spec.subscription())
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
        await asyncio.sleep(self.link.options.commit_ms / 1000)
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
        link, spec = self.link, self.spec
        topics = spec.subscription()
        await asyncio.gather(*map(link.ensure, topics))
        self.client = link.member_client()
        consumer = self.client.consumer(
            spec.topic,
            topics,
            start="earliest",
            queue_messages=link.options.prefetch,
            consume_ms=0,
            strategy=few_moves,
            on_assigned=self._assigned,
            on_revoked=self._revoked,
        )
        await consumer.start()
        self.consumer = consumer
        return consumer

    async def _open(self) -> None:
        with suppress(CohererError):
            await self.reach_end(JOIN_S)
        if self.consumer is not None and not self.consumer.assignment and await self._shared():
            _log.warning(
                "No partition of queue %s is left for this process: others have all of them. Its "
                "topic needs more partitions (transport option `partitions`, or `coherer topics "
                "alter`).",
                self.spec.name,
            )
        self.inbox.open = True
        self.link.signal.set()

    async def _shared(self) -> bool:
        """Whether the group has other members."""
        with suppress(CohererError):
            found = await self.link.client.admin().groups.consumers(self.spec.topic)
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
        """A message for the inbox; None if it is settled already."""
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
        if self.link.due(content) is not None:
            await self.link.send(self._again(stored), content)
            await message.ack()
            return None
        if stored.attempt or stored.stored_ms < self._assigned_ms.get(source, 0):
            payload.delivery_info(content)["redelivered"] = True
        return Delivery(self.spec.name, content, message, stored, source, self.spec.ttl_ms)

    def _again(self, stored: StoredMessage) -> Message:
        """A message for the rest of its delay, to this queue only."""
        topic = stored.topic if stored.topic in self.spec.own_topics else self.spec.topic
        return Message(topic, stored.body, tag=names.QUEUE_TAG, keys=stored.keys)

    async def _assigned(self, queues: list[Queue]) -> None:
        """Take partitions over: let their old owners finish what they have from them."""
        self._leaving -= {*queues}
        with suppress(CohererError):
            await self._await_owners(queues)
        now_ms = time.time_ns() // 1_000_000
        self._assigned_ms.update(dict.fromkeys(queues, now_ms))

    async def _await_owners(self, queues: list[Queue]) -> None:
        groups, group = self.link.client.admin().groups, self.spec.topic
        if not await self._shared():
            return
        await asyncio.sleep(HANDOVER_S)  # the others hear of the change at the same time
        deadline = time.monotonic() + HANDOVER_S + self.link.options.handover_ms / 1000
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
        groups, group = self.link.client.admin().groups, self.spec.topic
        with suppress(CohererError):
            await groups.lock(group, mine)
            try:
                deadline = time.monotonic() + self.link.options.handover_ms / 1000
                # Another thread settles them.
                while self.inbox.in_hand.keys() & mine and time.monotonic() < deadline:  # noqa: ASYNC110
                    await asyncio.sleep(POLL_S)
                await self.consumer.commit()
            finally:
                await groups.unlock(group, mine)


class Listener(_Member):
    """This process's membership in the broadcast group of an exchange.

    Attributes:
        inboxes: the queues of this process that are bound to the exchange, with their bindings.
    """

    def __init__(self, link: Link, topic: str) -> None:
        super().__init__(link)
        self.topic = topic
        self.inboxes: dict[str, tuple[Inbox, set[Binding], int | None]] = {}

    async def start(self) -> None:
        """Join the group: messages from now on are received."""
        link = self.link
        await link.ensure(self.topic)
        self.client = link.member_client()
        consumer = self.client.consumer(
            names.broadcast_group(self.topic),
            self.topic,
            model="broadcast",
            start="always-latest",
            offsets=link.folder,
            queue_messages=link.options.prefetch,
            consume_ms=0,
        )
        await consumer.start()
        self.consumer = consumer
        self.task = asyncio.create_task(self._receive(consumer), name=f"listen to {self.topic}")

    async def _receive(self, consumer: rocketmq.Consumer) -> None:
        async for batch in consumer.batches():
            for message in batch:
                self._distribute(message.detach(), batch.queue)

    def _distribute(self, stored: StoredMessage, source: Queue) -> None:
        if stored.tag == names.QUEUE_TAG:
            return
        for queue, (inbox, bindings, ttl_ms) in self.inboxes.items():
            try:
                content = payload.decode(stored.body)
            except ValueError as error:
                _log.error("A message of %s cannot be read: %s (%s)", queue, error, stored.id)
                return
            key = str(payload.delivery_info(content).get("routing_key") or "")
            if not any(one.accepts(key) for one in bindings):
                continue
            dropped = inbox.add(Delivery(queue, content, None, stored, source, ttl_ms))
            if dropped:
                _log.warning("Queue %s is full: %d messages dropped.", queue, dropped)


class Link:
    """The client of a kombu connection, in a thread of its own.

    Args:
        url: the cluster.
        keywords: of `coherer.rocketmq.connect`.
        options: see `TransportOptions`.

    Attributes:
        signal: set when messages wait.
        upkeep: guards what runs until it is cancelled.
        members: how many consumers each client has.
    """

    def __init__(
        self, url: str, keywords: rocketmq.ConnectKeywords, options: TransportOptions
    ) -> None:
        self.options = options
        self.signal = Signal()
        self.folder = Path(tempfile.mkdtemp(prefix="coherer-kombu-"))
        self._url = url
        self._keywords = keywords
        self.upkeep = Upkeep()
        self.members: Counter[rocketmq.Client] = Counter()
        self._portal = Portal()
        self._known: set[str] = set()
        self._creations: dict[str, asyncio.Task[None]] = {}
        self._turns = asyncio.Semaphore(CREATIONS_MAX)
        self._subscriptions: dict[str, Subscription] = {}
        self._listeners: dict[str, Listener] = {}
        self._inboxes: dict[str, Inbox] = {}
        self._registered: set[tuple[str, str]] = set()
        self._levels_only = False

    @property
    def alive(self) -> bool:
        """Whether it can be used in this process."""
        return self._portal.alive

    def open(self) -> None:
        """Connect.

        Raises:
            UnavailableError: no name server answers.
        """
        try:
            self._portal.call(self._open)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Leave all groups, without waiting for messages that are not settled, and disconnect."""
        if self._portal.alive:
            with suppress(CohererError):
                self._portal.close()
            shutil.rmtree(self.folder, ignore_errors=True)
        self.signal.close()

    def abandon(self) -> None:
        """Close it in the background: its connection was collected and not closed."""
        if self._portal.alive:
            threading.Thread(target=self.close, name="close kombu link", daemon=True).start()

    # -- publishing and declaring

    def publish(self, message: Message, content: payload.Payload) -> None:
        """Send a message, and wait until it is stored.

        Raises:
            CohererError: it is not known to be stored.
        """
        self._portal.call(lambda: self.send(message, content))

    def declare(self, topics: Iterable[str]) -> None:
        """Begin to create the topics that do not exist; whoever needs one waits for it."""
        missing = [topic for topic in topics if topic not in self._known]
        if missing:
            self._portal.post(lambda: [*map(self._creation, missing)])

    def exists(self, topic: str) -> bool:
        """Whether a topic exists."""
        return topic in self._known or self._portal.call(lambda: self._exists(topic))

    def bind(self, spec: QueueSpec, binding: Binding) -> None:
        """Let a durable queue receive what is published to an exchange from now on."""
        if binding.topic in spec.own_topics or (spec.topic, binding.topic) in self._registered:
            return
        self._portal.call(lambda: self._register(spec.topic, binding.topic))
        self._registered.add((spec.topic, binding.topic))

    def listen(self, spec: QueueSpec, binding: Binding) -> None:
        """Let a transient queue receive what is published to an exchange from now on."""
        inbox = self._inboxes.get(spec.name)
        if inbox is None:
            inbox = self._inboxes[spec.name] = Inbox(self.signal, limit=KEPT_MAX)
        self._portal.call(lambda: self._listen(spec, binding, inbox))

    # -- consuming

    def consume(self, spec: QueueSpec) -> None:
        """Begin to receive a queue's messages; returns at once."""
        if spec.name not in self._inboxes:
            self._use(spec).users += 1

    def cancel(self, queue: str) -> None:
        """Undo `consume`."""
        subscription = self._subscriptions.get(queue)
        if subscription is not None and self._portal.usable:
            subscription.users -= 1
            self._portal.post(lambda: self._leave_later(subscription))

    def pop(self, queue: str) -> Delivery | None:
        """The next message of a queue that has arrived; None if there is none."""
        inbox = self._inbox(queue)
        found = None if inbox is None else inbox.pop()
        while found is not None and found.expired:
            self.ack(found)
            found = None if inbox is None else inbox.pop()
        return found

    def get(self, spec: QueueSpec) -> Delivery | None:
        """The next message of a queue; None if there is none for this process."""
        if spec.name in self._inboxes:
            return self.pop(spec.name)
        subscription = self._use(spec)
        found = self.pop(spec.name)
        if found is None:
            self._portal.call(lambda: self._await_end(subscription))
            found = self.pop(spec.name)
        self._portal.post(lambda: self._leave_later(subscription))
        return found

    @property
    def waiting(self) -> bool:
        """Whether messages wait in this process."""
        return any(map(len, self._inboxes.values())) or any(
            len(one.inbox) for one in list(self._subscriptions.values())
        )

    # -- settling

    def ack(self, delivery: Delivery) -> None:
        """Acknowledge a message."""
        received = delivery.received
        self._settled(delivery)
        if received is not None:
            subscription = self._subscriptions.get(delivery.queue)

            def work() -> None:
                received.ack()
                if subscription is not None:
                    subscription.commit_soon()

            self._portal.post_if_usable(work)

    def requeue(self, delivery: Delivery) -> None:
        """Put a message at the end of its queue, for any consumer of it."""
        received = delivery.received
        if received is None:
            self.give_back(delivery)
            return
        content = payload.decode(delivery.body)
        payload.delivery_info(content)["redelivered"] = True
        subscription = self._subscriptions[delivery.queue]
        step = names.priority_step(delivery.priority, subscription.spec.steps)
        topic = names.priority_topic(subscription.spec.topic, step)
        message = Message(topic, payload.encode(content), tag=names.QUEUE_TAG)
        self.publish(message, content)
        self.ack(delivery)

    def reject(self, delivery: Delivery) -> None:
        """Make a message a dead letter, or drop it."""
        received = delivery.received
        if received is None or not self.options.dead_letters:
            self.ack(delivery)
            return
        self._settled(delivery)
        if self._portal.usable:
            self._portal.call(lambda: received.dead_letter(reason="rejected"))

    def give_back(self, delivery: Delivery) -> None:
        """Deliver a message again that kombu has not settled."""
        inbox = self._inbox(delivery.queue)
        if inbox is not None:
            payload.delivery_info(delivery.payload)["redelivered"] = True
            inbox.give_back(delivery)

    # -- administration

    def size(self, spec: QueueSpec) -> int:
        """How many messages wait in a queue."""
        inbox = self._inboxes.get(spec.name)
        return len(inbox) if inbox is not None else self._portal.call(lambda: self._size(spec))

    def purge(self, spec: QueueSpec) -> int:
        """Drop the messages of a queue; returns how many there were."""
        count = self.size(spec)
        inbox = self._inbox(spec.name)
        if spec.name not in self._inboxes:
            self._portal.call(lambda: self._purge(spec))
        if inbox is not None:
            inbox.drop(lambda _: True)
        return count

    def delete(self, spec: QueueSpec, *, topics: bool) -> None:
        """Delete a queue; with `topics`, its group and topics, too."""
        if not self._portal.usable:
            return
        self._inboxes.pop(spec.name, None)
        self._portal.call(lambda: self._delete(spec, topics=topics))

    # -- in the loop's thread

    @property
    def client(self) -> rocketmq.Client:
        """The asyncio client."""
        return self._client

    def member_client(self) -> rocketmq.Client:
        """A client for one more consumer."""
        free = (one for one, count in self.members.items() if count < MEMBERS_MAX)
        client = next(free, None) or rocketmq.connect(self._url, **self._keywords)
        self.members[client] += 1
        return client

    async def send(self, message: Message, content: payload.Payload) -> None:
        """Send a message, delayed until its ETA."""
        await self.ensure(message.topic)
        when = self.due(content)
        if when is not None and not self._levels_only:
            try:
                await self._producer.send(message, deliver_at=when)
            except UsageError:
                self._levels_only = True  # a broker of RocketMQ 4
                _log.info("The broker has delay levels only: ETAs are reached in several steps.")
            else:
                return
        level = 0
        if when is not None:
            left_ms = (when - datetime.now(UTC)) / timedelta(milliseconds=1)
            level = sum(one <= left_ms for one in DELAY_LEVELS_MS)
        await self._producer.send(message, delay_level=level)

    def due(self, content: payload.Payload) -> datetime | None:
        """When the broker shall deliver a message; None for at once."""
        when = payload.eta(content) if self.options.timers else None
        now = datetime.now(UTC)
        if when is None or when - now <= EARLY:
            return None
        return min(when, now + TIMER_MAX)

    async def ensure(self, topic: str) -> None:
        """Create a topic if it does not exist."""
        if topic not in self._known:
            await asyncio.shield(self._creation(topic))

    def _creation(self, topic: str) -> asyncio.Task[None]:
        """The task that creates a topic; there is at most one."""
        task = self._creations.get(topic)
        if task is None:
            task = asyncio.create_task(self._create(topic), name=f"create {topic}")
            self._creations[topic] = task
            task.add_done_callback(lambda done: self._created(topic, done))
        return task

    def _created(self, topic: str, done: asyncio.Task[None]) -> None:
        self._creations.pop(topic, None)
        if not done.cancelled() and (error := done.exception()) is not None:
            _log.warning("Topic %s cannot be created: %s", topic, error)

    async def _create(self, topic: str) -> None:
        async with self._turns:
            if not await self.client.exists(topic):
                try:
                    await self.client.admin().topics.create(
                        topic, self.options.partitions, wait_ms=int(JOIN_S * 1000)
                    )
                except RefusedError:
                    if not await self.client.exists(topic):
                        raise
            self._known.add(topic)

    async def ends(self, topics: Iterable[str]) -> dict[Queue, int]:
        """The end offsets of topics."""
        admin = self.client.admin()
        found = await asyncio.gather(*map(admin.topics.partitions, topics))
        return {
            Queue(one.topic, one.broker, one.partition): one.max_offset or 0
            for some in found
            for one in some
        }

    async def _exists(self, topic: str) -> bool:
        if topic in self._creations:
            await self.ensure(topic)
        return await self.client.exists(topic)

    async def _open(self) -> None:
        self._client = rocketmq.connect(self._url, **self._keywords)
        self._portal.own(_Closing(self))
        self.members[self._client] = 0
        await self._client.exists("kombu")
        self._producer = self._client.producer(retry_lost=True)
        await self._producer.start()

    async def leave(self) -> None:
        """Leave all groups and disconnect."""
        if self._creations:
            await asyncio.wait(self._creations.values(), timeout=JOIN_S)
        members: list[_Member] = [*self._subscriptions.values(), *self._listeners.values()]
        self._subscriptions.clear()
        self._listeners.clear()
        for subscription in members:
            if isinstance(subscription, Subscription) and subscription.timer is not None:
                subscription.timer.cancel()
        await asyncio.gather(*(one.close() for one in members))
        await asyncio.gather(*(client.close() for client in self.members))

    def _inbox(self, queue: str) -> Inbox | None:
        inbox = self._inboxes.get(queue)
        if inbox is None:
            subscription = self._subscriptions.get(queue)
            inbox = None if subscription is None else subscription.inbox
        return inbox

    def _use(self, spec: QueueSpec) -> Subscription:
        known = self._subscriptions.get(spec.name)
        if known is not None and known.spec == spec:
            return known
        subscription = Subscription(self, spec)
        if known is not None:
            subscription.users = known.users
        self._subscriptions[spec.name] = subscription

        async def start() -> None:
            if known is not None:
                await known.close()
            await subscription.run()

        def begin() -> None:
            subscription.task = asyncio.create_task(start(), name=f"consume {spec.name}")

        self._portal.post(begin)
        return subscription

    async def _await_end(self, subscription: Subscription) -> None:
        with suppress(RequestTimeoutError):
            await subscription.reach_end(JOIN_S)
        subscription.inbox.open = True

    def _settled(self, delivery: Delivery) -> None:
        inbox = self._inbox(delivery.queue)
        if inbox is not None:
            inbox.settled(delivery)

    def _leave_later(self, subscription: Subscription, since_s: float | None = None) -> None:
        """Leave a group when nobody reads the queue, and nothing is being processed."""
        loop = asyncio.get_running_loop()
        if subscription.timer is not None:
            subscription.timer.cancel()
        if subscription.users > 0 or self._subscriptions.get(subscription.spec.name) is not (
            subscription
        ):
            return
        began_s = loop.time() if since_s is None else since_s
        waited_s = loop.time() - began_s
        if waited_s >= LINGER_S and (not subscription.inbox.in_hand or waited_s >= LEAVE_S):
            del self._subscriptions[subscription.spec.name]
            subscription.leaving = loop.create_task(subscription.close())
            return
        subscription.timer = loop.call_later(
            LINGER_S, lambda: self._leave_later(subscription, began_s)
        )

    async def _register(self, group: str, topic: str) -> None:
        """Let a group without an offset in a topic begin at its end."""
        await self.ensure(topic)
        admin = self.client.admin()
        [state] = await admin.groups.list(group)
        if not any(one.topic == topic and one.committed is not None for one in state.partitions):
            await admin.groups.set_offsets(group, await self.ends([topic]))

    async def _listen(self, spec: QueueSpec, binding: Binding, inbox: Inbox) -> None:
        listener = self._listeners.get(binding.topic)
        if listener is None:
            listener = Listener(self, binding.topic)
            await listener.start()
            self._listeners[binding.topic] = listener
        _, bindings, _ = listener.inboxes.setdefault(spec.name, (inbox, set(), spec.ttl_ms))
        bindings.add(binding)

    async def _size(self, spec: QueueSpec) -> int:
        subscription = self._subscriptions.get(spec.name)
        in_hand = 0
        if subscription is not None and subscription.consumer is not None:
            await subscription.consumer.commit()
            in_hand = sum(subscription.inbox.in_hand.values())
        admin = self.client.admin()
        topics = [one for one in spec.subscription() if await self.client.exists(one)]
        found = await asyncio.gather(*map(admin.topics.partitions, topics))
        [state] = await admin.groups.list(spec.topic)
        committed = {one.key: one.committed for one in state.partitions}
        total = 0
        for one in (partition for some in found for partition in some):
            begin = max(committed.get(one.key) or 0, one.min_offset or 0)
            total += max((one.max_offset or 0) - begin, 0)
        return max(total - in_hand, 0)

    async def _purge(self, spec: QueueSpec) -> None:
        admin = self.client.admin()
        for topic in spec.subscription():
            if await self.client.exists(topic):
                await admin.groups.reset_offsets(spec.topic, topic, "latest")

    async def _delete(self, spec: QueueSpec, *, topics: bool) -> None:
        for topic, listener in list(self._listeners.items()):
            if listener.inboxes.pop(spec.name, None) is not None and not listener.inboxes:
                del self._listeners[topic]
                await listener.close()
        subscription = self._subscriptions.pop(spec.name, None)
        if subscription is not None:
            await subscription.close()
        if not topics:
            return
        admin = self.client.admin()
        for topic in spec.own_topics:
            self._known.discard(topic)
            with suppress(RefusedError):
                await admin.topics.delete(topic)
        with suppress(RefusedError):
            await admin.groups.delete(spec.topic)
        self._registered = {one for one in self._registered if one[0] != spec.topic}


class _Closing:
    """What the thread of a link does before it ends."""

    def __init__(self, link: Link) -> None:
        self._link = link

    def __repr__(self) -> str:
        return repr(self._link.client)

    async def close(self) -> None:
        await self._link.leave()
