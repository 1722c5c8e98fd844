"""Who looks on while a producer sends: message trace, OpenTelemetry, and what users write."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import IntEnum
from typing import Protocol, cast

from msgspec import structs

from coherer._client.engine.outcomes import Sink, Stored
from coherer._wire.rocketmq.messages import SendReceipt
from coherer.errors import CohererError
from coherer.message import Message


class Kind(IntEnum):
    """What kind of message is sent; the numbers are those of message trace (rocketmq 11)."""

    NORMAL = 0
    HALF = 1
    COMMIT = 2
    DELAYED = 3


class Outcome(Protocol):
    """A message that a broker has taken, with what is known of it."""

    @property
    def server(self) -> str:
        """The broker's address."""
        ...

    @property
    def traced(self) -> bool:
        """Whether the broker wants message trace."""
        ...

    def receipt(self) -> SendReceipt:
        """The receipt."""
        ...


class Observed(Protocol):
    """One send that is looked at."""

    @property
    def properties(self) -> Mapping[str, str]:
        """What goes with the message besides its own properties."""
        ...

    def stored(self, outcome: Outcome) -> None:
        """A broker has it."""
        ...

    def failed(self, error: CohererError) -> None:
        """It was refused, or nobody knows."""
        ...


class Observer(Protocol):
    """Looks on while a producer sends."""

    def begin(self, messages: Sequence[Message], group: str, kind: Kind) -> Observed | None:
        """A message, or the messages of a batch, are about to be sent; None: do not care."""
        ...


class ObservedSink:
    """Tells those who look on, too."""

    __slots__ = ("_seen", "_sink")

    def __init__(self, sink: Sink, seen: list[Observed]) -> None:
        self._sink = sink
        self._seen = seen

    def stored(self, sent: Stored) -> None:
        """The broker has it."""
        self._sink.stored(sent)
        for one in self._seen:
            one.stored(cast("Outcome", sent))

    def lost(self, message: Message, error: CohererError) -> None:
        """It was refused, or nobody knows."""
        self._sink.lost(message, error)
        for one in self._seen:
            one.failed(error)


def observe(
    observers: Sequence[Observer], messages: Sequence[Message], group: str, kind: Kind, sink: Sink
) -> tuple[Sequence[Message], Sink]:
    """The messages with what observers add, and the sink that tells them the outcome."""
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
