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
from typing import ClassVar, Final

import msgspec

_NOTHING: Mapping[str, str] = {}

BODY_SHOWN_BYTES: Final = 100
"""A `repr` shows so much of a body: messages end up in logs."""


class _Shown(msgspec.Struct, frozen=True):
    """How messages are shown: what they say, and not what they leave open."""

    SHOWN: ClassVar[tuple[str, ...]] = ()
    """Fields that are shown also where they have their defaults."""

    HIDDEN: ClassVar[tuple[str, ...]] = ()
    """Fields that are not."""

    def __repr__(self) -> str:
        parts: list[str] = []
        for field in msgspec.structs.fields(self):
            name, value = field.name, getattr(self, field.name)
            if name in self.HIDDEN or (name not in self.SHOWN and value in (field.default, {})):
                continue
            parts.append(f"{name}={_shown(value)}")
        return f"{type(self).__name__}({', '.join(parts)})"


def _shown(value: object) -> str:
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, bytes) and len(value) > BODY_SHOWN_BYTES:
        return f"{value[:BODY_SHOWN_BYTES]!r}... {len(value):,} bytes"
    return repr(value)


class Message(_Shown, frozen=True, kw_only=False):
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


class ReceivedMessage(_Shown, frozen=True):
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
