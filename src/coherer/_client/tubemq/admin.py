"""Administration of a TubeMQ cluster, Coherer's or Java's, over HTTP.

The master knows the topics, the brokers and their web ports, and the members of groups. Each broker
knows its offsets. A value that a broker did not send is None, never 0.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Container, Iterable, Mapping
from datetime import datetime
from typing import Literal, TypeVar

import msgspec

from coherer import _net as net
from coherer import admin, limits
from coherer._client.engine.arguments import checked
from coherer._client.tubemq import admin_records as records
from coherer._client.tubemq.admin_calls import (
    AUTHOR,
    EXISTED,
    ILLEGAL_STATUS,
    NO_GROUP,
    AdminCalls,
    ClusterIdentity,
)
from coherer._client.tubemq.admin_records import BrokerRecord, TopicRecord
from coherer._client.tubemq.webapi import FORBIDDEN, OK, UNAUTHORIZED, Answer
from coherer._common.decoding import decoder
from coherer._common.logs import Log
from coherer._common.moments import floor_ms
from coherer._common.node_status import NodeStatus
from coherer._record.system_topics import (
    READER_GROUP_PREFIX,
    SYSTEM_GROUP_PREFIX,
    is_internal_topic,
)
from coherer.errors import (
    CohererError,
    RefusedError,
    RequestTimeoutError,
    UnavailableError,
    UsageError,
)

_log = Log(logging.getLogger(__name__))

T = TypeVar("T")

_POLL_FIRST_MS, _POLL_LAST_MS = 20, 500


@checked
class Admin:
    """Topics, brokers, groups and offsets of a cluster.

    Made by `Client.admin`, it belongs to the cluster of the client: it asks the master where its
    administration is, and before each change it verifies that the server there belongs to that
    cluster. Made with a URL alone, it uses any server at that URL.

    Args:
        url: the master's HTTP port, as `http://host:8080`; several, separated by commas, where
            there are several masters; None for the address that the cluster reports.
        token: the confModAuthToken of masters and brokers; only changes need it. None for the one
            that Java ships.
        tls: for https.
        user: recorded as the author of changes, and, with a password, the account.
        password: of the account, where the cluster has accounts. It is never sent, only used to
            sign.
        timeout_ms: for each call.
        cluster: the URL of the cluster, for errors.
        identify: asks the cluster for its identity; None if only `url` is known.
        check: raises when the client that made it cannot be used any more.

    ```python
    admin = Admin("http://127.0.0.1:8080")
    await admin.create_topic("orders", 8)
    for group in await admin.groups():
        print(group.name, group.lag)
    ```

    Methods raise `UnavailableError` when no server answers, `RefusedError` when one refuses, and
    `UsageError` when the server does not belong to the cluster; then nothing was changed.
    """

    def __init__(
        self,
        url: str | None,
        token: str | None = None,
        tls: net.TlsOptions | None = None,
        *,
        user: str = AUTHOR,
        password: str | None = None,
        timeout_ms: int = 10_000,
        cluster: str = "",
        identify: Callable[[], Awaitable[ClusterIdentity]] | None = None,
        check: Callable[[], None] | None = None,
    ) -> None:
        self._calls = AdminCalls(
            url, token, tls, user=user, password=password, timeout_ms=timeout_ms, cluster=cluster,
            identify=identify, check=check,
        )  # fmt: skip

    def __repr__(self) -> str:
        return f"Admin({self._calls.server!r})"

    # -- topics

    async def topics(self, *names: str, system: bool = False) -> list[admin.Topic]:
        """The topics, sorted by name.

        Args:
            names: names of topics; without names, all topics.
            system: include TubeMQ's own topics, if no names are given.
        """
        found = [record.topic() for record in await self._topics(names)]
        return [one for one in found if names or system or not is_internal_topic(one.name)]

    async def topic_names(self, *, system: bool = False) -> list[str]:
        """The names of the topics, sorted: one request, however many there are.

        Args:
            system: include TubeMQ's own topics.
        """
        answer = await self._calls.ask(records.DeployedTopics, "admin_query_deployed_topics", {})
        found = {name for record in answer.data for name in record.topic_name}
        return sorted(name for name in found if system or not is_internal_topic(name))

    async def _topics(self, names: Collection[str]) -> list[TopicRecord]:
        """The records of topics that have partitions, sorted by name; without names, of all."""
        found = await self._calls.ask_for(TopicRecord, "admin_query_topic_info", "topicName", names)
        return sorted((one for one in found if one.keys), key=lambda one: one.topic_name)

    async def create_topic(
        self,
        name: str,
        partitions: int,
        brokers: Iterable[str | int] | None = None,
        *,
        exist_ok: bool = False,
        wait_ms: int = 0,
    ) -> None:
        """Create a topic.

        Args:
            name: a letter, then letters, digits, `_` and `-`.
            partitions: the number of partitions on each broker.
            brokers: names of brokers; all that are online when None.
            exist_ok: do not raise if a broker already has the topic.
            wait_ms: how long to wait until producers can use it. Coherer's nodes need milliseconds,
                Java's brokers 41 seconds, and up to 90 if another change was made just before.

        Raises:
            UsageError: an argument is out of range.
            RefusedError: the name is invalid, a broker is unknown, or the topic exists (402).
            RequestTimeoutError: the topic is created, but cannot be used yet.
        """
        if not 0 < partitions <= limits.TOPIC_PARTITIONS_MAX:
            raise UsageError(
                f"A topic has 1 to {limits.TOPIC_PARTITIONS_MAX} partitions, not {partitions}.",
                topic=name,
            )
        await self._calls.prepare(changes=True)
        ids = _ids(brokers) if brokers is not None else await self._online_brokers()
        if not ids:
            raise UnavailableError(
                "No broker is online.", topic=name, hint="Start one, or name the brokers."
            )
        parameters = {"topicName": name, "brokerId": _numbers(ids)}
        await self._calls.change(
            "admin_add_new_topic_record",
            {**parameters, "numPartitions": str(partitions), "numTopicStores": "1"},
            allowed_codes={EXISTED} if exist_ok else set(),
            topic=name,
        )
        if wait_ms:
            await self.wait_usable(name, timeout_ms=wait_ms)

    async def alter_topic(
        self,
        name: str,
        *,
        partitions: int | None = None,
        writable: bool | None = None,
        readable: bool | None = None,
        brokers: Iterable[str | int] | None = None,
    ) -> None:
        """Change a topic. Settings that are None stay unchanged.

        Producers and consumers of a Coherer node notice it at once. Java's master brings changes to
        its brokers in rounds of up to 45 seconds, and a change that comes during a round waits for
        the next one.

        Args:
            name: the topic.
            partitions: the number of partitions in each store of a broker. It can only grow: the
                messages of a removed partition could no longer be read.
            writable: whether producers can send to it.
            readable: whether consumers can read it.
            brokers: names of brokers; None for all that have the topic.

        Raises:
            UsageError: a broker's name is not a number, all settings are None, or partitions would
                be removed.
            RefusedError: the topic does not exist.
            UnavailableError: a broker does not have it.
        """
        changes = {
            "numPartitions": None if partitions is None else str(partitions),
            "acceptPublish": None if writable is None else str(writable).lower(),
            "acceptSubscribe": None if readable is None else str(readable).lower(),
        }
        given = {key: text for key, text in changes.items() if text is not None}
        if not given:
            raise UsageError("There is nothing to change.", topic=name)
        await self._calls.prepare(changes=True)
        now = await self._partition_counts(name)
        wanted = sorted(now) if brokers is None else _ids(brokers)
        if missing := set(wanted) - now.keys():
            raise UnavailableError(f"Broker {_numbers(missing)} lacks the topic.", topic=name)
        most = max(now[broker] for broker in wanted)
        if partitions is not None and not most <= partitions <= limits.TOPIC_PARTITIONS_MAX:
            raise UsageError(
                f"The topic has {most} partitions in a store. Removing some would make their "
                "messages unreadable.",
                topic=name,
                hint=f"Give {most} to {limits.TOPIC_PARTITIONS_MAX}.",
            )
        await self._calls.change(
            "admin_modify_topic_info",
            {"topicName": name, "brokerId": _numbers(wanted), **given},
            topic=name,
        )

    async def wait_usable(self, name: str, *, timeout_ms: int) -> admin.Topic:
        """Wait until producers and consumers can use a topic; returns it.

        Raises:
            RequestTimeoutError: it cannot be used within `timeout_ms`.
        """
        pause_ms = _POLL_FIRST_MS
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                while True:
                    topic = await self._topic(name)
                    if topic is not None and topic.writable and topic.readable:
                        return topic
                    await asyncio.sleep(pause_ms / 1000)
                    pause_ms = min(2 * pause_ms, _POLL_LAST_MS)
        except TimeoutError:
            raise RequestTimeoutError(
                f"The topic cannot be used after {timeout_ms} ms.",
                topic=name,
                hint="Are its brokers running? Java's brokers need 41 to 90 s.",
            ) from None

    async def delete_topic(self, name: str) -> None:
        """Delete a topic with its messages from all brokers.

        Raises:
            RefusedError: the topic does not exist.
        """
        await self._calls.prepare(changes=True)
        found = await self._calls.ask(TopicRecord, "admin_query_topic_info", {"topicName": name})
        named = (record for record in found.data if record.topic_name == name)
        record = next(named, TopicRecord(name))
        if not record.brokers(0, 1):
            raise self._no_topic(name)
        if alive := record.brokers(0):
            await self._soft_delete(name, alive)
        ids = {"topicName": name, "brokerId": _numbers(record.brokers(0, 1))}
        await self._calls.change("admin_remove_topic_info", ids, topic=name)

    # -- brokers

    async def brokers(self) -> list[admin.Broker]:
        """The brokers that the master knows, sorted by id."""
        configured, running = await asyncio.gather(
            self._brokers(),
            self._calls.ask(records.BrokerRun, "admin_query_broker_run_status", {}),
        )
        runs = {run.broker_id: run for run in running.data}
        return [record.broker(runs.get(record.broker_id)) for record in configured]

    async def _brokers(self, *, web: bool = False) -> list[BrokerRecord]:
        """The records of the brokers, sorted by id; with `web`, of those with a web port."""
        answer = await self._calls.ask(BrokerRecord, "admin_query_broker_configure", {})
        found = [one for one in answer.data if one.web_port or not web]
        return sorted(found, key=lambda one: one.broker_id)

    async def node_status(self) -> NodeStatus | None:
        """The status of the master, if it is a node of Coherer; None for other servers.

        Raises:
            RefusedError: the node requires an account.
        """
        status, body = await self._calls.page("/status")
        if status in (UNAUTHORIZED, FORBIDDEN):
            raise RefusedError(
                f"/status: HTTP {status}.", server=self._calls.server, code=status,
                hint="Give the name and password of an account.",
            )  # fmt: skip
        try:
            return decoder(NodeStatus).decode(body) if status == OK else None
        except msgspec.DecodeError:
            return None

    # -- groups and offsets

    async def partitions(self, topic: str) -> list[admin.Partition]:
        """The partitions of a topic, and their offsets.

        Raises:
            RefusedError: the topic does not exist.
        """
        found = await self.partitions_of([topic])
        if topic not in found:
            raise self._no_topic(topic)
        return found[topic]

    async def partitions_of(self, topics: Collection[str]) -> dict[str, list[admin.Partition]]:
        """The partitions of several topics, with one request to each server.

        Topics that do not exist are left out.
        """
        if not topics:
            return {}
        known, brokers = await asyncio.gather(self._topics(topics), self._brokers(web=True))
        offsets = records.ClusterOffsets()
        answers = await asyncio.gather(*(self._calls.ends(broker, topics) for broker in brokers))
        for broker, answer in zip(brokers, answers, strict=True):
            offsets.add(broker.broker_id, answer)
        return {
            one.topic_name: [offsets.partition(key) for key in one.keys]
            for one in known
            if one.topic_name in topics
        }

    async def group_names(self, *, system: bool = False) -> list[str]:
        """The names of the consumer groups, sorted: few requests, however many there are.

        Args:
            system: include RocketMQ's own groups, which a node lists here, too.
        """
        subscriptions, brokers = await asyncio.gather(
            self._calls.ask(records.Subscription, "admin_query_sub_info", {}),
            self._brokers(web=True),
        )
        known = await asyncio.gather(*map(self._calls.groups_at, brokers))
        online = {entry.consume_group for entry in subscriptions.data}
        return _listed(online.union(*known), system=system)

    async def groups(self, *names: str, system: bool = False) -> list[admin.Group]:
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
        topics = await self._topics(sorted(used) if names else ()) if used else []
        members = await asyncio.gather(*map(self._members, online))
        found = dict(zip(online, members, strict=True))
        return [
            offsets.group(name, online.get(name), found.get(name, ()), topics)
            for name in _listed({*online, *offsets.groups}, names, system=system)
        ]

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
        brokers = await self._brokers(web=True)
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

    async def groups_of(self, topic: str) -> list[str]:
        """The groups that consume a topic, or have offsets in it."""
        subscriptions, brokers = await asyncio.gather(
            self._calls.ask(records.Subscription, "admin_query_sub_info", {"topicName": topic}),
            self._brokers(web=True),
        )
        known = await asyncio.gather(*(self._calls.readers_at(broker, topic) for broker in brokers))
        online = {one.consume_group for one in subscriptions.data if topic in one.topic_set}
        return _listed(online.union(*known))

    async def delete_group(self, name: str) -> None:
        """Delete the offsets of a group in all topics.

        A group with running consumers reappears at their next commit.

        Raises:
            RefusedError: the group does not exist.
            UnavailableError: a broker does not answer; the offsets at the others are deleted.
        """
        await self._calls.prepare(changes=True)
        found = await self.groups(name)
        if not found:
            raise RefusedError(
                f"There is no group {name}.", server=self._calls.server, code=NO_GROUP
            )
        topic = next(iter(found[0].topics), name)
        brokers = await self._brokers(web=True)
        for broker in brokers:
            await self._calls.check_broker(broker, topic)
        for broker in brokers:
            await self._calls.broker(broker).call(
                msgspec.Raw,
                "admin_rmv_offset",
                {
                    "groupName": name,
                    **self._calls.signature,
                },
                post=True,
            )

    async def set_offsets(self, group: str, offsets: Mapping[str, int]) -> None:
        """Set the offsets of a group, even while it is consuming.

        Args:
            group: the group; it need not exist.
            offsets: new offsets by partition key, `broker:topic:partition`. A broker moves an
                offset that is out of range to the nearest one in range.

        Raises:
            UsageError: a key is invalid, or its broker is unknown.
        """
        by_broker: dict[int, dict[str, int]] = {}
        for key, offset in offsets.items():
            by_broker.setdefault(records.broker_of(key), {})[key] = offset
        await self._calls.prepare(changes=True)
        brokers = {broker.broker_id: broker for broker in await self._brokers()}
        if unknown := by_broker.keys() - brokers.keys():
            raise UsageError(f"The cluster has no broker {_numbers(unknown)}.")
        for number, wanted in by_broker.items():
            await self._calls.check_broker(brokers[number], next(iter(wanted)).split(":")[1])
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
        for partition in await self.partitions(topic):
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

    # -- inside

    async def _at_time(self, topic: str, time: datetime) -> dict[str, int]:
        """The offset of the first message stored at a time or later, by partition key."""
        parameters = {"topicName": topic, "time": str(floor_ms(time))}
        found: dict[str, int] = {}
        for broker in await self._brokers(web=True):
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

    def _no_topic(self, name: str) -> RefusedError:
        return RefusedError(
            "There is no such topic.",
            server=self._calls.server,
            topic=name,
            code=404,
            hint="`coherer topics list` shows the existing ones.",
        )

    async def _topic(self, name: str) -> admin.Topic | None:
        return next((topic for topic in await self.topics(name) if topic.name == name), None)

    async def _partition_counts(self, name: str) -> dict[int, int]:
        """The number of partitions in each store of the brokers that have a topic."""
        found = await self._calls.ask(TopicRecord, "admin_query_topic_info", {"topicName": name})
        counts = {
            one.broker_id: one.num_partitions
            for record in found.data
            if record.topic_name == name
            for one in record.topic_info
            if one.topic_status_id == 0
        }
        if not counts:
            raise self._no_topic(name)
        return counts

    async def _soft_delete(self, name: str, brokers: Iterable[int]) -> None:
        ids = {"topicName": name, "brokerId": _numbers(brokers)}
        try:
            await self._calls.change("admin_delete_topic_info", ids, topic=name)
        except RefusedError as error:
            if error.code != ILLEGAL_STATUS:
                raise
            # Java's master requires that a topic accepts no clients before it is deleted.
            closed = {"acceptPublish": "false", "acceptSubscribe": "false"}
            await self._calls.change("admin_modify_topic_info", {**ids, **closed}, topic=name)
            await self._calls.change("admin_delete_topic_info", ids, topic=name)

    async def _online_brokers(self) -> list[int]:
        return [one.broker_id for one in await self._brokers() if one.manage_status == "online"]

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
        brokers = await self._brokers(web=True)
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


def _ids(brokers: Iterable[str | int]) -> list[int]:
    """The ids of brokers, sorted.

    >>> _ids(["3", 1])
    [1, 3]

    Raises:
        UsageError: a name is not a number.
    """
    names = [str(broker) for broker in brokers]
    if wrong := [name for name in names if not name.isdecimal()]:
        raise UsageError(f"TubeMQ's brokers have numbers; {wrong[0]!r} is not a broker.")
    return sorted(map(int, names))


def _numbers(ids: Iterable[int]) -> str:
    return ",".join(map(str, sorted(ids)))


def _listed(
    groups: Iterable[str], wanted: Container[str] = (), *, system: bool = False
) -> list[str]:
    """Groups to show, sorted. Readers leave theirs behind at Java's brokers."""
    hidden = (READER_GROUP_PREFIX,) if system else (READER_GROUP_PREFIX, SYSTEM_GROUP_PREFIX)
    return sorted(name for name in groups if name in wanted or not name.startswith(hidden))
