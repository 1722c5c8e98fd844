"""Messages as FastStream's handlers see them, and how headers become properties.

Headers are the message's properties: `content-type`, `correlation_id` and `reply_to` have the names
that FastStream gives them elsewhere. Neither protocol stores an empty body or a blank property. An
empty body is sent as one zero byte with the property `content-length` = `0`; blank headers are left
out.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Iterable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, Final, Generic, Protocol, TypeAlias, TypeVar, cast
from urllib.parse import unquote

from faststream.message import StreamMessage, decode_message

from coherer import message as messages
from coherer import rocketmq, tubemq
from coherer._common.logs import Log
from coherer.message import Message
from coherer.rocketmq import RetryAfter, StoredMessage

_log = Log(logging.getLogger(__name__))

CONTENT_TYPE: Final = "content-type"
CORRELATION_ID: Final = "correlation_id"
REPLY_TO: Final = "reply_to"
CONTENT_LENGTH: Final = "content-length"
EMPTY_BODY: Final = b"\0"
"""What is sent for an empty body."""

TUBEMQ_RETRY: Final = timedelta(seconds=1)
"""When a batch of TubeMQ is delivered again by default, as with `coherer.tubemq.Consumer.run`."""


# -- sending


def to_message(
    topic: str,
    body: bytes,
    content_type: str | None,
    headers: Mapping[str, object],
    *,
    tag: str | None = None,
    keys: tuple[str, ...] = (),
    timestamp_ms: int | None = None,
) -> Message:
    """Make the message to send from an encoded body and headers."""
    given = {CONTENT_TYPE: content_type, **headers}
    properties = {
        name: text for name, value in given.items() if (text := _text(value)) and text.strip()
    }
    if not body:
        body = EMPTY_BODY
        properties[CONTENT_LENGTH] = "0"
    time = None if timestamp_ms is None else datetime.fromtimestamp(timestamp_ms / 1000, UTC)
    return Message(topic, body, tag=tag, time=time, keys=keys, properties=properties)


def _text(value: object) -> str:
    if value is None:
        return ""
    return value.decode() if isinstance(value, bytes) else str(value)


def body_of(raw: RawMessage) -> bytes:
    """The body that was published; see the module."""
    body: bytes = raw.body
    if body == EMPTY_BODY and raw.properties.get(CONTENT_LENGTH) == "0":
        return b""
    return body


def is_request(raw: object) -> bool:
    """Whether a message was sent with RocketMQ's request-reply, and is answered by it."""
    stored: Mapping[str, str] = getattr(raw, "stored_properties", {})
    return bool(stored.get("REPLY_TO_CLIENT") and stored.get("CLUSTER"))


# -- received messages


class Settlement(Protocol):
    """Acknowledges or retries what a handler received: one message, or a batch."""

    def ack(self) -> Awaitable[None]:
        """Do not deliver it again."""
        ...

    async def retry(self, *, later: RetryAfter = None, reason: str | None = None) -> None:
        """Deliver it again later."""
        ...

    async def dead_letter(self, *, reason: str | None = None) -> None:
        """Give it up."""
        ...


class TubeMQDelivered(messages.ReceivedMessage, frozen=True):
    """A message of TubeMQ, with what acknowledges it; see `subscriber.Share`."""

    settlement: Settlement | None = None


RocketMQRawMessage: TypeAlias = rocketmq.ReceivedMessage | StoredMessage
"""`StoredMessage` in `TestRocketMQBroker` and as the reply to a request."""

RawMessage: TypeAlias = RocketMQRawMessage | messages.ReceivedMessage

R = TypeVar("R", bound="RawMessage")


class RawBatch(tuple[R, ...], Generic[R]):  # noqa: SLOT001 - it has an attribute
    """The messages that a batch subscriber receives at once.

    Attributes:
        settlement: acknowledges or retries all of them; None in a test broker.
    """

    settlement: Settlement | None

    def __new__(cls, messages: Iterable[R], settlement: Settlement | None = None) -> RawBatch[R]:
        """Make the tuple."""
        made = super().__new__(cls, messages)
        made.settlement = settlement
        return made

    @classmethod
    def of(cls, batch: rocketmq.ReceivedBatch | tubemq.ReceivedBatch) -> RawBatch[Any]:
        """The messages of a batch."""
        return cls(cast("Iterable[Any]", batch), _Batch(batch))


class _Batch:
    """The settlement of a batch of either protocol."""

    def __init__(self, batch: rocketmq.ReceivedBatch | tubemq.ReceivedBatch) -> None:
        self._batch = batch

    def ack(self) -> Awaitable[None]:
        return self._batch.ack()

    async def retry(self, *, later: RetryAfter = None, reason: str | None = None) -> None:
        if isinstance(self._batch, rocketmq.ReceivedBatch):
            await self._batch.retry(later=later, reason=reason)
        else:
            await self._batch.retry(later=TUBEMQ_RETRY if later is None else later)

    async def dead_letter(self, *, reason: str | None = None) -> None:
        if isinstance(self._batch, rocketmq.ReceivedBatch):
            await self._batch.dead_letter(reason=reason)
        else:
            log_dropped(self._batch.topic, reason)
            await self._batch.ack()


