"""Publishing: the producer of a broker, publishers, and replies."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from faststream._internal.configs import PublisherSpecificationConfig, PublisherUsecaseConfig
from faststream._internal.endpoint.publisher import PublisherSpecification, PublisherUsecase
from faststream._internal.endpoint.publisher.fake import FakePublisher
from faststream._internal.endpoint.utils import ParserComposition
from faststream._internal.parser import BatchCodecProto, CodecProto, DefaultCodec
from faststream._internal.producer import ProducerProto
from faststream._internal.types import CustomCallable, PublisherMiddleware
from faststream.exceptions import IncorrectState
from faststream.response.publish_type import PublishType
from faststream.response.response import PublishCommand
from faststream.specification.asyncapi.utils import resolve_payloads
from faststream.specification.schema import Message as MessageSpec
from faststream.specification.schema import Operation, PublisherSpec

from coherer._common.logs import Log
from coherer.errors import RefusedError, UsageError
from coherer.integrations.faststream.connection import Connection
from coherer.integrations.faststream.message import BrokerMessage, Parser, RawMessage
from coherer.integrations.faststream.response import Command
from coherer.message import Message, Receipt

_log = Log(logging.getLogger(__name__))


class Producer(ProducerProto[Command]):
    """Encodes what is published, and sends it over the connection of the broker.

    Args:
        message_class: of the replies to requests.
        parser: the broker's own parser.
        decoder: the broker's own decoder.

    Attributes:
        opened: the connection, while the broker is connected.
    """

    def __init__(
        self,
        message_class: type[BrokerMessage],
        parser: CustomCallable | None,
        decoder: CustomCallable | None,
    ) -> None:
        default = Parser(message_class)
        self._parser = ParserComposition(parser, default.parse_message)
        self._decoder = ParserComposition(decoder, default.decode_message)
        self.codec: CodecProto = DefaultCodec()
        self.serializer: Any = None
        self.opened: Connection | None = None

    @property
    def connection(self) -> Connection:
        """The connection of the broker.

        Raises:
            IncorrectState: the broker is not connected.
        """
        if self.opened is None:
            raise IncorrectState(
                "The broker is not connected. Call `await broker.connect()` first."
            )
        return self.opened

    async def publish(self, cmd: Command) -> Receipt | asyncio.Future[Any] | None:
        """Send one message."""
        message = await self.encoded(cmd)
        if cmd.request is None:
            return await self.connection.send(cmd, message)
        try:
            return await self.connection.reply(cmd.request, message)
        except (RefusedError, UsageError) as error:
            # Delivering the request again would repeat the handler's work for nobody.
            _log.warning("The reply to a request is dropped: %s", error)
            return None

    async def publish_batch(self, cmd: Command) -> list[Receipt]:
        """Send several messages of one topic."""
        messages = await self.encoded_batch(cmd)
        return await self.connection.send_batch(cmd, messages) if messages else []

    async def request(self, cmd: Command) -> Any:
        """Send a message and wait for the reply."""
        return await self.connection.request(cmd, await self.encoded(cmd))

    async def encoded(self, cmd: Command) -> Message:
        """The message to send."""
        body, content_type = await self.codec.encode(cmd.body, self.serializer)
        return cmd.message(body, content_type)

    async def encoded_batch(self, cmd: Command) -> list[Message]:
        """The messages of a batch to send."""
        bodies = cmd.batch_bodies
        if isinstance(self.codec, BatchCodecProto):
            encoded = await self.codec.encode_batch(bodies, self.serializer)
        else:
            encoded = [await self.codec.encode(body, self.serializer) for body in bodies]
        return [
            cmd.message(body, content_type, cmd.part(number))
            for number, (body, content_type) in enumerate(encoded)
        ]


@dataclass(kw_only=True)
class PublisherSpecConfig(PublisherSpecificationConfig):
    """What the schema of a publisher needs."""

    topic: str


class PublisherSchema(PublisherSpecification[Any, PublisherSpecConfig]):
    """The AsyncAPI schema of a publisher."""

    __slots__ = ()

    @property
    def topic(self) -> str:
        """The topic with the routers' prefixes."""
        return f"{self._outer_config.prefix}{self.config.topic}"

    @property
    def name(self) -> str:
        """The name of the channel."""
        return self.config.title_ or f"{self.topic}:Publisher"

    def get_schema(self) -> dict[str, PublisherSpec]:
        """The channel."""
        payload = resolve_payloads(self.get_payloads(), "Publisher")
        message = MessageSpec(title=f"{self.name}:Message", payload=payload)
        return {
            self.name: PublisherSpec(
                address=self.topic,
                description=self.config.description_,
                operation=Operation(message=message, bindings=None),
                bindings=None,  # AsyncAPI defines none for these protocols
            )
        }


