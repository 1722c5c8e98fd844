"""What happened in a simulation, as the programs saw it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import Final

import msgspec

BEGINNINGS: Final = frozenset(
    {"cut", "stopped", "severed", "unplugged", "frozen", "slow", "clock", "full", "sick"}
    | {"killed", "power", "stop", "crashed", "split", "promoted"}
)
ENDS: Final = frozenset(
    {"healed", "fast", "plugged", "thawed", "recovered", "started", "joined again"}
)
FAULTS: Final = BEGINNINGS | ENDS
"""The events that are faults, or their ends."""


SAVED_S: Final = 6.0
"""Brokers save positions every 5 s."""


class Place(msgspec.Struct, frozen=True, order=True):
    """Where a message is stored: its queue at its broker, and the offset."""

    queue: str
    offset: int


class Event(msgspec.Struct, frozen=True, omit_defaults=True):
    """One thing that a program saw.

    Args:
        at_s: virtual time.
        who: the program.
        what: `send`, `stored`, `failed` (it may be stored or not), `begun`, `committed` and `rolled
            back` (transactions), `undecided` (its driver has looked) and `decided` (a row of a
            transactional sink), `ending` (it commits half messages); `joined`, `received`,
            `handled`, `refused` (its handler failed), `kept` (its position is at the broker) and
            `left`; `calm` (all is well again); `final` (what the queues hold at the end), `begins`
            (their first offset after that) and `dead` (what those of dead letters hold); `replayed`
            (dead letters, by an operator), `mended` (what replays have sent, with the dead letter
            in `note`) and `letter` (what they could send); `query` (there is one that reads into a
            table) and `row` (what its table has got); `answered` (a request, by `note`) and
            `unheard` (who has asked is gone); `seen` (an overview) and `lags` (a group at the end);
            `found` (by its key) and `since` (the offset of the time `due_s`); `changing`,
            `permitted` and `forbidden` (what the guest may do) and `overheard` (by it); `resetting`
            and `reset` (a group to the beginning); `deleting`, `deleted` and `created` (a topic);
            `backup` and `restored` (what it holds); `opened` and `filed` (what the files of a node
            hold while it runs, and after that) and `filed read` (all of them were read); `copied`
            (by a slave), `differs` (it, from its master) and `renewed` (its disk); `acting` (a
            master answers as the active one); `founding`, `founded`, `abolishing`, `abolished` and
            `known` (a topic in the masters' catalog); or a fault.
        message: its body.
        place: where it is stored.
        group: the consumer group; of a broadcast group the member.
        due_s: when a timed message may be delivered; of `since`, the time.
        attempt: how often the message was refused before.
        tag: of a message that is sent.
        size: a property of a message that is sent; of `copied`, the bytes that are missing.
        term: of a master's election.
        note: an error or a fault.
    """

    at_s: float
    who: str
    what: str
    message: str = ""
    place: Place | None = None
    group: str = ""
    due_s: float = 0.0
    attempt: int = 0
    tag: str = ""
    size: int = 0
    term: int = 0
    note: str = ""

    def __str__(self) -> str:
        parts = [self.message]
        if self.place:
            parts.append(f"at {self.place.queue}:{self.place.offset}")
        if self.group:
            parts.append(f"by {self.group}")
        if self.attempt:
            parts.append(f"attempt {self.attempt}")
        if self.due_s:
            parts.append(f"due {self.due_s:.3f}")
        if self.term:
            parts.append(f"term {self.term}")
        text = " ".join([*filter(None, parts), self.note]).rstrip()
        mark = "──" if self.what in FAULTS else "  "
        return f"{self.at_s:10.4f} {mark} {self.who:<10} {self.what:<12} {text}"


class History:
    """The events of one simulation, in their order.

    Attributes:
        lossy: whether the power was cut while messages were acknowledged before they were on disk.
        forked: whether a slave may have kept what its master lost then.
        behind: whether a slave has become the master that lacked a part of its master's log.
        jumped: whether the clock of a node jumped.
        retention_s: how long the brokers keep messages.
        saved_s: the longest time until a position that a broker has is safe.
        rotten: the messages in whose records a bit has flipped.
    """

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.lossy = False
        self.forked = self.behind = False
        self.jumped = False
        self.retention_s = float("inf")
        self.saved_s = SAVED_S
        self.rotten: set[str] = set()
        self._kinds: dict[str, list[Event]] = defaultdict(list)

    def add(self, events: Iterable[Event]) -> None:
        """Add events."""
        for event in events:
            self.events.append(event)
            self._kinds[event.what].append(event)

    def of(self, *kinds: str) -> list[Event]:
        """The events of some kinds, in their order."""
        if len(kinds) == 1:
            return self._kinds[kinds[0]]
        return [event for event in self.events if event.what in kinds]

    def calm_s(self) -> float:
        """From when on nothing goes wrong any more; infinite if the run did not get there."""
        return next((event.at_s for event in self.of("calm")), float("inf"))

    def timeline(self, message: str = "") -> str:
        """What a person reads: the faults, and all events or those of one message."""
        return "\n".join(
            str(event)
            for event in self.events
            if not message or event.message == message or event.what in FAULTS
        )
