"""The keywords that the brokers, routers, subscribers and publishers of both protocols have."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, TypedDict

from fast_depends import Provider
from fast_depends.dependencies import Dependant
from fast_depends.library.serializer import SerializerProto
from faststream._internal.basic_types import LoggerProto
from faststream._internal.broker.registrator import Registrator
from faststream._internal.context.repository import ContextRepo
from faststream._internal.parser import CodecProto
from faststream._internal.types import BrokerMiddleware, CustomCallable, IdGenerator
from faststream.middlewares import AckPolicy
from faststream.security import BaseSecurity
from faststream.specification.schema import Tag, TagDict


class BrokerKeywords(TypedDict, total=False):
    """The keywords of a broker, except those of its client.

    Args:
        allow_auto_create_topics: whether subscribers create topics that do not exist. Publishers
            leave that to the cluster.
        graceful_timeout: how many seconds `stop` waits for running handlers; None to not wait.
        ack_policy: of subscribers without one of their own; `NACK_ON_ERROR` by default.
        id_generator: makes correlation ids.
        decoder: makes Python objects of bodies, in place of the default.
        codec: encodes and decodes bodies, in place of the default and of `decoder`.
        parser: makes messages of received ones, in place of the default.
        dependencies: for all subscribers.
        middlewares: for all subscribers and publishers.
        routers: routers to include.
        security: `SASLPlaintext` with the access key and the secret key.
        specification_url: what AsyncAPI shows instead of the URL.
        protocol: what AsyncAPI shows as the protocol.
        protocol_version: what AsyncAPI shows as its version.
        description: what AsyncAPI shows about the broker.
        tags: what AsyncAPI shows as tags.
        logger: for the log lines of subscribers; None to log nothing.
        log_level: the level of the broker's own log lines.
        apply_types: whether to validate and inject the arguments of handlers.
        serializer: validates and dumps with Pydantic, by default, or with msgspec.
        provider: overrides dependencies.
        context: the global context.
    """

    allow_auto_create_topics: bool
    graceful_timeout: float | None
    ack_policy: AckPolicy
    id_generator: IdGenerator
    decoder: CustomCallable | None
    codec: CodecProto | None
    parser: CustomCallable | None
    dependencies: Iterable[Dependant]
    middlewares: Sequence[BrokerMiddleware[Any, Any]]
    routers: Iterable[Registrator[Any, Any]]
    security: BaseSecurity | None
    specification_url: str | Iterable[str] | None
    protocol: str | None
    protocol_version: str | None
    description: str | None
    tags: Iterable[Tag | TagDict]
    logger: LoggerProto | None
    log_level: int
    apply_types: bool
    serializer: SerializerProto | None
    provider: Provider | None
    context: ContextRepo | None


class RouterKeywords(TypedDict, total=False):
    """The keywords of a router.

    Args:
        dependencies: for all its subscribers.
        middlewares: for all its subscribers and publishers.
        routers: routers to include.
        parser: see `BrokerKeywords`.
        decoder: see `BrokerKeywords`.
        codec: see `BrokerKeywords`.
        ack_policy: see `BrokerKeywords`.
        include_in_schema: whether AsyncAPI shows its subscribers and publishers.
    """

    dependencies: Iterable[Dependant]
    middlewares: Sequence[BrokerMiddleware[Any, Any]]
    routers: Iterable[Registrator[Any, Any]]
    parser: CustomCallable | None
    decoder: CustomCallable | None
    codec: CodecProto | None
    ack_policy: AckPolicy
    include_in_schema: bool | None


class SubscriberKeywords(TypedDict, total=False):
    """The keywords of a subscriber, except those of its consumer.

    Args:
        group_id: the group, whose members share the messages. Without one, a RocketMQ subscriber
            receives every message that is sent while it runs, and none again that failed; TubeMQ
            refuses.
        tags: receive messages with one of these tags only: several, or `"new || paid"`.
        batch: whether handlers receive lists.
        max_workers: how many messages, or batches, are handled at the same time.
        ack_policy: what happens to a message when its handler has ended; `NACK_ON_ERROR` by
            default.
        no_reply: whether to ignore `reply_to` and requests.
        dependencies: for its handlers; FastAPI's with its router.
        parser: see `BrokerKeywords`.
        decoder: see `BrokerKeywords`.
        codec: see `BrokerKeywords`.
        title: what AsyncAPI shows as its name.
        description: what AsyncAPI shows about it; the handler's docstring by default.
        include_in_schema: whether AsyncAPI shows it.
        persistent: whether the broker keeps it alive.
    """

    group_id: str | None
    tags: str | Iterable[str] | None
    batch: bool
    max_workers: int
    ack_policy: AckPolicy
    no_reply: bool
    dependencies: Iterable[Any]
    parser: CustomCallable | None
    decoder: CustomCallable | None
    codec: CodecProto | None
    title: str | None
    description: str | None
    include_in_schema: bool
    persistent: bool


class PublisherKeywords(TypedDict, total=False):
    """The keywords of a publisher, except those of its protocol.

    Args:
        tag: the tag of its messages.
        headers: the headers of its messages.
        reply_to: the topic for the answers to its messages.
        title: what AsyncAPI shows as its name.
        description: what AsyncAPI shows about it.
        schema: the type of its messages, for AsyncAPI; that of the handler's result by default.
        include_in_schema: whether AsyncAPI shows it.
        persistent: whether the broker keeps it alive.
    """

    tag: str | None
    headers: dict[str, str] | None
    reply_to: str
    title: str | None
    description: str | None
    schema: Any
    include_in_schema: bool
    persistent: bool


class RequestKeywords(TypedDict, total=False):
    """The keywords of publishing that both protocols have.

    Args:
        tag: the word that consumers filter by.
        timestamp_ms: the time that the message refers to, ms since 1970.
        headers: the headers; values are stored as text, and blank ones are left out.
        correlation_id: the id that ties a message to others; a new one by default.
    """

    tag: str | None
    timestamp_ms: int | None
    headers: dict[str, str] | None
    correlation_id: str | None


class PublishKeywords(RequestKeywords, total=False):
    """The keywords of publishing without waiting for an answer.

    Args:
        reply_to: the topic for the answer.
    """

    reply_to: str
