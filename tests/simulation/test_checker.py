"""Each check finds what it is for, and nothing in a history without faults."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from tests.simulation.checker import CHECKS, judge
from tests.simulation.history import Event, History, Place

FIRST, SECOND = Place("0", 0), Place("0", 1)


def event(what: str, message: str = "", place: Place | None = None, **more: object) -> Event:
    who = "alice" if what in {"send", "stored"} else "shop0"
    group = "shop" if what in {"joined", "received"} else ""
    return Event(1.0, who, what, message, place, group, **more)  # type: ignore[arg-type]


def of(events: Iterable[Event]) -> History:
    history = History()
    history.events += events
    return history


GOOD = [
    event("joined"),
    event("send", "a"),
    event("stored", "a", FIRST),
    event("send", "b"),
    event("stored", "b", SECOND),
    event("received", "a", FIRST),
    event("received", "b", SECOND),
    event("received", "a", FIRST),
    event("begun", "sale"),
    event("rolled back", "sale"),
    event("final", "a", FIRST),
    event("final", "b", SECOND),
]
LAST = Place("0", 2)
BAD = {
    "lost": [one for one in GOOD if one.what != "final" or one.message != "b"],
    "unexpected": [*GOOD, event("received", "c", LAST)],
    "duplicate": [*GOOD, event("final", "a", LAST)],
    "inconsistent_offsets": [*GOOD, event("received", "a", SECOND)],
    "unseen": [one for one in GOOD if one.what != "received" or one.message != "b"],
    "nonmonotonic_poll": [*GOOD[:5], GOOD[6], GOOD[5], *GOOD[7:]],
    "reordered": [*GOOD[:1], *GOOD[3:5], *GOOD[1:3], *GOOD[5:]],
    "transactions": [*GOOD, event("received", "sale", LAST)],
    "early": [event("send", "a", due_s=2.0) if one.what == "send" else one for one in GOOD[:3]]
    + GOOD[3:],
    "errors": [*GOOD, event("error", note="Task exception was never retrieved")],
}


def test_a_history_without_faults() -> None:
    assert judge(of(GOOD)) == []


@pytest.mark.parametrize("check", [one.__name__ for one in CHECKS])
def test_a_check_finds_what_it_is_for(check: str) -> None:
    found = {one.check for one in judge(of(BAD[check]))}
    assert found == {check}


def test_a_commit_that_never_becomes_visible() -> None:
    history = of([*GOOD, event("begun", "order"), event("committed", "order")])
    assert {one.check for one in judge(history)} == {"transactions"}
    history.lossy = True
    assert judge(history) == []
