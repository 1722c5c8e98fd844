"""Received messages and batches, and what the application can say about them.

See docs/protocol/rocketmq.md, sections 5.3, 6.8, 8.13 and 8.14.

`ack`, `retry` and `dead_letter` work on a message and on a batch. After its queue was revoked, or
after a `seek`, they have no effect: the messages are delivered again, to the owner of the queue.

`Redelivery` has messages delivered again (sections 8.13, 8.14, 6.8):

| consumer | a message that is retried |
|---|---|
| concurrent | goes back to its broker (36), which delivers it later or makes it a dead letter |
| with a reason | is sent to the group's retry topic with the reason as a property |
| | if that fails: goes back to its broker, without the reason |
| | if that fails: is sent as a new message to the group's retry topic |
| | if that fails too: is delivered again by this consumer |
| orderly | is delivered again by this consumer, until it has failed too often |
| broadcast | is dropped with a warning: other members have their own |
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from itertools import count, pairwise, repeat
from typing import Any, Final, Self

import msgspec
from msgspec.structs import replace

from coherer._client.engine.arguments import checked
from coherer._client.engine.assigned import Delivery, RetryAfter
from coherer._client.engine.consumer import Acknowledgeable
from coherer._client.rocketmq.consuming.broker_rpc import SEND_BACK_TIMEOUT_MS, BrokerRpc
from coherer._client.rocketmq.options import ConsumerOptions
from coherer._common.logs import Log
from coherer._record import properties as text
from coherer._record.system_topics import DELAY_LEVELS_MS
from coherer._wire.rocketmq.codes import V4_9_1, RequestCode
from coherer._wire.rocketmq.delivery import MessageBatch
from coherer._wire.rocketmq.headers import SendHeader
from coherer._wire.rocketmq.messages import StoredMessage
from coherer._wire.rocketmq.names import (
    AUTO_CREATE_TOPIC,
    RETRY_REASON,
    Queue,
    retry_topic,
    with_namespace,
    without_namespace,
)
from coherer.errors import CohererError, UnavailableError, UsageError
from coherer.limits import RETRY_REASON_CHARS_MAX

_log = Log(logging.getLogger(__name__))

DEAD: Final = -1
"""The delay level of a dead letter (section 8.13)."""

RETRIES_DEFAULT: Final = 16
"""A group's maximum number of redeliveries, unless an administrator sets it."""

RETRY_LEVEL_FIRST: Final = 3
"""The delay level of the first retry; each further retry has the next one."""

NOT_COPIED: Final = ("TRAN_MSG", "RECONSUME_TIME", "MAX_RECONSUME_TIMES")
"""Properties that a copy in the retry topic must not have."""

DoneCallback = Callable[[Collection[int]], None]
"""Called when a batch is done, with the offsets of the messages that were retried."""


