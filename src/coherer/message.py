"""Messages: a message to send, a received message, and the receipt for a sent one.

Both protocols use the same classes:

| field | TubeMQ | RocketMQ |
|---|---|---|
| `tag` | attribute `$msgType$` | property `TAGS` |
| `time` | attribute `$msgTime$`, to the minute, without time zone | property `$msgTime$` |
| `properties` | the other attributes | the other properties |
| `partition` | partition id | queue id |
| `broker` | broker id, as text | broker name |
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import ClassVar, Final

import msgspec

_NOTHING: Mapping[str, str] = {}

BODY_SHOWN_BYTES: Final = 100
"""How much of a body `repr` shows, because messages end up in logs."""


class _ShortRepr(msgspec.Struct, frozen=True):
    """A struct whose `repr` omits fields with their default values."""

    SHOWN: ClassVar[tuple[str, ...]] = ()
    """Fields that are shown even with their default values."""

    HIDDEN: ClassVar[tuple[str, ...]] = ()
    """Fields that are never shown."""

    def __repr__(self) -> str:
        parts: list[str] = []
        for field in msgspec.structs.fields(self):
            name, value = field.name, getattr(self, field.name)
            if name in self.HIDDEN or (name not in self.SHOWN and value in (field.default, {})):
                continue
            parts.append(f"{name}={_short(value)}")
        return f"{type(self).__name__}({', '.join(parts)})"


def _short(value: object) -> str:
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, bytes) and len(value) > BODY_SHOWN_BYTES:
        return f"{value[:BODY_SHOWN_BYTES]!r}... {len(value):,} bytes"
    return repr(value)


class Message(_ShortRepr, frozen=True, kw_only=False):
    """A message to send.

    Args:
        topic: the topic to send to.
        body: the payload, at least one byte.
        tag: a word that consumers can filter by.
        time: the time the message refers to. TubeMQ keeps minutes without a time zone, so an aware
            time is sent as UTC and a naive one unchanged.
        keys: words to find the message by (RocketMQ).
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


class ReceivedMessage(_ShortRepr, frozen=True):
    """A message from a broker.

    Args:
        topic: its topic.
        body: the payload.
        tag: the word that consumers filter by.
        time: the time the message refers to; naive with TubeMQ.
        keys: words to find the message by (RocketMQ).
        properties: further names and values.
        id: the broker's id for the message.
        broker: the broker that delivered it.
        partition: its partition or queue.
        offset: its offset there; None if the protocol does not carry it (filtered TubeMQ reads).

    >>> ReceivedMessage("flights", b"x" * 1_000, offset=7)
    ReceivedMessage(topic='flights', body=b'xxx...'... 1,000 bytes, partition=0, offset=7)
    """

    SHOWN: ClassVar[tuple[str, ...]] = ("partition", "offset")

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
    """A broker's confirmation that it has stored a message.

    Args:
        id: the broker's id for the message.
        topic: the topic.
        broker: the broker that stored it.
        partition: the partition or queue.
        offset: its offset there.
        time_ms: when the broker stored it, by its clock, ms since 1970.
    """

    id: str
    topic: str
    broker: str
    partition: int
    offset: int
    time_ms: int
