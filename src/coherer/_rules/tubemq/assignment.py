"""Who of a group should own which partition: pure functions, no state, no clock.

The rules, in order:

1. A partition has at most one owner.
2. The partitions that members named go to those who named them (`named_assignment`).
3. A group that holds nothing yet gets contiguous ranges, as Java's first balance gives them
   (`first_assignment`).
4. Afterwards everybody keeps what they hold, as far as that leaves loads that differ by at most
   one (`next_assignment`). No partition moves that need not move.

Java reaches the same even state over several cycles: it gives partitions without an owner to
members chosen at random in one cycle, and evens out in later ones. Here one step does both, so that
members are told once and nobody gets a partition only to lose it again. Where a group has several
topics, the members that get one more than the others take turns over the topics; in Java's first
balance they are the same members for every topic, which its next cycle has to repair.

>>> parts = [Partition(1, "t", number) for number in range(5)]
>>> {who: len(held) for who, held in first_assignment(["a", "b"], parts).items()}
{'a': 3, 'b': 2}
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple, TypeAlias


class Partition(NamedTuple):
    """A partition as the master knows it; the order of its fields is the order of balance.

    Args:
        broker: the broker's id.
        topic: the topic.
        number: the partition's id in the protocol, store * 10000 + partition.
    """

    broker: int
    topic: str
    number: int


Assignment: TypeAlias = dict[str, list[Partition]]
"""Partitions by member, every member present."""


class Change(NamedTuple):
    """What a member has to give up and to take."""

    give: tuple[Partition, ...]
    take: tuple[Partition, ...]


class Named(NamedTuple):
    """A partition that a member of a bound group named, and where it wants to begin."""

    member: str
    offset: int


def first_assignment(members: Iterable[str], partitions: Iterable[Partition]) -> Assignment:
    """Cuts every topic into one contiguous range per member.

    Args:
        members: the members' ids, in any order; ranges go by sorted id, as in Java.
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
    for held in topics.values():
        size, longer = divmod(len(held), len(names))
        begin = 0
        for index in range(len(names)):
            end = begin + size + (index < longer)
            plan[names[(turn + index) % len(names)]] += held[begin:end]
            begin = end
        turn += longer
    return plan


def next_assignment(
    held: Mapping[str, Collection[Partition]], partitions: Iterable[Partition]
) -> Assignment:
    """Evens the loads out, and moves as little as possible.

    Args:
        held: what every member holds now, the oldest member first: where two claim one partition,
            the older keeps it (the younger is back from a pause in which it was given away).
        partitions: all partitions. What is held and not among these is given up.

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
            plan[member], given = _shed(kept, quotas[member])
            pool += given
    _deal(sorted(pool, key=_by_topic), plan, quotas)
    return plan


def named_assignment(
    named: Mapping[str, Mapping[Partition, int]],
    partitions: Collection[Partition],
    *,
    larger_wins: bool,
) -> Assignment:
    """Gives the partitions of a bound group to the members that named them.

    Args:
        named: by member, in the order of joining: the partitions it named, and its offsets.
        partitions: all partitions; others are left out.
        larger_wins: where two members named one partition: the larger offset wins, the later of
            equal ones; otherwise the smaller one, the earlier of equal ones.
    """
    winners: dict[Partition, Named] = {}
    known = frozenset(partitions)
    for member, offsets in named.items():
        for partition, offset in offsets.items():
            if partition not in known:
                continue
            best = winners.get(partition)
            if best is None or (offset >= best.offset if larger_wins else offset < best.offset):
                winners[partition] = Named(member, offset)
    plan: Assignment = {member: [] for member in named}
    for partition in sorted(winners):
        plan[winners[partition].member].append(partition)
    return plan


def changes(
    held: Mapping[str, Collection[Partition]], plan: Mapping[str, Collection[Partition]]
) -> dict[str, Change]:
    """What lies between what members hold and a plan; members without a change are left out."""
    found: dict[str, Change] = {}
    for member, target in plan.items():
        now = held.get(member, ())
        give = tuple(sorted(set(now).difference(target)))
        take = tuple(sorted(set(target).difference(now)))
        if give or take:
            found[member] = Change(give, take)
    return found


def _quotas(loads: Mapping[str, int], total: int) -> dict[str, int]:
    """How many each member should have; those with the most now may keep one more."""
    least, more = divmod(total, len(loads))
    ranked = sorted(loads, key=lambda member: -loads[member])  # stable: the older first
    return {member: least + (rank < more) for rank, member in enumerate(ranked)}


def _shed(kept: list[Partition], quota: int) -> tuple[list[Partition], list[Partition]]:
    """Splits off what is above the quota, from the topics of which most is held."""
    place: dict[str, int] = {}
    ranked: list[tuple[int, Partition]] = []
    for partition in kept:
        rank = place.get(partition.topic, 0)
        place[partition.topic] = rank + 1
        ranked.append((rank, partition))
    ranked.sort()
    stay = sorted(partition for _, partition in ranked[:quota])
    return stay, [partition for _, partition in ranked[quota:]]


def _deal(pool: list[Partition], plan: Assignment, quotas: Mapping[str, int]) -> None:
    """Hands the pool out, one each in turn, so that topics are spread as well."""
    hungry = deque(member for member, kept in plan.items() if len(kept) < quotas[member])
    for partition in pool:
        member = hungry.popleft()
        plan[member].append(partition)
        if len(plan[member]) < quotas[member]:
            hungry.append(member)


def _by_topic(partition: Partition) -> tuple[str, int, int]:
    return partition.topic, partition.broker, partition.number
