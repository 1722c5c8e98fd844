"""The broker, router, subscribers and publishers of RocketMQ."""

# FastStream's brokers, routers and publishers have other parameters than their base classes.
# pyright: reportIncompatibleMethodOverride=false

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from datetime import datetime, timedelta
from typing import Any, ClassVar, Final, Literal, TypedDict, Unpack, cast, overload

from faststream._internal.basic_types import SendableMessage
from faststream._internal.broker.router import ArgsContainer, SubscriberRoute
from faststream.exceptions import FeatureNotSupportedException, SetupError
from faststream.response.publish_type import PublishType

from coherer.integrations.faststream.broker import (
    BaseBroker,
    BaseRegistrator,
    BaseRouter,
    check_names,
    login,
    part_of,
)
from coherer.integrations.faststream.connection import RocketMQConnection
from coherer.integrations.faststream.keywords import (
    BrokerKeywords,
    PublisherKeywords,
    PublishKeywords,
    RequestKeywords,
    SubscriberKeywords,
)
from coherer.integrations.faststream.message import RocketMQMessage
from coherer.integrations.faststream.publisher import BasePublisher
from coherer.integrations.faststream.response import Command, RocketMQPublishCommand, key_words
from coherer.integrations.faststream.subscriber import BaseSubscriber
from coherer.rocketmq import (
    ConnectKeywords,
    ConsumerKeywords,
    ProducerKeywords,
    Queue,
    SendReceipt,
    Sql92,
    Tags,
)

NO_OPTIONS: Final[ProducerKeywords] = {}

REQUEST_TIMEOUT_S: Final = 0.5
"""How long a request waits for its reply; FastStream's default for all brokers."""


class RocketMQBrokerKeywords(BrokerKeywords, ConnectKeywords, total=False):
    """The keywords of a broker; see `BrokerKeywords` and `coherer.rocketmq.ClientOptions`."""


class RocketMQSubscriberKeywords(SubscriberKeywords, ConsumerKeywords, total=False):
    """The keywords of a subscriber.

    See also `SubscriberKeywords` and `coherer.rocketmq.ConsumerOptions`.

    Args:
        sql92: receive messages with these properties only, for example `"carrier = 'UA'"`.
    """

    sql92: str | None


class _Ordering(TypedDict, total=False):
    key: str | bytes | None
    keys: Sequence[str]
    queue: Queue | None


class RocketMQRequestKeywords(RequestKeywords, total=False):
    """The keywords of a request; see `RequestKeywords`.

    Args:
        keys: words to find the message by.
    """

    keys: Sequence[str]


class RocketMQPublishKeywords(PublishKeywords, _Ordering, total=False):
    """The keywords of publishing; see also `PublishKeywords`.

    Args:
        key: messages with the same key go to the same queue, in order. It is the first index key.
        keys: further words to find the message by.
        queue: send to this queue only.
        deliver_at: the broker delays the message until then; a naive time is local.
        delay: the broker delays the message for this time. Brokers before 5.0 only have some
            delays; see `coherer.rocketmq.Producer.send`.
    """

    deliver_at: datetime | None
    delay: timedelta | None


class RocketMQPublisherKeywords(PublisherKeywords, _Ordering, total=False):
    """The keywords of a publisher; see `PublisherKeywords` and `RocketMQPublishKeywords`."""


class RocketMQSubscriber(BaseSubscriber):
    """A subscriber of RocketMQ topics. Made by `RocketMQBroker.subscriber`."""

    async def start(self) -> None:
        """Join the group and receive; see `BaseSubscriber.start`.

        Raises:
            SetupError: another subscriber of the broker is in the group.
        """
        broker: RocketMQBroker = self._outer_config.extra_context["broker"]
        for other in cast("list[RocketMQSubscriber]", broker.subscribers):
            if other is self or other.consumer is None or self.group_id is None:
                continue
            if other.group_id == self.group_id:
                raise SetupError(
                    f"The subscribers of {', '.join(other.topics)} and of "
                    f"{', '.join(self.topics)} have the same group {self.group_id}. In RocketMQ "
                    "all members of a group have the same topics: give each subscriber a group of "
                    "its own, or one subscriber all topics."
                )
        await super().start()


