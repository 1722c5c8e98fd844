"""Reads how far consumer groups are, at all brokers.

Coherer's broker tells the offsets of all groups in a few answers, and which groups have members
(`names.FEATURE_GROUP_STATES`). Other brokers are asked for each group: its members (203), its
offsets (208), and where the queues begin that it may not have read (202, once for each topic).
Several groups are asked for at once.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Iterable, Mapping
from typing import Final

import msgspec

from coherer import admin
from coherer._client.rocketmq.administration.servers import Servers
from coherer._common.logs import Log
from coherer._wire.rocketmq import fastjson, names
from coherer._wire.rocketmq.bodies import (
    ConsumerConnection,
    ConsumeStats,
    GroupStates,
    SubscriptionGroups,
    TopicStats,
)
from coherer._wire.rocketmq.codes import RequestCode, ResponseCode, version_name
from coherer._wire.rocketmq.command import Command
from coherer._wire.rocketmq.headers import ConsumeStatsHeader, GroupHeader
from coherer._wire.rocketmq.names import Queue
from coherer.errors import CohererError, RefusedError

_log = Log(logging.getLogger(__name__))

_AT_ONCE: Final = 16

Partitions = dict[Queue, admin.Partition]


class _Told(msgspec.Struct):
    """What a broker has told about all of its groups.

    Args:
        partitions: by group.
        online: the groups with members.
    """

    partitions: dict[str, Partitions] = {}
    online: set[str] = set()


class GroupReader:
    """Reads the states of groups, once.

    Args:
        servers: sends the requests.
        masters: addresses by broker name.
        without_master: the brokers that have no master: their slaves only know the groups' names.
    """

    def __init__(
        self, servers: Servers, masters: Mapping[str, str], without_master: Collection[str]
    ) -> None:
        self._servers = servers
        self._masters = masters
        self._without_master = without_master
        self._turns = asyncio.Semaphore(_AT_ONCE)
        self._told: dict[str, _Told] = {}  # by broker
        # By address and topic.
        self._begins: dict[tuple[str, str], dict[Queue, int]] = {}
        self._asking: dict[tuple[str, str], asyncio.Lock] = {}

    async def names(self) -> list[str]:
        """The groups of all brokers. Brokers that can tell all states are asked for them."""
        answers = await self._servers.ask_each(
            self._masters.values(),
            RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG,
            {names.FEATURES: names.FEATURE_GROUP_STATES},
        )
        telling = [
            broker
            for broker, answer in zip(self._masters, answers, strict=True)
            if names.FEATURE_GROUP_STATES in answer.fields.get(names.FEATURES, "").split(",")
        ]
        await asyncio.gather(*map(self._ask_all, telling))
        if self._without_master:
            slaves = await self._servers.readable()
            answers += await self._servers.ask_each(
                [slaves[broker] for broker in self._without_master if broker in slaves],
                RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG,
            )
        return [name for answer in answers for name in names_in(answer)]

    async def groups(self, wanted: Iterable[str]) -> list[admin.Group]:
        """The states of these groups."""
        return list(await asyncio.gather(*map(self._group, wanted)))

    async def _ask_all(self, broker: str) -> None:
        told, after = _Told(), ""
        try:
            while True:
                answer = await self._servers.ask(
                    self._masters[broker],
                    RequestCode.GET_BROKER_CONSUME_STATS,
                    {names.FEATURES: names.FEATURE_GROUP_STATES, names.AFTER: after},
                )
                page = GroupStates.decode(answer.body)
                for group, topics in page.groups.items():
                    told.partitions[group] = _partitions(broker, topics)
                told.online.update(page.online)
                if page.last <= after:
                    break
                after = page.last
        except CohererError as error:
            _log.info("Broker %s is asked for each group: %s", broker, error)
        else:
            self._told[broker] = told

    async def _group(self, group: str) -> admin.Group:
        members: dict[str, admin.Member] = {}
        filters: dict[str, str] = {}
        partitions: Partitions = {}
        silent = [*self._without_master]
        model: str | None = None
        for broker in self._masters:
            try:
                async with self._turns:
                    online, beats, found = await self._at(group, broker)
            except CohererError as error:
                _log.warning(
                    "Cannot read the state at broker %s of group %s: %s", broker, group, error
                )
                silent.append(broker)
                continue
            partitions |= found
            if online is not None:
                model = online.message_model
                filters |= filters_of(group, online)
                members |= members_of(group, online, beats)
        topics = {queue.topic for queue in partitions} - {names.retry_topic(group)}
        return admin.Group(
            group,
            tuple(sorted(topics | filters.keys())),
            tuple(members[key] for key in sorted(members)),
            tuple(partitions[queue] for queue in sorted(partitions)),
            tuple(silent),
            model,
            filters if members else None,
        )

    async def _at(
        self, group: str, broker: str
    ) -> tuple[ConsumerConnection | None, Mapping[str, int], Partitions]:
        """The members of a group at a broker, the ages of their heartbeats, and its offsets."""
        address, told = self._masters[broker], self._told.get(broker)
        if told is not None and group in told.partitions and group not in told.online:
            return None, {}, told.partitions[group]
        online, beats = await members_at(self._servers, address, group)
        if told is not None and group in told.partitions:
            return online, beats, told.partitions[group]
        return online, beats, await self._partitions(group, address)

    async def _partitions(self, group: str, address: str) -> Partitions:
        fields = ConsumeStatsHeader(group).fields()
        answer = await self._servers.ask(address, RequestCode.GET_CONSUME_STATS, fields)
        table = ConsumeStats.decode(answer.body).offset_table
        # Brokers also return 0 for a queue in which the group has not begun. Without its beginning
        # deleted messages would count as lag.
        unread = {
            queue.topic for queue, at in table.items() if at.broker_offset > at.consumer_offset <= 0
        }
        begins: dict[Queue, int] = {}
        for topic in unread:
            begins |= await self._beginning(address, topic)
        return {
            queue: _partition(
                queue,
                begins.get(queue, 0),
                at.broker_offset,
                at.consumer_offset,
                at.last_timestamp,
            )
            for queue, at in table.items()
        }

    async def _beginning(self, address: str, topic: str) -> dict[Queue, int]:
        """The oldest offsets in a topic's queues; many groups read the same topic."""
        key = address, topic
        async with self._asking.setdefault(key, asyncio.Lock()):
            if key not in self._begins:
                fields = {"topic": topic}
                answer = await self._servers.ask(address, RequestCode.GET_TOPIC_STATS_INFO, fields)
                table = TopicStats.decode(answer.body).offset_table
                self._begins[key] = {queue: at.min_offset for queue, at in table.items()}
        return self._begins[key]


