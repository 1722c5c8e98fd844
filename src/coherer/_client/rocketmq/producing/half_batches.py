"""Half batches: many messages of one topic as one half message, as Spark's transactional sink does.

Coherer's brokers have the feature `half-batches` (docs/protocol/rocketmq.md, section 6.7.1). Other
brokers get the messages one by one.
"""

from __future__ import annotations

import asyncio
from array import array
from collections.abc import Iterator, Mapping, Sequence
from typing import Protocol

from coherer._client.engine.packed import IN_FLIGHT
from coherer._client.rocketmq.producing.half_messages import HalfMessages, not_safe
from coherer._record.batches import PackedMessages, decode_batch
from coherer._record.ids import decode_offset_id
from coherer._record.properties import KEYS, TAGS, TIME, decode, decode_time
from coherer._wire.rocketmq.messages import SendReceipt, user_properties
from coherer._wire.rocketmq.names import Queue
from coherer.errors import CohererError
from coherer.message import Message


class PreparingProducer(Protocol):
    """A producer with a check function."""

    async def _prepare_packed(
        self, batch: PackedMessages, properties: Mapping[str, str]
    ) -> HalfMessages:
        """Sends a batch as half messages."""
        ...


async def prepare_packed(
    producer: PreparingProducer, batches: Sequence[PackedMessages], properties: Mapping[str, str]
) -> list[HalfMessages | CohererError]:
    """Send encoded batches as half messages.

    Args:
        producer: an open producer with a check function.
        batches: from `coherer._record.packing`.
        properties: what the check function has to know about a half batch.

    Returns:
        For each batch, its half messages or the error. After an error some of its messages may be
        stored, as half messages that nobody ends.
    """
    in_flight = asyncio.Semaphore(IN_FLIGHT)
    prepare = producer._prepare_packed  # pyright: ignore[reportPrivateUsage] - not for applications

    async def prepare_one(batch: PackedMessages) -> HalfMessages | CohererError:
        try:
            async with in_flight:
                return await prepare(batch, properties)
        except CohererError as error:
            return error

    return await asyncio.gather(*map(prepare_one, batches))


def half_batch(group: str, receipt: SendReceipt, count: int) -> HalfMessages:
    """The columns of a half batch.

    Args:
        group: the producer group, as brokers know it.
        receipt: the broker's answer.
        count: the number of messages.

    Raises:
        RefusedError: it is not safely stored.
    """
    unsafe = not_safe(receipt)
    if unsafe is not None:
        raise unsafe
    return HalfMessages(
        group,
        (Queue(receipt.topic, receipt.broker, receipt.partition),),
        array("H", [0]),
        array("q", [receipt.offset]),
        array("q", [decode_offset_id(receipt.id).physical_offset]),
        array("q", [count]),
    )


def messages_of(batch: PackedMessages) -> Iterator[Message]:
    r"""The messages of a batch.

    >>> from coherer._record.batches import encode_batch_item
    >>> item = encode_batch_item(b"a", b"TAGS\x01t\x02KEYS\x011 2\t3\x02carrier\x01UA")
    >>> [made] = messages_of(PackedMessages(topic="flights", body=item, count=1))
    >>> made.tag, made.keys, made.properties
    ('t', ('1', '2\t3'), {'carrier': 'UA'})
    """
    _, bodies, texts = decode_batch(batch.body)
    for body, text in zip(bodies, texts, strict=True):
        stored = decode(text)
        yield Message(
            batch.topic,
            body,
            tag=stored.get(TAGS),
            keys=tuple(filter(None, stored.get(KEYS, "").split(" "))),
            time=decode_time(stored[TIME]) if TIME in stored else None,
            properties=user_properties(stored),
        )