class RocketMQTopicPublisher(BasePublisher):
    """A publisher to a RocketMQ topic. Made by `RocketMQBroker.publisher`."""

    @overload
    async def publish(
        self,
        message: SendableMessage,
        topic: str = "",
        *,
        no_confirm: Literal[False] = False,
        **options: Unpack[RocketMQPublishKeywords],
    ) -> SendReceipt: ...

    @overload
    async def publish(
        self,
        message: SendableMessage,
        topic: str = "",
        *,
        no_confirm: Literal[True],
        **options: Unpack[RocketMQPublishKeywords],
    ) -> asyncio.Future[SendReceipt]: ...

    async def publish(
        self,
        message: SendableMessage,
        topic: str = "",
        *,
        no_confirm: bool = False,
        **options: Unpack[RocketMQPublishKeywords],
    ) -> SendReceipt | asyncio.Future[SendReceipt]:
        """Publish a message.

        Args:
            message: the body.
            topic: the topic; the publisher's by default.
            no_confirm: do not wait for the broker's confirmation.
            options: see `RocketMQPublishKeywords`.

        Returns:
            The receipt; its future with `no_confirm`.

        Raises:
            CohererError: see `coherer.rocketmq.Producer.send`.
        """
        cmd = self._command((message,), topic, no_confirm=no_confirm, **options)
        return cast("SendReceipt | asyncio.Future[SendReceipt]", await self._send(cmd))

    async def request(
        self,
        message: SendableMessage,
        topic: str = "",
        *,
        timeout: float = REQUEST_TIMEOUT_S,  # noqa: ASYNC109 - FastStream's name
        **options: Unpack[RocketMQRequestKeywords],
    ) -> RocketMQMessage:
        """Publish a message and wait for the reply: what the handler returns.

        Args:
            message: the body.
            topic: the topic; the publisher's by default.
            timeout: how many seconds to wait.
            options: see `RequestKeywords`.

        Raises:
            RequestTimeoutError: no reply in time.
            CohererError: see `coherer.rocketmq.Producer.send`.
        """
        cmd = self._command(
            (message,), topic, publish_type=PublishType.REQUEST, timeout=timeout, **options
        )
        reply = await self._basic_request(cmd, producer=self._outer_config.producer)
        return cast("RocketMQMessage", reply)


class RocketMQBatchPublisher(BasePublisher):
    """A publisher of batches to a RocketMQ topic. Made by `RocketMQBroker.publisher`."""

    async def publish(
        self,
        *messages: SendableMessage,
        topic: str = "",
        **options: Unpack[RocketMQPublishKeywords],
    ) -> list[SendReceipt]:
        """Publish messages together; see `RocketMQBroker.publish_batch`."""
        cmd = self._command(messages, topic, **options)
        return cast("list[SendReceipt]", await self._send(cmd))

    async def request(self, *_: Any, **__: Any) -> RocketMQMessage:
        """A batch has no replies.

        Raises:
            FeatureNotSupportedException: always.
        """
        raise FeatureNotSupportedException("A batch has no replies. Request one message.")


