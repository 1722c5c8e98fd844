"""The state of a cluster: brokers, topics, groups, clients, accounts; the same over both protocols.

Nothing is cached: each call asks the servers. A value that they do not report is None.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Final, Literal

import msgspec

from coherer._administration.access import Cluster, RocketCluster, TubeCluster
from coherer._common.node_status import NodeStatus
from coherer._record.system_topics import SYSTEM_GROUP_PREFIX
from coherer.errors import CohererError, RefusedError
from coherer.rocketmq import BrokerState as RocketBroker
from coherer.rocketmq import GroupState as RocketGroup
from coherer.rocketmq import PartitionState as RocketPartition
from coherer.tubemq import BrokerState as TubeBroker
from coherer.tubemq import GroupState as TubeGroup
from coherer.tubemq import PartitionState as TubePartition

PARALLEL: Final = 16
"""The number of concurrent requests."""

_DISK: Final = re.compile(r"Total\s*:\s*([\d.]+)\s*(\w+),\s*Free\s*:\s*([\d.]+)\s*(\w+)")
_BROKER_PORTS: Final = frozenset({"TubeMQ broker", "TubeMQ broker, TLS"})
_UNITS: Final = {"B": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40, "P": 2**50, "E": 2**60}


class Broker(msgspec.Struct, frozen=True):
    """A broker.

    Args:
        name: RocketMQ's name, which a master and its slaves share; TubeMQ's id.
        id: RocketMQ: 0 is the master; TubeMQ: its id.
        address: `host:port` for clients.
        role: `master`, `slave`, or `broker` over TubeMQ.
        status: `running`, `silent` if it does not answer, or `stopped` if the master of TubeMQ says
            so.
        writable: whether it accepts messages.
        readable: whether it can be read.
        managed: TubeMQ: the status that administrators set, `online` for example.
        cluster: RocketMQ: its cluster.
        version: the release of its software.
        in_per_s: messages stored per second.
        out_per_s: messages delivered per second.
        disk_used: the used part of the disk, from 0 to 1.
        disk_bytes: the size of the disk.
        disk_free_bytes: the free space on the disk.
        started_ms: when it was started, ms since 1970.
        reported: further values that the broker reports.
    """

    name: str
    id: int
    address: str
    role: Literal["master", "slave", "broker"]
    status: Literal["running", "silent", "stopped"] | None
    writable: bool | None = None
    readable: bool | None = None
    managed: str | None = None
    cluster: str | None = None
    version: str | None = None
    in_per_s: float | None = None
    out_per_s: float | None = None
    disk_used: float | None = None
    disk_bytes: int | None = None
    disk_free_bytes: int | None = None
    started_ms: int | None = None
    reported: Mapping[str, str] = {}


class Topic(msgspec.Struct, frozen=True):
    """A topic.

    Args:
        name: its name.
        partitions: the number of partitions on all brokers.
        brokers: the number of partitions by broker.
        writable: whether any broker accepts messages.
        readable: whether it can be read from any broker.
    """

    name: str
    partitions: int
    brokers: Mapping[str, int]
    writable: bool
    readable: bool


class Partition(msgspec.Struct, frozen=True):
    """A partition of a topic; in the record of a group also the group's position in it.

    Args:
        topic: its topic.
        broker: its broker.
        partition: its number.
        min_offset: the offset of the oldest message.
        max_offset: the offset of the next message.
        newest_ms: RocketMQ: when the newest message was stored, ms since 1970; in the record of a
            group, when the last message that the group has consumed was stored.
        committed: the group's offset.
        lag: how many messages the group is behind.
        owner: TubeMQ: the member that reads it now.
    """

    topic: str
    broker: str
    partition: int
    min_offset: int | None
    max_offset: int | None
    newest_ms: int | None = None
    committed: int | None = None
    lag: int | None = None
    owner: str | None = None

    @property
    def key(self) -> str:
        """The text form of the command line: `broker:topic:partition`."""
        return f"{self.broker}:{self.topic}:{self.partition}"

    @property
    def messages(self) -> int | None:
        """The number of offsets it holds; for Java's TubeMQ brokers these are bytes of an index."""
        if self.min_offset is None or self.max_offset is None:
            return None
        return max(self.max_offset - self.min_offset, 0)


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


class Client(msgspec.Struct, frozen=True):
    """A connected client.

    Args:
        id: its client id, or TubeMQ's consumer id.
        role: what it does.
        group: its group.
        address: its address as seen by a server.
        language: the language of its library.
        version: the version of its library.
        heartbeat_ms: how long ago its last heartbeat came, in ms.
    """

    id: str
    role: Literal["consumer", "producer"]
    group: str
    address: str | None = None
    language: str | None = None
    version: str | None = None
    heartbeat_ms: int | None = None


