"""What a broker asks of a protocol's client: to connect, to send, to subscribe.

Only `RocketMQConnection` and `TubeMQConnection` know how the clients differ; subscribers,
publishers and brokers use the interface `Connection`.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import math
import shutil
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Protocol, cast

from faststream.exceptions import FeatureNotSupportedException

from coherer import rocketmq, tubemq
from coherer.errors import CohererError, RefusedError, RequestTimeoutError
from coherer.integrations.faststream.message import RawMessage
from coherer.integrations.faststream.response import Command, RocketMQPublishCommand
from coherer.message import Message, Receipt

Batch = rocketmq.ReceivedBatch | tubemq.ReceivedBatch

Log = Callable[[int, str], object]
"""Logs a text at a level, as a subscriber's line."""

ASSIGNED_WITHIN_MS: Final = 3_000
"""How long a subscriber's start waits for queues. A group may have more members than queues."""

TOPIC_WITHIN_MS: Final = 10_000
"""How long to wait until a new topic can be used."""

PARTITIONS: Final = 8
"""The number of queues or partitions of a new topic on each broker; RocketMQ's default."""


class Consumer(Protocol):
    """What subscribers need of the consumers of both protocols."""

    async def start(self) -> None:
        """Join the group."""
        ...

    async def wait_assigned(self, timeout_ms: int | None = None) -> object:
        """Wait until it may receive. Raises `RequestTimeoutError`."""
        ...

    async def receive(self, timeout_ms: int | None = None) -> Batch | None:
        """The next batch; None after the timeout. Raises `ClosedError`."""
        ...

    async def close(self) -> None:
        """Leave the group."""
        ...


class Subscription:
    """What a subscriber wants to receive.

    Args:
        owner: the subscriber.
        group: the group; None for a subscriber that receives every message (RocketMQ).
        topics: the topics with their filters.
        options: the consumer's options.
        create_topics: whether to create the topics that do not exist.
    """

    def __init__(
        self,
        owner: object,
        group: str | None,
        topics: Mapping[str, Any],
        options: Mapping[str, Any],
        *,
        create_topics: bool,
    ) -> None:
        self.owner = owner
        self.group = group
        self.topics = topics
        self.options = options
        self.create_topics = create_topics


class Connection(ABC):
    """A client of one protocol and its producer, while the broker is connected."""

    @abstractmethod
    async def open(self) -> None:
        """Connect."""

    @abstractmethod
    async def close(self) -> None:
        """Disconnect; consumers are closed before. Calling it again does nothing."""

    @abstractmethod
    async def ask(self) -> None:
        """Ask a server something. Raises a `CohererError` if none answers."""

    @abstractmethod
    async def send(self, cmd: Command, message: Message, /) -> Receipt | asyncio.Future[Any]:
        """Send one message."""

    @abstractmethod
    async def send_batch(self, cmd: Command, messages: Sequence[Message], /) -> list[Receipt]:
        """Send several messages of one topic."""

    @abstractmethod
    async def request(self, cmd: Command, message: Message, /) -> RawMessage:
        """Send a message and wait for the reply."""

    @abstractmethod
    async def reply(self, request: RawMessage, message: Message, /) -> Receipt:
        """Answer a message that was sent with `request`."""

    @abstractmethod
    async def subscribe(self, wanted: Subscription, log: Log) -> Consumer:
        """Make and start a consumer."""


