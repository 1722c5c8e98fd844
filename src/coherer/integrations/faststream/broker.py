"""What the brokers of both protocols have in common."""

from __future__ import annotations

import asyncio
import difflib
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, ClassVar, Final, Generic, TypeVar, Unpack, cast

from fast_depends import dependency_provider
from faststream._internal.basic_types import LoggerProto, SendableMessage
from faststream._internal.broker import BrokerRouter, BrokerUsecase
from faststream._internal.broker.registrator import Registrator
from faststream._internal.broker.router import SubscriberRoute
from faststream._internal.configs import BrokerConfig, UnderlyingDriverAnnotation
from faststream._internal.constants import EMPTY
from faststream._internal.context.repository import ContextRepo
from faststream._internal.di import FastDependsConfig
from faststream._internal.endpoint.subscriber.call_item import CallsCollection
from faststream._internal.logger import DefaultLoggerStorage, make_logger_state
from faststream._internal.logger.logging import get_broker_logger
from faststream._internal.parser import DefaultCodec
from faststream.exceptions import SetupError
from faststream.message import gen_cor_id
from faststream.response.publish_type import PublishType
from faststream.security import BaseSecurity, SASLPlaintext
from faststream.specification.schema import BrokerSpec

from coherer._common.masking import masked_url
from coherer.errors import CohererError
from coherer.integrations.faststream.connection import Connection
from coherer.integrations.faststream.keywords import (
    BrokerKeywords,
    PublisherKeywords,
    RouterKeywords,
    SubscriberKeywords,
)
from coherer.integrations.faststream.message import BrokerMessage
from coherer.integrations.faststream.publisher import (
    BasePublisher,
    Producer,
    PublisherConfig,
    PublisherSchema,
    PublisherSpecConfig,
)
from coherer.integrations.faststream.response import Command
from coherer.integrations.faststream.subscriber import (
    BaseSubscriber,
    SubscriberConfig,
    SubscriberSchema,
    SubscriberSpecConfig,
)
from coherer.rocketmq import TlsOptions

PING_PAUSE_S: Final = 0.1

ANNOTATIONS: Final = "coherer.integrations.faststream.annotations"
"""Where handlers find the types of arguments that FastStream injects."""

MESSAGE_ID_CHARS: Final = 32
"""The length of a unique id, by which `coherer messages` finds a message."""

GRACEFUL_TIMEOUT_S: Final = 15.0
"""How long `stop` waits for running handlers; FastStream's default for all brokers."""

S = TypeVar("S", bound=BaseSubscriber)
P = TypeVar("P", bound=BasePublisher)
R = TypeVar("R", bound=SubscriberRoute)
T = TypeVar("T")


class LogColumns(DefaultLoggerStorage):
    """The columns of log lines: the topic, the group and the message's id."""

    def __init__(self) -> None:
        super().__init__()
        self._topic_chars = 4
        self._group_chars = 0

    def register_subscriber(self, params: dict[str, Any]) -> None:
        """Make the columns wide enough for a subscriber."""
        self._topic_chars = max(self._topic_chars, len(params.get("topic", "")))
        self._group_chars = max(self._group_chars, len(params.get("group_id", "")))

    def get_logger(self, *, context: ContextRepo) -> LoggerProto:
        """The logger of the broker."""
        found = self._get_logger_ref()
        if found is None:
            group = f"%(group_id)-{self._group_chars}s | " if self._group_chars else ""
            found = get_broker_logger(
                name="coherer",
                default_context={"topic": "", "group_id": ""},
                message_id_ln=MESSAGE_ID_CHARS,
                fmt=f"%(asctime)s %(levelname)-8s - %(topic)-{self._topic_chars}s | {group}"
                f"%(message_id)-{MESSAGE_ID_CHARS}s - %(message)s",
                context=context,
                log_level=self.logger_log_level,
            )
            self._logger_ref.add(found)
        return found


@dataclass(kw_only=True)
class Config(BrokerConfig):
    """The options that a broker shares with its subscribers and publishers.

    Attributes:
        allow_auto_create_topics: whether subscribers create topics that do not exist.
    """

    # The base class allows every producer.
    producer: Producer = field(  # pyright: ignore[reportIncompatibleVariableOverride]
        default_factory=lambda: Producer(BrokerMessage, None, None)
    )
    allow_auto_create_topics: bool = True


