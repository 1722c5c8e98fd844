"""One consumer group: agreement, events, and lost messages."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Mapping

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from coherer._rules.tubemq.assignment import Partition
from coherer._rules.tubemq.groups import (
    ConsumerGroup,
    ConsumerGroups,
    Event,
    EventKind,
    GroupKind,
    GroupSubscription,
    GroupTiming,
    Member,
    Mismatch,
)

FLIGHTS = GroupSubscription(kind=GroupKind.NORMAL, topics=frozenset({"flights"}))
TIMING = GroupTiming(retry_ms=1_000, event_resend_ms=30_000, event_expiry_ms=120_000)
TAKES = (EventKind.CONNECT, EventKind.ONLY_CONNECT)


def parts(*numbers: int, broker: int = 1) -> tuple[Partition, ...]:
    return tuple(Partition(broker, "flights", number) for number in numbers)


class Scene:
    """A group, a clock and clients that do what they are told."""

    def __init__(self, subscription: GroupSubscription = FLIGHTS, partitions: int = 4) -> None:
        self.group = ConsumerGroup("g", subscription, TIMING)
        self.partitions: Collection[Partition] = parts(*range(partitions))
        self.away: set[int] = set()
        self.now_ms = 0
        self._ids = itertools.count(1)

    def join(self, name: str, **fields: object) -> Member:
        member = Member(id=name, host="10.0.0.1", **fields)  # type: ignore[arg-type]
        self.group.join(member, self.now_ms)
        return member

    def balance(self) -> None:
        if self.group.due_ms is None or self.now_ms < self.group.due_ms:
            return
        self.group.balance(
            [p for p in self.partitions if p.broker not in self.away],
            dormant=lambda partition: partition.broker in self.away,
            new_id=lambda: next(self._ids),
            now_ms=self.now_ms,
        )

    def beat(self, member: Member) -> Event | None:
        """A heartbeat without news."""
        self.balance()
        return self.group.next_event(member, self.now_ms)

    def obey(self, member: Member, event: Event) -> Event | None:
        """A heartbeat that reports that the event is done."""
        done = frozenset(event.partitions)
        held = member.held | done if event.kind in TAKES else member.held - done
        self.group.report(member, held, self.now_ms)
        assert self.group.acknowledge(member, event.id, self.now_ms, reported=True)
        return self.beat(member)

    def settle(self) -> None:
        for _ in range(10):
            for member in list(self.group.members.values()):
                event = self.beat(member)
                while event is not None:
                    event = self.obey(member, event)


def test_a_single_member_is_assigned_everything_at_its_first_heartbeat() -> None:
    scene = Scene()
    alone = scene.join("a")
    event = scene.beat(alone)
    assert event is not None
    assert (event.kind, event.partitions) == (EventKind.ONLY_CONNECT, parts(0, 1, 2, 3))
    assert not scene.group.allocated
    assert scene.obey(alone, event) is None
    assert scene.group.allocated
    assert alone.held == frozenset(parts(0, 1, 2, 3))
    assert scene.group.due_ms is None or not scene.group.unfinished


def test_revocations_come_before_assignments() -> None:
    scene = Scene()
    old = scene.join("a")
    scene.settle()
    new = scene.join("b")
    assert scene.beat(new) is None
    event = scene.beat(old)
    assert event is not None
    assert (event.kind, event.partitions) == (EventKind.ONLY_DISCONNECT, parts(2, 3))
    assert scene.beat(new) is None
    assert scene.obey(old, event) is None
    taken = scene.beat(new)
    assert taken is not None
    assert (taken.kind, taken.partitions) == (EventKind.ONLY_CONNECT, parts(2, 3))


def test_event_kinds_of_a_member_that_gives_and_takes() -> None:
    scene = Scene()
    a = scene.join("a", held=frozenset(parts(0, 9)))
    first = scene.beat(a)
    assert first is not None
    assert (first.kind, first.partitions) == (EventKind.DISCONNECT, parts(9))
    second = scene.obey(a, first)
    assert second is not None
    assert (second.kind, second.partitions) == (EventKind.CONNECT, parts(1, 2, 3))


def test_an_unacknowledged_event_is_sent_again_later() -> None:
    scene = Scene()
    member = scene.join("a")
    event = scene.beat(member)
    assert event is not None
    scene.now_ms = TIMING.event_resend_ms - 1
    assert scene.beat(member) is None
    scene.now_ms += 1
    assert scene.beat(member) is event


def test_a_second_acknowledgement_removes_nothing() -> None:
    scene = Scene()
    member = scene.join("a", held=frozenset(parts(9)))
    event = scene.beat(member)
    assert event is not None
    following = scene.obey(member, event)
    assert following is not None
    assert not scene.group.acknowledge(member, event.id, scene.now_ms, reported=True)
    assert member.assignments[0] is following


def test_an_event_that_was_never_sent_cannot_be_acknowledged() -> None:
    scene = Scene()
    member = scene.join("a")
    scene.balance()
    assert not scene.group.acknowledge(member, member.assignments[0].id, 0, reported=True)


def test_an_acknowledgement_without_a_report_is_trusted() -> None:
    scene = Scene()
    member = scene.join("a", held=frozenset(parts(9)))
    for expected in (frozenset[Partition](), frozenset(parts(0, 1, 2, 3))):
        event = scene.beat(member)
        assert event is not None
        assert scene.group.acknowledge(member, event.id, 0, reported=False)
        assert member.held == expected


def test_a_failed_assignment_is_retried_later() -> None:
    scene = Scene()
    member = scene.join("a")
    event = scene.beat(member)
    assert event is not None
    scene.group.report(member, parts(0, 1, 2), 0)
    assert scene.group.acknowledge(member, event.id, 0, reported=True)
    assert scene.beat(member) is None
    scene.now_ms = TIMING.retry_ms
    again = scene.beat(member)
    assert again is not None
    assert again.partitions == parts(3)


def test_expired_events_are_dropped_but_assigned_partitions_stay_held() -> None:
    scene = Scene()
    deaf = scene.join("a")
    first = scene.beat(deaf)
    assert first is not None
    other = scene.join("b")
    assert scene.beat(other) is None
    scene.now_ms = TIMING.event_expiry_ms - 1
    assert scene.beat(other) is None
    scene.now_ms += 1
    assert scene.beat(other) is None, "a may have taken everything"
    event = scene.beat(deaf)
    assert event is not None
    assert (event.kind, event.partitions) == (EventKind.ONLY_DISCONNECT, parts(2, 3))
    assert not scene.group.acknowledge(deaf, first.id, scene.now_ms, reported=True)
    scene.group.report(deaf, (), scene.now_ms)
    assert scene.group.acknowledge(deaf, event.id, scene.now_ms, reported=True)
    event = scene.beat(other)
    assert event is not None
    assert event.partitions == parts(2, 3)


def test_a_leaving_member_drops_its_events() -> None:
    scene = Scene()
    old, new = scene.join("a"), None
    scene.settle()
    new = scene.join("b")
    assert scene.beat(new) is None
    scene.group.leave(old.id, scene.now_ms)
    event = scene.beat(new)
    assert event is not None
    assert event.partitions == parts(2, 3)
    following = scene.obey(new, event)
    assert following is not None
    assert following.partitions == parts(0, 1)
    assert scene.group.leave("nobody", 0) is None


def test_partitions_of_a_broker_that_is_away_stay_with_their_owner() -> None:
    scene = Scene()
    scene.partitions = (*parts(0, 1), *parts(0, 1, broker=2))
    a, b = scene.join("a"), scene.join("b")
    scene.settle()
    assert b.held == set(parts(0, 1, broker=2))
    scene.away = {2}
    scene.group.due_ms = scene.now_ms
    scene.settle()
    assert a.held == set(parts(0))
    assert b.held == {*parts(1), *parts(0, 1, broker=2)}
    scene.away = set()
    scene.group.due_ms = scene.now_ms
    scene.settle()
    assert a.held | b.held == set(scene.partitions)
    assert not a.held & b.held


def test_partitions_of_a_restarted_broker_are_assigned_again() -> None:
    scene = Scene()
    scene.partitions = (*parts(0), *parts(0, broker=2))
    member = scene.join("a")
    scene.settle()
    scene.group.forget_broker(2, scene.now_ms)
    event = scene.beat(member)
    assert event is not None
    assert event.partitions == parts(0, broker=2)
    scene.group.forget_broker(3, scene.now_ms)


def test_reports_of_unsubscribed_topics_are_ignored() -> None:
    scene = Scene()
    member = scene.join("a")
    scene.group.report(member, [Partition(1, "weather", 0)], 0)
    assert member.held == frozenset()


# -- agreement


BASE: dict[str, object] = {
    "kind": GroupKind.BOUND,
    "topics": frozenset({"flights"}),
    "filters": {"flights": frozenset({"UA"})},
    "session_key": "k",
    "select_big": True,
    "source_count": 2,
}


@pytest.mark.parametrize(
    ("change", "mismatch"),
    [
        ({"kind": GroupKind.NORMAL}, Mismatch.KIND),
        ({"topics": frozenset({"flights", "weather"})}, Mismatch.TOPICS),
        ({"filters": {}}, Mismatch.FILTERS),
        ({"session_key": "x"}, Mismatch.SESSION_KEY),
        ({"select_big": False}, Mismatch.SELECT_BIG),
        ({"source_count": 3}, Mismatch.SOURCE_COUNT),
        ({}, None),
    ],
)
def test_members_must_agree(change: Mapping[str, object], mismatch: Mismatch | None) -> None:
    scene = Scene(GroupSubscription(**BASE))  # type: ignore[arg-type]
    scene.join("a")
    theirs = GroupSubscription(**{**BASE, **change})  # type: ignore[arg-type]
    assert scene.group.mismatch("b", theirs) is mismatch
    assert scene.group.mismatch("a", theirs) is None


def test_two_members_cannot_have_one_node_id() -> None:
    counted = GroupSubscription(
        kind=GroupKind.CLIENT_BALANCED, topics=frozenset({"flights"}), source_count=2
    )
    scene = Scene(counted)
    scene.join("a", node_id=0)
    assert scene.group.mismatch("b", counted, 0) is Mismatch.NODE_ID
    assert scene.group.mismatch("b", counted, 1) is None
    assert scene.group.mismatch("a", counted, 0) is None


# -- bound groups


def bound(count: int = 2, *, select_big: bool = False) -> GroupSubscription:
    return GroupSubscription(
        kind=GroupKind.BOUND,
        topics=frozenset({"flights"}),
        session_key="k",
        select_big=select_big,
        source_count=count,
    )


def test_a_bound_group_waits_for_all_and_gives_named_partitions_first() -> None:
    scene = Scene(bound())
    a = scene.join("a", named=dict.fromkeys(parts(3), 30))
    assert scene.beat(a) is None
    b = scene.join("b", named=dict.fromkeys(parts(0), 5))
    to_b, to_a = scene.beat(b), scene.beat(a)
    assert to_a is not None
    assert to_b is not None
    assert (to_a.partitions, to_b.partitions) == (parts(3), parts(0))
    assert scene.obey(a, to_a) is None
    assert not scene.group.allocated, "b has not taken its own yet"
    suspend = scene.obey(b, to_b)
    assert scene.group.allocated
    assert suspend is not None
    scene.obey(b, suspend)
    scene.settle()
    assert a.held | b.held == set(parts(0, 1, 2, 3))
    assert len(a.held) == len(b.held) == 2
    assert parts(3)[0] in a.held


def test_a_bound_group_that_names_nothing_does_not_wait() -> None:
    scene = Scene(bound())
    assert scene.beat(scene.join("a")) is not None


def test_a_bound_group_that_was_allocated_before_does_not_wait() -> None:
    scene = Scene(bound())
    member = scene.join("a", named=dict.fromkeys(parts(3), 30), allocated=True)
    event = scene.beat(member)
    assert event is not None
    assert event.partitions == parts(0, 1, 2, 3)


def test_a_client_balanced_group_is_not_balanced() -> None:
    scene = Scene(GroupSubscription(kind=GroupKind.CLIENT_BALANCED, topics=frozenset({"flights"})))
    assert scene.beat(scene.join("a")) is None
    assert scene.group.due_ms is None


# -- with losses of every kind


INDEX = st.integers(0, 7)


class LossyGroup(RuleBasedStateMachine):
    """Clients that obey over a network that loses requests and answers.

    Whatever is lost, no two clients hold one partition, and when nothing is lost any more the
    group becomes even and complete.
    """

    def __init__(self) -> None:
        super().__init__()
        self.scene = Scene()
        self.scene.partitions = (*parts(0, 1, 2), *parts(0, 1, 2, broker=2))
        self.truth: dict[str, set[Partition]] = {}
        self.results: dict[str, list[int]] = {}
        self.names = (f"c{number}" for number in itertools.count())
        self.join()

    def member(self, index: int) -> str:
        return sorted(self.truth)[index % len(self.truth)]

    @rule()
    def join(self) -> None:
        name = next(self.names)
        self.truth[name] = set()
        self.results[name] = []
        self.scene.join(name)

    @precondition(lambda self: len(self.truth) > 2)
    @rule(index=INDEX)
    def leave(self, index: int) -> None:
        name = self.member(index)
        del self.truth[name]
        self.scene.group.leave(name, self.scene.now_ms)

    @rule(index=INDEX)
    def register_again(self, index: int) -> None:
        name = self.member(index)
        self.scene.join(name, held=frozenset(self.truth[name]))
        self.results[name].clear()

    @rule(index=INDEX, lost=st.sampled_from(["nothing", "request", "answer"]), report=st.booleans())
    def heartbeat(self, index: int, lost: str, report: bool) -> None:
        name = self.member(index)
        group, now_ms = self.scene.group, self.scene.now_ms
        result = self.results[name].pop(0) if self.results[name] else None
        if lost == "request":
            return
        member = group.members[name]
        if report or result is not None:
            group.report(member, self.truth[name], now_ms)
        if result is not None:
            group.acknowledge(member, result, now_ms, reported=True)
        event = self.scene.beat(member)
        if event is None or lost == "answer":
            return
        if event.kind in TAKES:
            self.truth[name] |= set(event.partitions)
        else:
            self.truth[name] -= set(event.partitions)
        self.results[name].append(event.id)

    @rule()
    def round(self) -> None:
        for index in range(len(self.truth)):
            self.heartbeat(index, "nothing", report=False)

    @rule(index=INDEX)
    def lose_partitions(self, index: int) -> None:
        name = self.member(index)
        self.truth[name] = set(sorted(self.truth[name])[1:])

    @rule()
    def broker_goes(self) -> None:
        self.scene.away = {2}
        self.scene.group.due_ms = self.scene.now_ms

    @rule()
    def broker_starts(self) -> None:
        self.scene.away = set()
        for owned in self.truth.values():
            owned.difference_update(parts(0, 1, 2, broker=2))
        self.scene.group.forget_broker(2, self.scene.now_ms)
        self.scene.group.due_ms = self.scene.now_ms

    @rule(ms=st.sampled_from([100, 13_000, 31_000]))
    def wait(self, ms: int) -> None:
        self.scene.now_ms += ms

    @invariant()
    def nobody_holds_what_another_holds(self) -> None:
        held = [partition for owned in self.truth.values() for partition in owned]
        assert len(held) == len(set(held))

    def teardown(self) -> None:
        self.broker_starts()
        for _ in range(12):
            for index in range(len(self.truth)):
                self.heartbeat(index, "nothing", report=True)
            self.scene.now_ms += TIMING.event_resend_ms
        loads = [len(owned) for owned in self.truth.values()]
        assert max(loads) - min(loads) <= 1
        assert sum(loads) == len(self.scene.partitions)


LossyGroup.TestCase.settings = settings(stateful_step_count=40, deadline=None)
TestLossyGroup = LossyGroup.TestCase


@given(st.integers(1, 6), st.integers(0, 20))
def test_any_group_reaches_a_balanced_state(members: int, partitions: int) -> None:
    scene = Scene(partitions=partitions)
    for number in range(members):
        scene.join(f"c{number}")
    scene.settle()
    loads = [len(member.held) for member in scene.group.members.values()]
    assert sum(loads) == partitions
    assert max(loads) - min(loads) <= 1
    assert not scene.group.unfinished


# -- members that give up everything for a while

EVERYTHING = frozenset(parts(0, 1, 2, 3))


def pass_ms(scene: Scene, ms: int) -> None:
    scene.now_ms += ms
    scene.settle()


def test_other_members_take_the_partitions_of_a_suspended_one() -> None:
    scene = Scene()
    a, b = scene.join("a"), scene.join("b")
    scene.settle()
    assert (len(a.held), len(b.held)) == (2, 2)
    scene.group.suspend(["a"], scene.now_ms, scene.now_ms + 10_000)
    scene.settle()
    assert (a.held, b.held) == (frozenset(), EVERYTHING)
    pass_ms(scene, 9_999)
    assert (a.held, b.held) == (frozenset(), EVERYTHING)
    pass_ms(scene, 1)
    assert (len(a.held), len(b.held)) == (2, 2)
    assert not scene.group.suspended


def test_a_suspension_without_a_duration_ends_after_the_revocation() -> None:
    scene = Scene()
    a, b = scene.join("a"), scene.join("b")
    scene.settle()
    first = a.held
    scene.group.suspend(["a"], scene.now_ms, scene.now_ms)
    event = scene.beat(a)
    assert event is not None
    assert frozenset(event.partitions) == first
    scene.obey(a, event)
    scene.settle()
    pass_ms(scene, 1)
    assert (len(a.held), len(b.held)) == (2, 2)
    assert not scene.group.suspended


def test_a_suspended_single_member_gives_up_and_retakes_everything() -> None:
    scene = Scene()
    a = scene.join("a")
    scene.settle()
    scene.group.suspend(["a"], scene.now_ms, scene.now_ms + 5_000)
    scene.settle()
    assert a.held == frozenset()
    pass_ms(scene, 5_000)
    assert a.held == EVERYTHING


def test_a_suspension_ends_when_the_member_leaves() -> None:
    scene = Scene()
    scene.join("a")
    b = scene.join("b")
    scene.settle()
    scene.group.suspend(["a", "stranger"], scene.now_ms, scene.now_ms + 60_000)
    assert list(scene.group.suspended) == ["a"]
    scene.settle()
    scene.group.leave("a", scene.now_ms)
    scene.settle()
    assert (b.held, scene.group.suspended) == (EVERYTHING, {})


@pytest.mark.parametrize("others", [(), ("b",)])
def test_a_suspended_member_that_registers_again_stays_suspended(others: tuple[str, ...]) -> None:
    groups = ConsumerGroups(timeout_ms=30_000, timing=TIMING)
    for name in ("a", *others):
        group = groups.join("g", Member(id=name, host="10.0.0.1"), FLIGHTS, 0)
    group.suspend(["a"], 0, 60_000)
    group = groups.join("g", Member(id="a", host="10.0.0.1"), FLIGHTS, 10)
    assert list(group.suspended) == ["a"]


@pytest.mark.parametrize("kind", [GroupKind.BOUND, GroupKind.NORMAL])
def test_a_member_of_a_bound_group_is_suspended(kind: GroupKind) -> None:
    subscription = GroupSubscription(kind=kind, topics=frozenset({"flights"}), source_count=2)
    scene = Scene(subscription)
    a = scene.join("a", named=dict.fromkeys(parts(0), 0))
    b = scene.join("b", named=dict.fromkeys(parts(1), 0))
    scene.group.suspend(["a"], scene.now_ms, scene.now_ms + 5_000)
    scene.settle()
    assert (a.held, b.held) == (frozenset(), EVERYTHING)
    pass_ms(scene, 5_000)
    assert a.held | b.held == EVERYTHING
    assert a.held


def test_a_client_balanced_group_cannot_be_suspended() -> None:
    subscription = GroupSubscription(kind=GroupKind.CLIENT_BALANCED, topics=frozenset({"flights"}))
    group = ConsumerGroup("g", subscription, GroupTiming())
    group.join(Member(id="a", host="10.0.0.1"), 0)
    group.suspend(["a"], 0, 1_000)
    assert not group.suspended
