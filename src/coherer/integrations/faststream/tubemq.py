"""The broker, router, subscribers and publishers of TubeMQ."""

# FastStream's brokers, routers and publishers have other parameters than their base classes.
# pyright: reportIncompatibleMethodOverride=false

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, ClassVar, Literal, TypedDict, Unpack, cast, overload

from faststream._internal.basic_types import SendableMessage
from faststream._internal.broker.router import ArgsContainer, SubscriberRoute
from faststream.exceptions import FeatureNotSupportedException, SetupError
from faststream.response.publish_type import PublishType

from coherer._wire.rocketmq.subscription import split_tags
from coherer.integrations.faststream.broker import (
    BaseBroker,
    BaseRegistrator,
    BaseRouter,
    check_names,
    login,
    part_of,
)
from coherer.integrations.faststream.connection import TubeMQConnection
from coherer.integrations.faststream.keywords import (
    BrokerKeywords,
    PublisherKeywords,
    PublishKeywords,
    RequestKeywords,
    SubscriberKeywords,
)
from coherer.integrations.faststream.message import TubeMQMessage
from coherer.integrations.faststream.publisher import BasePublisher
from coherer.integrations.faststream.response import Command, TubeMQPublishCommand
from coherer.integrations.faststream.subscriber import BaseSubscriber
from coherer.tubemq import ConnectKeywords, Listener, Receipt, Start


class ConsumerKeywords(TypedDict, total=False):
    """The keywords of a consumer; see `coherer.tubemq.ConsumerOptions`."""

    start: Start
    poll_ms: int
    empty_ms: int
    release_ms: int
    prefetch_bytes: int
    on_assigned: Listener | None
    on_revoked: Listener | None


class TubeMQBrokerKeywords(BrokerKeywords, ConnectKeywords, total=False):
    """The keywords of a broker; see `BrokerKeywords` and `coherer.tubemq.ClientOptions`."""


class TubeMQSubscriberKeywords(SubscriberKeywords, ConsumerKeywords, total=False):
    """The keywords of a subscriber; see `SubscriberKeywords`, `coherer.tubemq.ConsumerOptions`."""


class TubeMQSubscriber(BaseSubscriber):
    """A subscriber of TubeMQ topics. Made by `TubeMQBroker.subscriber`."""


class TubeMQTopicPublisher(BasePublisher):
    """A publisher to a TubeMQ topic. Made by `TubeMQBroker.publisher`."""

    @overload
    async def publish(
        self,
        message: SendableMessage,
        topic: str = "",
        *,
        no_confirm: Literal[False] = False,
        **options: Unpack[PublishKeywords],
    ) -> Receipt: ...

    @overload
    async def publish(
        self,
        message: SendableMessage,
        topic: str = "",
        *,
        no_confirm: Literal[True],
        **options: Unpack[PublishKeywords],
    ) -> asyncio.Future[Receipt]: ...

    async def publish(
        self,
        message: SendableMessage,
        topic: str = "",
        *,
        no_confirm: bool = False,
        **options: Unpack[PublishKeywords],
    ) -> Receipt | asyncio.Future[Receipt]:
        """Publish a message.

        Args:
            message: the body.
            topic: the topic; the publisher's by default.
            no_confirm: do not wait for the broker's confirmation.
            options: see `PublishKeywords`.

        Returns:
            The receipt; its future with `no_confirm`.

        Raises:
            CohererError: see `coherer.tubemq.Producer.send`.
        """
        cmd = self._command((message,), topic, no_confirm=no_confirm, **options)
        return cast("Receipt | asyncio.Future[Receipt]", await self._send(cmd))

    async def request(
        self,
        message: SendableMessage,
        topic: str = "",
        *,
        timeout: float = 0.5,  # noqa: ASYNC109 - FastStream's name
        **options: Unpack[RequestKeywords],
    ) -> TubeMQMessage:
        """Call a handler, in a test broker.

        Raises:
            FeatureNotSupportedException: TubeMQ has no requests.
        """
        cmd = self._command(
            (message,), topic, publish_type=PublishType.REQUEST, timeout=timeout, **options
        )
        reply = await self._basic_request(cmd, producer=self._outer_config.producer)
        return cast("TubeMQMessage", reply)