class BaseRegistrator(Registrator[Any, Config]):
    """Registers the subscribers and publishers of a broker or a router."""

    def _subscribe(
        self,
        kind: type[S],
        topics: Sequence[str],
        selection: Any,
        consumer: Mapping[str, Any],
        given: SubscriberKeywords,
        **config: Any,
    ) -> S:
        """Make and register a subscriber."""
        calls = CallsCollection[Any]()
        schema = SubscriberSchema(
            self.config,
            SubscriberSpecConfig(
                topics=topics,
                title_=given.get("title"),
                description_=given.get("description"),
                include_in_schema=given.get("include_in_schema", True),
            ),
            calls,
        )
        options = SubscriberConfig(
            topics=topics,
            selection=selection,
            group_id=given.get("group_id"),
            options=consumer,
            batch=given.get("batch", False),
            max_workers=given.get("max_workers", 1),
            no_reply=given.get("no_reply", False),
            _outer_config=cast("Config", self.config),
            _ack_policy=given.get("ack_policy", EMPTY),
            **config,
        )
        subscriber = kind(options, schema, calls)
        super().subscriber(subscriber, persistent=given.get("persistent", True))
        return subscriber.add_call(
            parser_=given.get("parser"),
            decoder_=given.get("decoder"),
            codec_=given.get("codec"),
            dependencies_=tuple(given.get("dependencies", ())),
        )

    def _publisher(
        self,
        kind: type[P],
        command: type[Command],
        topic: str,
        given: PublisherKeywords,
        options: dict[str, Any],
        *,
        batch: bool,
    ) -> P:
        """Make and register a publisher."""
        schema = PublisherSchema(
            self.config,
            PublisherSpecConfig(
                topic=topic,
                schema_=given.get("schema"),
                title_=given.get("title"),
                description_=given.get("description"),
                include_in_schema=given.get("include_in_schema", True),
            ),
        )
        config = PublisherConfig(
            command=command,
            topic=topic,
            batch=batch,
            headers=given.get("headers") or {},
            reply_to=given.get("reply_to", ""),
            options={"tag": given.get("tag"), **options},
            _outer_config=cast("Config", self.config),
        )
        publisher = kind(config, schema)
        super().publisher(publisher, persistent=given.get("persistent", True))
        return publisher


def part_of(kind: type[T], given: Mapping[str, Any]) -> T:
    """The keywords of one kind."""
    names = kind.__optional_keys__  # type: ignore[attr-defined]
    return cast("T", {name: given[name] for name in given if name in names})


def check_names(what: str, given: Mapping[str, Any], *kinds: type[Any]) -> None:
    """Refuse unknown keywords.

    Raises:
        SetupError: a keyword is unknown.
    """
    known = {name for kind in kinds for name in kind.__optional_keys__}
    for name in given:
        if name not in known:
            near = difflib.get_close_matches(name, known, 1)
            hint = f" Do you mean {near[0]}?" if near else ""
            raise SetupError(f"{what} has no option {name}.{hint}")


class BaseRouter(BrokerRouter[Any, Config], Generic[R]):
    """Subscribers and publishers that a broker includes.

    Args:
        prefix: a prefix of their topics.
        handlers: subscribers.
        options: see `RouterKeywords`.
    """

    def __init__(
        self, prefix: str = "", handlers: Iterable[R] = (), **options: Unpack[RouterKeywords]
    ) -> None:
        check_names("A router", options, RouterKeywords)
        config = Config(
            prefix=prefix,
            broker_dependencies=tuple(options.get("dependencies", ())),
            broker_middlewares=options.get("middlewares", ()),
            broker_parser=options.get("parser"),
            broker_decoder=options.get("decoder"),
            broker_codec=options.get("codec"),
            ack_policy=options.get("ack_policy", EMPTY),
            include_in_schema=options.get("include_in_schema"),
        )
        super().__init__(config=config, handlers=handlers, routers=options.get("routers", ()))