@checked
class ReceivedMessage(msgspec.Struct, frozen=True, eq=False, gc=False):
    """A message that a consumer has received.

    The body is available at once. The other attributes are those of `StoredMessage`; the first
    access to one of them decodes the message, because most of the time of receiving would go into
    properties, times and ids that the application may not need. `detach` returns the message
    without its batch, to keep it, to change it, or to serialize it.

    A message that is neither acknowledged nor retried is acknowledged together with its batch, or
    when a loop asks for the next message.
    """

    body: bytes
    _batch: ReceivedBatch
    _number: int

    def ack(self) -> None:
        """Acknowledge the message: it is not delivered again. Repeating it has no effect."""
        self._batch.ack_message(self._number)

    async def retry(self, *, later: RetryAfter = None, reason: str | None = None) -> None:
        """Have the message delivered again later, with a higher `attempt`.

        The broker keeps it meanwhile. After too many attempts it becomes a dead letter. An orderly
        consumer pauses the queue instead, and continues with this message. If no broker accepts the
        message, this consumer delivers it again after some seconds.

        Args:
            later: the delay. Brokers only have some delays (`_record.system_topics`) and use the
                next longer one. A number is one of these levels. None: longer with each attempt.
            reason: why the message is retried, for the people who examine dead letters. The broker
                stores it as the property `cohererRetryReason`, up to
                `limits.RETRY_REASON_CHARS_MAX` characters; a later reason replaces it. Do not put
                secrets in it.

        Raises:
            UsageError: there is no such level.
        """
        await self._batch.retry_message(self._number, later, reason)

    async def dead_letter(self, *, reason: str | None = None) -> None:
        """Make the message a dead letter: it is not delivered to the group again.

        Args:
            reason: see `retry`.
        """
        await self.retry(later=DEAD, reason=reason)

    def detach(self) -> StoredMessage:
        """The decoded message, without its batch."""
        return self._batch.message(self._number)

    def __repr__(self) -> str:
        return repr(self.detach())

    def __eq__(self, other: object) -> bool:
        if isinstance(other, ReceivedMessage):
            other = other.detach()
        return self.detach() == other

    __hash__ = None  # type: ignore[assignment]  # a message holds mappings

    def __reduce__(self) -> str | tuple[Any, ...]:
        return self.detach().__reduce__()

    @property
    def topic(self) -> str:
        """The topic it was sent to."""
        return self.detach().topic

    @property
    def tag(self) -> str | None:
        """The tag that consumers filter by."""
        return self.detach().tag

    @property
    def time(self) -> datetime | None:
        """The time that its sender set, or the time it was sent."""
        return self.detach().time

    @property
    def keys(self) -> tuple[str, ...]:
        """The keys to look it up by."""
        return self.detach().keys

    @property
    def properties(self) -> Mapping[str, str]:
        """The application's properties."""
        return self.detach().properties

    @property
    def id(self) -> str:
        """The offset message id."""
        return self.detach().id

    @property
    def broker(self) -> str:
        """The name of its broker."""
        return self._batch.broker

    @property
    def partition(self) -> int:
        """The number of its queue."""
        return self.detach().partition

    @property
    def offset(self) -> int | None:
        """The offset in its queue."""
        return self.detach().offset

    @property
    def unique_id(self) -> str:
        """The id that its sender generated."""
        return self.detach().unique_id

    @property
    def born_ms(self) -> int:
        """When it was sent by the sender's clock, ms since 1970."""
        return self.detach().born_ms

    @property
    def stored_ms(self) -> int:
        """When it was stored by the broker's clock, ms since 1970."""
        return self.detach().stored_ms

    @property
    def attempt(self) -> int:
        """How often it was retried before; 0 the first time."""
        return self.detach().attempt

    @property
    def flag(self) -> int:
        """The application's flag."""
        return self.detach().flag

    @property
    def sys_flag(self) -> int:
        """The system flag (section 5.3)."""
        return self.detach().sys_flag

    @property
    def physical_offset(self) -> int:
        """The offset in the broker's commit log."""
        return self.detach().physical_offset

    @property
    def stored_properties(self) -> Mapping[str, str]:
        """All properties as they are stored."""
        return self.detach().stored_properties


@checked
class ReceivedBatch(MessageBatch, Acknowledgeable):
    """Messages of one queue that a consumer has received. See `MessageBatch`.

    Attributes:
        delivery: the state of the batch; None when it is done.
        count: the number of messages, as far as it is known without decoding them.
        filtered: whether the broker has filtered the messages.
        namespace: removed from topics.
        retries: redeliveries by this consumer, which the messages do not count.
        on_done: called when the batch is done.
    """

    __slots__ = (
        "_decoded", "_reasons", "count", "delivery", "filtered", "namespace", "on_done", "retries",
    )  # fmt: skip

    def __init__(
        self,
        body: bytes | bytearray | memoryview,
        queue: Queue,
        *,
        tags: frozenset[str] | None = None,
        offset: int | None = None,
        next_offset: int = 0,
        min_offset: int = 0,
        max_offset: int = 0,
        filtered: bool = False,
        namespace: str = "",
    ) -> None:
        super().__init__(
            body,
            queue,
            tags=tags,
            offset=offset,
            next_offset=next_offset,
            min_offset=min_offset,
            max_offset=max_offset,
        )
        # Counting without decoding: that would be most of the work of receiving.
        self.count = len(self) if filtered else next_offset - self.offset
        self.filtered = filtered
        self.namespace = namespace
        self.delivery: Delivery[ReceivedBatch] | None = None
        self.on_done: DoneCallback | None = None
        self.retries = 0
        self._decoded: dict[int, StoredMessage] = {}
        self._reasons: dict[int | None, str | None] = {}

    def __iter__(self) -> Iterator[ReceivedMessage]:  # type: ignore[override]
        return map(ReceivedMessage, self.bodies(), repeat(self), count())

    @property
    def left_out(self) -> list[range]:
        """See `MessageBatch.left_out`; empty if the broker has filtered."""
        return [] if self.filtered else super().left_out

    async def retry(self, *, later: RetryAfter = None, reason: str | None = None) -> None:
        """Have the messages that are not acknowledged delivered again.

        Args:
            later: the delay; None for the protocol's default.
            reason: why; see `ReceivedMessage.retry`.
        """
        self._reasons[None] = reason
        await super().retry(later=later)

    async def dead_letter(self, *, reason: str | None = None) -> None:
        """Make the messages that are not acknowledged dead letters.

        Args:
            reason: why; see `ReceivedMessage.retry`.
        """
        await self.retry(later=DEAD, reason=reason)

    def retry_reason(self, number: int) -> str | None:
        """The reason of the last retry of a message; None without one."""
        return self._reasons.get(number) or self._reasons.get(None)

    def message(self, number: int) -> StoredMessage:
        """The decoded message at a position in the batch."""
        message = self._decoded.get(number)
        if message is None:
            [message] = super().pick((number,)).messages(StoredMessage)
            if self.retries or self.namespace:
                topic = without_namespace(self.namespace, message.topic)
                message = replace(message, topic=topic, attempt=message.attempt + self.retries)
            self._decoded[number] = message
        return message

    def ack_message(self, number: int) -> None:
        """See `ReceivedMessage.ack`."""
        delivery = self.delivery
        if delivery is not None:
            delivery.acknowledge(number)
            delivery.count_seen()  # the messages before it that a loop has passed

    async def retry_message(
        self, number: int, later: RetryAfter, reason: str | None = None
    ) -> None:
        """See `ReceivedMessage.retry`."""
        if self.delivery is not None:
            self._reasons[number] = reason
            await self.delivery.retry(number, later)

    def pick(self, numbers: Sequence[int]) -> Self:
        """A new batch of the messages at these positions; there must be at least one."""
        part = super().pick(numbers)
        part.count = len(numbers)
        part.delivery = None
        part._decoded = {}
        part._reasons = {}
        return part

    def split(self, size: int) -> list[Self]:
        """The batch in parts of at most this many messages, without gaps between them."""
        total = len(self)
        if size < 1 or total <= size:
            return [self]
        parts = [self.pick(range(at, min(at + size, total))) for at in range(0, total, size)]
        parts[0].offset = self.offset
        for part, following in pairwise(parts):
            part.next_offset = following.offset
        return parts