class TubeMQBatchPublisher(BasePublisher):
    """A publisher of batches to a TubeMQ topic. Made by `TubeMQBroker.publisher`."""

    async def publish(
        self, *messages: SendableMessage, topic: str = "", **options: Unpack[PublishKeywords]
    ) -> list[Receipt]:
        """Publish messages; see `TubeMQBroker.publish_batch`."""
        cmd = self._command(messages, topic, **options)
        return cast("list[Receipt]", await self._send(cmd))

    async def request(self, *_: Any, **__: Any) -> TubeMQMessage:
        """A batch has no replies.

        Raises:
            FeatureNotSupportedException: always.
        """
        raise FeatureNotSupportedException("A batch has no replies. Request one message.")


class TubeMQRegistrator(BaseRegistrator):
    """Registers subscribers and publishers."""

    def subscriber(  # type: ignore[override]
        self, *topics: str, **options: Unpack[TubeMQSubscriberKeywords]
    ) -> TubeMQSubscriber:
        """Subscribe to topics.

        ```python
        @broker.subscriber("orders", group_id="shop", tags="new || paid", start="earliest")
        async def handle(order: Order) -> None: ...
        ```

        TubeMQ acknowledges what one fetch returned together: its messages are delivered again
        together, too, if one of them failed. Each partition has one such batch in work.

        Args:
            topics: the topics.
            options: see `TubeMQSubscriberKeywords`.

        Raises:
            SetupError: the group is missing, or an option is unknown.
        """
        check_names("A subscriber", options, TubeMQSubscriberKeywords)
        if options.get("group_id") is None:
            raise SetupError(
                f"The subscriber of {', '.join(topics)} needs a group: in TubeMQ every consumer "
                "is a member of one. Give it `group_id`."
            )
        tags = options.get("tags")
        return self._subscribe(
            TubeMQSubscriber,
            topics,
            split_tags(tags) if isinstance(tags, str) else None if tags is None else tuple(tags),
            part_of(ConsumerKeywords, options),
            part_of(SubscriberKeywords, options),
            message_class=TubeMQMessage,
            command=TubeMQPublishCommand,
            shared=True,
        )

    @overload  # type: ignore[override]
    def publisher(
        self, topic: str, *, batch: Literal[False] = False, **options: Unpack[PublisherKeywords]
    ) -> TubeMQTopicPublisher: ...

    @overload
    def publisher(
        self, topic: str, *, batch: Literal[True], **options: Unpack[PublisherKeywords]
    ) -> TubeMQBatchPublisher: ...

    def publisher(
        self, topic: str, *, batch: bool = False, **options: Unpack[PublisherKeywords]
    ) -> TubeMQTopicPublisher | TubeMQBatchPublisher:
        """Make a publisher: a decorator of a handler, whose result it publishes, or to be called.

        Args:
            topic: the topic.
            batch: whether it publishes several messages at once.
            options: see `PublisherKeywords`.

        Raises:
            SetupError: an option is unknown.
        """
        check_names("A publisher", options, PublisherKeywords)
        kind: type[TubeMQBatchPublisher | TubeMQTopicPublisher]
        kind = TubeMQBatchPublisher if batch else TubeMQTopicPublisher
        return self._publisher(kind, TubeMQPublishCommand, topic, options, {}, batch=batch)


