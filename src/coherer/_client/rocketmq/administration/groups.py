"""Administration of consumer groups (docs/protocol/rocketmq.md, sections 2.7, 2.11 and 4.4)."""

from __future__ import annotations

import asyncio
import builtins
import itertools
import logging
from collections.abc import Collection, Iterable, Mapping
from datetime import datetime
from typing import Final, Literal

from msgspec.structs import replace

from coherer import admin
from coherer._client.engine.arguments import checked
from coherer._client.rocketmq.administration.group_states import (
    GroupReader,
    filters_of,
    members_at,
    members_of,
    names_in,
)
from coherer._client.rocketmq.administration.records import (
    RunningConsumer,
    TimeSpan,
    owner_of,
    running_of,
    time_span_of,
)
from coherer._client.rocketmq.administration.servers import Part
from coherer._client.rocketmq.administration.topics import TopicAdmin
from coherer._client.rocketmq.routing import Route
from coherer._common.logs import Log
from coherer._common.moments import floor_ms
from coherer._wire.rocketmq import names
from coherer._wire.rocketmq.bodies import (
    ConsumerStatus,
    ConsumeTimeSpan,
    LockBatch,
    LockedBatch,
    Offsets,
    ProducerConnection,
    RunningInfo,
    SubscriptionGroup,
)
from coherer._wire.rocketmq.codes import RequestCode, ResponseCode, refused, version_name
from coherer._wire.rocketmq.command import Command
from coherer._wire.rocketmq.headers import (
    CloneOffsetHeader,
    ConsumerStatusHeader,
    ConsumeTimeSpanHeader,
    DeleteGroupHeader,
    ProducerGroupHeader,
    ResetOffsetHeader,
    RunningInfoHeader,
    UpdateOffsetHeader,
)
from coherer._wire.rocketmq.names import Queue
from coherer.errors import (
    ClosedError,
    CohererError,
    ProtocolError,
    RefusedError,
    UnavailableError,
    UsageError,
)

_log = Log(logging.getLogger(__name__))

LATEST_MS: Final = -1
"""The time that stands for the end of a queue in a reset (section 4.4)."""

_TIME_SPANS_AT_ONCE: Final = 16

_ENDS: Final = {"earliest": 0, "latest": LATEST_MS}


