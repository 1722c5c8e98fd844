"""Administration of consumer groups.

The master knows their members, each broker their offsets.
"""

from __future__ import annotations

import asyncio
import builtins
import logging
from collections.abc import Collection, Mapping
from collections.abc import Set as AbstractSet
from datetime import datetime
from typing import Literal

import msgspec

from coherer import admin
from coherer._client.engine.administration import Part
from coherer._client.engine.arguments import checked
from coherer._client.tubemq.administration import records
from coherer._client.tubemq.administration.calls import NO_GROUP, AdminCalls, listed, numbers
from coherer._client.tubemq.administration.records import BrokerRecord
from coherer._client.tubemq.administration.topics import TopicAdmin
from coherer._client.tubemq.administration.webapi import Answer
from coherer._common.logs import Log
from coherer._common.moments import floor_ms
from coherer.errors import CohererError, RefusedError, UnavailableError, UsageError

_log = Log(logging.getLogger(__name__))


@checked
class GroupAdmin(Part):
    """The consumer groups of a cluster, their members and offsets: `admin.groups`."""

    _INSTEAD = "groups.list"

    def __init__(self, calls: AdminCalls, topics: TopicAdmin) -> None:
        self._calls = calls
        self._topics = topics

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._calls.server!r})"

    async def list(self, *names: str, system: bool = False) -> builtins.list[admin.Group]:
        """The consumer groups, sorted by name.

        A group exists if it has members now, or offsets on a broker. Groups that only serve a
        reader of Coherer are left out, unless they are named.

        Args:
            names: names of groups; without names, all groups.
            system: include RocketMQ's own groups, which a node lists here, too.
        """
        subscriptions = await self._calls.ask_for(
            records.Subscription, "admin_query_sub_info", "groupName", names
        )
        online = {entry.consume_group: entry for entry in subscriptions}
        subscribed = {topic for entry in online.values() for topic in entry.topic_set}
        offsets = await self._offsets(set(names), subscribed)
        used = subscribed | offsets.topics
        topics = await self._calls.topics(sorted(used) if names else ()) if used else []
        members = await asyncio.gather(*map(self._members, online))
        found = dict(zip(online, members, strict=True))
        by_name = {one.topic_name: one for one in topics}
        return [
            offsets.group(name, online.get(name), found.get(name, ()), by_name)
            for name in listed({*online, *offsets.groups}, names, system=system)
        ]

    async def names(self, *, system: bool = False) -> builtins.list[str]:
        """The names of the consumer groups, sorted: few requests, however many there are.

        Args:
            system: include RocketMQ's own groups, which a node lists here, too.
        """
        subscriptions, brokers = await asyncio.gather(
            self._calls.ask(records.Subscription, "admin_query_sub_info", {}),
            self._calls.brokers(web=True),
        )
        known = await asyncio.gather(*map(self._calls.groups_at, brokers))
        online = {entry.consume_group for entry in subscriptions.data}
        return listed(online.union(*known), system=system)

    async def delete(self, name: str) -> None:
        """Delete the offsets of a group in all topics.

        A group with running consumers reappears at their next commit.

        Raises:
            RefusedError: the group does not exist.
            UnavailableError: a broker does not answer, or has no administration; the offsets at the
                others are deleted.
        """
        await self._calls.prepare(changes=True)
        found = await self.list(name)
        topic = next((topic for group in found for topic in group.topics), name)
        brokers = await self._calls.brokers()
        silent = [one for one in brokers if not await self._answers(one, topic)]
        if not found and not silent:
            raise RefusedError(
                f"There is no group {name}.",
                server=self._calls.server,
                code=NO_GROUP,
                hint="`coherer groups list` shows the existing ones.",
            )
        for broker in brokers if found else ():
            if broker not in silent and not await self._delete(name, broker):
                silent.append(broker)
        if silent:
            rest = "is deleted at the others only" if found else "is not at the others"
            raise UnavailableError(
                f"Broker {numbers(one.broker_id for one in silent)} cannot be asked; group {name} "
                f"{rest}.",
                server=self._calls.server,
                hint="Is it running, and has it an HTTP administration? Then delete the group "
                "again.",
            )

    async def _answers(self, broker: BrokerRecord, topic: str) -> bool:
        """Whether a broker can be changed.

        Raises:
            UsageError: another broker answers in its place.
        """
        try:
            await self._calls.check_broker(broker, topic)
        except UnavailableError as error:
            _log.warning("Broker %d does not answer: %s", broker.broker_id, error)
            return False
        return True

    async def _delete(self, group: str, broker: BrokerRecord) -> bool:
        """Delete the offsets of a group at a broker; False if it does not answer."""
        form = {"groupName": group, **self._calls.signature}
        try:
            await self._calls.broker(broker).call(msgspec.Raw, "admin_rmv_offset", form, post=True)
        except UnavailableError as error:
            _log.warning("Broker %d does not answer: %s", broker.broker_id, error)
            return False
        return True

    async def set_offsets(self, group: str, offsets: Mapping[str, int]) -> None:
        """Set the offsets of a group, even while it is consuming.

        Args:
            group: the group; it need not exist.
            offsets: new offsets by partition key, `broker:topic:partition`. A broker moves an
                offset that is out of range to the nearest one in range.

        Raises:
            UsageError: a key is invalid, or the cluster does not have its partition; nothing was
                changed.
            UnavailableError: a broker does not answer, or has no administration; nothing was
                changed.
        """
        by_broker: dict[int, dict[str, int]] = {}
        for key, offset in offsets.items():
            by_broker.setdefault(records.broker_of(key), {})[key] = offset
        await self._calls.prepare(changes=True)
        brokers = {broker.broker_id: broker for broker in await self._calls.brokers()}
        if unknown := by_broker.keys() - brokers.keys():
            raise UsageError(f"The cluster has no broker {numbers(unknown)}.")
        missing: builtins.list[str] = []
        for number, wanted in by_broker.items():
            missing += await self._missing(brokers[number], wanted.keys())
        if missing:  # brokers pass over these without a word
            raise UsageError(
                f"The cluster has no partition {', '.join(missing)}. Nothing was changed."
            )
        for number, wanted in by_broker.items():
            await self._calls.broker(brokers[number]).call(
                msgspec.Raw,
                "admin_set_offset",
                {
                    "groupName": group,
                    **self._calls.signature,
                    "manualSet": "true",
                    "offsetJsonInfo": msgspec.json.encode(wanted).decode(),
                },
                post=True,
            )

    async def _missing(self, broker: BrokerRecord, keys: AbstractSet[str]) -> builtins.list[str]:
        """The keys of the partitions that a broker does not have.

        Raises:
            UsageError: another broker answers in its place.
            UnavailableError: it does not answer.
        """
        topics = {key.partition(":")[2].rpartition(":")[0] for key in keys}
        await self._calls.check_broker(broker, min(topics))
        known = {
            f"{broker.broker_id}:{topic.topic_name}:{one.partition_id}"
            for topic in (await self._calls.ranges(broker, topics)).data_set
            for one in topic.offset_info
        }
        return sorted(keys - known)

    async def reset_offsets(
        self, group: str, topic: str, to: Literal["earliest", "latest"] | datetime | int
    ) -> dict[str, int]:
        """Reset a group's offsets in a whole topic.

        Args:
            group: the group.
            topic: the topic.
            to: an end of the partitions; a store time, which Java's brokers cannot search for; or
                an offset for every partition, moved into its range.

        Returns:
            The offsets by partition key, `broker:topic:partition`.

        Raises:
            UsageError: `to` is invalid, or a broker cannot search by time.
            RefusedError: the topic does not exist.
            UnavailableError: a broker does not report its offsets; nothing was changed.
        """
        if isinstance(to, str) and to not in {"earliest", "latest"}:
            hint = "Use 'earliest', 'latest', a time, or an offset."
            raise UsageError(f"{to!r} is not a valid position.", hint=hint)
        await self._calls.prepare(changes=True)
        new: dict[str, int] = {}
        at_time = await self._at_time(topic, to) if isinstance(to, datetime) else {}
        for partition in await self._topics.partitions(topic):
            low, high = partition.min_offset, partition.max_offset
            if low is None or high is None:
                raise UnavailableError(
                    f"Broker {partition.broker} does not send its offsets.",
                    topic=topic,
                    partition=partition.partition,
                    hint="Is it running? Nothing was changed.",
                )
            ends = {"earliest": low, "latest": high}
            match to:
                case str():
                    new[partition.key] = ends[to]
                case int():
                    new[partition.key] = min(max(to, low), high)
                case _:
                    new[partition.key] = min(max(at_time.get(partition.key, high), low), high)
        await self.set_offsets(group, new)
        return new

    async def unread_ages(self, group: str, *topics: str) -> dict[str, int]:
        """The ages of the oldest messages that a group has not acknowledged, in ms.

        Args:
            group: the group.
            topics: only these topics.

        Returns:
            By partition key, `broker:topic:partition`. A partition is missing if it has no unread
            message, and if the age is unknown: Java's brokers do not report it.
        """
        found = (await self.unread_ages_of([group])).get(group, {})
        return {key: age for key, age in found.items() if not topics or key.split(":")[1] in topics}

    async def unread_ages_of(self, groups: Collection[str]) -> dict[str, dict[str, int]]:
        """`unread_ages` of several groups, with one request to each broker."""
        brokers = await self._calls.brokers(web=True)
        answers = await asyncio.gather(*(self._calls.unread(broker, groups) for broker in brokers))
        found: dict[str, dict[str, int]] = {group: {} for group in groups}
        for broker, answer in zip(brokers, answers, strict=True):
            for group in answer:
                found.setdefault(group.group_name, {}).update(
                    (f"{broker.broker_id}:{topic.topic_name}:{one.partition_id}", one.age_ms)
                    for topic in group.sub_info
                    for one in topic.unread
                )
        return found

    async def _at_time(self, topic: str, time: datetime) -> dict[str, int]:
        """The offset of the first message stored at a time or later, by partition key."""
        parameters = {"topicName": topic, "time": str(floor_ms(time))}
        found: dict[str, int] = {}
        for broker in await self._calls.brokers(web=True):
            answer = await self._calls.broker(broker).call(
                records.TopicOffsetRanges, "admin_query_pubinfo", parameters
            )
            for offsets in (one for topic_ in answer.data_set for one in topic_.offset_info):
                if offsets.offset_at_time is None:
                    raise UsageError(
                        f"Broker {broker.broker_id} cannot search by time.",
                        topic=topic,
                        hint="Java's brokers cannot. Use 'earliest', 'latest' or an offset.",
                    )
                key = f"{broker.broker_id}:{topic}:{offsets.partition_id}"
                found[key] = offsets.offset_at_time
        return found

    async def _members(self, group: str) -> tuple[admin.Member, ...]:
        answer = await self._calls.ask(
            records.Consumer, "admin_query_consume_group_detail", {"consumeGroup": group}
        )
        return tuple(
            admin.Member(one.consumer_id, group, address=one.received_from or None)
            for one in answer.data
        )

    async def _offsets(self, groups: set[str], topics: set[str]) -> records.ClusterOffsets:
        """The offsets of some groups, or of all, in all their topics and in the given topics."""
        offsets = records.ClusterOffsets()
        brokers = await self._calls.brokers()
        answers = await asyncio.gather(*(self._broker_offsets(b, groups, topics) for b in brokers))
        for broker, answer in zip(brokers, answers, strict=True):
            offsets.add(broker.broker_id, answer)
        return offsets

    async def _broker_offsets(
        self, broker: BrokerRecord, groups: set[str], topics: set[str]
    ) -> records.BrokerAnswers | None:
        try:
            offsets, owners = await asyncio.gather(
                self._calls.offsets(broker, groups), self._calls.owners(broker, groups)
            )
            used = topics | {topic.topic_name for one in offsets for topic in one.sub_info}
            ranges: Answer[records.TopicOffsetRanges] = Answer(result=True)
            if used or not groups:
                ranges = await self._calls.ranges(broker, used if groups else ())
        except CohererError as error:
            _log.warning("Cannot read the offsets of broker %d: %s", broker.broker_id, error)
            return None  # its partitions are shown as unknown
        return records.BrokerAnswers(ranges, offsets, owners)
