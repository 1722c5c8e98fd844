"""The state of a cluster on one page: its problems, its rates, and the groups that lag most.

The command line and the console show the same overview. A value that is unknown is None.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Sequence
from typing import Final

import msgspec

from coherer._administration import members as member_health
from coherer._administration.access import Cluster, RocketCluster
from coherer._administration.brokers import broker_list, node_status
from coherer._common.node_status import NodeStatus, StatusWarning
from coherer._record.properties import number_in
from coherer.admin import Broker, Group

BEHIND_MAX: Final = 10
"""The number of groups that an overview shows."""

NAMED_MAX: Final = 5
"""The number of names in one warning."""

FREE_DISK: Final = 0.1
"""A warning is given if less than this share of a broker's disk is free."""


class Behind(msgspec.Struct, frozen=True):
    """A group that has not acknowledged all messages.

    Args:
        group: its name.
        lag: the number of messages.
        oldest_ms: the age of the oldest of them, in ms; None if it is unknown.
        members: the number of its members.
        topics: its topics.
    """

    group: str
    lag: int
    oldest_ms: int | None
    members: int
    topics: tuple[str, ...]


class Overview(msgspec.Struct, frozen=True):
    """The state of a cluster.

    Args:
        problems: the worst first.
        brokers: its brokers.
        topics: the number of topics.
        groups: the number of consumer groups.
        lag: the number of messages that groups have not acknowledged, summed over all groups.
        behind: the groups that lag most.
        node: the status that a Coherer node reports over TubeMQ's administration.
    """

    problems: tuple[StatusWarning, ...]
    brokers: tuple[Broker, ...]
    topics: int
    groups: int
    lag: int | None
    behind: tuple[Behind, ...]
    node: NodeStatus | None


SLAVE_BEHIND_BYTES: Final = 64 * 1024 * 1024
"""A busy master is always a little ahead, and is asked at another moment than its slave."""


async def overview(
    cluster: Cluster,
    *names: str,
    topics: Sequence[str] | None = None,
    listed: Sequence[str] | None = None,
    status: Callable[[], Awaitable[NodeStatus | None]] | None = None,
) -> Overview:
    """Look at a cluster.

    Args:
        cluster: the cluster.
        names: ask only for these groups, because there are too many; then the sum of the lag is
            unknown.
        topics: the names of all topics, if they are known already.
        listed: the names of all groups, if they are known already.
        status: asks for the status of the node, if not `node_status`.

    Raises:
        UnavailableError: no name server or master answers.
    """
    node = await (node_status(cluster) if status is None else status())
    brokers = await broker_list(cluster, node)
    topics = await cluster.admin.topics.names() if topics is None else topics
    listed = await cluster.admin.groups.names() if listed is None else listed
    found = await cluster.admin.groups.list(*names) if names or listed else []
    known = [one for one in found if one.name in listed]
    behind = await most_behind(cluster, known)
    return Overview(
        problems=tuple(await _problems(cluster, brokers, known, node)),
        brokers=tuple(brokers),
        topics=len(topics),
        groups=len(listed),
        lag=None if names else _sum_of_lags(known, topics),
        behind=tuple(behind),
        node=node,
    )


def _sum_of_lags(found: Sequence[Group], topics: Collection[str]) -> int | None:
    """The lag of all groups in these topics, without retry topics, which only RocketMQ shows."""
    listed = set(topics)
    lags = [part.lag for one in found for part in one.partitions if part.topic in listed]
    if None in lags or any(one.silent for one in found):
        return None
    return sum(lag or 0 for lag in lags)


async def most_behind(cluster: Cluster, found: Sequence[Group]) -> list[Behind]:
    """The groups that lag most, with the ages of their oldest unread messages."""
    lagging = [one for one in found if one.lag]
    lagging.sort(key=lambda one: (-(one.lag or 0), one.name))
    some = lagging[:BEHIND_MAX]
    ages = await _ages_of(cluster, some)
    return [
        Behind(one.name, one.lag or 0, oldest_ms(one, age), len(one.members), one.topics)
        for one, age in zip(some, ages, strict=True)
    ]


