"""What happened in a simulation, as the programs saw it."""

from __future__ import annotations

import msgspec


class Place(msgspec.Struct, frozen=True, order=True):
    """Where a message is stored: its queue at its broker, and the offset."""

    queue: str
    offset: int


class Event(msgspec.Struct, frozen=True, omit_defaults=True):
    """One thing that a program saw.

    Args:
        at_s: virtual time.
        who: the program.
        what: `send`, `stored`, `failed` (it may be stored or not), `received`, `begun`,
            `committed` and `rolled back` (transactions), `final` (what the queues hold at the
            end), or a fault.
        message: its body.
        place: where it is stored.
        group: the consumer group.
        due_s: when a timed message may be delivered.
        note: an error or a fault.
    """

    at_s: float
    who: str
    what: str
    message: str = ""
    place: Place | None = None
    group: str = ""
    due_s: float = 0.0
    note: str = ""

    def __str__(self) -> str:
        place = f" at {self.place.queue}:{self.place.offset}" if self.place else ""
        group = f" by {self.group}" if self.group else ""
        text = f"{self.message}{place}{group} {self.note}".rstrip()
        return f"{self.at_s:10.4f}  {self.who:<10} {self.what:<12} {text}"


class History:
    """The events of one simulation, in their order.

    Attributes:
        lossy: whether the power was cut while messages were acknowledged before they were on disk.
    """

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.lossy = False

    def of(self, *kinds: str) -> list[Event]:
        """The events of some kinds."""
        return [event for event in self.events if event.what in kinds]

    def timeline(self, message: str = "") -> str:
        """What a person reads: the faults, and all events or those of one message."""
        faults = {"cut", "stopped", "healed", "killed", "power", "started"}
        return "\n".join(
            str(event)
            for event in self.events
            if not message or event.message == message or event.what in faults
        )
