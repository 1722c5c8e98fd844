"""Assigns partitions to the members of a consumer group: pure functions without a clock.

The rules, in order:

1. A partition has at most one owner.
2. Partitions that members have named are assigned to those members (`named_assignment`).
3. A group without partitions gets contiguous ranges, as in Java's first balance
   (`first_assignment`).
4. Later assignments move as few partitions as possible, and leave loads that differ by at most one
   (`next_assignment`).

Java reaches the same balanced state over several cycles: one cycle assigns partitions without an
owner to random members, later ones even the loads out. Here one step does both, so that no member
gets a partition only to lose it again. In a group with several topics, the members that get one
partition more than the others alternate by topic; in Java's first balance they are the same members
for every topic, which its next cycle has to repair.

>>> parts = [Partition(1, "t", number) for number in range(5)]
>>> {who: len(held) for who, held in first_assignment(["a", "b"], parts).items()}
{'a': 3, 'b': 2}
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple, TypeAlias


class Partition(NamedTuple):
    """A partition; partitions are balanced in the order of these fields.

    Args:
        broker: the broker's id.
        topic: the topic.
        number: the id of the partition in the protocol, store * 10000 + partition.
    """

    broker: int
    topic: str
    number: int


Assignment: TypeAlias = dict[str, list[Partition]]
"""Partitions by member; every member has an entry."""


class Reassignment(NamedTuple):
    """The partitions that a member has to give up and those that it has to take."""

    revoked: tuple[Partition, ...]
    assigned: tuple[Partition, ...]


class _Claim(NamedTuple):
    member: str
    offset: int


def first_assignment(members: Iterable[str], partitions: Iterable[Partition]) -> Assignment:
    """Divide every topic into one contiguous range per member.

    Args:
        members: the ids of the members, in any order; ranges go by sorted id, as in Java.
        partitions: all partitions, in any order.

    Returns:
        A list per member; their lengths differ by at most one.
    """
    names = sorted(members)
    plan: Assignment = {name: [] for name in names}
    topics: dict[str, list[Partition]] = {}
    for partition in sorted(set(partitions)) if names else ():
        topics.setdefault(partition.topic, []).append(partition)
    turn = 0
    for ordered in topics.values():
        size, longer = divmod(len(ordered), len(names))
        begin = 0
        for index in range(len(names)):
            end = begin + size + (index < longer)
            plan[names[(turn + index) % len(names)]] += ordered[begin:end]
            begin = end
        turn += longer
    return plan


def next_assignment(
    held: Mapping[str, Collection[Partition]], partitions: Iterable[Partition]
) -> Assignment:
    """Even the loads out with as few moves as possible.

    Args:
        held: the partitions that each member holds, the oldest member first. If two members hold
            the same partition, the older one keeps it: the younger one is back from a pause during
            which the partition was reassigned.
        partitions: all partitions. Held partitions that are not among these are revoked.

    Returns:
        A list per member; their lengths differ by at most one.

    >>> parts = [Partition(1, "t", number) for number in range(4)]
    >>> next_assignment({"old": parts, "new": []}, parts)["new"]
    [Partition(broker=1, topic='t', number=2), Partition(broker=1, topic='t', number=3)]
    """
    free = set(partitions)
    total = len(free)
    plan: Assignment = {}
    for member, claimed in held.items():
        kept = sorted(free.intersection(claimed))
        free.difference_update(kept)
        plan[member] = kept
    if not plan:
        return plan
    quotas = _quotas({member: len(kept) for member, kept in plan.items()}, total)
    pool = sorted(free)
    for member, kept in plan.items():
        if len(kept) > quotas[member]:
            plan[member], excess = _split(kept, quotas[member])
            pool += excess
    _deal(sorted(pool, key=_by_topic), plan, quotas)
    return plan


def named_assignment(
    named: Mapping[str, Mapping[Partition, int]],
    partitions: Collection[Partition],
    *,
    larger_wins: bool,
) -> Assignment:
    """Assign the partitions of a bound group to the members that named them.

    Args:
        named: the partitions that each member named and their offsets, in the order of joining.
        partitions: all partitions; others are ignored.
        larger_wins: how to decide between two members that named the same partition: by the larger
            offset (the later of equal ones), or by the smaller one (the earlier of equal ones).
    """
    winners: dict[Partition, _Claim] = {}
    known = frozenset(partitions)
    for member, offsets in named.items():
        for partition, offset in offsets.items():
            if partition not in known:
                continue
            best = winners.get(partition)
            if best is None or (offset >= best.offset if larger_wins else offset < best.offset):
                winners[partition] = _Claim(member, offset)
    plan: Assignment = {member: [] for member in named}
    for partition in sorted(winners):
        plan[winners[partition].member].append(partition)
    return plan


def reassignments(
    held: Mapping[str, Collection[Partition]], plan: Mapping[str, Collection[Partition]]
) -> dict[str, Reassignment]:
    """The difference between the partitions that members hold and a plan, by changed member."""
    found: dict[str, Reassignment] = {}
    for member, target in plan.items():
        now = held.get(member, ())
        revoked = tuple(sorted(set(now).difference(target)))
        assigned = tuple(sorted(set(target).difference(now)))
        if revoked or assigned:
            found[member] = Reassignment(revoked, assigned)
    return found


def _quotas(loads: Mapping[str, int], total: int) -> dict[str, int]:
    """The number of partitions for each member; those with the most now may keep one more."""
    least, more = divmod(total, len(loads))
    ranked = sorted(loads, key=lambda member: -loads[member])  # stable: the older first
    return {member: least + (rank < more) for rank, member in enumerate(ranked)}


def _split(kept: list[Partition], quota: int) -> tuple[list[Partition], list[Partition]]:
    """Split off the partitions above the quota, from the topics with the most partitions."""
    counts: dict[str, int] = {}
    ranked: list[tuple[int, Partition]] = []
    for partition in kept:
        rank = counts.get(partition.topic, 0)
        counts[partition.topic] = rank + 1
        ranked.append((rank, partition))
    ranked.sort()
    stay = sorted(partition for _, partition in ranked[:quota])
    return stay, [partition for _, partition in ranked[quota:]]


def _deal(pool: list[Partition], plan: Assignment, quotas: Mapping[str, int]) -> None:
    """Distribute the pool round-robin, so that every topic is spread over the members."""
    open_members = deque(member for member, kept in plan.items() if len(kept) < quotas[member])
    for partition in pool:
        member = open_members.popleft()
        plan[member].append(partition)
        if len(plan[member]) < quotas[member]:
            open_members.append(member)


def _by_topic(partition: Partition) -> tuple[str, int, int]:
    return partition.topic, partition.broker, partition.number
