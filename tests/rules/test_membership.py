"""Producers and consumers come, are silent, and go."""

from __future__ import annotations

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from coherer._rules.tubemq.assignment import Partition
from coherer._rules.tubemq.groups import Disagreement, GroupKind, Member, Subscription
from coherer._rules.tubemq.membership import Groups, LivenessTracker, Producer, Producers

FLIGHTS = Subscription(kind=GroupKind.NORMAL, topics=frozenset({"flights"}))
WEATHER = Subscription(kind=GroupKind.NORMAL, topics=frozenset({"weather"}))


def member(name: str) -> Member:
    return Member(id=name, host="10.0.0.1")


@given(
    st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 50)), max_size=30),
    st.integers(1, 100),
)
def test_attendance_names_exactly_those_who_were_silent(
    sightings: list[tuple[str, int]], timeout_ms: int
) -> None:
    book = LivenessTracker[str](timeout_ms)
    now_ms, last = 0, dict[str, int]()
    for name, step_ms in sightings:
        now_ms += step_ms
        silent = {other for other, seen_ms in last.items() if now_ms >= seen_ms + timeout_ms}
        assert set(book.overdue(now_ms)) == silent
        for other in silent:
            del last[other]
        book.seen(name, now_ms)
        last[name] = now_ms
    for name in last:
        book.gone(name)
    assert not list(book.overdue(now_ms + timeout_ms))


def test_producers_are_forgotten_when_silent_or_closed() -> None:
    producers = Producers(timeout_ms=100)
    producers.register(Producer("a", "h", secure=False), 0)
    producers.register(Producer("b", "h", secure=False), 0)
    assert producers.seen("a", 60) is not None
    assert producers.expire(100) == ["b"]
    assert producers.seen("b", 100) is None
    assert [producer.id for producer in producers] == ["a"]
    producers.close("a")
    assert len(producers) == 0


def test_a_producer_that_returns_keeps_what_it_has_seen() -> None:
    producers = Producers(timeout_ms=100)
    producers.register(Producer("a", "h", secure=False, settled={"flights"}), 0)
    producers.register(Producer("a", "h", secure=False), 10)
    returned = producers.seen("a", 20)
    assert returned is not None
    assert returned.settled == {"flights"}


def test_nobody_waits_for_those_who_choose_their_partitions() -> None:
    groups = Groups(timeout_ms=100)
    groups.join("g", member("a"), FLIGHTS, 0)
    choosing = msgspec.structs.replace(FLIGHTS, kind=GroupKind.CLIENT_BALANCED)
    groups.join("reader", member("b"), choosing, 0)
    assert groups.roll(0) == {"g": ["a"]}


def test_a_group_lives_as_long_as_its_members() -> None:
    groups = Groups(timeout_ms=100)
    groups.join("g", member("a"), FLIGHTS, 0)
    groups.join("g", member("b"), FLIGHTS, 50)
    assert len(groups) == 2
    assert groups.disagreement("g", "c", WEATHER) is Disagreement.TOPICS
    assert groups.disagreement("other", "c", WEATHER) is None
    assert groups.expire(100) == [("g", "a")]
    assert groups.seen("g", "a", 100) is None
    assert groups.seen("g", "b", 100) is not None
    assert groups.leave("g", "b", 110)
    assert not groups.leave("g", "b", 110)
    assert groups.get("g") is None
    assert not list(groups)


def test_the_last_member_takes_the_settings_along() -> None:
    groups = Groups(timeout_ms=100)
    groups.join("g", member("a"), FLIGHTS, 0)
    groups.join("g", member("a"), WEATHER, 10)
    group = groups.get("g")
    assert group is not None
    assert group.subscription is WEATHER


def test_groups_are_due_when_something_about_them_changes() -> None:
    groups = Groups(timeout_ms=1_000)
    flights = groups.join("f", member("a"), FLIGHTS, 0)
    weather = groups.join("w", member("b"), WEATHER, 0)
    assert groups.due(0) == [flights, weather]
    flights.due_ms = weather.due_ms = None
    groups.touch(["weather"], 5)
    assert groups.due(5) == [weather]
    assert groups.due(4) == []


def test_a_broker_that_started_anew_is_forgotten_by_all() -> None:
    groups = Groups(timeout_ms=1_000)
    group = groups.join("f", member("a"), FLIGHTS, 0)
    group.report(group.members["a"], [Partition(1, "flights", 0)], 0)
    groups.forget_broker(1, 0)
    assert group.members["a"].held == frozenset()


def test_after_a_restart_a_group_waits_for_those_who_were_there() -> None:
    before = Groups(timeout_ms=1_000)
    for name in "abc":
        before.join("g", member(name), FLIGHTS, 0)
    after = Groups(timeout_ms=1_000)
    after.await_members(before.roll(0), 500)
    assert after.roll(499) == {"g": ["a", "b", "c"]}, "it may be restarted again"
    assert after.roll(500) == {}
    other = after.join("other", member("x"), FLIGHTS, 10)
    group = after.join("g", member("a"), FLIGHTS, 10)
    assert after.due(10) == [other]
    after.join("g", member("b"), FLIGHTS, 20)
    after.leave("g", "c", 30)
    assert group in after.due(30), "all are back or have said goodbye"


def test_after_a_restart_a_group_does_not_wait_long_for_who_reports_often() -> None:
    groups = Groups(timeout_ms=1_000)
    roll = {"g": ["a", "b", "c"], "h": ["b", "slow"], "i": ["b"]}
    groups.await_members(roll, 500, prompt=lambda name: name != "slow", absent_ms=20)
    assert groups.due(100) == [], "consumers can come from here on"
    g, h, i = (groups.join(name, member("a"), FLIGHTS, 110) for name in "ghi")
    assert groups.due(119) == []
    assert groups.roll(119) == {"g": ["a", "b", "c"], "h": ["a", "b", "slow"], "i": ["a", "b"]}
    assert not groups.is_due(h, 120)
    assert groups.due(120) == [g, i], "the other has one that may be between two reports"
    groups.join("h", member("slow"), FLIGHTS, 130)
    assert h in groups.due(130)
    assert groups.roll(130)["g"] == ["a"], "and a second restart does not wait for them either"


def test_after_a_restart_a_group_does_not_wait_for_ever() -> None:
    groups = Groups(timeout_ms=1_000)
    groups.await_members({"g": ["a", "b"]}, 500)
    group = groups.join("g", member("a"), FLIGHTS, 0)
    assert groups.due(499) == []
    assert groups.due(500) == [group]