class RocketMQRegistrator(BaseRegistrator):
    """Registers subscribers and publishers."""

    def subscriber(  # type: ignore[override]
        self, *topics: str, **options: Unpack[RocketMQSubscriberKeywords]
    ) -> RocketMQSubscriber:
        """Subscribe to topics.

        ```python
        @broker.subscriber("orders", group_id="shop", tags="new || paid", start="earliest")
        async def handle(order: Order) -> None: ...
        ```

        Args:
            topics: the topics.
            options: see `RocketMQSubscriberKeywords`.

        Raises:
            SetupError: the options contradict each other.
        """
        check_names("A subscriber", options, RocketMQSubscriberKeywords)
        consumer = dict(part_of(ConsumerKeywords, options))
        orderly, batch = options.get("orderly", False), options.get("batch", False)
        if not batch:
            # A batch lasts as long as its slowest handler, so that `consume_ms` counts for one
            # handler. An orderly batch must end with a failure.
            workers = 1 if orderly else options.get("max_workers", 1)
            consumer.setdefault("batch_messages", workers)
            if orderly and consumer["batch_messages"] != 1:
                raise SetupError("An orderly subscriber has batch_messages=1 or batch=True.")
        return self._subscribe(
            RocketMQSubscriber,
            topics,
            _selection(options.get("tags"), options.get("sql92")),
            consumer,
            part_of(SubscriberKeywords, options),
            message_class=RocketMQMessage,
            command=RocketMQPublishCommand,
            ordered=orderly,
        )

    @overload  # type: ignore[override]
    def publisher(
        self,
        topic: str,
        *,
        batch: Literal[False] = False,
        **options: Unpack[RocketMQPublisherKeywords],
    ) -> RocketMQTopicPublisher: ...

    @overload
    def publisher(
        self,
        topic: str,
        *,
        batch: Literal[True],
        **options: Unpack[RocketMQPublisherKeywords],
    ) -> RocketMQBatchPublisher: ...

    def publisher(
        self, topic: str, *, batch: bool = False, **options: Unpack[RocketMQPublisherKeywords]
    ) -> RocketMQTopicPublisher | RocketMQBatchPublisher:
        """Make a publisher: a decorator of a handler, whose result it publishes, or to be called.

        Args:
            topic: the topic.
            batch: whether it publishes several messages at once.
            options: see `RocketMQPublisherKeywords`.

        Raises:
            SetupError: an option is unknown.
            UsageError: `keys` are one text.
        """
        check_names("A publisher", options, RocketMQPublisherKeywords)
        kind: type[RocketMQBatchPublisher | RocketMQTopicPublisher]
        kind = RocketMQBatchPublisher if batch else RocketMQTopicPublisher
        ordering = dict(part_of(_Ordering, options))
        if isinstance(key := ordering.get("key"), bytes):
            ordering["key"] = key.decode()
        if (keys := options.get("keys")) is not None:
            ordering["keys"] = key_words(keys)
        return self._publisher(
            kind,
            RocketMQPublishCommand,
            topic,
            part_of(PublisherKeywords, options),
            ordering,
            batch=batch,
        )


