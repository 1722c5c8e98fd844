"""Test brokers: handlers are called in memory, without a server.

`publish` calls the handlers of the topic and returns when they have ended; what they raise is
raised to the caller. Of several subscribers of one group the first gets the message. Tags and SQL92
expressions filter as a broker does. Nothing is delivered again, delayed or kept.
"""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from itertools import count
from typing import Any, ClassVar, Generic, TypedDict, Unpack, cast, overload
from uuid import uuid4

from faststream._internal.endpoint.utils import ParserComposition
from faststream._internal.parser import DefaultCodec
from faststream._internal.testing.broker import EnterType, TestBroker, change_producer
from faststream.exceptions import SubscriberNotFound
from typing_extensions import TypeVar

from coherer._wire.rocketmq.subscription import split_tags
from coherer.errors import ClosedError
from coherer.integrations.faststream.broker import BaseBroker, serializer_of
from coherer.integrations.faststream.connection import Connection, Consumer, Log, Subscription
from coherer.integrations.faststream.message import (
    BrokerMessage,
    Parser,
    RawBatch,
    RawMessage,
    RocketMQMessage,
    TubeMQMessage,
)
from coherer.integrations.faststream.publisher import BasePublisher, Producer
from coherer.integrations.faststream.response import Command
from coherer.integrations.faststream.rocketmq import RocketMQBroker
from coherer.integrations.faststream.subscriber import BaseSubscriber
from coherer.integrations.faststream.tubemq import TubeMQBroker
from coherer.message import Message, ReceivedMessage
from coherer.rocketmq import Sql92, StoredMessage, Tags

B = TypeVar("B", bound=BaseBroker)


class TestKeywords(TypedDict, total=False):
    """The keywords of a test broker.

    Args:
        with_real: use the cluster, and only record what handlers receive.
        connect_only: do not start the subscribers; found out by default.
    """

    with_real: bool
    connect_only: bool | None


class NoMessages(Consumer):
    """The consumer of a subscriber in a test: it receives nothing."""

    def __init__(self) -> None:
        self._closed = asyncio.Event()

    async def start(self) -> None:
        """Do nothing: there is no group to join."""

    async def wait_assigned(self, timeout_ms: int | None = None) -> object:
        """Return at once."""

    async def receive(self, timeout_ms: int | None = None) -> None:
        """Wait until it is closed, or for the timeout."""
        try:
            async with asyncio.timeout(None if timeout_ms is None else timeout_ms / 1000):
                await self._closed.wait()
        except TimeoutError:
            return
        raise ClosedError("The consumer is closed.")

    async def close(self) -> None:
        """End `receive`."""
        self._closed.set()


class FakeConnection:
    """The connection of a test broker: subscribers can start, and receive nothing."""

    async def close(self) -> None:
        """Do nothing: there is no client."""

    async def ask(self) -> None:
        """Return, as if a server had answered."""

    async def subscribe(self, wanted: Subscription, log: Log) -> Consumer:
        """Return a consumer that receives nothing."""
        del wanted, log
        return NoMessages()


class FakeProducer(Producer):
    """Calls the handlers of a message in place of sending it.

    Args:
        broker: the broker that publishes.
        brokers: those whose subscribers receive.
        message_class: of replies.
        receive: makes the received message of a sent one.
    """

    def __init__(
        self,
        broker: BaseBroker,
        brokers: Sequence[BaseBroker],
        message_class: type[BrokerMessage],
        receive: Callable[[Message, int], RawMessage],
    ) -> None:
        config = broker.config.broker_config
        default = Parser(message_class)
        self._parser = ParserComposition(config.broker_parser, default.parse_message)
        self._decoder = ParserComposition(config.broker_decoder, default.decode_message)
        self.codec = config.broker_codec or DefaultCodec()
        self.opened = cast("Connection", FakeConnection())
        self._config = config
        self._brokers = brokers
        self._receive = receive
        self._offsets = count()

    @property
    def serializer(self) -> Any:
        """The serializer of the broker, which the application may set late."""
        return serializer_of(self._config)

    async def publish(self, cmd: Command) -> None:
        """Call the handlers."""
        message = await self.encoded(cmd)
        for subscriber in self._subscribers(message):
            raw = self._received(message)
            await subscriber.process_message(RawBatch((raw,)) if subscriber.batch else raw)

    async def publish_batch(self, cmd: Command) -> None:  # type: ignore[override]
        """Call the handlers: with the batch, or with each of its messages."""
        messages = await self.encoded_batch(cmd)
        for subscriber in self._subscribers(*messages):
            wanted = [self._received(one) for one in messages if selects(subscriber.selection, one)]
            if subscriber.batch:
                await subscriber.process_message(RawBatch(wanted))
                continue
            for raw in wanted:
                await subscriber.process_message(raw)

    async def request(self, cmd: Command) -> RawMessage:
        """Call the first handler, and return what it returns.

        Raises:
            SubscriberNotFound: the topic has no handler.
            TimeoutError: the handler took too long.
        """
        message = await self.encoded(cmd)
        for subscriber in self._subscribers(message):
            raw = self._received(message)
            async with asyncio.timeout(cmd.timeout):
                answer = await subscriber.process_message(
                    RawBatch((raw,)) if subscriber.batch else raw
                )
            reply = type(cmd).from_cmd(answer.as_publish_command())
            reply.destination = message.topic
            return self._received(await self.encoded(reply))
        raise SubscriberNotFound(f"No subscriber of {message.topic} receives this request.")

    def _received(self, message: Message) -> RawMessage:
        return self._receive(message, next(self._offsets))

    def _subscribers(self, *messages: Message) -> Iterator[BaseSubscriber]:
        """Who receives one of the messages: every subscriber without a group, one of each group."""
        groups: set[str] = set()
        for broker in self._brokers:
            for one in broker.subscribers:
                subscriber = cast("BaseSubscriber", one)
                group = subscriber.group_id
                if group in groups or not any(
                    message.topic in subscriber.topics and selects(subscriber.selection, message)
                    for message in messages
                ):
                    continue
                if group is not None:
                    groups.add(group)
                yield subscriber