class Group(msgspec.Struct, frozen=True):
    """A consumer group.

    Args:
        name: its name.
        topics: the topics that it consumes or has offsets in.
        members: the connected members.
        partitions: its position in every partition.
        lag: the number of messages that it has not acknowledged.
        no_lag: why the lag is unknown; None if it is known.
        model: RocketMQ: `CLUSTERING` or `BROADCASTING`, if it has members.
        silent: brokers that did not answer.
        subscriptions: RocketMQ: the filter by topic, if it has members.
    """

    name: str
    topics: tuple[str, ...]
    members: tuple[Client, ...]
    partitions: tuple[Partition, ...]
    lag: int | None
    no_lag: str | None
    model: str | None = None
    silent: tuple[str, ...] = ()
    subscriptions: Mapping[str, str] | None = None


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
    if isinstance(cluster, RocketCluster):
        return [_rocket_broker(one) for one in await cluster.admin.brokers()]
    return _with_own([_tube_broker(one) for one in await cluster.admin.brokers()], node)


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


def _tube_broker(state: TubeBroker) -> Broker:
    statuses: Mapping[bool | None, Literal["running", "stopped"] | None] = {
        True: "running",
        False: "stopped",
        None: None,
    }
    return Broker(
        name=str(state.id),
        id=state.id,
        address=f"{state.host}:{state.port}",
        role="broker",
        status=statuses[state.running],
        writable=state.writable,
        readable=state.readable,
        managed=state.managed or None,
        version=state.version or None,
    )


def _rocket_broker(state: RocketBroker) -> Broker:
    known = state.runtime
    answered = bool(known)
    total, free = _disk(known.get("commitLogDirCapacity", ""))
    return Broker(
        name=state.name,
        id=state.id,
        address=state.address,
        role="slave" if state.id else "master",
        status="running" if answered else "silent",
        cluster=state.cluster or None,
        version=state.version or None,
        in_per_s=state.put_per_s if answered else None,
        out_per_s=state.get_per_s if answered else None,
        disk_used=_ratio(known.get("commitLogDiskRatio", "")),
        disk_bytes=total,
        disk_free_bytes=free,
        started_ms=_number(known.get("bootTimestamp", "")),
        reported=known,
    )


def _disk(words: str) -> tuple[int | None, int | None]:
    """The size of a disk and what is free, in bytes.

    >>> _disk("Total : 100.0 GiB, Free : 512 MiB."), _disk("")
    ((107374182400, 536870912), (None, None))
    """
    found = _DISK.search(words)
    if found is None:
        return None, None
    total, total_unit, free, free_unit = found.groups()
    return _bytes(total, total_unit), _bytes(free, free_unit)


def _bytes(number: str, unit: str) -> int | None:
    factor = _UNITS.get(unit[0].upper())
    return None if factor is None else int(float(number) * factor)


def _ratio(words: str) -> float | None:
    """Parse a share of 1; None for an unknown one, which brokers report as a negative number."""
    try:
        value = float(words)
    except ValueError:
        return None
    return value if 0 <= value <= 1 else None


def _number(words: str) -> int | None:
    return int(words) if words.isdecimal() else None


# -- topics


async def topics(cluster: Cluster, *names: str, system: bool = False) -> list[Topic]:
    """The topics, sorted by name.

    Args:
        cluster: the cluster.
        names: only these topics; those that do not exist are left out.
        system: include system topics.
    """
    if isinstance(cluster, RocketCluster):
        found = await cluster.admin.topics(*names, system=system)
        return [
            Topic(one.name, one.partitions, one.brokers, one.writable, one.readable)
            for one in found
        ]
    states = await cluster.admin.topics(*names)
    return [
        Topic(
            one.name,
            one.count,
            {str(broker): len(numbers) for broker, numbers in one.partitions.items()},
            one.writable,
            one.readable,
        )
        for one in states
        if system or not one.name.startswith("__")
    ]


async def topic_names(cluster: Cluster, *, system: bool = False) -> list[str]:
    """Return the names of the topics, sorted: one request, however many there are."""
    if isinstance(cluster, RocketCluster):
        return await cluster.admin.topic_names(system=system)
    found = await cluster.admin.topic_names()
    return [name for name in found if system or not name.startswith("__")]


async def topic(cluster: Cluster, name: str) -> TopicDetails | None:
    """A topic in detail; None if it does not exist.

    Raises:
        UnavailableError: a server does not answer.
    """
    found = next((one for one in await topics(cluster, name) if one.name == name), None)
    if found is None:
        return None
    partitions = tuple(map(_partition, await cluster.admin.partitions(name)))
    if isinstance(cluster, TubeCluster):
        groups_found = await cluster.admin.groups()
        readers = tuple(sorted(one.name for one in groups_found if name in one.topics))
        return TopicDetails(found, partitions, None, None, None, readers, None, {})
    in_per_s, in_today = await _rates(cluster, found, "TOPIC_PUT_NUMS", [name])
    readers = tuple(await cluster.admin.groups_of(name))
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
                stats = await cluster.admin.counter(broker, counter, key)
            except RefusedError:
                continue
            known = True
            per_s += stats.stats_minute.tps
            today += stats.stats_day.sum
    return (per_s, today) if known else (None, None)


