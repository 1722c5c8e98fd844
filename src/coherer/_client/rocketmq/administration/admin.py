"""Administration of RocketMQ clusters (docs/protocol/rocketmq.md, sections 8.17 and 12).

It sends requests to name servers and brokers over the connections of its client, as Java's tools
do. Topics, brokers, groups and offsets have the same methods as in TubeMQ's `Admin`.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections import Counter
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Final, Literal

from coherer import admin
from coherer._client.engine.arguments import checked
from coherer._client.rocketmq.administration.messages import MessageAdmin
from coherer._client.rocketmq.routing import MASTER, READ, WRITE, Route
from coherer._common.logs import Log
from coherer._common.moments import floor_ms
from coherer._record.system_topics import is_internal_topic
from coherer._wire.rocketmq import fastjson, names
from coherer._wire.rocketmq.bodies import (
    ConsumerConnection,
    ConsumeStats,
    QueueTimeSpan,
    SubscriptionGroup,
    SubscriptionGroups,
    TopicList,
    TopicRoute,
    TopicStats,
)
from coherer._wire.rocketmq.codes import RequestCode, ResponseCode, refused, version_name
from coherer._wire.rocketmq.headers import (
    ConsumeStatsHeader,
    CreateTopicHeader,
    DeleteGroupHeader,
    GroupHeader,
    ResetOffsetHeader,
    UpdateOffsetHeader,
)
from coherer._wire.rocketmq.names import Queue
from coherer.errors import (
    ClosedError,
    CohererError,
    RefusedError,
    RequestTimeoutError,
    UnavailableError,
    UsageError,
)

POLL_FIRST_MS: Final = 20
POLL_LAST_MS: Final = 500

_log = Log(logging.getLogger(__name__))

LATEST_MS: Final = -1
"""The time that stands for the end of a queue in a reset (section 4.4)."""

_TIME_SPANS_AT_ONCE: Final = 16

_SINCE_1970_MS: Final = 1_000_000_000_000
"""A larger value is not an age but a time of day, which some brokers return."""

_ENDS: Final = {"earliest": 0, "latest": LATEST_MS}


@checked
class Admin(MessageAdmin):
    """Topics, brokers, groups, offsets and messages of a cluster. Made by `Client.admin`.

    ```python
    admin = client.admin()
    await admin.create_topic("orders", 8)
    for group in await admin.groups():
        print(group.name, group.lag)
    ```

    Methods raise `UnavailableError` when a server does not answer, and `RefusedError` when it
    refuses.

    Args:
        instance: the connections and routes.
    """

    # -- topics: sections 2.11 and 2.12

    async def topics(self, *names: str, system: bool = False) -> list[admin.Topic]:
        """The topics, sorted by name.

        Args:
            names: names of topics; without names, all topics.
            system: include RocketMQ's own topics: retry topics, dead letters and others.
        """
        await self._instance.start()
        wanted = list(names) or await self.topic_names(system=system)
        routes = await asyncio.gather(*(self._route(topic) for topic in sorted(set(wanted))))
        return [_topic(route) for route in routes if route is not None]

    async def topic_names(self, *, system: bool = False) -> list[str]:
        """The names of the topics, sorted: one request, however many there are.

        Args:
            system: include RocketMQ's own topics: retry topics, dead letters and others.
        """
        await self._instance.start()
        answer = await self._instance.names.ask(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER)
        found = set(TopicList.decode(answer.body).topic_list)
        if not system:
            brokers = await self.brokers(runtime=False)
            found -= {broker.name for broker in brokers} | {broker.cluster for broker in brokers}
            found = {topic for topic in found if not is_internal_topic(topic)}
        return sorted(found)

    async def create_topic(
        self,
        name: str,
        partitions: int = 8,
        brokers: Iterable[str] | None = None,
        *,
        exist_ok: bool = False,
        wait_ms: int = 0,
        perm: int = READ | WRITE,
    ) -> None:
        """Create a topic, or change one.

        Args:
            name: letters, digits, `_`, `-`, `%` and `|`.
            partitions: the number of queues on each broker.
            brokers: names of brokers; all masters when None.
            exist_ok: change the topic if it exists.
            wait_ms: how long to wait until the name servers have its route; 0 to not wait.
            perm: 6 for reading and writing, 4 for reading, 2 for writing.

        Raises:
            UsageError: an argument is out of range.
            RefusedError: the name is invalid, or the topic exists.
            UnavailableError: a broker is unknown, or does not answer.
            RequestTimeoutError: the topic is created, but cannot be used yet.
        """
        names.check_topic(name)
        if partitions < 1:
            raise UsageError(f"A topic has at least one queue, not {partitions}.", topic=name)
        await self._instance.start()
        if not exist_ok and await self._route(name) is not None:
            raise refused(ResponseCode.TOPIC_EXIST_ALREADY, "The topic exists already.", topic=name)
        header = CreateTopicHeader(
            name, partitions, partitions, perm, "SINGLE_TAG", names.AUTO_CREATE_TOPIC, 0
        )
        await self._ask_masters(
            RequestCode.UPDATE_AND_CREATE_TOPIC, header.fields(), brokers=brokers
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
        brokers: Iterable[str] | None = None,
    ) -> None:
        """Change a topic. Settings that are None stay unchanged.

        Producers and consumers notice it within half a minute.

        Args:
            name: the topic.
            partitions: the number of queues on each broker. It can only grow: the messages of a
                removed queue could no longer be read.
            writable: whether producers can send to it.
            readable: whether consumers can read it.
            brokers: names of brokers; None for all masters that have the topic.

        Raises:
            UsageError: all settings are None, or queues would be removed.
            RefusedError: the topic does not exist.
            UnavailableError: a broker does not have it, or does not answer.
        """
        if partitions is None and writable is None and readable is None:
            raise UsageError("There is nothing to change.", topic=name)
        await self._instance.start()
        route = await self._instance.routes.look_up(name)
        wanted = sorted(route.brokers) if brokers is None else list(brokers)
        configs = {broker: (await self.topic_configs(broker)).get(name) for broker in wanted}
        headers: dict[str, CreateTopicHeader] = {}
        for broker, config in configs.items():
            if config is None:
                raise UnavailableError(f"Broker {broker} does not have the topic.", topic=name)
            most = max(config.read_queue_nums, config.write_queue_nums)
            if partitions is not None and partitions < most:
                raise UsageError(
                    f"The topic has {most} queues on broker {broker}. Removing some would make "
                    "their messages unreadable.",
                    topic=name,
                    hint=f"Give {most} or more.",
                )
            headers[broker] = CreateTopicHeader(
                name,
                partitions or config.read_queue_nums,
                partitions or config.write_queue_nums,
                _permission(config.perm, writable=writable, readable=readable),
                config.topic_filter_type or "SINGLE_TAG",
                names.AUTO_CREATE_TOPIC,
                config.topic_sys_flag,
                order=config.order,
            )
        for broker, header in headers.items():
            code = RequestCode.UPDATE_AND_CREATE_TOPIC
            await self._ask_broker(broker, code, header.fields())

    async def wait_usable(self, name: str, *, timeout_ms: int) -> admin.Topic:
        """Wait until the name servers have the route of a topic.

        Raises:
            RequestTimeoutError: they do not have it in time.
        """
        pause_ms = POLL_FIRST_MS
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                while True:
                    found = await self.topics(name)
                    if found and (found[0].writable or found[0].readable):
                        return found[0]
                    await asyncio.sleep(pause_ms / 1000)
                    pause_ms = min(2 * pause_ms, POLL_LAST_MS)
        except TimeoutError:
            raise RequestTimeoutError(
                f"The topic cannot be used after {timeout_ms} ms.", topic=name
            ) from None

    async def delete_topic(self, name: str) -> None:
        """Delete a topic with its messages from all brokers and name servers.

        Raises:
            RefusedError: the topic does not exist.
        """
        await self._instance.start()
        route = await self._instance.routes.look_up(name)
        fields = {"topic": name}
        addresses = [address for brokers in route.brokers.values() for address in brokers.values()]
        await self._ask_each(addresses, RequestCode.DELETE_TOPIC_IN_BROKER, fields)
        await self._instance.names.ask_all(RequestCode.DELETE_TOPIC_IN_NAMESRV, fields)
        self._instance.routes.forget(name)

    async def partitions(self, topic: str) -> list[admin.Partition]:
        """The queues of a topic and their offsets.

        Raises:
            RefusedError: the topic does not exist.
        """
        await self._instance.start()
        route = await self._instance.routes.look_up(topic)
        masters = [brokers[MASTER] for brokers in route.brokers.values() if MASTER in brokers]
        answers = await self._ask_each(masters, RequestCode.GET_TOPIC_STATS_INFO, {"topic": topic})
        found = [
            admin.Partition(
                queue.topic,
                queue.broker,
                queue.id,
                offset.min_offset,
                offset.max_offset,
                newest_ms=offset.last_update_timestamp or None,
                offset_step=1,
            )
            for answer in answers
            for queue, offset in TopicStats.decode(answer.body).offset_table.items()
        ]
        return sorted(found, key=lambda one: one.queue)

    async def writable_queues(self, topic: str) -> list[Queue]:
        """The queues of a topic that accept messages, sorted.

        Raises:
            RefusedError: the topic does not exist.
        """
        await self._instance.start()
        routes = self._instance.routes
        route = routes.known(topic)
        if route is None:
            await routes.look_up(topic)  # `route` would use the template for a missing topic
            route = await routes.route(topic)
        return list(route.writable)

    async def queue_settings(self, topic: str) -> dict[str, dict[str, int]]:
        """The numbers of queues and the permission of a topic, from a name server.

        One request to a name server; `topic_configs` asks a broker for all its topics.

        Returns:
            By broker name: `readQueueNums`, `writeQueueNums`, `perm` and `topicSysFlag`.

        Raises:
            RefusedError: the topic does not exist.
        """
        await self._instance.start()
        answer = await self._instance.names.ask(
            RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": topic}
        )
        return {
            one.broker_name: {
                "readQueueNums": one.read_queue_nums,
                "writeQueueNums": one.write_queue_nums,
                "perm": one.perm,
                "topicSysFlag": one.topic_sys_flag,
            }
            for one in TopicRoute.decode(answer.body).queue_datas
        }

    async def oldest_ms(self, queue: Queue) -> int | None:
        """When the oldest message of a queue was stored, ms since 1970; None if it is empty."""
        await self._instance.start()
        fields = {"topic": queue.topic, "queueId": str(queue.id)}
        answer = await self._ask_broker(
            queue.broker, RequestCode.GET_EARLIEST_MSG_STORETIME, fields
        )
        time_ms = int(answer.fields.get("timestamp", "-1"))
        return time_ms if time_ms > 0 else None

    async def _route(self, topic: str) -> Route | None:
        try:
            return await self._instance.routes.look_up(topic)
        except RefusedError as error:
            if error.code == ResponseCode.TOPIC_NOT_EXIST:
                return None
            raise

    # -- groups and offsets: sections 2.7, 2.11 and 4.4

    async def groups(self, *names: str, system: bool = False) -> list[admin.Group]:
        """The consumer groups, sorted by name.

        A group exists if a broker has a configuration of it.

        Args:
            names: names of groups; without names, all groups.
            system: include RocketMQ's own groups.
        """
        await self._instance.start()
        masters = await self._masters()
        wanted = sorted(set(names)) or await self.group_names(system=system)
        return [await self._group(group, masters) for group in wanted]

    async def group_names(self, *, system: bool = False) -> list[str]:
        """The names of the consumer groups, sorted: one request to each master.

        Args:
            system: include RocketMQ's own groups.
        """
        await self._instance.start()
        answers = await self._ask_masters(RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG)
        found: set[str] = set()
        for answer in answers:
            found |= SubscriptionGroups.decode(answer.body).subscription_group_table.keys()
        # Java's brokers also have one without a name, of clients that named no group.
        return sorted(group for group in found if group and (system or not _is_system_group(group)))

    async def create_group(
        self, name: str, brokers: Iterable[str] | None = None, *, max_retries: int = 16
    ) -> None:
        """Create a consumer group, or change one. Most brokers create groups automatically.

        Args:
            name: the group.
            brokers: names of brokers; all masters when None.
            max_retries: the number of redeliveries before a message becomes a dead letter.
        """
        names.check_group(name)
        body = SubscriptionGroup(group_name=name, retry_max_times=max_retries).encode()
        await self._instance.start()
        await self._ask_masters(
            RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=body, brokers=brokers
        )

    async def delete_group(self, name: str, *, remove_offsets: bool = True) -> None:
        """Delete a group from all brokers.

        If its consumers are running, their next heartbeat creates it again.

        Args:
            name: the group.
            remove_offsets: whether to delete its offsets, too.

        Raises:
            RefusedError: the group does not exist.
        """
        [state] = await self.groups(name)
        if not (state.members or state.partitions or state.silent) and name not in {
            group.name for group in await self.groups()
        }:
            missing = refused(
                ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, f"There is no group {name}."
            )
            missing.hint = ""  # the code's own hint is to create the group
            raise missing
        fields = DeleteGroupHeader(name, remove_offsets).fields()
        await self._ask_masters(RequestCode.DELETE_SUBSCRIPTIONGROUP, fields)

    async def set_offsets(self, group: str, offsets: Mapping[Queue, int]) -> None:
        """Set the offsets of a group. Running consumers overwrite them with their own.

        Args:
            group: the group; it need not exist.
            offsets: new offsets by queue.
        """
        await self._instance.start()
        for queue, offset in offsets.items():
            fields = UpdateOffsetHeader(
                consumer_group=group, topic=queue.topic, queue_id=queue.id, commit_offset=offset
            ).fields()
            await self._ask_broker(queue.broker, RequestCode.UPDATE_CONSUMER_OFFSET, fields)

    async def reset_offsets(
        self, group: str, topic: str, to: Literal["earliest", "latest"] | datetime | int
    ) -> dict[Queue, int]:
        """Reset a group's offsets of a whole topic, also while it is consuming.

        Args:
            group: the group.
            topic: the topic.
            to: an end of the queues, a store time, or an offset for every queue. Running consumers
                follow, except to an offset.

        Returns:
            The offsets by queue.

        Raises:
            UsageError: the position is invalid.
            RefusedError: the topic does not exist.
        """
        if isinstance(to, str) and to not in _ENDS:
            hint = "Use 'earliest', 'latest', a time, or an offset."
            raise UsageError(f"{to!r} is not a valid position.", hint=hint)
        await self._instance.start()
        route = await self._instance.routes.look_up(topic)
        if isinstance(to, int):
            offsets = dict.fromkeys(route.readable, to)
            await self.set_offsets(group, offsets)
            return offsets
        time_ms = _ENDS[to] if isinstance(to, str) else floor_ms(to)
        found: dict[Queue, int] = {}
        for broker in route.brokers:
            found |= await self._reset(group, topic, broker, time_ms, route)
        return found

    async def _reset(
        self, group: str, topic: str, broker: str, time_ms: int, route: Route
    ) -> dict[Queue, int]:
        queues = [queue for queue in route.readable if queue.broker == broker]
        # Also set the stored offsets: brokers refuse a reset of a group without offsets or members.
        offsets = {queue: await self._offset_at(queue, time_ms) for queue in queues}
        try:
            await self._ask_broker(
                broker,
                RequestCode.INVOKE_BROKER_TO_RESET_OFFSET,
                ResetOffsetHeader(topic, group, time_ms, is_force=True).fields(),
            )
        except RefusedError as error:
            _log.info("Consumers of %s at %s are not reset: %s", group, broker, error)
        await self.set_offsets(group, offsets)
        return offsets

    async def _offset_at(self, queue: Queue, time_ms: int) -> int:
        fields = {"topic": queue.topic, "queueId": str(queue.id)}
        code = RequestCode.SEARCH_OFFSET_BY_TIMESTAMP
        if time_ms == LATEST_MS:
            code = RequestCode.GET_MAX_OFFSET
        elif time_ms == 0:
            code = RequestCode.GET_MIN_OFFSET
        else:
            fields["timestamp"] = str(time_ms)
        answer = await self._ask_broker(queue.broker, code, fields)
        return max(int(answer.fields.get("offset", "0")), 0)

    async def _group(self, group: str, masters: Mapping[str, str]) -> admin.Group:
        members: dict[str, admin.Member] = {}
        topics: set[str] = set()
        partitions: dict[Queue, admin.Partition] = {}
        silent: list[str] = []
        model: str | None = None
        for broker, address in masters.items():
            try:
                online, beats = await self._online(group, address)
                stats = await self._stats(group, address)
                oldest = await self._oldest(stats, address)
            except CohererError as error:
                _log.warning(
                    "Cannot read the state at broker %s of group %s: %s", broker, group, error
                )
                silent.append(broker)
                continue
            if online is not None:
                model = online.message_model
                topics |= {
                    name for name in online.subscription_table if not _is_retry_topic(name, group)
                }
                for one in online.connection_set:
                    members[one.client_id] = admin.Member(
                        one.client_id,
                        group,
                        address=one.client_addr,
                        language=one.language,
                        version=version_name(one.version) if one.version else None,
                        heartbeat_ms=beats.get(one.client_id),
                    )
            for queue, at in stats.offset_table.items():
                if not _is_retry_topic(queue.topic, group):
                    topics.add(queue.topic)
                partitions[queue] = admin.Partition(
                    queue.topic,
                    queue.broker,
                    queue.id,
                    max_offset=at.broker_offset,
                    committed=at.consumer_offset,
                    lag=max(at.broker_offset - max(at.consumer_offset, oldest.get(queue, 0)), 0),
                    newest_ms=at.last_timestamp or None,
                    offset_step=1,
                )
        return admin.Group(
            group,
            tuple(sorted(topics)),
            tuple(members[key] for key in sorted(members)),
            tuple(partitions[queue] for queue in sorted(partitions)),
            tuple(silent),
            model,
        )

    async def unread_ages(self, group: str, *topics: str) -> dict[str, int]:
        """The ages of the oldest messages that a group has not acknowledged, in ms.

        Args:
            group: the group.
            topics: its topics; each takes one request to each broker.

        Returns:
            By the key of the queue, `broker:topic:queue`. A queue is missing if it has no unread
            message, and if the age is unknown.
        """
        await self._instance.start()
        turns = asyncio.Semaphore(_TIME_SPANS_AT_ONCE)

        async def ask(topic: str) -> list[QueueTimeSpan]:
            try:
                async with turns:
                    return await self.time_spans(group, topic)
            except ClosedError:
                raise
            except CohererError as error:
                _log.info(
                    "The age of the unread messages of %s in %s is unknown: %s", group, topic, error
                )
                return []

        found: dict[str, int] = {}
        for span in itertools.chain.from_iterable(await asyncio.gather(*map(ask, topics))):
            age_ms = _unread_ms(span)
            if span.message_queue is not None and age_ms is not None:
                queue = span.message_queue
                found[f"{queue.broker}:{queue.topic}:{queue.id}"] = age_ms
        return found

    async def _online(
        self, group: str, address: str
    ) -> tuple[ConsumerConnection | None, Mapping[str, int]]:
        """The members of a group at a broker, and the ages of their heartbeats if reported."""
        fields = {**GroupHeader(group).fields(), names.FEATURES: names.FEATURE_HEARTBEATS}
        try:
            answer = await self._ask(address, RequestCode.GET_CONSUMER_CONNECTION_LIST, fields)
        except RefusedError as error:
            if error.code == ResponseCode.CONSUMER_NOT_ONLINE:
                return None, {}
            raise
        ages = fastjson.loads(answer.fields.get(names.HEARTBEAT_AGES, "{}").encode())
        known = ages.items() if isinstance(ages, dict) else ()
        beats = {str(name): age for name, age in known if isinstance(age, int)}
        return ConsumerConnection.decode(answer.body), beats

    async def _oldest(self, stats: ConsumeStats, address: str) -> dict[Queue, int]:
        """The oldest offsets in topics in which the group has an offset 0.

        Brokers also return 0 for a queue in which the group has not begun. Without this, deleted
        messages would count as lag.
        """
        table = stats.offset_table.items()
        topics = {queue.topic for queue, at in table if at.broker_offset > at.consumer_offset <= 0}
        oldest: dict[Queue, int] = {}
        for topic in topics:
            answer = await self._ask(address, RequestCode.GET_TOPIC_STATS_INFO, {"topic": topic})
            held = TopicStats.decode(answer.body).offset_table
            oldest |= {queue: at.min_offset for queue, at in held.items()}
        return oldest

    async def _stats(self, group: str, address: str) -> ConsumeStats:
        fields = ConsumeStatsHeader(group).fields()
        answer = await self._ask(address, RequestCode.GET_CONSUME_STATS, fields)
        return ConsumeStats.decode(answer.body)


def _unread_ms(span: QueueTimeSpan) -> int | None:
    """The age of the oldest unread message of a queue; None if all are read or the age is unknown.

    If the message at the group's offset has been deleted, Java's brokers subtract the time -1 from
    theirs. Then the oldest message of the queue is the oldest unread one.

    >>> _unread_ms(QueueTimeSpan(delay_time=5_000)), _unread_ms(QueueTimeSpan())
    (5000, None)
    >>> _unread_ms(QueueTimeSpan(delay_time=1_700_000_060_001, min_time_stamp=1_700_000_000_000))
    60000
    """
    if span.delay_time <= 0:
        return None
    if span.delay_time < _SINCE_1970_MS:
        return span.delay_time
    age_ms = span.delay_time - 1 - span.min_time_stamp
    return age_ms if span.min_time_stamp > 0 and age_ms >= 0 else None


def _topic(route: Route) -> admin.Topic:
    return admin.Topic(
        route.topic,
        len(route.readable),
        dict(Counter(queue.broker for queue in route.readable)),
        writable=bool(route.writable),
        readable=bool(route.readable),
    )


def _permission(now: int, *, writable: bool | None, readable: bool | None) -> int:
    """Return a topic's permission after a change.

    >>> _permission(6, writable=False, readable=None), _permission(0, writable=True, readable=True)
    (4, 6)
    """
    for bit, wanted in ((WRITE, writable), (READ, readable)):
        if wanted is not None:
            now = now | bit if wanted else now & ~bit
    return now


def _is_retry_topic(topic: str, group: str) -> bool:
    """Whether a topic is the group's retry topic."""
    return topic == names.retry_topic(group)


def _is_system_group(group: str) -> bool:
    return group in names.SYSTEM_GROUPS or group.startswith(names.SYSTEM_GROUP_PREFIX)