def log_dropped(topic: str, reason: str | None) -> None:
    """Log that TubeMQ, which has no dead letters, loses what was rejected."""
    _log.plain.warning(
        "A message of %s is dropped (TubeMQ has no dead letters): %s",
        topic,
        reason or "it was rejected",
    )


def settlement_of(raw: object) -> Settlement | None:
    """What acknowledges or retries a received message or batch; None in a test broker."""
    if isinstance(raw, rocketmq.ReceivedMessage):
        return raw
    found: Settlement | None = getattr(raw, "settlement", None)
    return found


class BrokerMessage(StreamMessage[Any]):
    """What the messages of both protocols have in common."""

    async def ack(self) -> None:
        """Acknowledge the message: it is not delivered again."""
        settlement = self._open_settlement()
        if settlement is not None:
            await settlement.ack()
        await super().ack()

    async def nack(self, *, later: RetryAfter = None, reason: str | None = None) -> None:
        """Have the message delivered again.

        Args:
            later: the delay; None for the protocol's: longer with each attempt in RocketMQ, a
                second in TubeMQ.
            reason: why, for the people who examine dead letters (RocketMQ).
        """
        settlement = self._open_settlement()
        if settlement is not None:
            await settlement.retry(later=later, reason=reason)
        await super().nack()

    async def reject(self, *, reason: str | None = None) -> None:
        """Give the message up: it becomes a dead letter in RocketMQ, and is dropped in TubeMQ.

        Args:
            reason: see `nack`.
        """
        settlement = self._open_settlement()
        if settlement is not None:
            await settlement.dead_letter(reason=reason)
        await super().reject()

    def _open_settlement(self) -> Settlement | None:
        return settlement_of(self.raw_message) if self.committed is None else None

    @classmethod
    def headers_of(cls, raw: RawMessage) -> dict[str, str]:
        """The headers of a received message: its properties."""
        headers = dict(raw.properties)
        if headers.get(CONTENT_LENGTH) == "0":
            del headers[CONTENT_LENGTH]
        return headers


class RocketMQMessage(BrokerMessage):
    """A message of RocketMQ as handlers get it.

    `raw_message` is a `coherer.rocketmq.ReceivedMessage` with tag, keys, attempt and the rest; a
    tuple of them in a batch subscriber.
    """


class TubeMQMessage(BrokerMessage):
    """A message of TubeMQ as handlers get it.

    `raw_message` is a `coherer.tubemq.ReceivedMessage`; a tuple of them in a batch subscriber.
    """

    @classmethod
    def headers_of(cls, raw: RawMessage) -> dict[str, str]:
        """The headers of a received message; see `quoted`."""
        return {name: unquote(text) for name, text in super().headers_of(raw).items()}


def quoted(properties: Mapping[str, str]) -> dict[str, str]:
    """Properties that TubeMQ can carry: `,`, `=` and `%` in values are percent-encoded."""
    return {
        name: text.replace("%", "%25").replace(",", "%2C").replace("=", "%3D")
        for name, text in properties.items()
    }


class Parser:
    """Makes a handler's message from a received one.

    Args:
        message_class: the protocol's class.
    """

    def __init__(self, message_class: type[BrokerMessage]) -> None:
        self._message_class = message_class

    async def parse_message(self, message: RawMessage) -> StreamMessage[Any]:
        """The message with its headers."""
        headers = self._message_class.headers_of(message)
        return self._message_class(
            raw_message=message,
            body=body_of(message),
            headers=headers,
            reply_to=headers.get(REPLY_TO, "") or _reply_client(message),
            content_type=headers.get(CONTENT_TYPE),
            correlation_id=headers.get(CORRELATION_ID),
            message_id=getattr(message, "unique_id", "") or message.id,
        )

    async def decode_message(self, msg: StreamMessage[Any]) -> Any:
        """The body as Python objects."""
        return decode_message(msg)

    async def parse_batch(self, message: tuple[RawMessage, ...]) -> StreamMessage[Any]:
        """The messages of a batch as one, with the headers of the first."""
        first, last = message[0], message[-1]
        batch_headers = [self._message_class.headers_of(one) for one in message]
        headers = batch_headers[0]
        return self._message_class(
            raw_message=message,
            body=[body_of(one) for one in message],
            headers=headers,
            batch_headers=batch_headers,
            reply_to=headers.get(REPLY_TO, ""),
            content_type=headers.get(CONTENT_TYPE),
            correlation_id=headers.get(CORRELATION_ID),
            message_id=f"{first.id}-{last.offset}",
        )

    async def decode_batch(self, msg: StreamMessage[Any]) -> list[Any]:
        """The bodies as Python objects."""
        return [decode_message(await self.parse_message(raw)) for raw in msg.raw_message]


def raw_messages(message: StreamMessage[Any]) -> tuple[RawMessage, ...]:
    """The received message, or those of a batch."""
    raw: Any = message.raw_message
    return cast("tuple[RawMessage, ...]", raw if isinstance(raw, tuple) else (raw,))


def _reply_client(message: RawMessage) -> str:
    stored: Mapping[str, str] = getattr(message, "stored_properties", {})
    return stored.get("REPLY_TO_CLIENT", "") if is_request(message) else ""
