"""Each check finds what it is for, and nothing in a history without faults."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from tests.simulation.checker import CHECKS, judge, overtaken
from tests.simulation.history import Event, History, Place
from tests.simulation.plan import plan
from tests.simulation.shrink import _fewer

FIRST, SECOND, LAST = (Place("orders@a.0", offset) for offset in range(3))
LEDGER, OTHER = Place("ledger@a.0", 0), Place("ledger@a.1", 0)
AFTER = Place("ledger@a.0", 1)
NEWS, SCRATCH = Place("news@a.0", 0), Place("scratch@a.0", 0)


def event(what: str, message: str = "", place: Place | None = None, **more: object) -> Event:
    mine = {"send", "stored", "failed", "begun", "committed", "rolled back", "decided"}
    who = "alice" if what in mine else "shop0"
    group = "" if what in mine | {"final", "dead", "calm", "error", "restored"} else "shop"
    fields = {"at_s": 1.0, "who": who, "group": group, **more}
    return Event(what=what, message=message, place=place, **fields)  # type: ignore[arg-type]


def of(events: Iterable[Event]) -> History:
    history = History()
    history.add(events)
    return history


def delivered(message: str, place: Place | None, **more: object) -> list[Event]:
    return [event("received", message, place, **more), event("handled", message, place, **more)]


GOOD = [
    event("joined", at_s=-200.0),
    event("send", "a"),
    event("stored", "a", FIRST),
    event("send", "b"),
    event("stored", "b", SECOND),
    *delivered("a", FIRST),
    *delivered("b", SECOND),
    event("begun", "sale"),
    event("rolled back", "sale"),
    event("final", "a", FIRST),
    event("final", "b", SECOND),
]


def crew(attempts: int, dead: int) -> list[Event]:
    """A message that the group `crew` refuses, 100 seconds after each other."""
    found = [event("send", "c!99")]
    for attempt in range(attempts):
        more = {"group": "crew", "attempt": attempt, "at_s": 1.0 + 100 * attempt}
        found += [event(what, "c!99", **more) for what in ("received", "refused")]
    return [*found, *(event("dead", "c!99") for _ in range(dead))]


def ledger(*whats: tuple[str, str, Place], **more: object) -> list[Event]:
    messages = dict.fromkeys(message for _, message, _ in whats)
    return [
        *(event("send", message) for message in messages),
        *(event(what, message, at, group="ledger", **more) for what, message, at in whats),
    ]


def kept(message: str, place: Place, *keys: str) -> list[Event]:
    """A message with keys, some of which find it."""
    whats = [event(what, message, place) for what in ("send", "stored", "final")]
    return [*whats, *(event("found", message, place, note=key) for key in keys)]


BAD = {
    "lost": [one for one in GOOD if one.what != "final" or one.message != "b"],
    "unexpected": [*GOOD, event("received", "c", LAST)],
    "duplicate": [*GOOD, event("final", "a", LAST)],
    "inconsistent_offsets": [*GOOD, event("received", "a", SECOND)],
    "reordered": [*GOOD[:1], *GOOD[3:5], *GOOD[1:3], *GOOD[5:]],
    "scattered": [
        *kept("e.k", LEDGER, "k", "e.k"),
        *kept("e.l", OTHER, "l", "e.l"),
    ],
    "unavailable": [*GOOD, event("calm"), event("failed", "a", at_s=2.0)],
    "answered": [*GOOD, event("answered", "a", note="the answer to b")],
    "findable": kept("e.k", LEDGER, "k"),
    "since": [*GOOD, event("since", place=SECOND, due_s=0.5)],
    "transactions": [*GOOD, event("received", "sale", LAST)],
    "tabled": [*GOOD, event("query"), event("row", "a", FIRST)],
    "lagging": [*GOOD, event("lags", note="2")],
    "unseen": [one for one in GOOD if one.what != "received" or one.message != "b"],
    "filtered": [event("send", "a", tag="red"), event("received", "a", group="blue")],
    "nonmonotonic_poll": [*GOOD[:5], *GOOD[7:9], *GOOD[5:7], *GOOD[9:]],
    "repeated": [*GOOD, *delivered("a", FIRST, at_s=200.0)],
    "forgotten": [
        *GOOD,
        event("kept", "a", FIRST),
        event("crashed", at_s=50.0),
        *delivered("a", FIRST, at_s=60.0),
    ],
    "early": [event("send", "a", due_s=2.0) if one.message == "a" else one for one in GOOD[:2]]
    + GOOD[2:],
    "late": [event("calm", at_s=0.5), *GOOD[:5], *delivered("a", FIRST, at_s=30.0), *GOOD[7:]],
    "retries": [
        *crew(1, 0),
        *(event(what, "c!99", group="crew", attempt=2) for what in ("received", "handled")),
    ],
    "dead_letters": crew(4, 2),
    "replayed": [event("letter", "c!99", note="L1"), event("mended", "c!99", FIRST, note="L2")],
    "exclusive": [
        *ledger(("received", "k", LEDGER), who="ledger0"),
        *ledger(("received", "l", AFTER), who="ledger1"),
    ],
    "overtaken": ledger(
        ("received", "k", LEDGER), ("refused", "k", LEDGER), ("received", "l", AFTER),
        ("handled", "l", AFTER), ("handled", "k", LEDGER),
    ),
    "access": [
        event("changing", who="warden"), event("forbidden", who="warden"),
        event("send", "g", at_s=2.0, who="guest"),
        event("stored", "g", FIRST, at_s=3.0, who="guest"),
        event("final", "g", FIRST, at_s=4.0),
    ],
    "reset": [
        event("joined", group="press", at_s=-200.0),
        event("send", "n"), event("stored", "n", NEWS),
        event("received", "n", NEWS, group="press"), event("final", "n", NEWS),
        event("reset", group="press", at_s=200.0),
    ],
    "undecided": [
        event("begun", "row", who="spark"), event("final", "row", LAST),
        event("decided", "row", who="spark", at_s=2.0),
    ],
    "undead": [
        event("send", "s"), event("stored", "s", SCRATCH), event("deleted", at_s=2.0),
        event("final", "s", SCRATCH, at_s=3.0),
    ],
    "restored": [*GOOD, event("backup", at_s=2.0), event("restored", "a", FIRST)],
    "filed": [*GOOD, event("filed", "a", FIRST), event("filed read")],
    "copied": [*GOOD, event("copied", size=100)],
    "two_masters": [
        event("acting", term=1), event("acting", term=2, at_s=2.0),
        event("acting", term=1, at_s=3.0),
    ],
    "catalog": [event("founding", "t"), event("founded", "t", at_s=2.0)],
    "errors": [*GOOD, event("error", note="Task exception was never retrieved")],
}  # fmt: skip


def test_a_history_without_faults() -> None:
    assert judge(of(GOOD)) == []
    assert judge(of(crew(4, 1))) == []


@pytest.mark.parametrize("check", [one.__name__ for one in CHECKS])
def test_a_check_finds_what_it_is_for(check: str) -> None:
    found = {one.check for one in judge(of(BAD[check]))}
    assert found == {check}


def test_a_flipped_bit_costs_its_message_only() -> None:
    history = of(BAD["lost"])
    history.rotten.add("b")
    assert judge(history) == []
    history.rotten = {"a"}
    assert {one.check for one in judge(history)} == {"lost"}
    history = of(BAD["unexpected"])
    history.rotten.add("c")
    assert {one.check for one in judge(history)} == {"unexpected"}


def test_what_retention_may_delete() -> None:
    gone = [one for one in GOOD if one.message != "a" or one.what != "final"]
    history = of([*gone, event("calm", at_s=100.0)])
    assert {one.check for one in judge(history)} == {"lost"}
    history.retention_s = 90.0
    assert judge(history) == []
    behind = of([one for one in GOOD if one.message != "b" or one.what != "final"])
    behind.add([event("calm", at_s=100.0)])
    behind.retention_s = 90.0
    assert {one.check for one in judge(behind)} == {"lost"}, "files are deleted from the beginning"
    behind.add([event("begins", "orders", LAST, at_s=100.0)])
    assert judge(behind) == [], "while the queue was read"


def test_an_orderly_group_goes_on_behind_what_retention_may_have_deleted() -> None:
    history = of(
        [event("stored", "k", LEDGER), *ledger(("received", "k", LEDGER), ("refused", "k", LEDGER))]
    )
    history.add(ledger(("received", "l", AFTER), at_s=100.0)[-1:])
    assert [found for found, _ in overtaken(history)] == ["l"]
    history.retention_s = 90.0
    assert list(overtaken(history)) == []


def test_the_table_of_a_query_has_each_message_once() -> None:
    rows = [event("query"), event("row", "a", FIRST), event("row", "b", SECOND)]
    assert judge(of([*GOOD, *rows])) == []
    assert {one.check for one in judge(of([*GOOD, *rows, rows[1]]))} == {"tabled"}


def test_the_offset_of_a_time_is_between_what_was_before_and_after() -> None:
    for due_s, offset, right in ((0.5, 0, True), (2.0, 2, True), (2.0, 1, False), (1.0, 1, False)):
        asked = event("since", place=Place("orders@a.0", offset), due_s=due_s)
        assert (judge(of([*GOOD, asked])) == []) is right


def test_a_slave_gives_late_what_its_master_lost() -> None:
    history = of(BAD["nonmonotonic_poll"])
    history.forked = True
    assert judge(history) == []


def test_a_commit_that_never_becomes_visible() -> None:
    history = of([*GOOD, event("begun", "order"), event("committed", "order")])
    assert {one.check for one in judge(history)} == {"transactions"}
    history.lossy = True
    assert judge(history) == []


def test_a_member_may_handle_late_what_a_power_cut_took() -> None:
    events = [
        *(event(what, "b", SECOND) for what in ("send", "stored", "received", "final")),
        *(event(what, "a", FIRST) for what in ("send", "stored", "received")),
    ]
    history = of(events)
    history.lossy = True
    assert "nonmonotonic_poll" not in {one.check for one in judge(history)}
    there = of([*events, event("final", "a", FIRST)])
    there.lossy = True
    assert "nonmonotonic_poll" in {one.check for one in judge(there)}


def test_a_dead_letter_that_is_missing() -> None:
    assert {one.check for one in judge(of(crew(4, 0)))} == {"dead_letters"}
    assert {one.check for one in judge(of(crew(2, 0)))} == {"retries"}


def test_a_dead_letter_that_was_sent_twice() -> None:
    letter = event("letter", "c!99", FIRST, note="L1")
    once, twice = (event("mended", "c!99", place, note="L1") for place in (FIRST, LAST))
    sent = event("send", "c!99")
    assert judge(of([sent, letter, once])) == []
    assert {one.check for one in judge(of([sent, letter, once, twice]))} == {"replayed"}


def test_shrinking_leaves_out_large_parts_first() -> None:
    assert list(_fewer(["a", "b", "c"])) == [["b", "c"], ["a", "c"], ["a", "b"]]
    assert next(_fewer(plan(0, "rocketmq").words())) != []
