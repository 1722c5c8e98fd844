"""Observers of sends.

An `Observer` is called about each send of a producer: message trace and OpenTelemetry are
observers, and applications can add theirs.
"""

from __future__ import annotations

import logging
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from enum import IntEnum
from typing import Protocol, cast

from msgspec import structs

from coherer._client.engine.sender import Sink, Stored
from coherer._common.logs import Log
from coherer._wire.rocketmq.messages import SendReceipt
from coherer.errors import CohererError
from coherer.message import Message

_log = Log(logging.getLogger(__name__))


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
            with _guard():
                observer.stored(cast("StoredSend", sent))

    def lost(self, message: Message, error: CohererError) -> None:
        """See `Sink.lost`."""
        self._sink.lost(message, error)
        self.refused(error)

    def refused(self, error: CohererError) -> None:
        """The message cannot be sent; the caller of the send gets the error, not the sink."""
        for observer in self._observers:
            with _guard():
                observer.failed(error)


@contextmanager
def _guard() -> Generator[None]:
    """Log an exception of an observer. It must neither break a connection nor a send."""
    try:
        yield
    except Exception as error:  # noqa: BLE001 - raised by the application
        _log.exception("An observer of sends failed", about=repr(error))


def observe(
    observers: Sequence[Observer], messages: Sequence[Message], group: str, kind: Kind, sink: Sink
) -> tuple[Sequence[Message], Sink]:
    """The messages with the properties that observers add, and a sink that calls the observers."""
    seen: list[SendObserver] = []
    for observer in observers:
        with _guard():
            one = observer.begin(messages, group, kind)
            seen += [] if one is None else [one]
    if not seen:
        return messages, sink
    added = {name: value for one in seen for name, value in one.properties.items()}
    if added:
        messages = [
            structs.replace(message, properties={**message.properties, **added})
            for message in messages
        ]
    return messages, ObservedSink(sink, seen)
