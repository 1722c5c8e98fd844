"""The data about a cluster for the pages, over either protocol, with few requests to the brokers.

* An answer is cached for `KEPT_S`, so that several people and the parts of one page share it.
  Equal requests at the same time become one.
* Lists ask for names, and for details only of the names on the shown page.
* A value that a server does not report is None, never zero.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Final, TypeVar

import msgspec

from coherer._administration import brokers as listing
from coherer._administration import dead_letters as letters
from coherer._administration import members as members_of
from coherer._administration import overview
from coherer._administration.access import Cluster, RocketCluster
from coherer._administration.dead_letters import DeadLetterQueue
from coherer._administration.members import MemberHealth
from coherer._administration.overview import Overview
from coherer._common.node_status import NodeStatus
from coherer.admin import Account, Broker, Group, Member, Partition, TopicSettings
from coherer.errors import CohererError, RefusedError, UsageError

T = TypeVar("T")

KEPT_S: Final = 2.0
KEPT_MAX: Final = 500
AT_ONCE: Final = 8
"""The number of concurrent requests for a page."""

_GONE: Final = "It is being deleted."

_STORE_STRIDE: Final = 10_000
"""The step between the partition numbers of two stores of a TubeMQ topic."""


class TopicFacts(msgspec.Struct, frozen=True):
    """A topic.

    Args:
        name: its name.
        partitions: its partitions or queues; None if they are unknown.
        problem: the reason if they are unknown.
        writable: whether producers can send to it; None if it is unknown.
        readable: whether consumers can read it.
    """

    name: str
    partitions: Sequence[Partition] | None = None
    problem: str | None = None
    writable: bool | None = None
    readable: bool | None = None

    @property
    def brokers(self) -> list[str]:
        """The brokers that have it."""
        return sorted({one.broker for one in self.partitions or ()})

    @property
    def held(self) -> int | None:
        """The number of messages in its partitions; None if it is unknown."""
        return _total(self.partitions, _held)

    @property
    def written(self) -> int | None:
        """The number of messages that were ever written."""
        return _total(self.partitions, lambda one: one.max_offset)

    @property
    def newest_ms(self) -> int | None:
        """When the newest message was stored, ms since 1970; None if it is unknown."""
        return max((one.newest_ms for one in self.partitions or () if one.newest_ms), default=None)


class Facts:
    """Asks a cluster, and caches the answers for a short time; `clock` is monotonic, in s."""

    def __init__(self, cluster: Cluster, clock: Callable[[], float] = time.monotonic) -> None:
        self.cluster = cluster
        self._clock = clock
        self._kept: dict[tuple[object, ...], tuple[float, asyncio.Task[Any]]] = {}
        self._turns = asyncio.Semaphore(AT_ONCE)

    @property
    def rocket(self) -> RocketCluster | None:
        """The cluster, if it is a RocketMQ cluster."""
        return self.cluster if isinstance(self.cluster, RocketCluster) else None

    def forget(self) -> None:
        """Discard all answers, because something was changed."""
        self._kept.clear()

    async def close(self) -> None:
        """Stop asking; call it before the client is closed."""
        tasks = [task for _, task in self._kept.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._kept.clear()

    async def _get(self, key: tuple[object, ...], ask: Callable[[], Awaitable[T]]) -> T:
        now = self._clock()
        kept = self._kept.get(key)
        if kept is None or kept[0] <= now:
            self._drop(now)
            task = asyncio.ensure_future(ask())
            task.add_done_callback(_retrieve)
            kept = self._kept[key] = (now + KEPT_S, task)
        return await asyncio.shield(kept[1])

    def _drop(self, now: float) -> None:
        if len(self._kept) >= KEPT_MAX:
            self._kept = {key: kept for key, kept in self._kept.items() if kept[0] > now}

    async def _each(self, items: Sequence[str], ask: Callable[[str], Awaitable[T]]) -> list[T]:
        async def one(item: str) -> T:
            async with self._turns:
                return await ask(item)

        return list(await asyncio.gather(*map(one, items)))

    # -- topics

    async def topic_names(self, *, system: bool = False) -> list[str]:
        """The names of all topics, sorted; `system` includes those of the system."""
        admin = self.cluster.admin
        return await self._get(("topic names", system), lambda: admin.topics.names(system=system))

    async def topics(self, names: Sequence[str]) -> list[TopicFacts]:
        """The topics with these names; one that cannot be read has a `problem`."""
        cluster = self.cluster
        if isinstance(cluster, RocketCluster):
            return await self._each(names, self.topic)
        found = await self._get(
            ("topics", *names), lambda: cluster.admin.topics.partitions_of(names)
        )
        return [
            TopicFacts(name, found[name]) if name in found else TopicFacts(name, problem=_GONE)
            for name in names
        ]

    async def topic(self, name: str) -> TopicFacts:
        """A topic; it has a `problem` if it cannot be read."""
        try:
            return await self._get(("topic", name), lambda: self._topic(name))
        except CohererError as error:
            return TopicFacts(name, problem=str(error))

    async def _topic(self, name: str) -> TopicFacts:
        return TopicFacts(name, await self.cluster.admin.topics.partitions(name))

    async def access(self, name: str) -> tuple[bool | None, bool | None]:
        """Whether producers can send to a topic, and whether consumers can read it."""
        states = await self._get(("access", name), lambda: self.cluster.admin.topics.list(name))
        found = next((state for state in states if state.name == name), None)
        return (None, None) if found is None else (found.writable, found.readable)

    async def topic_settings(self, name: str) -> dict[str, TopicSettings]:
        """The settings of a topic by broker.

        Raises:
            RefusedError: the topic does not exist.
        """
        settings = self.cluster.admin.topics.settings
        return await self._get(("settings of", name), lambda: settings(name))

    # -- groups

    async def group_names(self) -> list[str]:
        """The names of all groups, sorted."""
        return await self._get(("group names",), self.cluster.admin.groups.names)

    async def groups(self, group_names: Sequence[str]) -> list[Group]:
        """The states of these groups, without those that do not exist."""
        if not group_names:
            return []
        key = ("groups", *group_names)
        return await self._get(key, lambda: self.cluster.admin.groups.list(*group_names))

    async def group(self, name: str) -> Group | None:
        """The state of a group; None if no broker knows it."""
        found = await self.groups([name])
        if not found:
            return None
        known = found[0].members or found[0].partitions or found[0].silent
        return found[0] if known or name in await self.group_names() else None

    async def health(self, name: str) -> list[MemberHealth]:
        """Whether the members of a group answer."""
        return await self._get(("health", name), lambda: self._health(name))

    async def _health(self, name: str) -> list[MemberHealth]:
        found = await self.groups([name])
        members = [one for group in found for one in group.members]
        node = None
        with suppress(CohererError):
            node = await self._node()
        return await members_of.check(self.cluster, members, node)

    async def unread_ages(self, group: Group) -> dict[str, int]:
        """The ages of a group's oldest unread messages by partition, without unknown ones."""
        ask = partial(overview.unread_ages, self.cluster, group)
        return await self._get(("unread ages", group.name), ask)

    async def overview(self, *names: str) -> Overview:
        """The state of the cluster, with the lag of these groups, or of all."""

        async def ask() -> Overview:
            topics, groups = await self.topic_names(), await self.group_names()
            return await overview.overview(
                self.cluster, *names, topics=topics, listed=groups, status=self._node
            )

        return await self._get(("overview", *names), ask)

    async def readers(self, topic: str) -> list[str]:
        """The groups that read a topic, or have offsets in it."""
        admin = self.cluster.admin
        return await self._get(("readers", topic), lambda: admin.topics.groups(topic))

    async def members(self, group_names: Sequence[str]) -> list[Member]:
        """The connected consumers of these groups."""
        if self.rocket is not None:
            found = await self._each(group_names, self._rocket_members)
            return [member for members in found for member in members]
        return [member for group in await self.groups(group_names) for member in group.members]

    async def _rocket_members(self, group: str) -> Sequence[Member]:
        online = await self._consumers(group)
        return () if online is None else online.members

    async def _consumers(self, group: str) -> Group | None:
        if self.rocket is None:
            return None
        consumers = self.rocket.admin.groups.consumers
        return await self._get(("members", group), lambda: consumers(group))

    async def filters(self, group: str) -> Mapping[str, str]:
        """RocketMQ: the filter of a group in each topic, if it has members."""
        online = await self._consumers(group)
        return {} if online is None else dict(sorted((online.subscriptions or {}).items()))

    async def producers(self, group: str) -> list[Member]:
        """The connected producers of a group; brokers of RocketMQ 4.9 list them only by group.

        Raises:
            UsageError: TubeMQ does not report producers.
        """
        if self.rocket is None:
            raise UsageError("TubeMQ's servers do not report producers.")
        try:
            return await self.rocket.admin.groups.producers(group)
        except RefusedError:
            return []  # no broker has a producer of the group

    # -- dead letters

    async def dead_letter_groups(self) -> list[str]:
        """The RocketMQ groups that have or had dead letters, sorted."""
        if self.rocket is None:
            return []
        prefix = letters.topic_of(self.rocket, "x")[:-1]
        names = await self.topic_names(system=True)
        return [name[len(prefix) :] for name in names if name.startswith(prefix)]

    async def dead_letter_queues(self, groups: Sequence[str]) -> list[DeadLetterQueue]:
        """The dead-letter queues of these groups, without groups that have none."""
        found = await self._each(groups, self.dead_letter_queue)
        return [one for one in found if one is not None]

    async def dead_letter_queue(self, group: str) -> DeadLetterQueue | None:
        """A group's dead-letter queue, or None if it was never created."""
        return await self._get(("dead letters", group), lambda: letters.queue(self.cluster, group))

    # -- brokers and accounts

    async def brokers(self) -> list[Broker]:
        """The brokers, sorted by name."""
        return await self._get(("brokers",), self._brokers)

    async def _brokers(self) -> list[Broker]:
        node = None
        with suppress(CohererError):
            node = await self._node()
        return await listing.broker_list(self.cluster, node)

    async def _node(self) -> NodeStatus | None:
        """The status of the node, which it computes from all groups."""
        return await self._get(("node",), lambda: listing.node_status(self.cluster))

    async def settings(self, broker: str) -> dict[str, str] | None:
        """The settings of a RocketMQ broker; None over TubeMQ, which does not report them."""
        cluster = self.cluster
        if not isinstance(cluster, RocketCluster):
            return None
        return await self._get(("settings", broker), lambda: cluster.admin.brokers.config(broker))

    async def accounts(self) -> list[Account] | None:
        """The accounts, without their secrets; None if the cluster does not list them."""
        if self.rocket is None:
            return None
        return await self._get(("accounts",), self.rocket.admin.accounts.list)


def _retrieve(task: asyncio.Task[Any]) -> None:
    """Retrieve the error of a task that is no longer awaited, so that asyncio does not log it."""
    if not task.cancelled():
        task.exception()


def _total(
    partitions: Sequence[Partition] | None, number: Callable[[Partition], int | None]
) -> int | None:
    """Add up a number of all partitions; None if it is unknown for one of them.

    In Java's TubeMQ brokers, all partitions of a store have the offsets of the store.
    """
    if partitions is None:
        return None
    found: dict[tuple[object, int], int] = {}
    for one in partitions:
        count = number(one)
        step = one.offset_step
        if count is None or step is None:
            return None
        place = one.partition if step == 1 else one.partition // _STORE_STRIDE * _STORE_STRIDE
        key = (one.broker, place)
        found[key] = max(found.get(key, 0), count // step)
    return sum(found.values())


def _held(partition: Partition) -> int | None:
    if partition.min_offset is None or partition.max_offset is None:
        return None
    return max(partition.max_offset - max(partition.min_offset, 0), 0)
