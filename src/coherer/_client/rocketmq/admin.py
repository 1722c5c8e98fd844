"""Administration of RocketMQ clusters (docs/protocol/rocketmq.md, sections 8.17 and 12).

It sends requests to name servers and brokers over the connections of its client, as Java's tools
do. Topics, brokers, groups and offsets have the same methods as in TubeMQ's `Admin`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Mapping
from datetime import datetime
from ipaddress import ip_address
from typing import Final, Literal

from coherer._client.rocketmq.admin_records import (
    GroupState,
    MemberState,
    PartitionState,
    TopicState,
)
from coherer._client.rocketmq.admin_servers import ServerAdmin, to_ms
from coherer._client.rocketmq.routing import MASTER, READ, WRITE, Route
from coherer._common.logs import Log
from coherer._record.ids import decode_offset_id
from coherer._wire.rocketmq import names
from coherer._wire.rocketmq.bodies import (
    ConsumeDirectlyResult,
    ConsumerConnection,
    ConsumeStats,
    SubscriptionGroup,
    SubscriptionGroups,
    TopicList,
    TopicStats,
)
from coherer._wire.rocketmq.codes import RequestCode, ResponseCode, refused
from coherer._wire.rocketmq.delivery import decode_messages
from coherer._wire.rocketmq.headers import (
    ConsumeDirectlyHeader,
    ConsumeStatsHeader,
    CreateTopicHeader,
    DeleteGroupHeader,
    GroupHeader,
    MessageIdHeader,
    QueryMessageHeader,
    ResetOffsetHeader,
    UpdateOffsetHeader,
    ViewMessageHeader,
)
from coherer._wire.rocketmq.messages import StoredMessage
from coherer._wire.rocketmq.names import Queue
from coherer.errors import (
    CohererError,
    ProtocolError,
    RefusedError,
    RequestTimeoutError,
    UsageError,
)

POLL_FIRST_MS: Final = 20
POLL_LAST_MS: Final = 500

_log = Log(logging.getLogger(__name__))

LATEST_MS: Final = -1
"""The time that stands for the end of a queue in a reset (section 4.4)."""

_ENDS: Final = {"earliest": 0, "latest": LATEST_MS}

FOREVER_MS: Final = 2**63 - 1
UNIQUE_COUNT: Final = 32


class Admin(ServerAdmin):
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

    async def topics(self, *names_wanted: str, system: bool = False) -> list[TopicState]:
        """The topics, sorted by name.

        Args:
            names_wanted: names of topics; all topics if there are none.
            system: include RocketMQ's own topics: retry topics, dead letters and others.
        """
        await self._instance.start()
        wanted = list(names_wanted)
        if not wanted:
            answer = await self._instance.names.ask(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER)
            brokers = await self.brokers(runtime=False)
            own = {broker.name for broker in brokers} | {broker.cluster for broker in brokers}
            wanted = [
                topic
                for topic in TopicList.decode(answer.body).topic_list
                if system or not (_is_system_topic(topic) or topic in own)
            ]
        routes = await asyncio.gather(*(self._route(topic) for topic in sorted(set(wanted))))
        return [_topic_state(route) for route in routes if route is not None]

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

    async def wait_usable(self, name: str, *, timeout_ms: int) -> TopicState:
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

    async def partitions(self, topic: str) -> list[PartitionState]:
        """The queues of a topic and their offsets.

        Raises:
            RefusedError: the topic does not exist.
        """
        await self._instance.start()
        route = await self._instance.routes.look_up(topic)
        masters = [brokers[MASTER] for brokers in route.brokers.values() if MASTER in brokers]
        answers = await self._ask_each(masters, RequestCode.GET_TOPIC_STATS_INFO, {"topic": topic})
        found = [
            PartitionState(
                queue.topic,
                queue.broker,
                queue.id,
                offset.min_offset,
                offset.max_offset,
                last_ms=offset.last_update_timestamp,
            )
            for answer in answers
            for queue, offset in TopicStats.decode(answer.body).offset_table.items()
        ]
        return sorted(found, key=lambda state: state.queue)

    async def _route(self, topic: str) -> Route | None:
        try:
            return await self._instance.routes.look_up(topic)
        except RefusedError as error:
            if error.code == ResponseCode.TOPIC_NOT_EXIST:
                return None
            raise

    # -- groups and offsets: sections 2.7, 2.11 and 4.4

    async def groups(self, *names_wanted: str) -> list[GroupState]:
        """The consumer groups, sorted by name.

        A group exists if a broker has a configuration of it.

        Args:
            names_wanted: names of groups; all groups except RocketMQ's own if there are none.
        """
        await self._instance.start()
        masters = await self._masters()
        wanted = set(names_wanted)
        if not wanted:
            answers = await self._ask_each(
                masters.values(), RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG
            )
            for answer in answers:
                wanted |= SubscriptionGroups.decode(answer.body).subscription_group_table.keys()
            wanted = {group for group in wanted if not _is_system_group(group)}
        return [await self._group(group, masters) for group in sorted(wanted)]

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
            code = ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST
            raise refused(code, f"There is no group {name}.")
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
        time_ms = _ENDS[to] if isinstance(to, str) else to_ms(to)
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

    async def _group(self, group: str, masters: Mapping[str, str]) -> GroupState:
        members: dict[str, MemberState] = {}
        topics: set[str] = set()
        partitions: dict[Queue, PartitionState] = {}
        silent: list[str] = []
        model: str | None = None
        for broker, address in masters.items():
            try:
                online = await self._online(group, address)
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
                    members[one.client_id] = MemberState(
                        one.client_id, one.client_addr, one.language, one.version
                    )
            for queue, at in stats.offset_table.items():
                if not _is_retry_topic(queue.topic, group):
                    topics.add(queue.topic)
                partitions[queue] = PartitionState(
                    queue.topic,
                    queue.broker,
                    queue.id,
                    max_offset=at.broker_offset,
                    committed=at.consumer_offset,
                    lag=max(at.broker_offset - max(at.consumer_offset, oldest.get(queue, 0)), 0),
                    last_ms=at.last_timestamp,
                )
        return GroupState(
            group,
            tuple(sorted(topics)),
            tuple(members[key] for key in sorted(members)),
            tuple(partitions[queue] for queue in sorted(partitions)),
            model,
            tuple(silent),
        )

    async def _online(self, group: str, address: str) -> ConsumerConnection | None:
        try:
            answer = await self._ask(
                address, RequestCode.GET_CONSUMER_CONNECTION_LIST, GroupHeader(group).fields()
            )
        except RefusedError as error:
            if error.code == ResponseCode.CONSUMER_NOT_ONLINE:
                return None
            raise
        return ConsumerConnection.decode(answer.body)

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

    # -- messages

    async def message(self, message_id: str) -> StoredMessage:
        """A message by its offset message id: the `id` of receipts and received messages.

        Raises:
            UsageError: the id is invalid.
            RefusedError: the broker does not have it any more.
            UnavailableError: the broker in the id cannot be reached.
        """
        parts = decode_offset_id(message_id)
        await self._instance.start()
        host = str(ip_address(parts.address))
        address = f"[{host}]:{parts.port}" if ":" in host else f"{host}:{parts.port}"
        fields = ViewMessageHeader(parts.physical_offset).fields()
        answer = await self._ask(address, RequestCode.VIEW_MESSAGE_BY_ID, fields)
        found = decode_messages(answer.body)
        if not found:
            raise ProtocolError("The answer contains no message.", server=address)
        return found[0]

    async def messages(
        self,
        topic: str,
        key: str,
        *,
        begin: datetime | None = None,
        end: datetime | None = None,
        limit: int = 64,
    ) -> list[StoredMessage]:
        """Messages by one of their keys, in the order they were stored.

        Args:
            topic: the topic.
            key: one of `keys`.
            begin: stored at this time or later.
            end: stored at this time or earlier.
            limit: the maximum number per broker; brokers return at most 64.

        Raises:
            RefusedError: the topic does not exist.
        """
        begin_ms = 0 if begin is None else to_ms(begin)
        end_ms = FOREVER_MS if end is None else to_ms(end)
        header = QueryMessageHeader(
            topic=topic, key=key, max_num=limit, begin_ms=begin_ms, end_ms=end_ms
        )
        found = await self._query(header)
        return [message for message in found if key in message.keys]

    async def message_by_unique_id(self, topic: str, unique_id: str) -> StoredMessage | None:
        """A message by the id that its sender generated; of several copies the first one.

        Raises:
            RefusedError: the topic does not exist.
        """
        header = QueryMessageHeader(
            topic=topic,
            key=unique_id,
            max_num=UNIQUE_COUNT,
            begin_ms=0,
            end_ms=FOREVER_MS,
            unique_key_query="true",
        )
        found = [one for one in await self._query(header) if one.unique_id == unique_id]
        return min(found, key=_stored, default=None)

    async def consume_directly(
        self, group: str, message: StoredMessage, *, client_id: str = ""
    ) -> ConsumeDirectlyResult:
        """Have a running consumer process one message now, whatever its offsets.

        Args:
            group: its group.
            message: as returned by `message`.
            client_id: the member; any when empty.

        Raises:
            RefusedError: there is no such member, or it did not answer in time.
        """
        parts = decode_offset_id(message.id)
        await self._instance.start()
        address = f"{ip_address(parts.address)}:{parts.port}"
        fields = ConsumeDirectlyHeader(group, client_id or None, message.id).fields()
        answer = await self._ask(address, RequestCode.CONSUME_MESSAGE_DIRECTLY, fields)
        return ConsumeDirectlyResult.decode(answer.body)

    async def check_transaction_again(self, message: StoredMessage) -> None:
        """Have a broker check a transaction again that it has given up.

        Args:
            message: of the topic `TRANS_CHECK_MAX_TIME_TOPIC`.
        """
        parts = decode_offset_id(message.id)
        await self._instance.start()
        fields = MessageIdHeader(message.id).fields()
        address = f"{ip_address(parts.address)}:{parts.port}"
        await self._ask(address, RequestCode.RESUME_CHECK_HALF_MESSAGE, fields)

    async def _query(self, header: QueryMessageHeader) -> list[StoredMessage]:
        if not header.key.strip():
            raise UsageError("A key must not be blank.", topic=header.topic)
        await self._instance.start()
        route = await self._instance.routes.route(header.topic, fresh=True)
        found: list[StoredMessage] = []
        error: CohererError | None = None
        answered = False

        async def ask(broker: str, address: str) -> None:
            nonlocal answered, error
            try:
                answer = await self._ask(address, RequestCode.QUERY_MESSAGE, header.fields())
                found.extend(decode_messages(answer.body, broker))
                answered = True
            except RefusedError as refusal:
                if refusal.code != ResponseCode.QUERY_NOT_FOUND:
                    raise
                answered = True
            except CohererError as failure:
                error = failure

        await asyncio.gather(
            *(
                ask(broker, brokers.get(MASTER) or next(iter(brokers.values())))
                for broker, brokers in route.brokers.items()
            )
        )
        if error is not None and not answered:
            raise error
        mine = [message for message in found if message.topic == header.topic]
        return sorted(mine, key=_stored)


def _topic_state(route: Route) -> TopicState:
    counts: dict[str, int] = {}
    for queue in route.readable:
        counts[queue.broker] = counts.get(queue.broker, 0) + 1
    return TopicState(
        route.topic,
        len(route.readable),
        counts,
        writable=bool(route.writable),
        readable=bool(route.readable),
    )


def _is_system_topic(topic: str) -> bool:
    return (
        names.is_system_topic(topic)
        or topic.startswith((names.RETRY_PREFIX, names.DLQ_PREFIX))
        or topic.endswith(names.REPLY_TOPIC_SUFFIX)
    )


def _is_retry_topic(topic: str, group: str) -> bool:
    """Whether a topic is the group's retry topic."""
    return topic == names.retry_topic(group)


def _is_system_group(group: str) -> bool:
    return group in names.SYSTEM_GROUPS or group.startswith(names.SYSTEM_GROUP_PREFIX)


def _stored(message: StoredMessage) -> tuple[int, int]:
    """The order they were stored in: the time in ms, then the offset in the broker's log."""
    return message.stored_ms, message.physical_offset