def selects(selection: Any, message: Message) -> bool:
    """Whether a subscriber's filter selects a message."""
    if isinstance(selection, Sql92):
        # It needs lark, which takes long to import.
        from coherer._wire.rocketmq.selector import compile_selector

        stored = dict(message.properties)
        if message.tag is not None:
            stored["TAGS"] = message.tag
        if message.keys:
            stored["KEYS"] = " ".join(message.keys)
        return compile_selector(selection.text).matches(stored)
    if isinstance(selection, Tags):
        selection = selection.text
    tags = split_tags(selection) if isinstance(selection, str) else tuple(selection or ())
    return not tags or message.tag in tags


class BaseTestBroker(TestBroker[B, EnterType], Generic[B, EnterType]):
    """What the test brokers of both protocols have in common."""

    MESSAGE: ClassVar[type[BrokerMessage]]

    @contextmanager
    def _patch_producer(self, broker: B) -> Generator[None]:
        fake = FakeProducer(broker, self.brokers, self.MESSAGE, self._receive)
        with change_producer(broker.config.broker_config, fake):
            yield

    @staticmethod
    @abstractmethod
    def _receive(message: Message, offset: int) -> RawMessage:
        """The received message of a sent one."""
        ...

    @staticmethod
    async def _fake_connect(broker: B, *_: Any, **__: Any) -> FakeConnection:  # type: ignore[override]
        return cast("FakeConnection", broker.config.broker_config.producer.connection)

    def create_publisher_fake_subscriber(
        self, broker: B, publisher: BasePublisher
    ) -> tuple[BaseSubscriber, bool]:
        """The subscriber that records what is published; whether it is the application's own."""
        for each in self.brokers:
            for one in each.subscribers:
                subscriber = cast("BaseSubscriber", one)
                if publisher.topic in subscriber.topics:
                    return subscriber, True
        options: dict[str, Any] = {"batch": publisher.batch, "persistent": False}
        if isinstance(broker, TubeMQBroker):
            options["group_id"] = f"faststream-{uuid4().hex}"
        subscribe = cast("Callable[..., BaseSubscriber]", broker.subscriber)
        return subscribe(publisher.topic, **options), False


class TestRocketMQBroker(BaseTestBroker[RocketMQBroker, EnterType], broker=RocketMQBroker):
    """Tests an application without a RocketMQ cluster.

    ```python
    async with TestRocketMQBroker(broker) as tested:
        await tested.publish({"id": 1}, "orders")
        handle.mock.assert_called_once_with({"id": 1})
    ```

    Args:
        brokers: the application's brokers.
        options: see `TestKeywords`.
    """

    MESSAGE = RocketMQMessage

    @overload
    def __init__(
        self: TestRocketMQBroker[RocketMQBroker],
        broker: RocketMQBroker,
        /,
        **options: Unpack[TestKeywords],
    ) -> None: ...

    @overload
    def __init__(
        self: TestRocketMQBroker[tuple[RocketMQBroker, ...]],
        *brokers: RocketMQBroker,
        **options: Unpack[TestKeywords],
    ) -> None: ...

    def __init__(self, *brokers: RocketMQBroker, **options: Unpack[TestKeywords]) -> None:
        super().__init__(*brokers, **options)

    @staticmethod
    def _receive(message: Message, offset: int) -> RawMessage:
        identity = f"{offset:032X}"
        now = datetime.now(UTC)
        now_ms = int(now.timestamp() * 1000)
        return StoredMessage(
            topic=message.topic,
            body=message.body,
            tag=message.tag,
            time=message.time or now,
            keys=message.keys,
            properties=dict(message.properties),
            id=identity,
            broker="memory",
            offset=offset,
            unique_id=identity,
            born_ms=now_ms,
            stored_ms=now_ms,
        )


class TestTubeMQBroker(BaseTestBroker[TubeMQBroker, EnterType], broker=TubeMQBroker):
    """Tests an application without a TubeMQ cluster.

    ```python
    async with TestTubeMQBroker(broker) as tested:
        await tested.publish({"id": 1}, "orders")
        handle.mock.assert_called_once_with({"id": 1})
    ```

    Args:
        brokers: the application's brokers.
        options: see `TestKeywords`.
    """

    MESSAGE = TubeMQMessage

    @overload
    def __init__(
        self: TestTubeMQBroker[TubeMQBroker],
        broker: TubeMQBroker,
        /,
        **options: Unpack[TestKeywords],
    ) -> None: ...

    @overload
    def __init__(
        self: TestTubeMQBroker[tuple[TubeMQBroker, ...]],
        *brokers: TubeMQBroker,
        **options: Unpack[TestKeywords],
    ) -> None: ...

    def __init__(self, *brokers: TubeMQBroker, **options: Unpack[TestKeywords]) -> None:
        super().__init__(*brokers, **options)

    @staticmethod
    def _receive(message: Message, offset: int) -> RawMessage:
        return ReceivedMessage(
            topic=message.topic,
            body=message.body,
            tag=message.tag,
            time=message.time,
            properties=dict(message.properties),
            id=str(offset),
            broker="memory",
            offset=offset,
        )
