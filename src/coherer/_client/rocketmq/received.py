"""Received messages and batches, and how to acknowledge them.

See docs/protocol/rocketmq.md, sections 5.3, 8.13 and 8.14.

`ack`, `retry` and `dead_letter` work on a message and on a batch. After its queue was revoked, or
after a `seek`, they have no effect: the messages are delivered again, to the owner of the queue.
"""

# A message uses the private members of its batch, and the functions at the end do.
# pyright: reportPrivateUsage=false

from __future__ import annotations

from collections.abc import Awaitable, Iterator, Mapping, Sequence
from datetime import datetime
from itertools import count, pairwise, repeat
from typing import Any, Final, Self

import msgspec
from msgspec.structs import replace

from coherer._client.engine.arguments import checked
from coherer._client.engine.assigned import Delivery, RetryAfter
from coherer._client.engine.batches import DONE, Acknowledgeable
from coherer._wire.rocketmq.delivery import MessageBatch
from coherer._wire.rocketmq.messages import StoredMessage
from coherer._wire.rocketmq.names import Queue, without_namespace

DEAD: Final = -1
"""The delay level of a dead letter (section 8.13)."""


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

    def ack(self) -> Awaitable[None]:
        """Acknowledge the message: it is not delivered again. Repeating it has no effect.

        It only makes a mark: `await` is optional.
        """
        self._batch._ack_message(self._number)
        return DONE

    async def retry(self, *, later: RetryAfter = None, reason: str | None = None) -> None:
        """Have the message delivered again later, with a higher `attempt`.

        It asks a server: `await` it.

        The broker keeps it meanwhile. After too many attempts it becomes a dead letter. An orderly
        consumer pauses the queue instead, and continues with this message. If no broker accepts the
        message, this consumer delivers it again after some seconds. Until the broker has answered,
        `ack` and a loop's next message leave the message alone, and another `retry` waits.

        Args:
            later: the delay. Brokers only have some delays, by default 18 from 1 s to 2 h, and
                use the next longer one. A number is one of these levels. None: longer with each
                attempt.
            reason: why the message is retried, for the people who examine dead letters. The broker
                stores it as the property `cohererRetryReason`, up to
                `limits.RETRY_REASON_CHARS_MAX` characters; a later reason replaces it. Do not put
                secrets in it.

        Raises:
            UsageError: there is no such level.
        """
        work = self._batch._retry_message(self._number, later, reason)
        if work is not None:
            await work

    async def dead_letter(self, *, reason: str | None = None) -> None:
        """Make the message a dead letter: it is not delivered to the group again.

        Args:
            reason: see `retry`.
        """
        await self.retry(later=DEAD, reason=reason)

    def detach(self) -> StoredMessage:
        """The decoded message, without its batch."""
        return self._batch._message(self._number)

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
    """Messages of one queue that a consumer has received. See `MessageBatch`."""

    __slots__ = (
        "_count",
        "_decoded",
        "_delivery",
        "_filtered",
        "_namespace",
        "_reasons",
        "_retries",
    )

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
        inflated_max: int | None = None,
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
            inflated_max=inflated_max,
        )
        # Counting without decoding: that would be most of the work of receiving.
        self._count = len(self) if filtered else self.next_offset - self.offset
        if filtered:
            self._weigh()
        self._filtered = filtered
        self._namespace = namespace
        self._delivery: Delivery[ReceivedBatch] | None = None
        self._retries = 0  # redeliveries by this consumer, which the messages do not count
        self._decoded: dict[int, StoredMessage] = {}
        self._reasons: dict[int | None, str | None] = {}

    def __iter__(self) -> Iterator[ReceivedMessage]:  # type: ignore[override]
        return map(ReceivedMessage, self.bodies(), repeat(self), count())

    @property
    def left_out(self) -> list[range]:
        """See `MessageBatch.left_out`; empty if the broker has filtered."""
        return [] if self._filtered else super().left_out

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

    def _message(self, number: int) -> StoredMessage:
        message = self._decoded.get(number)
        if message is None:
            [message] = super().pick((number,)).messages(StoredMessage)
            if self._retries or self._namespace:
                topic = without_namespace(self._namespace, message.topic)
                message = replace(message, topic=topic, attempt=message.attempt + self._retries)
            self._decoded[number] = message
        return message

    def _ack_message(self, number: int) -> None:
        delivery = self._delivery
        if delivery is not None:
            delivery.acknowledge(number)
            delivery.count_seen()  # the messages before it that a loop has passed

    def _retry_message(
        self, number: int, later: RetryAfter, reason: str | None
    ) -> Awaitable[None] | None:
        if self._delivery is None:
            return None
        self._reasons[number] = reason
        return self._delivery.retry(number, later)

    def pick(self, numbers: Sequence[int]) -> Self:
        """A new batch of the messages at these positions; there must be at least one."""
        part = super().pick(numbers)
        part._count = len(numbers)
        part._delivery = None
        part._decoded = {}
        part._reasons = {}
        return part

    def _part(self, numbers: Sequence[int]) -> Self:
        return self.pick(numbers)


# -- what a consumer does with a batch


def count_of(batch: ReceivedBatch) -> int:
    """The number of messages, as far as it is known without decoding them."""
    return batch._count


def message_at(batch: ReceivedBatch, number: int) -> StoredMessage:
    """The decoded message at a position in the batch."""
    return batch._message(number)


def retry_reason(batch: ReceivedBatch, number: int) -> str | None:
    """The reason of the last retry of a message, or None."""
    return batch._reasons.get(number) or batch._reasons.get(None)


def count_retry(batch: ReceivedBatch) -> None:
    """Count a redelivery by this consumer, which the stored messages do not count."""
    batch._retries += 1


def split(batch: ReceivedBatch, size: int) -> list[ReceivedBatch]:
    """A batch in parts of at most this many messages, without gaps between them."""
    total = len(batch)
    if size < 1 or total <= size:
        return [batch]
    parts = [batch.pick(range(at, min(at + size, total))) for at in range(0, total, size)]
    parts[0].offset = batch.offset
    for part, following in pairwise(parts):
        part.next_offset = following.offset
    return parts
