"""The asyncio client of a kombu connection. Everything here runs in the thread of its event loop.

* Nothing is sent to a topic, and nothing reads it, before it exists: `ensure` creates topics on
  demand, each once, and some at a time.
* A client has a limited number of consumers: `member_client` adds clients.
* A message with an ETA is sent with a delay: the exact one if the broker has timers, otherwise the
  highest delay level below it. Whoever receives it too early sends it again for the rest.
"""

from __future__ import annotations

import asyncio
import logging
import tempfile
from collections import Counter
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from coherer import rocketmq
from coherer._common.logs import Log
from coherer._common.upkeep import Upkeep
from coherer.errors import RefusedError, UsageError
from coherer.integrations._delays import LEVEL_MIN, TIMER_MAX, level_for
from coherer.integrations.kombu import payload
from coherer.integrations.kombu.inbox import Signal
from coherer.integrations.kombu.options import TransportOptions
from coherer.rocketmq import Message, Queue

_log = Log(logging.getLogger(__name__))

MEMBERS_MAX: Final = 300
"""The most consumers of a client: its heartbeats describe all, and servers limit their size."""

CREATIONS_MAX: Final = 50
"""How many topics are created at a time: a broker writes a file for each, or for several."""

USABLE_S: Final = 10.0
"""How long a new topic may take until every broker serves it."""


class Session:
    """The client of a kombu connection, in the thread of its event loop.

    Args:
        url: the cluster.
        keywords: of `coherer.rocketmq.connect`.
        options: see `TransportOptions`.
        signal: set when messages wait.

    Attributes:
        client: the client that sends and administers.
        upkeep: guards what runs until it is cancelled.
        folder: for the offsets of broadcast consumers, which nobody reads again.
    """

    def __init__(
        self,
        url: str,
        keywords: rocketmq.ConnectKeywords,
        options: TransportOptions,
        signal: Signal,
    ) -> None:
        self.options = options
        self.signal = signal
        self.client: rocketmq.Client
        self.upkeep = Upkeep()
        self.folder = Path(tempfile.mkdtemp(prefix="coherer-kombu-"))
        self.url = url
        self._keywords = keywords
        self._members: Counter[rocketmq.Client] = Counter()
        self._known: set[str] = set()
        self._creations: dict[str, asyncio.Task[None]] = {}
        self._turns = asyncio.Semaphore(CREATIONS_MAX)
        self._levels_only = False
        self._producer: rocketmq.Producer

    async def open(self) -> None:
        """Connect.

        Raises:
            UnavailableError: no name server answers.
        """
        self.client = rocketmq.connect(self.url, **self._keywords)
        self._members[self.client] = 0
        await self.client.exists("kombu")
        self._producer = self.client.producer(retry_lost=True)
        await self._producer.start()

    async def close(self) -> None:
        """Finish the creation of topics, and disconnect."""
        if self._creations:
            await asyncio.wait(self._creations.values(), timeout=USABLE_S)
        await asyncio.gather(*(client.close() for client in self._members))

    # -- clients for consumers

    def member_client(self) -> rocketmq.Client:
        """A client for one more consumer."""
        free = (one for one, count in self._members.items() if count < MEMBERS_MAX)
        client = next(free, None) or rocketmq.connect(self.url, **self._keywords)
        self._members[client] += 1
        return client

    def release(self, client: rocketmq.Client) -> None:
        """Take back what `member_client` has given."""
        self._members[client] -= 1

    # -- sending

    async def send(self, message: Message, content: payload.Payload) -> None:
        """Send a message, delayed until its ETA."""
        await self.ensure(message.topic)
        try:
            await self._send(message, content)
        except rocketmq.TopicNotExistError:  # deleted since it was last used
            self.forget(message.topic)
            await self.ensure(message.topic)
            await self._send(message, content)

    async def _send(self, message: Message, content: payload.Payload) -> None:
        when = self.due(content)
        if when is not None and not self._levels_only:
            try:
                await self._producer.send(message, deliver_at=when)
            except UsageError:
                self._levels_only = True  # a broker of RocketMQ 4
                _log.info("The broker has delay levels only: ETAs are reached in several steps.")
            else:
                return
        level = 0 if when is None else level_for(when - datetime.now(UTC))
        await self._producer.send(message, delay_level=level)

    def due(self, content: payload.Payload) -> datetime | None:
        """When the broker shall deliver a message, or None for at once.

        A worker itself waits for an ETA that is less than a second away.
        """
        when = payload.eta(content) if self.options.timers else None
        now = datetime.now(UTC)
        if when is None or when - now <= LEVEL_MIN:
            return None
        return min(when, now + TIMER_MAX)

    # -- topics

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
                        topic, self.options.partitions, wait_ms=int(USABLE_S * 1000)
                    )
                except RefusedError:
                    if not await self.client.exists(topic):
                        raise
            self._known.add(topic)

    def declare(self, topics: Iterable[str]) -> None:
        """Begin to create the topics that do not exist; whoever needs one waits for it."""
        for topic in topics:
            if topic not in self._known:
                self._creation(topic)

    async def exists(self, topic: str) -> bool:
        """Whether a topic exists, or is being created."""
        if topic in self._creations:
            await self.ensure(topic)
        return await self.client.exists(topic)

    def forget(self, topic: str) -> None:
        """Create a topic anew when it is needed next."""
        self._known.discard(topic)

    async def ends(self, topics: Iterable[str]) -> dict[Queue, int]:
        """The end offsets of topics, without those of brokers that have no master now."""
        admin = self.client.admin()
        found = await asyncio.gather(*map(admin.topics.partitions, topics))
        return {
            Queue(one.topic, one.broker, one.partition): one.max_offset
            for some in found
            for one in some
            if one.max_offset is not None
        }