class TubeMQBroker(TubeMQRegistrator, BaseBroker):
    """The broker of a FastStream application on TubeMQ.

    ```python
    broker = TubeMQBroker("tubemq://127.0.0.1:8715")
    app = FastStream(broker)


    @broker.subscriber("orders", group_id="shop")
    async def handle(order: Order) -> None: ...
    ```

    Args:
        url: the masters, `tubemq://host:port,host:port`; `tubemqs://` for TLS. None takes
            `COHERER_URL` from the environment.
        options: see `BrokerKeywords` and `coherer.tubemq.ClientOptions`.

    Raises:
        SetupError: an option is unknown, or the security is not supported.
    """

    PROTOCOL: ClassVar[str] = "tubemq"
    VERSION: ClassVar[str] = "1.13"
    COMMAND: ClassVar[type[Command]] = TubeMQPublishCommand

    def __init__(self, url: str | None = None, **options: Unpack[TubeMQBrokerKeywords]) -> None:
        check_names("The broker", options, TubeMQBrokerKeywords)
        client = part_of(ConnectKeywords, options)
        client.update(cast("ConnectKeywords", login(options.get("security"))))
        super().__init__(
            url,
            lambda: TubeMQConnection(url, client),
            TubeMQMessage,
            part_of(BrokerKeywords, options),
        )

    @overload
    async def publish(
        self,
        message: SendableMessage,
        topic: str,
        *,
        no_confirm: Literal[False] = False,
        **options: Unpack[PublishKeywords],
    ) -> Receipt: ...

    @overload
    async def publish(
        self,
        message: SendableMessage,
        topic: str,
        *,
        no_confirm: Literal[True],
        **options: Unpack[PublishKeywords],
    ) -> asyncio.Future[Receipt]: ...

    async def publish(
        self,
        message: SendableMessage,
        topic: str,
        *,
        no_confirm: bool = False,
        **options: Unpack[PublishKeywords],
    ) -> Receipt | asyncio.Future[Receipt]:
        """Publish a message.

        Args:
            message: the body.
            topic: the topic.
            no_confirm: do not wait for the broker's confirmation.
            options: see `PublishKeywords`.

        Returns:
            The receipt; its future with `no_confirm`.

        Raises:
            IncorrectState: the broker is not connected.
            CohererError: see `coherer.tubemq.Producer.send`.
        """
        cmd = self._command(message, topic=topic, no_confirm=no_confirm, **options)
        sent = await self._basic_publish(cmd, producer=self.config.producer)
        return cast("Receipt | asyncio.Future[Receipt]", sent)

    async def publish_batch(  # type: ignore[override]
        self, *messages: SendableMessage, topic: str, **options: Unpack[PublishKeywords]
    ) -> list[Receipt]:
        """Publish messages at the same time.

        Args:
            messages: the bodies; a `TubeMQPublishMessage` has headers and a tag of its own.
            topic: the topic.
            options: see `PublishKeywords`.

        Returns:
            The receipts.

        Raises:
            IncorrectState: the broker is not connected.
            CohererError: see `coherer.tubemq.Producer.send`.
        """
        cmd = self._command(*messages, topic=topic, **options)
        sent = await self._basic_publish_batch(cmd, producer=self.config.producer)
        return cast("list[Receipt]", sent)

    async def request(  # type: ignore[override]
        self,
        message: SendableMessage,
        topic: str,
        *,
        timeout: float = 0.5,  # noqa: ASYNC109 - FastStream's name
        **options: Unpack[RequestKeywords],
    ) -> TubeMQMessage:
        """Call a handler, in a test broker.

        Raises:
            FeatureNotSupportedException: TubeMQ has no requests.
        """
        cmd = self._command(
            message, topic=topic, publish_type=PublishType.REQUEST, timeout=timeout, **options
        )
        reply = await self._basic_request(cmd, producer=self.config.producer)
        return cast("TubeMQMessage", reply)


class TubeMQPublisher(ArgsContainer):
    """A publisher of a `TubeMQRoute`; its arguments are those of `TubeMQBroker.publisher`."""

    def __init__(self, topic: str, **options: Unpack[PublisherKeywords]) -> None:
        super().__init__(topic, **options)


class TubeMQRoute(SubscriberRoute):
    """A subscriber that is registered with a router; its arguments are those of `subscriber`.

    Args:
        call: the handler.
        topics: the topics.
        publishers: publishers of what the handler returns.
        options: see `TubeMQSubscriberKeywords`.
    """

    def __init__(
        self,
        call: Callable[..., SendableMessage] | Callable[..., Awaitable[SendableMessage]],
        *topics: str,
        publishers: Iterable[TubeMQPublisher] = (),
        **options: Unpack[TubeMQSubscriberKeywords],
    ) -> None:
        super().__init__(call, *topics, publishers=publishers, **options)


class TubeMQRouter(TubeMQRegistrator, BaseRouter[TubeMQRoute]):
    """Subscribers and publishers that a broker includes; see `BaseRouter`."""