class RocketMQConnection(Connection):
    """The client of a RocketMQ cluster.

    Args:
        url: the name servers; None takes the URL in the environment.
        options: the client's options.
        producer: the producer's options.
    """

    def __init__(
        self,
        url: str | None,
        options: rocketmq.ConnectKeywords,
        producer: rocketmq.ProducerKeywords,
    ) -> None:
        self._client = rocketmq.connect(url, **options)
        self._producer = self._client.producer(**producer)
        # The groups of subscribers without one, and the directories of their offsets.
        self._groups: dict[object, str] = {}
        self._directories: dict[str, Path] = {}

    async def open(self) -> None:
        """Connect the producer; the client connects when it is first used."""
        await self._producer.start()

    async def close(self) -> None:
        """Disconnect, and delete the offsets of subscribers without a group."""
        await self._client.close()
        for directory in self._directories.values():
            await asyncio.to_thread(shutil.rmtree, directory, ignore_errors=True)
        self._groups.clear()
        self._directories.clear()

    async def ask(self) -> None:
        """Ask the name servers for the brokers."""
        await self._client.admin().brokers.list(runtime=False)

    async def send(self, cmd: Command, message: Message, /) -> Receipt | asyncio.Future[Any]:
        """Send one message; with `no_confirm`, return the future of its receipt."""
        given = cast("RocketMQPublishCommand", cmd)
        if not cmd.no_confirm:
            return await self._producer.send(
                message,
                order_by=given.key,
                queue=given.queue,
                deliver_at=given.deliver_at,
                delay=given.delay,
            )
        await self._producer.publish(message.topic)
        await self._producer.ready()
        return self._producer.submit(
            message,
            order_by=given.key,
            queue=given.queue,
            deliver_at=given.deliver_at,
            delay=given.delay,
        )

    async def send_batch(self, cmd: Command, messages: Sequence[Message], /) -> list[Receipt]:
        """Send messages together to one queue."""
        given = cast("RocketMQPublishCommand", cmd)
        if given.deliver_at is not None or given.delay is not None:
            raise FeatureNotSupportedException(
                "RocketMQ delays no batches. Publish the messages one by one."
            )
        receipts = await self._producer.send_batch(messages, order_by=given.key, queue=given.queue)
        return list(receipts)

    async def request(self, cmd: Command, message: Message, /) -> RawMessage:
        """Send a message, and wait for the reply."""
        timeout_ms = max(1, math.ceil(cmd.timeout * 1000))
        return await self._producer.request(message, timeout_ms=timeout_ms)

    async def reply(self, request: RawMessage, message: Message, /) -> Receipt:
        """Send a reply to the client that has sent a request."""
        received = cast("rocketmq.ReceivedMessage", request)
        return await self._producer.reply(received, message)

    async def subscribe(self, wanted: Subscription, log: Log) -> Consumer:
        """Join a group, or make one that receives every message."""
        if wanted.create_topics:
            for topic in wanted.topics:
                await _created(topic, self._create(topic), log)
        group, options = wanted.group, dict(wanted.options)
        if group is None:
            group = self._groups.get(wanted.owner) or self._own_group(wanted)
            options["model"] = "broadcast"
            options.setdefault("offsets", self._directories[group])
        consumer = self._client.consumer(
            group, wanted.topics, **cast("rocketmq.ConsumerKeywords", options)
        )
        return await _started(consumer, log)

    async def _create(self, topic: str) -> None:
        if await self._client.exists(topic):
            return
        try:  # `exist_ok` would change the queues of a topic that another process just created
            await self._client.admin().topics.create(topic, PARTITIONS, wait_ms=TOPIC_WITHIN_MS)
        except RefusedError:
            if not await self._client.exists(topic):
                raise

    def _own_group(self, wanted: Subscription) -> str:
        """The name of a group whose members each receive everything.

        Brokers remember the names of groups, and require that all members of a group have the same
        topics and filters. So the name is derived from these; a number distinguishes subscribers of
        this client.
        """
        text = repr(sorted((topic, repr(one)) for topic, one in wanted.topics.items()))
        base = f"faststream-{hashlib.sha256(text.encode()).hexdigest()[:12]}"
        group, number = base, 1
        while group in self._directories:
            number += 1
            group = f"{base}-{number}"
        self._groups[wanted.owner] = group
        self._directories[group] = Path(tempfile.mkdtemp(prefix="coherer-offsets-"))
        return group


class TubeMQConnection(Connection):
    """The client of a TubeMQ cluster.

    Args:
        url: the masters; None takes the URL in the environment.
        options: the client's options.
    """

    def __init__(self, url: str | None, options: tubemq.ConnectKeywords) -> None:
        self._client = tubemq.connect(url, **options)
        self._producer = self._client.producer()

    async def open(self) -> None:
        """Connect the producer."""
        await self._producer.start()

    async def close(self) -> None:
        """Disconnect."""
        await self._client.close()

    async def ask(self) -> None:
        """Ask the master for the brokers."""
        await self._client.admin().brokers.list()

    async def send(self, cmd: Command, message: Message, /) -> Receipt | asyncio.Future[Any]:
        """Send one message; with `no_confirm`, return the future of its receipt."""
        if not cmd.no_confirm:
            return await self._producer.send(message)
        await self._producer.publish(message.topic)
        await self._producer.ready()
        return self._producer.submit(message)

    async def send_batch(self, cmd: Command, messages: Sequence[Message], /) -> list[Receipt]:
        """Send messages at the same time: TubeMQ has no batches."""
        del cmd
        return list(await asyncio.gather(*map(self._producer.send, messages)))

    async def request(self, *_: object) -> RawMessage:
        """Refuse: TubeMQ has no requests."""
        raise FeatureNotSupportedException(
            "TubeMQ has no `request`. Publish with `reply_to`, or use RocketMQ."
        )

    async def reply(self, *_: object) -> Receipt:
        """Refuse: TubeMQ has no requests."""
        raise FeatureNotSupportedException("TubeMQ has no `request`.")

    async def subscribe(self, wanted: Subscription, log: Log) -> Consumer:
        """Join a group."""
        assert wanted.group is not None  # noqa: S101 - `TubeMQBroker.subscriber` refuses
        if wanted.create_topics:
            for topic in wanted.topics:
                await _created(topic, self._create(topic), log)
        consumer = self._client.consumer(
            wanted.group, wanted.topics, **cast("tubemq.ConsumerKeywords", wanted.options)
        )
        return await _started(consumer, log)

    async def _create(self, topic: str) -> None:
        topics = self._client.admin().topics
        if not await topics.list(topic):
            await topics.create(topic, PARTITIONS, exist_ok=True, wait_ms=TOPIC_WITHIN_MS)


async def _created(topic: str, creating: Awaitable[None], log: Log) -> None:
    try:
        await creating
    except CohererError as error:
        log(logging.WARNING, f"The topic {topic} could not be created: {error}")


async def _started(consumer: Consumer, log: Log) -> Consumer:
    try:
        await consumer.start()
        try:
            await consumer.wait_assigned(ASSIGNED_WITHIN_MS)
        except RequestTimeoutError as error:
            log(logging.INFO, str(error))
    except BaseException:
        await consumer.close()
        raise
    return consumer
