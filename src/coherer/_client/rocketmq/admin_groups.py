"""Groups of consumers and their offsets, as an administrator sees them (2.7, 2.11, 4.4)."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Final, Literal

from coherer._client.rocketmq.admin_asking import Asking, to_ms
from coherer._client.rocketmq.admin_records import GroupState, MemberState, PartitionState
from coherer._client.rocketmq.routing import Route
from coherer._common.logs import Log
from coherer._wire.rocketmq import names
from coherer._wire.rocketmq.bodies import (
    ConsumerConnection,
    ConsumeStats,
    SubscriptionGroup,
    SubscriptionGroups,
    TopicStats,
)
from coherer._wire.rocketmq.codes import RequestCode, ResponseCode, refused
from coherer._wire.rocketmq.headers import (
    ConsumeStatsHeader,
    DeleteGroupHeader,
    GroupHeader,
    ResetOffsetHeader,
    UpdateOffsetHeader,
)
from coherer._wire.rocketmq.names import Queue
from coherer.errors import CohererError, RefusedError, UsageError

_log = Log(logging.getLogger(__name__))

LATEST_MS: Final = -1
"""The time that stands for the end of a queue in a reset (4.4)."""

_ENDS: Final = {"earliest": 0, "latest": LATEST_MS}


class Groups(Asking):
    """What `Admin` does about groups."""

    async def groups(self, *names_wanted: str) -> list[GroupState]:
        """The groups of consumers in order of their names; only those named, if any are.

        A group is there when a broker is configured for it. Without names, the system's are left
        out.
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
            wanted = {group for group in wanted if not _group_of_the_system(group)}
        return [await self._group(group, masters) for group in sorted(wanted)]

    async def create_group(
        self, name: str, brokers: Iterable[str] | None = None, *, max_retries: int = 16
    ) -> None:
        """Create a group of consumers, or change one. Most brokers create them by themselves.

        Args:
            name: the group.
            brokers: names of brokers; all masters when None.
            max_retries: how often a message is delivered again before it is given up.
        """
        names.check_group(name)
        body = SubscriptionGroup(group_name=name, retry_max_times=max_retries).encode()
        await self._instance.start()
        await self._ask_masters(
            RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=body, brokers=brokers
        )

    async def delete_group(self, name: str, *, remove_offsets: bool = True) -> None:
        """Delete a group from all brokers.

        A group whose consumers are running comes back with their next heartbeat.

        Args:
            name: the group.
            remove_offsets: forget where it stood, too.

        Raises:
            RefusedError: there is no such group.
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
        """Set where a group goes on. Consumers that are running put their own offsets over it.

        Args:
            group: it need not exist.
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
        """Set a group's offsets of a whole topic, also while it consumes.

        Args:
            group: the group.
            topic: the topic.
            to: an end of the queues, a time of storing, or an offset for every queue. Consumers
                that run follow, except to an offset.

        Returns:
            The offsets by queue.

        Raises:
            UsageError: there is no such place.
            RefusedError: there is no such topic.
        """
        if isinstance(to, str) and to not in _ENDS:
            hint = "Say 'earliest', 'latest', a time, or an offset."
            raise UsageError(f"There is no place {to!r} to begin at.", hint=hint)
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

    # -- inside

    async def _reset(
        self, group: str, topic: str, broker: str, time_ms: int, route: Route
    ) -> dict[Queue, int]:
        queues = [queue for queue in route.readable if queue.broker == broker]
        # Also what is stored: a group without offsets, or without members, is refused below.
        offsets = {queue: await self._offset_at(queue, time_ms) for queue in queues}
        try:
            await self._ask_broker(
                broker,
                RequestCode.INVOKE_BROKER_TO_RESET_OFFSET,
                ResetOffsetHeader(topic, group, time_ms, is_force=True).fields(),
            )
        except RefusedError as error:
            _log.info("Nobody of %s at %s is told: %s", group, broker, error)
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
                _log.warning("Broker %s does not tell of %s: %s", broker, group, error)
                silent.append(broker)
                continue
            if online is not None:
                model = online.message_model
                topics |= {name for name in online.subscription_table if not _own(name, group)}
                for one in online.connection_set:
                    members[one.client_id] = MemberState(
                        one.client_id, one.client_addr, one.language, one.version
                    )
            for queue, at in stats.offset_table.items():
                if not _own(queue.topic, group):
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
        """Where the oldest messages are, of topics in which a group stands at 0 somewhere.

        Brokers say 0 also of a queue in which the group has not begun. The messages that are not
        kept any more would count as not consumed.
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


def _own(topic: str, group: str) -> bool:
    """Whether a topic is the group's retry topic."""
    return topic == names.retry_topic(group)


def _group_of_the_system(group: str) -> bool:
    return group in names.SYSTEM_GROUPS or group.startswith(names.SYSTEM_GROUP_PREFIX)
