"""This process's membership in the broadcast group of an exchange.

A transient queue (exclusive or auto-delete) lives in the process that has bound it. The listener of
the exchange fills the inboxes of all transient queues that are bound to it, from the moment they
are bound. Nothing is acknowledged: what this process has not handed out is lost with it.
"""

from __future__ import annotations

import asyncio
import logging

from coherer import rocketmq
from coherer._common.logs import Log
from coherer.integrations.kombu import names, payload
from coherer.integrations.kombu.inbox import Delivery, Inbox
from coherer.integrations.kombu.membership import Membership
from coherer.integrations.kombu.queues import Binding
from coherer.integrations.kombu.session import Session
from coherer.rocketmq import Queue, StoredMessage

_log = Log(logging.getLogger(__name__))


class Listener(Membership):
    """This process's membership in the broadcast group of an exchange.

    Attributes:
        inboxes: the queues of this process that are bound to the exchange, with their bindings.
    """

    def __init__(self, session: Session, topic: str) -> None:
        super().__init__(session)
        self.topic = topic
        self.inboxes: dict[str, tuple[Inbox, set[Binding], int | None]] = {}

    async def start(self) -> None:
        """Join the group: messages from now on are received."""
        await self.session.ensure(self.topic)
        consumer = self.make(
            names.broadcast_group(self.topic),
            self.topic,
            model="broadcast",
            start="always-latest",
            offsets=self.session.folder,
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