async def _configs(cluster: RocketCluster, found: Topic) -> dict[str, dict[str, str]]:
    configs: dict[str, dict[str, str]] = {}
    for broker in found.brokers:
        config = (await cluster.admin.topic_configs(broker)).get(found.name)
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


def _partition(state: RocketPartition | TubePartition) -> Partition:
    rocket = state if isinstance(state, RocketPartition) else None
    return Partition(
        topic=state.topic,
        broker=str(state.broker),
        partition=state.partition,
        min_offset=state.min_offset,
        max_offset=state.max_offset,
        newest_ms=(rocket.last_ms or None) if rocket else None,
        committed=state.committed,
        lag=state.lag,
        owner=None if isinstance(state, RocketPartition) else state.owner,
    )


# -- groups and clients


async def groups(cluster: Cluster, *names: str) -> list[Group]:
    """Return the consumer groups, sorted by name; with names, only these groups.

    The subscriptions are not looked up; `group` does that.
    """
    found = await cluster.admin.groups(*names)
    return [group_of(one) for one in found]


async def group_names(cluster: Cluster) -> list[str]:
    """The names of the consumer groups, sorted, without RocketMQ's own."""
    names = await cluster.admin.group_names()
    return [name for name in names if not name.startswith(SYSTEM_GROUP_PREFIX)]


async def group(cluster: Cluster, name: str) -> Group | None:
    """Return a group; None if it does not exist, or has consumed nothing yet."""
    found = await groups(cluster, name)
    if not found or not (found[0].members or found[0].partitions or found[0].silent):
        return None
    if isinstance(cluster, TubeCluster):
        return found[0]
    online = await cluster.admin.consumers(name)
    if online is None:
        return found[0]
    subscriptions = {
        topic_name: data.sub_string for topic_name, data in online.subscription_table.items()
    }
    return msgspec.structs.replace(found[0], subscriptions=subscriptions)


def group_of(state: RocketGroup | TubeGroup) -> Group:
    """The record of a group for both protocols."""
    return Group(
        name=state.name,
        topics=state.topics,
        members=tuple(_member(state, number) for number in range(len(state.members))),
        partitions=tuple(map(_partition, state.partitions)),
        lag=state.lag,
        no_lag=state.no_lag,
        model=state.model if isinstance(state, RocketGroup) else None,
        silent=tuple(map(str, state.silent)),
    )


def _member(state: RocketGroup | TubeGroup, number: int) -> Client:
    if isinstance(state, TubeGroup):
        tube = state.members[number]
        return Client(tube.id, "consumer", state.name, tube.address)
    rocket = state.members[number]
    return Client(
        rocket.id,
        "consumer",
        state.name,
        rocket.address,
        rocket.language,
        version_name(rocket.version),
        rocket.heartbeat_ms,
    )


def version_name(number: int) -> str | None:
    """The name of a RocketMQ release; None for 0.

    >>> version_name(399), version_name(0)
    ('V4_9_3', None)
    """
    from coherer._wire.rocketmq.codes import version_name as name_of

    return name_of(number) if number else None


async def clients(cluster: Cluster, *, producer_groups: Sequence[str] = ()) -> list[Client]:
    """The connected clients, sorted by role, group and id.

    Args:
        cluster: the cluster.
        producer_groups: RocketMQ: the producer groups to look up. Brokers of 4.9 do not list them.
    """
    found = [member for one in await groups(cluster) for member in one.members]
    if isinstance(cluster, RocketCluster):
        limit = asyncio.Semaphore(PARALLEL)

        async def ask(name: str) -> list[Client]:
            async with limit:
                return await _producers(cluster, name)

        for some in await asyncio.gather(*map(ask, producer_groups)):
            found += some
    return sorted(found, key=lambda one: (one.role, one.group, one.id))


async def _producers(cluster: RocketCluster, name: str) -> list[Client]:
    try:
        found = await cluster.admin.producers(name)
    except RefusedError:  # the broker does not know the group
        return []
    return [
        Client(one.id, "producer", name, one.address, one.language, version_name(one.version))
        for one in found
    ]


# -- accounts


async def accounts(cluster: Cluster) -> list[Account] | None:
    """The accounts, sorted by name; None if the protocol or the cluster does not list them.

    RocketMQ's brokers list them if access control is on; the list of the first master is returned.
    Without it, Java's brokers do not answer, and this takes the client's `timeout_ms` for each.
    TubeMQ's administration has no accounts.
    """
    if isinstance(cluster, TubeCluster):
        return None
    masters = [one.name for one in await cluster.admin.brokers(runtime=False) if one.id == 0]
    for broker in masters:
        try:
            config = await cluster.admin.accounts(broker)
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
