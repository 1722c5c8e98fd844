"""The state of a cluster: brokers, topics, groups, clients, accounts; the same over both protocols.

Nothing is cached: each call asks the servers. A value that they do not report is None.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Final

import msgspec

from coherer._administration.access import Cluster, RocketCluster, TubeCluster
from coherer._common.node_status import NodeStatus
from coherer.admin import Broker, Group, Member, Partition, Topic
from coherer.errors import CohererError, RefusedError

PARALLEL: Final = 16
"""The number of concurrent requests."""

_BROKER_PORTS: Final = frozenset({"TubeMQ broker", "TubeMQ broker, TLS"})


class TopicDetails(msgspec.Struct, frozen=True):
    """A topic in detail.

    Args:
        topic: the topic.
        partitions: its partitions.
        in_per_s: messages stored per second, over the last minute.
        out_per_s: messages delivered per second to all groups.
        in_today: messages stored in the last 24 hours, or since the broker was started.
        readers: the groups that consume it, or have offsets in it.
        writers: the clients that send to it; None if the protocol does not report them.
        config: the settings by broker.
    """

    topic: Topic
    partitions: tuple[Partition, ...]
    in_per_s: float | None
    out_per_s: float | None
    in_today: int | None
    readers: tuple[str, ...]
    writers: tuple[str, ...] | None
    config: Mapping[str, Mapping[str, str]]


class Account(msgspec.Struct, frozen=True):
    """An account; its secret is never read.

    Args:
        name: its name; RocketMQ's access key.
        admin: whether it may change the cluster.
        addresses: addresses that need no signature; "" for none.
        topics: permissions by topic, `*` for the others.
        groups: permissions by group, `*` for the others.
    """

    name: str
    admin: bool
    addresses: str
    topics: Mapping[str, str]
    groups: Mapping[str, str]


# -- brokers


async def brokers(cluster: Cluster) -> list[Broker]:
    """The brokers, sorted by name and id.

    Raises:
        UnavailableError: no name server or master answers.
    """
    node = None
    with suppress(CohererError):
        node = await node_status(cluster)
    return await broker_list(cluster, node)


async def broker_list(cluster: Cluster, node: NodeStatus | None) -> list[Broker]:
    """The brokers, with what the status of a node says about its own one."""
    return _with_own(await cluster.admin.brokers.list(), node)


async def node_status(cluster: Cluster) -> NodeStatus | None:
    """The status of the node that answers over TubeMQ's administration; None for other servers.

    Raises:
        RefusedError: the node requires an account.
    """
    return None if isinstance(cluster, RocketCluster) else await cluster.admin.node_status()


def _with_own(found: Sequence[Broker], node: NodeStatus | None) -> list[Broker]:
    """Add what a node reports about its broker, which is known by its port."""
    if node is None:
        return list(found)
    ports = {one.address.rpartition(":")[2] for one in node.listeners if one.name in _BROKER_PORTS}
    own = [one for one in found if one.address.rpartition(":")[2] in ports]
    if len(own) != 1:  # brokers on other machines may have the same port
        return list(found)
    rates = {one.name: one.last_10_s for one in node.rates}
    disk = node.disk
    free, total = (None, None) if disk is None else (disk.free_bytes, disk.disk_bytes)
    known = msgspec.structs.replace(
        own[0],
        version=f"coherer {node.version}",
        in_per_s=rates.get("messages in"),
        out_per_s=rates.get("messages out"),
        disk_used=None if free is None or not total else 1 - free / total,
        disk_bytes=total,
        disk_free_bytes=free,
        started_ms=int((time.time() - node.running_s) * 1000),
    )
    return [known if one is own[0] else one for one in found]


# -- topics


async def topic(cluster: Cluster, name: str) -> TopicDetails | None:
    """A topic in detail; None if it does not exist.

    Raises:
        UnavailableError: a server does not answer.
    """
    found = next((one for one in await cluster.admin.topics.list(name) if one.name == name), None)
    if found is None:
        return None
    partitions = tuple(await cluster.admin.topics.partitions(name))
    if isinstance(cluster, TubeCluster):
        groups_found = await cluster.admin.groups.list()
        readers = tuple(sorted(one.name for one in groups_found if name in one.topics))
        return TopicDetails(found, partitions, None, None, None, readers, None, {})
    in_per_s, in_today = await _rates(cluster, found, "TOPIC_PUT_NUMS", [name])
    readers = tuple(await cluster.admin.topics.groups(name))
    out_per_s, _ = await _rates(
        cluster, found, "GROUP_GET_NUMS", [f"{name}@{group}" for group in readers]
    )
    return TopicDetails(
        topic=found,
        partitions=partitions,
        in_per_s=in_per_s,
        out_per_s=out_per_s,
        in_today=in_today,
        readers=readers,
        writers=None,
        config=await _configs(cluster, found),
    )


async def _rates(
    cluster: RocketCluster, found: Topic, counter: str, keys: Sequence[str]
) -> tuple[float | None, int | None]:
    """Return the sums of counters: per second over the last minute, and over the last day.

    A broker that has not counted a key yet refuses; this is taken as zero if another broker has.
    """
    per_s, today = 0.0, 0
    known = False
    for broker in found.brokers:
        for key in keys:
            try:
                stats = await cluster.admin.brokers.counter(broker, counter, key)
            except RefusedError:
                continue
            known = True
            per_s += stats.stats_minute.tps
            today += stats.stats_day.sum
    return (per_s, today) if known else (None, None)


async def _configs(cluster: RocketCluster, found: Topic) -> dict[str, dict[str, str]]:
    configs: dict[str, dict[str, str]] = {}
    for broker in found.brokers:
        config = (await cluster.admin.topics.configs(broker)).get(found.name)
        if config is not None:
            configs[broker] = {
                "readQueueNums": str(config.read_queue_nums),
                "writeQueueNums": str(config.write_queue_nums),
                "perm": str(config.perm),
                "topicFilterType": config.topic_filter_type or "",
                "topicSysFlag": str(config.topic_sys_flag),
                "order": str(config.order).lower(),
            }
    return configs


# -- groups and clients


async def group(cluster: Cluster, name: str) -> Group | None:
    """Return a group; None if it does not exist, or has consumed nothing yet."""
    found = await cluster.admin.groups.list(name)
    if not found or not (found[0].members or found[0].partitions or found[0].silent):
        return None
    if isinstance(cluster, TubeCluster):
        return found[0]
    online = await cluster.admin.groups.consumers(name)
    if online is None:
        return found[0]
    subscriptions = {
        topic_name: data.sub_string for topic_name, data in online.subscription_table.items()
    }
    return msgspec.structs.replace(found[0], subscriptions=subscriptions)


async def clients(cluster: Cluster, *, producer_groups: Sequence[str] = ()) -> list[Member]:
    """The connected clients, sorted by role, group and id.

    Args:
        cluster: the cluster.
        producer_groups: RocketMQ: the producer groups to look up. Brokers of 4.9 do not list them.
    """
    found = [member for one in await cluster.admin.groups.list() for member in one.members]
    if isinstance(cluster, RocketCluster):
        limit = asyncio.Semaphore(PARALLEL)

        async def ask(name: str) -> list[Member]:
            async with limit:
                return await _producers(cluster, name)

        for some in await asyncio.gather(*map(ask, producer_groups)):
            found += some
    return sorted(found, key=lambda one: (one.role, one.group, one.id))


async def _producers(cluster: RocketCluster, name: str) -> list[Member]:
    try:
        return await cluster.admin.groups.producers(name)
    except RefusedError:  # the broker does not know the group
        return []


# -- accounts


async def accounts(cluster: Cluster) -> list[Account] | None:
    """The accounts, sorted by name; None if the protocol or the cluster does not list them.

    RocketMQ's brokers list them if access control is on; the list of the first master is returned.
    Without it, Java's brokers do not answer, and this takes the client's `timeout_ms` for each.
    TubeMQ's administration has no accounts.
    """
    if isinstance(cluster, TubeCluster):
        return None
    masters = [one.name for one in await cluster.admin.brokers.list(runtime=False) if one.id == 0]
    for broker in masters:
        try:
            config = await cluster.admin.accounts.list(broker)
        except CohererError:  # without access control, Java's brokers do not answer
            continue
        return sorted(
            (
                Account(
                    name=one.access_key or "",
                    admin=one.admin,
                    addresses=one.white_remote_address or "",
                    topics=_permissions(one.topic_perms, one.default_topic_perm),
                    groups=_permissions(one.group_perms, one.default_group_perm),
                )
                for one in config.plain_access_configs
            ),
            key=lambda account: account.name,
        )
    return None


def _permissions(listed: Sequence[str] | None, other: str | None) -> dict[str, str]:
    """Permissions by name.

    >>> _permissions(["orders=PUB|SUB"], "DENY")
    {'orders': 'PUB|SUB', '*': 'DENY'}
    """
    found = {
        name: permission for name, _, permission in (text.partition("=") for text in listed or ())
    }
    return {**found, **({"*": other} if other else {})}
