"""Consumer groups: membership, timeouts, and restarts of the master."""

from __future__ import annotations

import msgspec

from coherer._rules.tubemq.assignment import Partition
from coherer._rules.tubemq.groups import (
    ConsumerGroups,
    GroupKind,
    GroupSubscription,
    Member,
    Mismatch,
)

FLIGHTS = GroupSubscription(kind=GroupKind.NORMAL, topics=frozenset({"flights"}))
WEATHER = GroupSubscription(kind=GroupKind.NORMAL, topics=frozenset({"weather"}))


def member(name: str) -> Member:
    return Member(id=name, host="10.0.0.1")


def test_client_balanced_members_are_not_expected() -> None:
    groups = ConsumerGroups(timeout_ms=100)
    groups.join("g", member("a"), FLIGHTS, 0)
    choosing = msgspec.structs.replace(FLIGHTS, kind=GroupKind.CLIENT_BALANCED)
    groups.join("reader", member("b"), choosing, 0)
    assert groups.member_ids(0) == {"g": ["a"]}


def test_a_group_ends_with_its_last_member() -> None:
    groups = ConsumerGroups(timeout_ms=100)
    groups.join("g", member("a"), FLIGHTS, 0)
    groups.join("g", member("b"), FLIGHTS, 50)
    assert len(groups) == 2
    assert groups.mismatch("g", "c", WEATHER) is Mismatch.TOPICS
    assert groups.mismatch("other", "c", WEATHER) is None
    assert groups.expire(100) == [("g", "a")]
    assert groups.seen("g", "a", 100) is None
    assert groups.seen("g", "b", 100) is not None
    assert groups.leave("g", "b", 110)
    assert not groups.leave("g", "b", 110)
    assert groups.get("g") is None
    assert not list(groups)


def test_a_single_member_can_change_the_subscription() -> None:
    groups = ConsumerGroups(timeout_ms=100)
    groups.join("g", member("a"), FLIGHTS, 0)
    groups.join("g", member("a"), WEATHER, 10)
    group = groups.get("g")
    assert group is not None
    assert group.subscription is WEATHER


def test_groups_are_due_when_something_about_them_changes() -> None:
    groups = ConsumerGroups(timeout_ms=1_000)
    flights = groups.join("f", member("a"), FLIGHTS, 0)
    weather = groups.join("w", member("b"), WEATHER, 0)
    assert groups.due(0) == [flights, weather]
    flights.due_ms = weather.due_ms = None
    groups.touch(["weather"], 5)
    assert groups.due(5) == [weather]
    assert groups.due(4) == []


def test_a_restarted_broker_is_forgotten_by_all_groups() -> None:
    groups = ConsumerGroups(timeout_ms=1_000)
    group = groups.join("f", member("a"), FLIGHTS, 0)
    group.report(group.members["a"], [Partition(1, "flights", 0)], 0)
    groups.forget_broker(1, 0)
    assert group.members["a"].held == frozenset()


def test_a_group_expects_its_members_after_a_restart() -> None:
    before = ConsumerGroups(timeout_ms=1_000)
    for name in "abc":
        before.join("g", member(name), FLIGHTS, 0)
    after = ConsumerGroups(timeout_ms=1_000)
    after.expect_members(before.member_ids(0), 500)
    assert after.member_ids(499) == {"g": ["a", "b", "c"]}, "the master may restart again"
    assert after.member_ids(500) == {}
    other = after.join("other", member("x"), FLIGHTS, 10)
    group = after.join("g", member("a"), FLIGHTS, 10)
    assert after.due(10) == [other]
    after.join("g", member("b"), FLIGHTS, 20)
    after.leave("g", "c", 30)
    assert group in after.due(30), "all members are back or have left"


def test_frequent_reporters_are_expected_for_a_short_time() -> None:
    groups = ConsumerGroups(timeout_ms=1_000)
    member_ids = {"g": ["a", "b", "c"], "h": ["b", "slow"], "i": ["b"]}
    groups.expect_members(member_ids, 500, reports_often=lambda name: name != "slow", absent_ms=20)
    assert groups.due(100) == [], "consumers can return from here on"
    g, h, i = (groups.join(name, member("a"), FLIGHTS, 110) for name in "ghi")
    assert groups.due(119) == []
    assert groups.member_ids(119) == {
        "g": ["a", "b", "c"],
        "h": ["a", "b", "slow"],
        "i": ["a", "b"],
    }
    assert not groups.is_due(h, 120)
    assert groups.due(120) == [g, i], "the other has one that may be between two reports"
    groups.join("h", member("slow"), FLIGHTS, 130)
    assert h in groups.due(130)
    assert groups.member_ids(130)["g"] == ["a"], "a second restart does not wait for them either"


def test_a_group_expects_members_for_a_limited_time() -> None:
    groups = ConsumerGroups(timeout_ms=1_000)
    groups.expect_members({"g": ["a", "b"]}, 500)
    group = groups.join("g", member("a"), FLIGHTS, 0)
    assert groups.due(499) == []
    assert groups.due(500) == [group]
