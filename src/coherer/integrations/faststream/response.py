"""What is published: commands, which middlewares see, and what handlers return."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any, Self

import msgspec
from faststream._internal.basic_types import SendableMessage
from faststream.response.publish_type import PublishType
from faststream.response.response import BatchPublishCommand, PublishCommand, Response

from coherer.errors import UsageError
from coherer.integrations.faststream.message import (
    CORRELATION_ID,
    REPLY_TO,
    RawMessage,
    quoted,
    to_message,
)
from coherer.message import Message
from coherer.rocketmq import Queue


class Command(BatchPublishCommand):
    """What the commands of both protocols have in common.

    Args:
        message: the body.
        messages: the bodies of the other messages of a batch.
        topic: the topic.
        tag: the word that consumers filter by.
        timestamp_ms: the time that the message refers to, ms since 1970.
        headers: the headers.
        correlation_id: see `publish`.
        reply_to: the topic for the handler's return value.
        no_confirm: do not wait for the receipt.
        timeout: of a request, in seconds.
    """

    request: RawMessage | None = None
    """The request that this replies to."""

    def __init__(
        self,
        message: Any,
        /,
        *messages: Any,
        topic: str,
        _publish_type: PublishType,
        tag: str | None = None,
        timestamp_ms: int | None = None,
        headers: dict[str, Any] | None = None,
        correlation_id: str | None = None,
        reply_to: str = "",
        no_confirm: bool = False,
        timeout: float = 0.5,
    ) -> None:
        (body, *others), parts = _split((message, *messages))
        super().__init__(
            body,
            *others,
            destination=topic,
            reply_to=reply_to,
            correlation_id=correlation_id,
            headers=headers,
            _publish_type=_publish_type,
        )
        self._parts = parts  # the messages that have options of their own
        self._empty = False  # a batch without messages
        self.tag = tag
        self.timestamp_ms = timestamp_ms
        self.no_confirm = no_confirm
        self.timeout = timeout

    @classmethod
    def of(
        cls, bodies: Sequence[Any], topic: str, publish_type: PublishType, **options: Any
    ) -> Self:
        """A command that publishes one body or several; none are an empty batch."""
        body, *others = bodies or (None,)
        made = cls(body, *others, topic=topic, _publish_type=publish_type, **options)
        if not bodies:
            made.batch_bodies = ()
        return made

    @classmethod
    def from_cmd(cls, cmd: PublishCommand, *, batch: bool = False) -> Self:
        """A command of this protocol with the content of another one."""
        body, others = cls._parse_bodies(cmd.body, batch=batch)
        if isinstance(cmd, cls):
            if body is not cmd.body:
                cmd.batch_bodies = (body, *others)
            return cmd
        return cls(
            body,
            *others,
            topic=cmd.destination,
            correlation_id=cmd.correlation_id,
            headers=cmd.headers,
            reply_to=cmd.reply_to,
            _publish_type=cmd.publish_type,
        )

    @property
    def batch_bodies(self) -> tuple[Any, ...]:
        """The bodies of a batch."""
        return () if self._empty else (self.body, *self.extra_bodies)

    @batch_bodies.setter
    def batch_bodies(self, value: Sequence[Any]) -> None:
        """Replace the bodies. A message's own options follow its body, or else its position."""
        rest = list(zip(self.batch_bodies, self._parts, strict=True)) if self._parts else []
        bodies, parts = _split(value)
        in_place = len(rest) == len(bodies)
        for number, body in enumerate(bodies if rest else ()):
            equal = next((at for at, (old, _) in enumerate(rest) if old == body), None)
            kept = self._parts[number] if in_place else None
            kept = kept if equal is None else rest.pop(equal)[1]
            parts[number] = parts[number] or kept
        self._parts, self._empty = parts, not bodies
        self.body, self.extra_bodies = (bodies[0], tuple(bodies[1:])) if bodies else (None, ())

    def part(self, number: int) -> Response | None:
        """The options of a message of a batch; None if it has none of its own."""
        return self._parts[number] if number < len(self._parts) else None

    def headers_to_publish(self) -> dict[str, Any]:
        """The headers with the correlation id and the reply topic."""
        given: dict[str, Any] = {}
        if self.correlation_id:
            given[CORRELATION_ID] = self.correlation_id
        if self.reply_to:
            given[REPLY_TO] = self.reply_to
        return given | self.headers

    def keys_of(self, part: Response | None) -> tuple[str, ...]:
        """The index keys of the message, or of a message of a batch."""
        del part
        return ()

    def message(
        self, body: bytes, content_type: str | None, part: Response | None = None
    ) -> Message:
        """The message to send.

        Args:
            body: the encoded body.
            content_type: its type.
            part: the message of a batch that has options of its own.
        """
        headers, tag, timestamp_ms = self.headers_to_publish(), self.tag, self.timestamp_ms
        if part is not None:
            headers |= part.headers
            if part.correlation_id:
                headers[CORRELATION_ID] = part.correlation_id
            tag = getattr(part, "tag", None) or tag
            timestamp_ms = getattr(part, "timestamp_ms", None) or timestamp_ms
        return to_message(
            self.destination,
            body,
            content_type,
            headers,
            tag=tag,
            keys=self.keys_of(part),
            timestamp_ms=timestamp_ms,
        )