@dataclass(kw_only=True)
class PublisherConfig(PublisherUsecaseConfig):
    """The options of a publisher.

    Attributes:
        command: the protocol's command.
        topic: the topic, without prefixes.
        batch: whether a handler's sequence is published as a batch.
        headers: of every message.
        reply_to: of every message.
        options: the protocol's other arguments of the command.
    """

    command: type[Command]
    topic: str
    batch: bool = False
    headers: dict[str, str] = field(default_factory=dict[str, str])
    reply_to: str = ""
    options: dict[str, Any] = field(default_factory=dict[str, Any])


class BasePublisher(PublisherUsecase):
    """What the publishers of both protocols have in common."""

    def __init__(self, config: PublisherConfig, specification: PublisherSchema) -> None:
        super().__init__(config, cast("Any", specification))
        self._config = config

    @property
    def topic(self) -> str:
        """The topic with the routers' prefixes."""
        return f"{self._outer_config.prefix}{self._config.topic}"

    @property
    def batch(self) -> bool:
        """Whether it publishes batches."""
        return self._config.batch

    def _command(
        self,
        bodies: Sequence[Any],
        topic: str,
        *,
        publish_type: PublishType = PublishType.PUBLISH,
        **given: Any,
    ) -> Command:
        """The command for bodies, with the publisher's options in place of those not given."""
        config = self._config
        options = {name: value for name, value in given.items() if value not in (None, ())}
        options["headers"] = config.headers | options.get("headers", {})
        options.setdefault("correlation_id", self._outer_config.id_generator())
        options["reply_to"] = options.get("reply_to") or config.reply_to
        return config.command.of(
            bodies, topic or self.topic, publish_type, **(config.options | options)
        )

    async def _send(self, cmd: Command) -> Any:
        publish = self._basic_publish_batch if self.batch else self._basic_publish
        return await publish(cmd, producer=self._outer_config.producer, _extra_middlewares=())

    async def _publish(
        self, cmd: PublishCommand, *, _extra_middlewares: Iterable[PublisherMiddleware]
    ) -> None:
        """Publish what a handler has returned."""
        config = self._config
        sent = config.command.from_cmd(cmd, batch=self.batch)
        sent.destination = self.topic
        sent.add_headers(config.headers, override=False)
        sent.reply_to = sent.reply_to or config.reply_to
        for name, value in config.options.items():
            if getattr(sent, name) in (None, ()):
                setattr(sent, name, value)
        publish = self._basic_publish_batch if self.batch else self._basic_publish
        await publish(
            sent, producer=self._outer_config.producer, _extra_middlewares=_extra_middlewares
        )


class ReplyPublisher(FakePublisher):
    """Publishes what a handler returns to a message that asks for a reply.

    Args:
        producer: the broker's producer.
        command: the protocol's command.
        topic: where to publish it.
        request: the request to answer instead, with RocketMQ's request-reply.
    """

    def __init__(
        self,
        producer: ProducerProto[Any],
        command: type[Command],
        topic: str,
        request: RawMessage | None,
    ) -> None:
        super().__init__(producer=producer)
        self._command = command
        self._topic = topic
        self._request = request

    def patch_command(self, cmd: PublishCommand) -> Command:
        """The command with the destination of the reply."""
        sent = self._command.from_cmd(super().patch_command(cmd))
        sent.destination = self._topic
        sent.request = self._request
        return sent


def producer_of(config: Any) -> Producer:
    """The producer of a broker."""
    return cast("Producer", config.producer)
