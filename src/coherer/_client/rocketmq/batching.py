"""Messages put together for one request (rocketmq 5.9)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import chain
from typing import Final

from coherer._client.engine.producer import check_body, message_topic, mistaken
from coherer._record.ids import UniqueIds
from coherer._wire.rocketmq.batches import item_parts
from coherer._wire.rocketmq.messages import outgoing
from coherer.errors import UsageError
from coherer.message import Message

IDS_AT_ONCE: Final = 4_096
"""Unique ids are different among 65,536 that are made in one millisecond."""

Item = tuple[bytes, bytes, bytes, bytes]
"""The pieces of a message of a batch."""


def topic_of(messages: Sequence[Message]) -> str:
    """The one topic of a batch."""
    topics = {message_topic(message) for message in messages}
    if len(topics) != 1:
        raise UsageError(f"A batch has messages of one topic, not of {len(topics)}.")
    topic = topics.pop()
    if topic.startswith("%RETRY%"):
        raise UsageError("Messages of a retry topic are not sent in batches.", topic=topic)
    return topic


def item_of(message: Message, unique_id: str) -> Item:
    """A message as a part of a batch, where nothing is compressed."""
    body = message.body
    if type(body) is not bytes:
        check_body(message)
    plain = message.tag is None and message.time is None
    try:
        if not plain or message.keys or message.properties or not body:
            body, properties, _ = outgoing(message, unique_id=unique_id, compress_from_bytes=0)
            return item_parts(body, properties.encode())
        return item_parts(body, b"UNIQ_KEY\x01" + unique_id.encode())
    except (TypeError, AttributeError) as error:
        raise mistaken(message, error) from error


def joined(items: Iterable[Item]) -> bytes:
    """The body of a batch."""
    return b"".join(chain.from_iterable(items))


def pack(messages: Sequence[Message], unique: UniqueIds) -> tuple[list[str], list[Item]]:
    """New unique ids for messages, and the messages as parts of a batch."""
    ids: list[str] = []
    items: list[Item] = []
    for start in range(0, len(messages), IDS_AT_ONCE):
        some = messages[start : start + IDS_AT_ONCE]
        ids += unique.take(len(some))
        items += map(item_of, some, ids[start:])
    return ids, items
