"""Judges a history by the sentences of the guarantees page.

Each check is a function that yields the messages that break its sentence, which is its docstring.
The names are those of Jepsen's checkers of queues where it has one.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import Final

import msgspec

from tests.simulation.history import Event, History, Place


class Wrong(msgspec.Struct, frozen=True):
    """A broken promise.

    Args:
        check: which.
        message: the message that shows it.
        text: how.
    """

    check: str
    message: str
    text: str


SYNCED_S: Final = 2.0
"""The flush interval, and the slowest sync of the simulated disk."""


def stored_places(history: History) -> dict[str, set[Place]]:
    """Where each message lies at the end."""
    found: dict[str, set[Place]] = defaultdict(set)
    for event in history.of("final"):
        assert event.place is not None
        found[event.message].add(event.place)
    return found


def lost(history: History) -> Iterator[tuple[str, str]]:
    """What a broker has acknowledged is in its queue after a kill; and after a power cut, too, if
    it acknowledges what is on the disk only."""
    places = stored_places(history)
    for event in [] if history.lossy else history.of("stored"):
        if event.place is not None and event.place not in places[event.message]:
            yield (
                event.message,
                f"acknowledged at {event.place}, and now in {places[event.message]}",
            )
        elif not places[event.message]:
            yield event.message, "acknowledged, and in no queue"


def unexpected(history: History) -> Iterator[tuple[str, str]]:
    """Whoever receives a message receives what somebody has sent."""
    sent = {event.message for event in history.of("send", "begun")}
    for event in history.of("received", "final"):
        if event.message not in sent:
            yield event.message, f"{event.what} by {event.who}, and sent by nobody"


def duplicate(history: History) -> Iterator[tuple[str, str]]:
    """A send stores a message once, unless `retry_lost` is set; and a timed message is delivered
    once, unless a power cut came before its delivery was synced."""
    cuts_s = [event.at_s for event in history.of("power")]
    due_s = {event.message: event.due_s for event in history.of("send") if event.due_s}
    received_s: dict[str, float] = {}
    for event in history.of("received"):
        received_s.setdefault(event.message, event.at_s)
    for message, places in stored_places(history).items():
        repeatable = message in due_s and any(
            due_s[message] <= cut_s < received_s.get(message, cut_s) + SYNCED_S for cut_s in cuts_s
        )
        if len(places) > 1 and not repeatable:
            yield message, f"sent once, and stored at {sorted(places)}"


def inconsistent_offsets(history: History) -> Iterator[tuple[str, str]]:
    """An offset never means two messages, not even after a power cut."""
    found: dict[Place, Event] = {}
    for event in history.of("stored", "received", "final"):
        if event.place is None:
            continue
        first = found.setdefault(event.place, event)
        if first.message != event.message:
            yield event.message, f"{event.place} was {first.message} ({first.what} at {first.at_s})"


def unseen(history: History) -> Iterator[tuple[str, str]]:
    """Every group receives every message that is stored at the end."""
    groups = {event.group for event in history.of("joined")}
    received = {(event.group, event.message) for event in history.of("received")}
    for message in stored_places(history):
        for group in groups:
            if (group, message) not in received:
                yield message, f"group {group} has never received it"


def nonmonotonic_poll(history: History) -> Iterator[tuple[str, str]]:
    """A group receives the messages of a queue for the first time in their order."""
    newest: dict[tuple[str, str], Place] = {}
    seen: set[tuple[str, Place]] = set()
    for event in history.of("received"):
        place = event.place
        if place is None or (event.group, place) in seen:
            continue
        seen.add((event.group, place))
        before = newest.get((event.group, place.queue))
        if before is not None and before > place:
            yield event.message, f"{place} came to {event.group} after {before}"
        else:
            newest[event.group, place.queue] = place


def reordered(history: History) -> Iterator[tuple[str, str]]:
    """What one producer sends to one queue, each after the receipt of the one before, lies in the
    order of sending."""
    newest: dict[tuple[str, str], Event] = {}
    for event in history.of("stored"):
        if event.place is None:
            continue
        key = (event.who, event.place.queue)
        before = newest.get(key)
        if before is not None and before.place is not None and before.place > event.place:
            yield event.message, f"{event.place} follows {before.place} ({before.message})"
        newest[key] = event


def transactions(history: History) -> Iterator[tuple[str, str]]:
    """A committed transaction becomes visible; one that is rolled back never does."""
    rolled_back = {event.message for event in history.of("rolled back")}
    committed = {event.message for event in history.of("committed")}
    visible = stored_places(history)
    for event in history.of("received", "final"):
        if event.message in rolled_back:
            yield event.message, f"rolled back, and {event.what} by {event.who}"
    begun = {event.message for event in history.of("begun")}
    for message in () if history.lossy else sorted(committed & begun):
        if not visible.get(message):
            yield message, "committed, and never visible"


def early(history: History) -> Iterator[tuple[str, str]]:
    """A timed message is not delivered before it is due."""
    due_s = {event.message: event.due_s for event in history.of("send") if event.due_s}
    for event in history.of("received"):
        # Times of messages are whole milliseconds.
        if event.at_s < due_s.get(event.message, 0.0) - 0.001:
            yield event.message, f"due at {due_s[event.message]:.4f}, received at {event.at_s:.4f}"


def errors(history: History) -> Iterator[tuple[str, str]]:
    """No error is left for nobody to read."""
    for event in history.of("error"):
        yield "", event.note


CHECKS: Final[tuple[Callable[[History], Iterator[tuple[str, str]]], ...]] = (
    lost,
    unexpected,
    duplicate,
    inconsistent_offsets,
    unseen,
    nonmonotonic_poll,
    reordered,
    transactions,
    early,
    errors,
)


def judge(history: History) -> list[Wrong]:
    """All broken promises of a history."""
    return [Wrong(one.__name__, *found) for one in CHECKS for found in one(history)]