class RocketMQBroker(RocketMQRegistrator, BaseBroker):
    """The broker of a FastStream application on RocketMQ.

    ```python
    broker = RocketMQBroker("rocketmq://127.0.0.1:9876")
    app = FastStream(broker)


    @broker.subscriber("orders", group_id="shop")
    async def handle(order: Order) -> None: ...
    ```

    Args:
        url: the name servers, `rocketmq://host:port;host:port`; `rocketmqs://` for TLS. None takes
            `COHERER_URL` or `NAMESRV_ADDR` from the environment.
        producer: the options of the producer; see `coherer.rocketmq.ProducerOptions`.
        options: see `BrokerKeywords` and `coherer.rocketmq.ClientOptions`.

    Raises:
        SetupError: an option is unknown, or the security is not supported.
    """

    PROTOCOL: ClassVar[str] = "rocketmq"
    VERSION: ClassVar[str] = "4.9"
    COMMAND: ClassVar[type[Command]] = RocketMQPublishCommand

    def __init__(
        self,
        url: str | None = None,
        *,
        producer: ProducerKeywords = NO_OPTIONS,
        **options: Unpack[RocketMQBrokerKeywords],
    ) -> None:
        check_names("The broker", options, RocketMQBrokerKeywords)
        client = part_of(ConnectKeywords, options)
        client.update(cast("ConnectKeywords", login(options.get("security"))))
        super().__init__(
            url,
            lambda: RocketMQConnection(url, client, producer),
            RocketMQMessage,
            part_of(BrokerKeywords, options),
        )

    @overload
    async def publish(
        self,
        message: SendableMessage,
        topic: str,
        *,
        no_confirm: Literal[False] = False,
        **options: Unpack[RocketMQPublishKeywords],
    ) -> SendReceipt: ...

    @overload
    async def publish(
        self,
        message: SendableMessage,
        topic: str,
        *,
        no_confirm: Literal[True],
        **options: Unpack[RocketMQPublishKeywords],
    ) -> asyncio.Future[SendReceipt]: ...

    async def publish(
        self,
        message: SendableMessage,
        topic: str,
        *,
        no_confirm: bool = False,
        **options: Unpack[RocketMQPublishKeywords],
    ) -> SendReceipt | asyncio.Future[SendReceipt]:
        """Publish a message.

        Args:
            message: the body.
            topic: the topic.
            no_confirm: do not wait for the broker's confirmation.
            options: see `RocketMQPublishKeywords`.

        Returns:
            The receipt; its future with `no_confirm`.

        Raises:
            IncorrectState: the broker is not connected.
            CohererError: see `coherer.rocketmq.Producer.send`.
        """
        cmd = self._command(message, topic=topic, no_confirm=no_confirm, **options)
        sent = await self._basic_publish(cmd, producer=self.config.producer)
        return cast("SendReceipt | asyncio.Future[SendReceipt]", sent)

    async def publish_batch(  # type: ignore[override]
        self,
        *messages: SendableMessage,
        topic: str,
        **options: Unpack[RocketMQPublishKeywords],
    ) -> list[SendReceipt]:
        """Publish messages together: they go to one queue, in order.

        Args:
            messages: the bodies; a `RocketMQPublishMessage` has headers, tag and keys of its own.
            topic: the topic.
            options: see `RocketMQPublishKeywords`; a batch cannot be delayed.

        Returns:
            A receipt for each request; see `coherer.rocketmq.Producer.send_batch`.

        Raises:
            IncorrectState: the broker is not connected.
            CohererError: see `coherer.rocketmq.Producer.send`.
        """
        cmd = self._command(*messages, topic=topic, **options)
        sent = await self._basic_publish_batch(cmd, producer=self.config.producer)
        return cast("list[SendReceipt]", sent)

    async def request(  # type: ignore[override]
        self,
        message: SendableMessage,
        topic: str,
        *,
        timeout: float = REQUEST_TIMEOUT_S,  # noqa: ASYNC109 - FastStream's name
        **options: Unpack[RocketMQRequestKeywords],
    ) -> RocketMQMessage:
        """Publish a message and wait for the reply: what the handler returns.

        Args:
            message: the body.
            topic: the topic.
            timeout: how many seconds to wait.
            options: see `RequestKeywords`.

        Raises:
            IncorrectState: the broker is not connected.
            RequestTimeoutError: no reply in time.
            CohererError: see `coherer.rocketmq.Producer.send`.
        """
        cmd = self._command(
            message, topic=topic, publish_type=PublishType.REQUEST, timeout=timeout, **options
        )
        reply = await self._basic_request(cmd, producer=self.config.producer)
        return cast("RocketMQMessage", reply)


class RocketMQPublisher(ArgsContainer):
    """A publisher of a `RocketMQRoute`; its arguments are those of `RocketMQBroker.publisher`."""

    def __init__(self, topic: str, **options: Unpack[RocketMQPublisherKeywords]) -> None:
        super().__init__(topic, **options)


class RocketMQRoute(SubscriberRoute):
    """A subscriber that is registered with a router; its arguments are those of `subscriber`.

    Args:
        call: the handler.
        topics: the topics.
        publishers: publishers of what the handler returns.
        options: see `RocketMQSubscriberKeywords`.
    """

    def __init__(
        self,
        call: Callable[..., SendableMessage] | Callable[..., Awaitable[SendableMessage]],
        *topics: str,
        publishers: Iterable[RocketMQPublisher] = (),
        **options: Unpack[RocketMQSubscriberKeywords],
    ) -> None:
        super().__init__(call, *topics, publishers=publishers, **options)


class RocketMQRouter(RocketMQRegistrator, BaseRouter[RocketMQRoute]):
    """Subscribers and publishers that a broker includes; see `BaseRouter`."""


def _selection(tags: str | Iterable[str] | None, sql92: str | None) -> Tags | Sql92 | None:
    if tags is not None and sql92 is not None:
        raise SetupError("A subscriber filters by tags or by sql92, not by both.")
    if sql92 is not None:
        return Sql92(sql92)
    if tags is None:
        return None
    return Tags(tags) if isinstance(tags, str) else Tags.any(*tags)