def delay_level(later: RetryAfter) -> int:
    """The delay level of a retry: 0 lets the broker choose, -1 is a dead letter.

    Raises:
        UsageError: there is no such level.

    >>> delay_level(timedelta(minutes=1)), delay_level(None), delay_level(timedelta(days=1))
    (5, 0, 18)
    """
    if later is None:
        return 0
    if isinstance(later, timedelta):
        wanted_ms = later.total_seconds() * 1000
        levels = enumerate(DELAY_LEVELS_MS, 1)
        return next((level for level, ms in levels if ms >= wanted_ms), len(DELAY_LEVELS_MS))
    if not DEAD <= later <= 0x7FFFFFFF:
        raise UsageError(f"{later} is not a delay level.", hint="Levels are 1, 2, and so on.")
    return later


def reason_text(reason: str | None) -> str | None:
    r"""Convert a reason to the value of a property; None without one.

    >>> reason_text(" no such\x02account\n"), reason_text(" ")
    ('no such account', None)
    """
    if reason is None:
        return None
    readable = "".join(char if char.isprintable() else " " for char in reason)
    return " ".join(readable.split())[:RETRY_REASON_CHARS_MAX].strip() or None


class Redelivery:
    """Has messages of one group delivered again; see the module.

    Args:
        rpc: calls to brokers.
        group: the group.
        options: the consumer's options.
    """

    def __init__(self, rpc: BrokerRpc, group: str, options: ConsumerOptions) -> None:
        self._rpc = rpc
        self._group = group
        self._options = options

    async def send_back(
        self, message: StoredMessage, later: RetryAfter, reason: str | None = None
    ) -> bool:
        """Have a message delivered again.

        Args:
            message: the message.
            later: the delay.
            reason: why.

        Returns:
            Whether the broker has it now; otherwise this consumer must deliver it again.
        """
        level = delay_level(later)
        if self._options.model == "broadcast":
            _log.warning(
                "Message %s failed; a broadcast consumer does not deliver it again",
                message.id,
                about=message.topic,
            )
            return True
        words = reason_text(reason)
        if not self._options.orderly:
            if words and await self._send_with_reason(message, level, words):
                return True
            return await self._send_back(message, level)
        if level == DEAD or 0 <= self._options.max_retries <= message.attempt:
            return await self._send_to_retry_topic(message, DEAD, words)
        return False

    async def _send_with_reason(self, message: StoredMessage, level: int, reason: str) -> bool:
        """Send a copy with the reason to the broker that has the message.

        Request 36 carries no properties, so this copies what a broker does with it (section 6.8):
        count, delay, origin, ids and born time are the same. Only the born host is this consumer's.
        """
        try:
            header = self._copy_header(message, level, await self._limit(message), reason)
            link = await self._rpc.master(message.broker, self._full_topic(message))
            await link.ask(
                RequestCode.SEND_MESSAGE_V2,
                header.fields(),
                message.body,
                timeout_ms=SEND_BACK_TIMEOUT_MS,
                broker=message.broker,
            )
        except CohererError as error:
            _log.warning(
                "Sending %s back with a reason failed: %s", message.id, error, about=message.topic
            )
            return False
        return True

    async def _limit(self, message: StoredMessage) -> int:
        """The maximum number of redeliveries, from the consumer or from the group's settings."""
        if self._options.max_retries >= 0:
            return self._options.max_retries
        if await self._rpc.version(message.broker, self._full_topic(message)) < V4_9_1:
            return RETRIES_DEFAULT
        return await self._rpc.max_retries(self._group, message.broker, self._full_topic(message))

    async def _send_back(self, message: StoredMessage, level: int) -> bool:
        fields = {
            "offset": str(message.physical_offset),
            "group": self._group,
            "delayLevel": str(level),
            "originMsgId": message.unique_id or message.id,
            "originTopic": self._full_topic(message),
            "unitMode": "false",
        }
        try:
            limit = await self._max_retries(message)
            if limit is not None:
                fields["maxReconsumeTimes"] = str(limit)
            await self._rpc.send_back(message.broker, self._full_topic(message), fields)
        except CohererError as error:
            _log.warning("Sending %s back failed: %s", message.id, error, about=message.topic)
            return await self._send_to_retry_topic(message, level)
        return True

    async def _max_retries(self, message: StoredMessage) -> int | None:
        """The maximum number of redeliveries; None to use the group's setting."""
        if self._options.max_retries >= 0:
            return self._options.max_retries
        version = await self._rpc.version(message.broker, self._full_topic(message))
        return None if version >= V4_9_1 else RETRIES_DEFAULT

    def _full_topic(self, message: StoredMessage) -> str:
        """The topic with the namespace."""
        return with_namespace(self._rpc.instance.options.namespace, message.topic)

    async def _send_to_retry_topic(
        self, message: StoredMessage, level: int, reason: str | None = None
    ) -> bool:
        """Send a copy of the message to the retry topic."""
        topic = retry_topic(self._group)
        limit = self._options.max_retries if self._options.max_retries >= 0 else RETRIES_DEFAULT
        try:
            header = self._copy_header(message, level, limit, reason)
            await self._send(topic, message, header)
        except CohererError as error:
            _log.warning("Sending %s to %s failed: %s", message.id, topic, error, about=topic)
            return False
        return True

    def _copy_header(
        self, message: StoredMessage, level: int, limit: int, reason: str | None
    ) -> SendHeader:
        """Make the header of a copy for the retry topic or the dead-letter topic.

        Raises:
            UsageError: the properties are too large.
        """
        properties = {
            **message.stored_properties,
            text.RETRY_TOPIC: self._full_topic(message),
            "ORIGIN_MESSAGE_ID": message.stored_properties.get("ORIGIN_MESSAGE_ID", message.id),
        }
        for name in (*NOT_COPIED, text.DELAY, text.TUBE_MARK):
            properties.pop(name, None)
        if reason:
            properties[RETRY_REASON] = reason
        attempt = message.attempt + 1
        # Request 36 compares before it counts. Here the broker has counted before.
        dead = level == DEAD or message.attempt >= limit
        if not dead:  # a broker would delay a dead letter, too
            properties[text.DELAY] = str(level or RETRY_LEVEL_FIRST + message.attempt)
        return SendHeader(
            # Java's brokers check the permission to consume of this group (PlainAccessResource).
            producer_group=self._group,
            topic=retry_topic(self._group),
            default_topic=AUTO_CREATE_TOPIC,
            default_topic_queue_nums=1,
            queue_id=-1,
            sys_flag=0,
            born_ms=message.born_ms,
            flag=message.flag,
            properties=text.encode(properties).decode(),
            reconsume_times=attempt,
            max_reconsume_times=attempt if dead else limit + 1,
        )

    async def _send(self, topic: str, message: StoredMessage, header: SendHeader) -> None:
        """Send to the first broker of the topic that accepts the message."""
        error: CohererError | None = None
        route = await self._rpc.instance.routes.route(topic, create=True)
        for broker in route.brokers:
            try:
                link = await self._rpc.master(broker)
                await link.ask(
                    RequestCode.SEND_MESSAGE_V2,
                    header.fields(),
                    message.body,
                    timeout_ms=SEND_BACK_TIMEOUT_MS,
                    broker=broker,
                )
            except CohererError as failure:
                error = failure
            else:
                return
        raise error or UnavailableError("No broker accepts messages.", topic=topic)
