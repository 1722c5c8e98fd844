"""Observers of sends.

An `Observer` is called about each send of a producer: message trace and OpenTelemetry are
observers, and applications can add theirs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import IntEnum
from typing import Protocol, cast

from msgspec import structs

from coherer._client.engine.sender import Sink, Stored
from coherer._wire.rocketmq.messages import SendReceipt
from coherer.errors import CohererError
from coherer.message import Message


class Kind(IntEnum):
    """The kind of a sent message.

    The numbers are those of message trace (docs/protocol/rocketmq.md, section 11).
    """

    NORMAL = 0
    HALF = 1
    COMMIT = 2
    DELAYED = 3


class StoredSend(Protocol):
    """A message that a broker has stored."""

    @property
    def server(self) -> str:
        """The broker's address."""
        ...

    @property
    def traced(self) -> bool:
        """Whether the broker has message trace enabled."""
        ...

    def receipt(self) -> SendReceipt:
        """The receipt."""
        ...


class SendObserver(Protocol):
    """Observes one send."""

    @property
    def properties(self) -> Mapping[str, str]:
        """Properties to add to the message."""
        ...

    def stored(self, outcome: StoredSend) -> None:
        """A broker stored the message."""
        ...

    def failed(self, error: CohererError) -> None:
        """The send failed; the message may or may not be stored."""
        ...


class Observer(Protocol):
    """Observes the sends of a producer."""

    def begin(self, messages: Sequence[Message], group: str, kind: Kind) -> SendObserver | None:
        """Called before a message or a batch is sent; None to not observe it."""
        ...


class ObservedSink:
    """A sink that also calls observers."""

    __slots__ = ("_observers", "_sink")

    def __init__(self, sink: Sink, observers: list[SendObserver]) -> None:
        self._sink = sink
        self._observers = observers

    def stored(self, sent: Stored) -> None:
        """See `Sink.stored`."""
        self._sink.stored(sent)
        for observer in self._observers:
            observer.stored(cast("StoredSend", sent))

    def lost(self, message: Message, error: CohererError) -> None:
        """See `Sink.lost`."""
        self._sink.lost(message, error)
        for observer in self._observers:
            observer.failed(error)


def observe(
    observers: Sequence[Observer], messages: Sequence[Message], group: str, kind: Kind, sink: Sink
) -> tuple[Sequence[Message], Sink]:
    """The messages with the properties that observers add, and a sink that calls the observers."""
    seen = [one for one in (observer.begin(messages, group, kind) for observer in observers) if one]
    if not seen:
        return messages, sink
    added = {name: value for one in seen for name, value in one.properties.items()}
    if added:
        messages = [
            structs.replace(message, properties={**message.properties, **added})
            for message in messages
        ]
    return messages, ObservedSink(sink, seen)
