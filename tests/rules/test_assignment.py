"""Assignment: every partition has one owner, loads are even, and moves are minimal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from hypothesis import given
from hypothesis import strategies as st

from coherer._rules.tubemq.assignment import (
    Partition,
    first_assignment,
    named_assignment,
    next_assignment,
    reassignments,
)

PARTITIONS = st.lists(
    st.builds(
        Partition,
        st.integers(1, 3),
        st.sampled_from(["flights", "airports", "weather"]),
        st.sampled_from([0, 1, 2, 3, 10_000, 10_001]),
    ),
    unique=True,
    max_size=40,
)
MEMBERS = st.lists(st.sampled_from("abcdefgh"), unique=True, min_size=1)


@st.composite
def groups(draw: st.DrawFn) -> tuple[dict[str, list[Partition]], list[Partition]]:
    """A group in any state, with stale and double claims and removed partitions."""
    members = draw(MEMBERS)
    partitions = draw(PARTITIONS)
    claims = draw(PARTITIONS) + partitions
    held = {
        member: draw(st.lists(st.sampled_from(claims), unique=True)) if claims else []
        for member in members
    }
    return held, partitions


def owned_once_and_even(
    plan: Mapping[str, Sequence[Partition]], members: Sequence[str], partitions: list[Partition]
) -> None:
    assert set(plan) == set(members)
    dealt = [partition for held in plan.values() for partition in held]
    assert sorted(dealt) == sorted(partitions)
    loads = [len(held) for held in plan.values()]
    assert max(loads) - min(loads) <= 1


@given(MEMBERS, PARTITIONS)
def test_first_assignment_owns_each_partition_once_and_evenly(
    members: list[str], partitions: list[Partition]
) -> None:
    owned_once_and_even(first_assignment(members, partitions), members, partitions)


def test_first_assignment_of_one_topic_is_the_contiguous_ranges_of_java() -> None:
    partitions = [Partition(broker, "t", number) for broker in (2, 1) for number in range(4)]
    plan = first_assignment(["c", "a", "b"], partitions)
    first = [Partition(1, "t", number) for number in range(4)]
    second = [Partition(2, "t", number) for number in range(4)]
    assert plan == {"a": first[:3], "b": [first[3], *second[:2]], "c": second[2:]}


def test_first_assignment_takes_turns_over_topics() -> None:
    partitions = [Partition(1, topic, 0) for topic in "xyz"]
    plan = first_assignment(["a", "b"], partitions)
    assert [len(plan["a"]), len(plan["b"])] == [2, 1]


def test_no_members_and_no_partitions() -> None:
    assert first_assignment([], [Partition(1, "t", 0)]) == {}
    assert next_assignment({}, [Partition(1, "t", 0)]) == {}


@given(groups())
def test_next_assignment_owns_each_partition_once_and_evenly(
    group: tuple[dict[str, list[Partition]], list[Partition]],
) -> None:
    held, partitions = group
    owned_once_and_even(next_assignment(held, partitions), list(held), partitions)


@given(groups())
def test_next_assignment_is_settled_after_one_step(
    group: tuple[dict[str, list[Partition]], list[Partition]],
) -> None:
    held, partitions = group
    plan = next_assignment(held, partitions)
    again = next_assignment(plan, partitions)
    assert reassignments(plan, again) == {}


@given(groups())
def test_next_assignment_moves_only_what_it_must(
    group: tuple[dict[str, list[Partition]], list[Partition]],
) -> None:
    held, partitions = group
    plan = next_assignment(held, partitions)
    least, more = divmod(len(partitions), len(held))
    free = set(partitions)
    loads: list[int] = []
    for claimed in held.values():
        kept = free.intersection(claimed)
        free -= kept
        loads.append(len(kept))
    needed = sum(
        max(0, load - least - (rank < more)) for rank, load in enumerate(sorted(loads)[::-1])
    )
    valid = set(partitions)
    owner: dict[Partition, str] = {}
    for member, claimed in held.items():
        for partition in valid.intersection(claimed):
            owner.setdefault(partition, member)
    moved = sum(partition not in plan[member] for partition, member in owner.items())
    assert moved == needed


def test_the_older_of_two_holders_keeps_the_partition() -> None:
    partition = Partition(1, "t", 0)
    plan = next_assignment({"older": [partition], "younger": [partition]}, [partition])
    assert plan == {"older": [partition], "younger": []}


def test_revoked_partitions_leave_topics_spread() -> None:
    flights = [Partition(1, "flights", number) for number in range(4)]
    weather = [Partition(1, "weather", number) for number in range(4)]
    plan = next_assignment({"a": flights + weather, "b": []}, flights + weather)
    for member in "ab":
        assert [p.topic for p in plan[member]].count("flights") == 2


NAMED = st.dictionaries(
    st.sampled_from("abcd"),
    st.dictionaries(
        st.builds(Partition, st.just(1), st.just("t"), st.integers(0, 5)), st.integers(0, 3)
    ),
    min_size=1,
)


@given(NAMED, st.booleans())
def test_named_partitions_go_to_one_of_those_who_named_them(
    named: dict[str, dict[Partition, int]], larger_wins: bool
) -> None:
    partitions = [Partition(1, "t", number) for number in range(4)]
    plan = named_assignment(named, partitions, larger_wins=larger_wins)
    assert set(plan) == set(named)
    for partition in partitions:
        offers = [offsets[partition] for offsets in named.values() if partition in offsets]
        owners = [member for member in plan if partition in plan[member]]
        assert len(owners) == bool(offers)
        for member in owners:
            best = max(offers) if larger_wins else min(offers)
            assert named[member][partition] == best
    assert not {p for held in plan.values() for p in held} - set(partitions)


def test_equal_offsets_go_to_the_later_when_the_larger_wins_and_else_to_the_earlier() -> None:
    partition = Partition(1, "t", 0)
    named = {"a": {partition: 7}, "b": {partition: 7}}
    assert named_assignment(named, [partition], larger_wins=True)["b"] == [partition]
    assert named_assignment(named, [partition], larger_wins=False)["a"] == [partition]


@given(groups())
def test_reassignments_lead_from_held_partitions_to_the_plan(
    group: tuple[dict[str, list[Partition]], list[Partition]],
) -> None:
    held, partitions = group
    plan = next_assignment(held, partitions)
    now = {member: set(claimed) for member, claimed in held.items()}
    for member, change in reassignments(held, plan).items():
        assert change.revoked or change.assigned
        now[member] = (now[member] - set(change.revoked)) | set(change.assigned)
    assert now == {member: set(target) for member, target in plan.items()}
