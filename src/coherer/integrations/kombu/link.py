"""The RocketMQ side of a kombu connection: an asyncio client in a thread of its own.

`Link` is used by the thread that uses kombu; its coroutines run in the thread of the event loop.

* A durable queue is a consumer group: `Subscription` is this process's member of it.
* A transient queue (exclusive or auto-delete) that is bound to an exchange lives in this process
  only: the exchange's `Listener` fills its inbox.
* A queue has either a subscription or an inbox in `_inboxes`, never both.

After a fork, the child's copy of a link does nothing; kombu connects again.
"""

from __future__ import annotations

import asyncio
import shutil
import threading
import time
from collections.abc import Iterable
from contextlib import suppress
from typing import Final

from coherer import rocketmq
from coherer.blocking._portal import Portal
from coherer.errors import CohererError, RefusedError
from coherer.integrations.kombu import names, payload
from coherer.integrations.kombu.inbox import KEPT_MAX, Delivery, Inbox, Signal
from coherer.integrations.kombu.listener import Listener
from coherer.integrations.kombu.membership import Membership
from coherer.integrations.kombu.options import TransportOptions
from coherer.integrations.kombu.queues import Binding, QueueSpec
from coherer.integrations.kombu.session import Session
from coherer.integrations.kombu.subscription import POLL_S, Subscription
from coherer.rocketmq import Message

LINGER_S: Final = 1.0
"""How long a process stays in a queue's group after it stopped consuming."""

LEAVE_S: Final = 30.0
"""How long it stays for messages that are being processed, so that others do not repeat them."""

REGISTER_S: Final = 10.0
"""How long to wait for another process that binds the same queue; it may have been killed."""