async def _ages_of(cluster: Cluster, some: Sequence[Group]) -> list[dict[str, int]]:
    """`unread_ages` of several groups."""
    if isinstance(cluster, RocketCluster):
        return list(await asyncio.gather(*(unread_ages(cluster, one) for one in some)))
    found = await cluster.admin.groups.unread_ages_of([one.name for one in some]) if some else {}
    return [found.get(one.name, {}) for one in some]


async def unread_ages(cluster: Cluster, group: Group) -> dict[str, int]:
    """The ages of a group's oldest unread messages by partition, in ms; without unknown ones."""
    topics = {one.topic for one in group.partitions if one.lag}
    return await cluster.admin.groups.unread_ages(group.name, *sorted(topics)) if topics else {}


def oldest_ms(group: Group, ages: dict[str, int]) -> int | None:
    """The age of a group's oldest unread message; None without one, or if an age is unknown."""
    behind = [ages.get(one.key) for one in group.partitions if one.lag]
    known = [age for age in behind if age is not None]
    return max(known) if known and len(known) == len(behind) else None


async def _problems(
    cluster: Cluster, brokers: Sequence[Broker], found: Sequence[Group], node: NodeStatus | None
) -> list[StatusWarning]:
    """The problems: of the node, of brokers, silent consumers, groups without consumers."""
    listed = [] if node is None else list(node.warnings)
    listed += _without_master(brokers)
    listed += _slaves_behind(brokers)
    listed += [problem for one in brokers for problem in _of_broker(one)]
    lagging_first = sorted(found, key=lambda one: -(one.lag or 0))
    clients = [client for one in lagging_first for client in one.members]
    listed += member_health.problems(await member_health.check(cluster, clients, node))
    idle = [one for one in lagging_first if one.lag and not one.members]
    if idle:
        listed.append(_without_consumers(idle))
    return listed


def _without_master(brokers: Sequence[Broker]) -> list[StatusWarning]:
    """Brokers of which only slaves are registered."""
    masters = {one.name for one in brokers if one.role != "slave"}
    return [
        StatusWarning(
            f"No master of broker {name} is registered, only a slave.",
            "Start its master. Until then its messages can be read, and none can be sent to it.",
        )
        for name in sorted({one.name for one in brokers} - masters)
    ]


def _slaves_behind(brokers: Sequence[Broker]) -> list[StatusWarning]:
    """Slaves that lack a part of their master's log."""
    ends = {one.name: _end_of(one) or 0 for one in brokers if one.role == "master"}
    slaves = [(one, _end_of(one)) for one in brokers if one.role == "slave"]
    lacking = [(one, ends.get(one.name, 0) - end) for one, end in slaves if end is not None]
    return [
        StatusWarning(
            f"Broker {one.name}, slave {one.id}, lacks {count:,} bytes of its master's log.",
            "Do not make it the master before it has them. Its log says if it does not copy.",
        )
        for one, count in lacking
        if count > SLAVE_BEHIND_BYTES
    ]


def _end_of(broker: Broker) -> int | None:
    return number_in(broker.reported.get("commitLogMaxOffset"))


def _of_broker(one: Broker) -> list[StatusWarning]:
    name = f"Broker {one.name}" + (f", slave {one.id}," if one.role == "slave" else "")
    if one.status in {"silent", "stopped"}:
        return [
            StatusWarning(
                f"{name} at {one.address} does not answer.",
                "Look at its process and its log. Its messages cannot be read meanwhile.",
            )
        ]
    # The node warns itself about the disk of its own broker.
    if one.disk_used is not None and one.cluster and one.disk_used > 1 - FREE_DISK:
        return [
            StatusWarning(
                f"{name} at {one.address} has used {one.disk_used:.0%} of its disk.",
                "Shorten the retention, or make the disk larger, before it accepts no messages.",
            )
        ]
    return []


def _without_consumers(idle: Sequence[Group]) -> StatusWarning:
    names = ", ".join(one.name for one in idle[:NAMED_MAX])
    more = f" and {len(idle) - NAMED_MAX} more" if len(idle) > NAMED_MAX else ""
    text = "Group {} has" if len(idle) == 1 else "Groups {} have"
    return StatusWarning(
        f"{text.format(names + more)} unread messages and no consumer.",
        "Start the consumers, or delete groups that are not needed any more.",
    )