def _split(given: Sequence[Any]) -> tuple[list[Any], list[Response | None]]:
    """The bodies of a batch, and the messages among them that have options of their own."""
    parts = [one if isinstance(one, Response) else None for one in given]
    bodies = [one.body if isinstance(one, Response) else one for one in given]
    return bodies, parts


class RocketMQPublishCommand(Command):
    """A message, or a batch, to publish to RocketMQ.

    Args:
        message: the body.
        messages: the bodies of the other messages of a batch.
        topic: the topic.
        key: messages with the same key go to the same queue, in order. It is the first index key.
        keys: further words to find the message by.
        queue: send to this queue only.
        deliver_at: the broker delays the message until then.
        delay: the broker delays the message for this time.
        others: see `Command`.
    """

    def __init__(
        self,
        message: Any,
        /,
        *messages: Any,
        topic: str,
        _publish_type: PublishType,
        key: str | bytes | None = None,
        keys: Sequence[str] = (),
        queue: Queue | None = None,
        deliver_at: datetime | None = None,
        delay: timedelta | None = None,
        **others: Any,
    ) -> None:
        super().__init__(message, *messages, topic=topic, _publish_type=_publish_type, **others)
        self.key = _key(key)
        self.keys = key_words(keys)
        self.queue = queue
        self.deliver_at = deliver_at
        self.delay = delay

    def keys_of(self, part: Response | None) -> tuple[str, ...]:
        """The index keys; a message of a batch has its own or those of the command."""
        key, keys = self.key, self.keys
        if isinstance(part, RocketMQResponse):
            key, keys = part.key or key, part.keys or keys
        return (key, *keys) if key else keys


class TubeMQPublishCommand(Command):
    """A message, or a batch, to publish to TubeMQ."""

    def message(
        self, body: bytes, content_type: str | None, part: Response | None = None
    ) -> Message:
        """The message to send, whose properties TubeMQ can carry; see `quoted`."""
        made = super().message(body, content_type, part)
        return msgspec.structs.replace(made, properties=quoted(made.properties))


class RocketMQResponse(Response):
    """What a handler returns to set more than the body, or a message of `publish_batch`.

    Args:
        body: the body.
        headers: the headers.
        correlation_id: the request's when None.
        key: messages with the same key go to the same queue, in order. It is the first index key.
            In a batch it is only an index key: a batch goes to one queue.
        keys: further words to find the message by.
        tag: the word that consumers filter by.
        timestamp_ms: the time that the message refers to, ms since 1970.
        deliver_at: the broker delays the message until then.
        delay: the broker delays the message for this time.
    """

    def __init__(
        self,
        body: SendableMessage,
        *,
        headers: dict[str, Any] | None = None,
        correlation_id: str | None = None,
        key: str | bytes | None = None,
        keys: Sequence[str] = (),
        tag: str | None = None,
        timestamp_ms: int | None = None,
        deliver_at: datetime | None = None,
        delay: timedelta | None = None,
    ) -> None:
        super().__init__(body, headers=headers, correlation_id=correlation_id)
        self.key = _key(key)
        self.keys = key_words(keys)
        self.tag = tag
        self.timestamp_ms = timestamp_ms
        self.deliver_at = deliver_at
        self.delay = delay

    def get_publish_key(self) -> str | None:
        """The key."""
        return self.key

    def as_publish_command(self) -> RocketMQPublishCommand:
        """The command that publishes it."""
        return RocketMQPublishCommand(
            self.body,
            topic="",
            headers=self.headers,
            correlation_id=self.correlation_id,
            key=self.key,
            keys=self.keys,
            tag=self.tag,
            timestamp_ms=self.timestamp_ms,
            deliver_at=self.deliver_at,
            delay=self.delay,
            _publish_type=PublishType.PUBLISH,
        )


class TubeMQResponse(Response):
    """What a handler returns to set more than the body, or a message of `publish_batch`.

    Args:
        body: the body.
        headers: the headers.
        correlation_id: the request's when None.
        tag: the word that consumers filter by.
        timestamp_ms: the time that the message refers to, ms since 1970; TubeMQ keeps minutes.
    """

    def __init__(
        self,
        body: SendableMessage,
        *,
        headers: dict[str, Any] | None = None,
        correlation_id: str | None = None,
        tag: str | None = None,
        timestamp_ms: int | None = None,
    ) -> None:
        super().__init__(body, headers=headers, correlation_id=correlation_id)
        self.tag = tag
        self.timestamp_ms = timestamp_ms

    def as_publish_command(self) -> TubeMQPublishCommand:
        """The command that publishes it."""
        return TubeMQPublishCommand(
            self.body,
            topic="",
            headers=self.headers,
            correlation_id=self.correlation_id,
            tag=self.tag,
            timestamp_ms=self.timestamp_ms,
            _publish_type=PublishType.PUBLISH,
        )


RocketMQPublishMessage = RocketMQResponse
"""The better name for a message of `publish_batch`."""

TubeMQPublishMessage = TubeMQResponse


def key_words(keys: Sequence[str]) -> tuple[str, ...]:
    """The index keys as a message has them.

    Raises:
        UsageError: they are one text, whose letters are meant by nobody.
    """
    if isinstance(keys, str):
        raise UsageError("`keys` are several words.", hint=f"Write keys=({keys!r},) for one.")
    return tuple(keys)


def _key(key: str | bytes | None) -> str | None:
    return key.decode() if isinstance(key, bytes) else key