def names_in(answer: Command) -> Iterable[str]:
    """The names of the groups in an answer to 201."""
    return SubscriptionGroups.decode(answer.body).subscription_group_table


async def members_at(
    servers: Servers, address: str, group: str
) -> tuple[ConsumerConnection | None, Mapping[str, int]]:
    """The members of a group at a broker, and the ages of their heartbeats if reported."""
    fields = {**GroupHeader(group).fields(), names.FEATURES: names.FEATURE_HEARTBEATS}
    try:
        answer = await servers.ask(address, RequestCode.GET_CONSUMER_CONNECTION_LIST, fields)
    except RefusedError as error:
        if error.code == ResponseCode.CONSUMER_NOT_ONLINE:
            return None, {}
        raise
    ages = fastjson.loads(answer.fields.get(names.HEARTBEAT_AGES, "{}").encode())
    known = ages.items() if isinstance(ages, dict) else ()
    beats = {str(name): age for name, age in known if isinstance(age, int)}
    return ConsumerConnection.decode(answer.body), beats


def members_of(
    group: str, online: ConsumerConnection, beats: Mapping[str, int]
) -> dict[str, admin.Member]:
    """The members of a group at a broker, by their client id."""
    return {
        one.client_id: admin.Member(
            one.client_id,
            group,
            address=one.client_addr,
            language=one.language,
            version=version_name(one.version) if one.version else None,
            heartbeat_ms=beats.get(one.client_id),
        )
        for one in online.connection_set
    }


def filters_of(group: str, online: ConsumerConnection) -> dict[str, str]:
    """The filter by topic, without the group's retry topic."""
    retry_topic = names.retry_topic(group)
    return {
        topic: data.filter
        for topic, data in online.subscription_table.items()
        if topic != retry_topic
    }


def _partitions(
    broker: str, topics: Mapping[str, list[tuple[int, int, int, int, int]]]
) -> Partitions:
    return {
        queue: _partition(queue, begin, end, offset, read_ms)
        for topic, rows in topics.items()
        for number, begin, end, offset, read_ms in rows
        for queue in (Queue(topic, broker, number),)
    }


def _partition(queue: Queue, begin: int, end: int, offset: int, read_ms: int) -> admin.Partition:
    return admin.Partition(
        queue.topic,
        queue.broker,
        queue.id,
        max_offset=end,
        committed=offset,
        lag=max(end - max(offset, begin), 0),
        newest_ms=read_ms or None,
        offset_step=1,
    )