class Link:
    """The client of a kombu connection, in a thread of its own.

    Args:
        url: the cluster.
        keywords: of `coherer.rocketmq.connect`.
        options: see `TransportOptions`.

    Attributes:
        signal: set when messages wait.
    """

    def __init__(
        self, url: str, keywords: rocketmq.ConnectKeywords, options: TransportOptions
    ) -> None:
        self.options = options
        self.signal = Signal()
        self._session = Session(url, keywords, options, self.signal)
        self._portal = Portal()
        self._subscriptions: dict[str, Subscription] = {}
        self._listeners: dict[str, Listener] = {}
        self._inboxes: dict[str, Inbox] = {}
        self._registered: set[tuple[str, str]] = set()

    def __repr__(self) -> str:
        return f"<Link to {self._session.url}>"

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
            shutil.rmtree(self._session.folder, ignore_errors=True)
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
        self._portal.call(lambda: self._session.send(message, content))

    def declare(self, topics: Iterable[str]) -> None:
        """Begin to create the topics that do not exist; whoever needs one waits for it."""
        self._portal.post(lambda: self._session.declare(topics))

    def forget(self, topics: Iterable[str]) -> None:
        """Create topics that were deleted anew when they are needed next."""

        def forget() -> None:
            for one in topics:
                self._session.forget(one)

        self._portal.post(forget)

    def exists(self, topic: str) -> bool:
        """Whether a topic exists."""
        return self._portal.call(lambda: self._session.exists(topic))

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
        """The next message of a queue that has arrived, or None."""
        inbox = self._inbox(queue)
        found = None if inbox is None else inbox.pop()
        while found is not None and found.expired:
            self.ack(found)
            found = None if inbox is None else inbox.pop()
        return found

    def get(self, spec: QueueSpec) -> Delivery | None:
        """The next message of a queue, or None if it has no message for this process."""
        if spec.name in self._inboxes:
            return self.pop(spec.name)
        subscription = self._use(spec)
        found = self.pop(spec.name)
        if found is None:
            self._portal.call(subscription.open)
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
        delivery.inbox.settled(delivery)
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
        if received is None or not self._is_member(delivery):
            self.give_back(delivery)
            return
        content = payload.decode(delivery.body)
        payload.delivery_info(content)["redelivered"] = True
        subscription = self._subscriptions[delivery.queue]
        step = names.priority_step(delivery.priority, subscription.spec.steps)
        topic = names.priority_topic(subscription.spec.topic, step)
        body = payload.encode(content)
        message = Message(topic, body, tag=names.QUEUE_TAG, keys=received.keys)
        self.publish(message, content)
        self.ack(delivery)

    def reject(self, delivery: Delivery) -> None:
        """Make a message a dead letter, or drop it."""
        received = delivery.received
        if received is None or not self.options.dead_letters:
            self.ack(delivery)
            return
        if self._portal.usable:
            self._portal.call(lambda: received.dead_letter(reason="rejected"))
        delivery.inbox.settled(delivery)

    def give_back(self, delivery: Delivery) -> None:
        """Deliver a message again that kombu has not settled."""
        if self._is_member(delivery):
            payload.delivery_info(delivery.payload)["redelivered"] = True
            delivery.inbox.give_back(delivery)

    # -- administration

    def size(self, spec: QueueSpec) -> int:
        """The number of messages that wait in a queue."""
        inbox = self._inboxes.get(spec.name)
        return len(inbox) if inbox is not None else self._portal.call(lambda: self._size(spec))

    def purge(self, spec: QueueSpec) -> int:
        """Drop the messages of a queue, and return their number."""
        count = self.size(spec)
        inbox = self._inbox(spec.name)
        if spec.name not in self._inboxes:
            self._portal.call(lambda: self._purge(spec))
        if inbox is not None:
            inbox.drop(lambda _: True)
        return count

    def delete(self, spec: QueueSpec, *, topics: bool, shared: bool = False) -> None:
        """Delete a queue; with `topics`, its group and topics, too.

        Args:
            spec: the queue.
            topics: whether it has topics.
            shared: keep the group and the topics while others consume the queue.
        """
        if not self._portal.usable:
            return
        self._inboxes.pop(spec.name, None)
        self._portal.call(lambda: self._delete(spec, topics=topics, shared=shared))

    # -- in the loop's thread

    async def _open(self) -> None:
        self._portal.own(_Closing(self))
        await self._session.open()

    async def leave(self) -> None:
        """Leave all groups and disconnect."""
        members: list[Membership] = [*self._subscriptions.values(), *self._listeners.values()]
        self._subscriptions.clear()
        self._listeners.clear()
        await asyncio.gather(*(one.close() for one in members))
        await self._session.close()

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
        subscription = Subscription(self._session, spec)
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

    def _is_member(self, delivery: Delivery) -> bool:
        """Whether this process is still in the group as which it has received a message.

        If it has left, the broker has delivered the message again, perhaps to this process.
        """
        return self._inbox(delivery.queue) is delivery.inbox

    def _leave_later(self, subscription: Subscription, since_s: float | None = None) -> None:
        """Leave a group when nobody reads the queue, and nothing is being processed."""
        loop = asyncio.get_running_loop()
        if subscription.timer is not None:
            subscription.timer.cancel()
        current = self._subscriptions.get(subscription.spec.name)
        if subscription.users > 0 or subscription is not current:
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
        await self._session.ensure(topic)
        if await self._begins(group, topic):
            return
        # Of two processes that start together, the later one must not move the group again: it
        # would skip what was published in between.
        groups = self._session.client.admin().groups
        lock = sorted(await self._session.ends([topic]))[:1]
        deadline = time.monotonic() + REGISTER_S
        # The other process unlocks the queue when it is done.
        while lock and not await groups.lock(group, lock) and time.monotonic() < deadline:  # noqa: ASYNC110
            await asyncio.sleep(POLL_S)
        try:
            if not await self._begins(group, topic):
                await groups.set_offsets(group, await self._session.ends([topic]))
        finally:
            await groups.unlock(group, lock)

    async def _begins(self, group: str, topic: str) -> bool:
        """Whether a group has an offset in a topic."""
        [state] = await self._session.client.admin().groups.list(group)
        return any(one.topic == topic and one.committed is not None for one in state.partitions)

    async def _listen(self, spec: QueueSpec, binding: Binding, inbox: Inbox) -> None:
        listener = self._listeners.get(binding.topic)
        if listener is None:
            listener = Listener(self._session, binding.topic)
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
        admin = self._session.client.admin()
        topics = [one for one in spec.subscription() if await self._session.client.exists(one)]
        found = await asyncio.gather(*map(admin.topics.partitions, topics))
        [state] = await admin.groups.list(spec.topic)
        committed = {one.key: one.committed for one in state.partitions}
        total = 0
        for one in (partition for some in found for partition in some):
            begin = max(committed.get(one.key) or 0, one.min_offset or 0)
            total += max((one.max_offset or 0) - begin, 0)
        return max(total - in_hand, 0)

    async def _purge(self, spec: QueueSpec) -> None:
        admin = self._session.client.admin()
        for topic in spec.subscription():
            if await self._session.client.exists(topic):
                await admin.groups.reset_offsets(spec.topic, topic, "latest")

    async def _delete(self, spec: QueueSpec, *, topics: bool, shared: bool) -> None:
        for topic, listener in list(self._listeners.items()):
            if listener.inboxes.pop(spec.name, None) is not None and not listener.inboxes:
                del self._listeners[topic]
                await listener.close()
        subscription = self._subscriptions.pop(spec.name, None)
        if subscription is not None:
            await subscription.close()
        if not topics:
            return
        admin = self._session.client.admin()
        if shared and await admin.groups.consumers(spec.topic) is not None:
            return
        for topic in spec.own_topics:
            self._session.forget(topic)
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
        return repr(self._link)

    async def close(self) -> None:
        await self._link.leave()