class BaseBroker(BaseRegistrator, BrokerUsecase[Any, Connection, Config]):
    """What the brokers of both protocols have in common.

    Args:
        url: the cluster.
        connect: makes the connection.
        message_class: of the replies to requests.
        given: the broker's keywords.
    """

    PROTOCOL: ClassVar[str]
    VERSION: ClassVar[str]
    COMMAND: ClassVar[type[Command]]

    def __init__(
        self,
        url: str | None,
        connect: Callable[[], Connection],
        message_class: type[BrokerMessage],
        given: BrokerKeywords,
    ) -> None:
        self._make_connection = connect
        parser, decoder = given.get("parser"), given.get("decoder")
        shown = given.get("specification_url") or masked_url(url or f"{self.PROTOCOL}://localhost")
        super().__init__(
            routers=given.get("routers", ()),
            config=Config(
                producer=Producer(message_class, parser, decoder),
                allow_auto_create_topics=given.get("allow_auto_create_topics", True),
                broker_decoder=decoder,
                broker_codec=given.get("codec"),
                broker_parser=parser,
                broker_middlewares=given.get("middlewares", ()),
                logger=make_logger_state(
                    logger=given.get("logger", EMPTY),
                    log_level=given.get("log_level", logging.INFO),
                    default_storage_cls=LogColumns,
                ),
                fd_config=FastDependsConfig(
                    use_fastdepends=given.get("apply_types", True),
                    serializer=given.get("serializer", EMPTY),
                    provider=given.get("provider") or dependency_provider,
                    context=given.get("context") or ContextRepo(),
                ),
                graceful_timeout=given.get("graceful_timeout", GRACEFUL_TIMEOUT_S),
                ack_policy=given.get("ack_policy", EMPTY),
                id_generator=given.get("id_generator", gen_cor_id),
                broker_dependencies=tuple(given.get("dependencies", ())),
                extra_context={"broker": self},
                default_driver_annotations={
                    kind: UnderlyingDriverAnnotation(
                        type_hint=kind, module=ANNOTATIONS, name=kind.__name__
                    )
                    for kind in (message_class, type(self))
                },
            ),
            specification=BrokerSpec(
                description=given.get("description"),
                url=[shown] if isinstance(shown, str) else list(shown),
                protocol=given.get("protocol") or self.PROTOCOL,
                protocol_version=given.get("protocol_version") or self.VERSION,
                security=given.get("security"),
                tags=given.get("tags", ()),
            ),
        )

    async def start(self) -> None:
        """Connect, and start the subscribers."""
        await self.connect()
        await super().start()

    async def stop(
        self,
        exc_type: type[BaseException] | None = None,
        exc_val: BaseException | None = None,
        exc_tb: TracebackType | None = None,
    ) -> None:
        """Stop the subscribers, then disconnect; see `graceful_timeout`."""
        try:
            await super().stop(exc_type, exc_val, exc_tb)
        finally:
            producer = self.config.broker_config.producer
            connection, producer.opened = producer.opened, None
            self._connection = None
            if connection is not None:
                await connection.close()

    async def ping(self, timeout: float | None) -> bool:  # noqa: ASYNC109 - FastStream's name
        """Whether a server answers in time.

        Args:
            timeout: in seconds; None to wait for ever.
        """
        try:
            async with asyncio.timeout(timeout):
                while True:
                    try:
                        await self.config.broker_config.producer.connection.ask()
                    except CohererError:
                        await asyncio.sleep(PING_PAUSE_S)
                    else:
                        return True
        except TimeoutError:
            return False

    async def _connect(self) -> Connection:
        config = self.config.broker_config
        producer = config.producer
        producer.serializer = serializer_of(config)
        producer.codec = config.broker_codec or DefaultCodec()
        connection = self._make_connection()
        try:
            await connection.open()
        except BaseException:
            await connection.close()
            raise
        producer.opened = connection
        return connection

    def _command(
        self,
        *messages: SendableMessage,
        topic: str,
        publish_type: PublishType = PublishType.PUBLISH,
        **options: Any,
    ) -> Command:
        options["correlation_id"] = options.get("correlation_id") or self.config.id_generator()
        return self.COMMAND.of(messages, topic, publish_type, **options)


def serializer_of(config: BrokerConfig) -> Any:
    """The serializer, which FastStream's brokers take from there, too."""
    return config.fd_config._serializer  # pyright: ignore[reportPrivateUsage]


def login(security: BaseSecurity | None) -> dict[str, Any]:
    """The client's options of FastStream's `security`.

    Raises:
        SetupError: the protocols have no such authentication.
    """
    if security is None:
        return {}
    options: dict[str, Any] = {}
    if isinstance(security, SASLPlaintext):
        options = {"user": security.username, "password": security.password}
    elif type(security) is not BaseSecurity:
        raise SetupError(
            f"{type(security).__name__} cannot be used here. Give the access key and the secret "
            "key as `SASLPlaintext(username, password)`."
        )
    if security.ssl_context is not None:
        raise SetupError(
            "An SSL context cannot be used here. Give the broker "
            "`tls=coherer.rocketmq.TlsOptions(trust=..., certificate=...)`."
        )
    if security.use_ssl:
        options["tls"] = TlsOptions()
    return options