@checked
class GroupAdmin(Part):
    """The consumer groups of a cluster, their members and offsets: `admin.groups`."""

    _INSTEAD = "groups.list"

    async def list(self, *names: str, system: bool = False) -> builtins.list[admin.Group]:
        """The consumer groups, sorted by name.

        A group exists if a broker has a configuration of it.

        Args:
            names: names of groups; without names, all groups.
            system: include RocketMQ's own groups.
        """
        await self._instance.start()
        reader = GroupReader(self._servers, *await self._servers.with_and_without_master())
        wanted = sorted(set(names)) or _listed(await reader.names(), system=system)
        return await reader.groups(wanted)

    async def names(self, *, system: bool = False) -> builtins.list[str]:
        """The names of the consumer groups, sorted: one request to each broker.

        A slave answers for a broker without a master, with its copy.

        Args:
            system: include RocketMQ's own groups.
        """
        await self._instance.start()
        answers = await self._servers.ask_readable(RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG)
        return _listed(itertools.chain.from_iterable(map(names_in, answers)), system=system)

    async def create(
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
        await self._servers.ask_masters(
            RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=body, brokers=brokers
        )

    async def delete(self, name: str, *, remove_offsets: bool = True) -> None:
        """Delete a group from all brokers. Its dead letters stay, in the topic `%DLQ%` + name.

        If its consumers are running, their next heartbeat creates it again.

        Args:
            name: the group.
            remove_offsets: whether to delete its offsets and its retry topic, too.

        Raises:
            RefusedError: the group does not exist.
            UnavailableError: a broker has no master, and keeps it; the others have deleted it. Or
                one does not answer.
        """
        retries, topics = names.retry_topic(name), TopicAdmin(self._servers)
        [state] = await self.list(name)
        # Without the group, its retry topic is what a deletion that did not finish has left.
        has_retries = remove_offsets and bool(await topics.list(retries))
        is_known = has_retries or state.members or state.partitions or state.silent
        if not is_known and name not in {group.name for group in await self.list()}:
            missing = refused(
                ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, f"There is no group {name}."
            )
            # The code's own hint is to create the group.
            missing.hint = "`coherer groups list` shows the existing ones."
            raise missing
        fields = DeleteGroupHeader(name, remove_offsets).fields()
        masters, without_master = await self._servers.with_and_without_master()
        await self._servers.ask_each(masters.values(), RequestCode.DELETE_SUBSCRIPTIONGROUP, fields)
        if has_retries:
            await topics.delete(retries)
        if without_master:
            raise UnavailableError(
                f"No master of {', '.join(without_master)} is registered, so the group {name} is "
                "deleted on the other brokers only.",
                server=self._instance.options.servers,
                hint="Delete it again when the master is back.",
            )

    async def set_offsets(self, group: str, offsets: Mapping[Queue, int]) -> None:
        """Set the offsets of a group. Running consumers overwrite them with their own.

        Args:
            group: the group; it need not exist.
            offsets: new offsets by queue.

        Raises:
            UsageError: no group can have this name.
            UnavailableError: a broker has no master, and nothing was set; or one does not answer.
        """
        names.check_group(group)
        await self._instance.start()
        await self._servers.masters({queue.broker for queue in offsets})
        await self._set_offsets(group, offsets)

    async def reset_offsets(
        self, group: str, topic: str, to: Literal["earliest", "latest"] | datetime | int
    ) -> dict[Queue, int]:
        """Reset a group's offsets of a whole topic, also while it is consuming.

        Args:
            group: the group.
            topic: the topic.
            to: an end of the queues, a store time, or an offset for every queue, moved into its
                range. Running consumers follow, except to an offset.

        Returns:
            The offsets by queue.

        Raises:
            UsageError: the position is invalid, or no group can have this name.
            RefusedError: the topic does not exist, or a member is too old to be reset; the stored
                offsets are reset nevertheless.
            UnavailableError: a broker has no master, and nothing was reset; or one does not answer.
        """
        names.check_group(group)
        if isinstance(to, str) and to not in _ENDS:
            hint = "Use 'earliest', 'latest', a time, or an offset."
            raise UsageError(f"{to!r} is not a valid position.", hint=hint)
        await self._instance.start()
        route = await self._instance.routes.look_up(topic)
        await self._servers.masters(route.brokers)
        if isinstance(to, int):
            # Consumers would skip what is sent up to an offset beyond the end.
            offsets = {
                queue: min(
                    max(to, await self._offset_at(queue, 0)),
                    await self._offset_at(queue, LATEST_MS),
                )
                for queue in route.readable
            }
            await self._set_offsets(group, offsets)
            return offsets
        time_ms = _ENDS[to] if isinstance(to, str) else floor_ms(to)
        found: dict[Queue, int] = {}
        for broker in route.brokers:
            found |= await self._reset(group, topic, broker, time_ms, route)
        return found

    async def copy_offsets(self, source: str, target: str, topic: str) -> None:
        """Copy the offsets of one group to another.

        Raises:
            UsageError: no group can have the name of the target.
            RefusedError: the topic does not exist.
            UnavailableError: a broker has no master, and nothing was copied; or one does not
                answer.
        """
        names.check_group(target)
        await self._instance.start()
        route = await self._instance.routes.look_up(topic)
        masters = await self._servers.masters(route.brokers)
        fields = CloneOffsetHeader(source, target, topic).fields()
        await self._servers.ask_each(masters.values(), RequestCode.CLONE_GROUP_OFFSET, fields)

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

        async def ask(topic: str) -> builtins.list[TimeSpan]:
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

        spans = itertools.chain.from_iterable(await asyncio.gather(*map(ask, topics)))
        return {one.queue.key: one.behind_ms for one in spans if one.behind_ms is not None}

    async def consumers(self, group: str) -> admin.Group | None:
        """The connected members of a group and their subscriptions; None if none is connected.

        It asks each broker once, and a slave where there is no master. The group has no partitions:
        `list` reads these, too.
        """
        await self._instance.start()
        found: admin.Group | None = None
        members: dict[str, admin.Member] = {}
        for address in (await self._servers.readable()).values():
            online, beats = await members_at(self._servers, address, group)
            if online is None:
                continue
            members |= members_of(group, online, beats)
            filters = filters_of(group, online)
            found = found or admin.Group(
                group, tuple(sorted(filters)), model=online.message_model, subscriptions=filters
            )
        if found is None:
            return None
        return replace(found, members=tuple(members[key] for key in sorted(members)))

    async def producers(self, group: str) -> builtins.list[admin.Member]:
        """The connected producers of a group. A broker without a master has none.

        Raises:
            RefusedError: a broker does not know the group.
        """
        await self._instance.start()
        fields = ProducerGroupHeader(group).fields()
        answers = await self._servers.ask_masters(RequestCode.GET_PRODUCER_CONNECTION_LIST, fields)
        found = {
            one.client_id: admin.Member(
                one.client_id,
                group,
                "producer",
                one.client_addr,
                one.language,
                version_name(one.version) if one.version else None,
            )
            for answer in answers
            for one in ProducerConnection.decode(answer.body).connection_set
        }
        return [found[key] for key in sorted(found)]

    async def running(self, group: str, client_id: str, *, stacks: bool = False) -> RunningConsumer:
        """The state of a running consumer, as it reports it.

        Args:
            group: its group.
            client_id: the member.
            stacks: whether to include the stacks of its threads.

        Raises:
            RefusedError: it is not connected, or did not answer in time.
            ProtocolError: it has answered, but not with its state.
        """
        await self._instance.start()
        fields = RunningInfoHeader(group, client_id, stacks).fields()
        answers = await self._servers.ask_masters(RequestCode.GET_CONSUMER_RUNNING_INFO, fields)
        answer = answers[0]
        if not answer.body:  # Go's client fails to write a rate that is not a number
            reason = f": {answer.remark}" if answer.remark else ""
            raise ProtocolError(
                f"Consumer {client_id} of group {group} has answered without its state{reason}."
            )
        return running_of(RunningInfo.decode(answer.body))

    async def consumer_offsets(self, group: str, topic: str) -> dict[str, Offsets]:
        """The offsets of a group's members, as they report them: client id to offsets."""
        await self._instance.start()
        fields = ConsumerStatusHeader(topic=topic, group=group).fields()
        code = RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS
        answers = await self._servers.ask_masters(code, fields)
        found: dict[str, Offsets] = {}
        for answer in answers:
            for client_id, offsets in ConsumerStatus.decode(answer.body).consumer_table.items():
                found.setdefault(client_id, {}).update(offsets)
        return found

    async def time_spans(self, group: str, topic: str) -> builtins.list[TimeSpan]:
        """The times of the messages in each queue, and of the group's position in it."""
        await self._instance.start()
        fields = ConsumeTimeSpanHeader(topic, group).fields()
        answers = await self._servers.ask_masters(RequestCode.QUERY_CONSUME_TIME_SPAN, fields)
        decoded = (ConsumeTimeSpan.decode(answer.body) for answer in answers)
        spans = (time_span_of(span) for one in decoded for span in one.consume_time_span_set)
        return [span for span in spans if span is not None]

    async def lock(
        self, group: str, queues: Collection[Queue], *, holder: str = ""
    ) -> builtins.list[Queue]:
        """Lock queues for this client, or renew its locks; returns those that it owns now.

        A lock ends after a minute without renewal.

        Args:
            group: the group that holds the locks.
            queues: the queues.
            holder: the part of this client that holds them, if it has several. Each part owns only
                its own locks.
        """
        return [
            queue
            for answer in await self._lock(RequestCode.LOCK_BATCH_MQ, group, queues, holder)
            for queue in LockedBatch.decode(answer.body).queues
        ]

    async def unlock(self, group: str, queues: Collection[Queue], *, holder: str = "") -> None:
        """Release locks of this client, or of a part of it."""
        await self._lock(RequestCode.UNLOCK_BATCH_MQ, group, queues, holder)

    async def _set_offsets(self, group: str, offsets: Mapping[Queue, int]) -> None:
        for queue, offset in offsets.items():
            fields = UpdateOffsetHeader(
                consumer_group=group, topic=queue.topic, queue_id=queue.id, commit_offset=offset
            ).fields()
            await self._servers.ask_broker(queue.broker, RequestCode.UPDATE_CONSUMER_OFFSET, fields)

    async def _reset(
        self, group: str, topic: str, broker: str, time_ms: int, route: Route
    ) -> dict[Queue, int]:
        queues = [queue for queue in route.readable if queue.broker == broker]
        offsets = {queue: await self._offset_at(queue, time_ms) for queue in queues}
        header = ResetOffsetHeader(topic, group, time_ms, is_force=True)
        if not await self._reset_members(broker, header):
            # Brokers refuse it if the group has no stored offset in some queue: one that has just
            # begun, for example.
            await self._set_offsets(group, offsets)
            await self._reset_members(broker, header, again=True)
        # Members may have stored their old offsets meanwhile.
        await self._set_offsets(group, offsets)
        return offsets

    async def _reset_members(
        self, broker: str, header: ResetOffsetHeader, *, again: bool = False
    ) -> bool:
        """Have a broker tell the members of a group; returns whether all were told, if any."""
        code = RequestCode.INVOKE_BROKER_TO_RESET_OFFSET
        try:
            await self._servers.ask_broker(broker, code, header.fields())
        except RefusedError as error:
            if again and error.code != ResponseCode.CONSUMER_NOT_ONLINE:
                raise
            return error.code == ResponseCode.CONSUMER_NOT_ONLINE
        return True

    async def _offset_at(self, queue: Queue, time_ms: int) -> int:
        fields = {"topic": queue.topic, "queueId": str(queue.id)}
        code = RequestCode.SEARCH_OFFSET_BY_TIMESTAMP
        if time_ms == LATEST_MS:
            code = RequestCode.GET_MAX_OFFSET
        elif time_ms == 0:
            code = RequestCode.GET_MIN_OFFSET
        else:
            fields["timestamp"] = str(time_ms)
        answer = await self._servers.ask_broker(queue.broker, code, fields)
        return max(int(answer.fields.get("offset", "0")), 0)

    async def _lock(
        self, code: int, group: str, queues: Collection[Queue], holder: str
    ) -> builtins.list[Command]:
        await self._instance.start()
        by_broker: dict[str, list[Queue]] = {}
        for queue in queues:
            by_broker.setdefault(queue.broker, []).append(queue)
        owner = owner_of(self._instance.client_id, holder)
        return [
            await self._servers.ask_broker(
                broker,
                code,
                body=LockBatch(client_id=owner, consumer_group=group, queues=sorted(some)).encode(),
            )
            for broker, some in by_broker.items()
        ]


def _listed(found: Iterable[str], *, system: bool) -> builtins.list[str]:
    # Java's brokers also have a group without a name, of clients that named none.
    return sorted({one for one in found if one and (system or not _is_system_group(one))})


def _is_system_group(group: str) -> bool:
    return group in names.SYSTEM_GROUPS or group.startswith(names.SYSTEM_GROUP_PREFIX)
