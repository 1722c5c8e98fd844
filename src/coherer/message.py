"""What users hold: a message to send, a message received, and the receipt for a sent one.

The names are common to both protocols. Where they differ:

| here | TubeMQ | RocketMQ |
|---|---|---|
| `tag` | attribute `$msgType$` | property `TAGS` |
| `time` | attribute `$msgTime$`, to the minute, no zone | a property |
| `properties` | the other attributes | the other properties |
| `partition` | partition id | queue id |
| `broker` | broker id, as text | broker name |
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime

import msgspec

_NOTHING: Mapping[str, str] = {}


class Message(msgspec.Struct, frozen=True, kw_only=False, repr_omit_defaults=True):
    """A message to send.

    Args:
        topic: where it goes.
        body: the payload, at least one byte.
        tag: a word that consumers can filter by.
        time: what the message is about in time; TubeMQ keeps minutes and no zone, so an aware
            time is sent as UTC and a naive one as it is.
        keys: words to look the message up by (RocketMQ).
        properties: further names and values.

    >>> Message("flights", b"{}", tag="UA")
    Message(topic='flights', body=b'{}', tag='UA')
    """

    topic: str
    body: bytes
    tag: str | None = None
    time: datetime | None = None
    keys: tuple[str, ...] = ()
    properties: Mapping[str, str] = _NOTHING


class ReceivedMessage(msgspec.Struct, frozen=True, repr_omit_defaults=True):
    """A message from a broker.

    Args:
        topic: where it was sent.
        body: the payload.
        tag: the word that consumers filter by.
        time: what the message is about in time; naive with TubeMQ.
        keys: words to look the message up by (RocketMQ).
        properties: further names and values.
        id: the broker's id for the message.
        broker: which broker held it.
        partition: the partition or queue it came from.
        offset: its place there; None where the protocol does not tell (filtered TubeMQ reads).
    """

    topic: str
    body: bytes
    tag: str | None = None
    time: datetime | None = None
    keys: tuple[str, ...] = ()
    properties: Mapping[str, str] = _NOTHING
    id: str = ""
    broker: str = ""
    partition: int = 0
    offset: int | None = None


class Receipt(msgspec.Struct, frozen=True, gc=False):
    """A broker's word that it has taken a message.

    Args:
        id: the broker's id for the message.
        topic: where it was sent.
        broker: which broker took it.
        partition: the partition or queue.
        offset: its place there.
        time_ms: the broker's clock when it took it, ms since 1970.
    """

    id: str
    topic: str
    broker: str
    partition: int
    offset: int
    time_ms: int
