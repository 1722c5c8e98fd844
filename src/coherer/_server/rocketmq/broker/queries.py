"""Offsets of groups and queues, and single messages by key or log offset.

Codes 14, 15, 29, 30, 31, 32 and 43 (docs/protocol/rocketmq.md, section 2.7), 12 and 33 (section
2.8).
"""

from __future__ import annotations

import asyncio
import logging

from coherer import limits
from coherer._common.logs import Log
from coherer._record.layout import decode, store_ms_of
from coherer._rules.common.origins import topic_of
from coherer._rules.rocketmq.acl import SUB
from coherer._server.rocketmq.broker.state import RocketState, is_name
from coherer._server.rocketmq.remoting import Channel, Refusal
from coherer._wire.rocketmq.bodies.admin import ZERO_FIELD
from coherer._wire.rocketmq.codes import ResponseCode
from coherer._wire.rocketmq.command import Command
from coherer._wire.rocketmq.headers import (
    OffsetResult,
    QueryMessageHeader,
    QueryMessageResult,
    QueryOffsetHeader,
    QueueHeader,
    SearchOffsetHeader,
    TimestampResult,
    UpdateOffsetHeader,
    ViewMessageHeader,
    negative_count,
    parse,
)

_log = Log(logging.getLogger(__name__))

_NEW_GROUP = "Not found, V3_0_6_SNAPSHOT maybe this group consumer boot first"
_NEW_GROUP_EXACT = "Not found, do not set to zero, maybe this group boot first"


class OffsetHandler:
    """Answers requests about the offsets of groups and queues."""

    def __init__(self, state: RocketState) -> None:
        self._state = state

    def query(self, _: Channel, request: Command) -> Command:
        """QUERY_CONSUMER_OFFSET (14): the committed offset of a group.

        Raises:
            Refusal: with 22 if the group has no offset and the queue's first message is not in
            memory.
        """
        header = parse(QueryOffsetHeader, request.fields)
        topic, queue_id = header.topic, header.queue_id
        # A client that sends `ZERO_FIELD` (RocketMQ 5) learns exactly whether the group has an
        # offset; the response repeats the field, so that the client knows. Others get Java's
        # answer.
        exact = header.set_zero_if_not_found is False
        position = self._state.offsets.find(header.consumer_group, topic, queue_id)
        if position is not None and position.offset >= 0:
            answer = _offset(position.offset)
            if exact:
                answer.fields[ZERO_FIELD] = "false"
            return answer
        if exact:
            raise Refusal(ResponseCode.QUERY_NOT_FOUND, _NEW_GROUP_EXACT)
        low, high = self._state.store.queue_range(topic, queue_id)
        if low <= 0 and (high == 0 or self._begins_in_memory(topic, queue_id)):
            return _offset(0)
        raise Refusal(ResponseCode.QUERY_NOT_FOUND, _NEW_GROUP)

    def update(self, channel: Channel, request: Command) -> Command:
        """UPDATE_CONSUMER_OFFSET (15): commit an offset, which may be any, as in Java.

        Raises:
            Refusal: there is no such queue, or there are too many groups; see also
                `RocketState.commit`.
        """
        header = parse(UpdateOffsetHeader, request.fields)
        group, topic, queue_id = header.consumer_group, header.topic, header.queue_id
        before = self._state.offsets.find(group, topic, queue_id)
        if before is None:
            self._check_new(header)
        old = -1 if before is None else before.offset
        self._state.commit(group, topic, queue_id, header.commit_offset)
        if old != header.commit_offset and self._state.consumers.get(group) is None:
            # Usually an operator; `about` limits the lines if it is a client without heartbeats.
            _log.info(
                "Group %s, which has no members, was moved in topic %s, queue %d, from %d to %d",
                group,
                topic,
                queue_id,
                old,
                header.commit_offset,
                about=(group, topic, queue_id),
                group=group,
                topic=topic,
                peer=channel.peer,
            )
        return Command(ResponseCode.SUCCESS)

    def _check_new(self, header: UpdateOffsetHeader) -> None:
        """Refuse a position that nobody can need: positions are kept for weeks."""
        state, group, queue_id = self._state, header.consumer_group, header.queue_id
        topic = state.topics.get(header.topic)
        # A queue that was taken away has messages to read.
        if topic is not None and not (
            topic.has_partition(queue_id) or state.store.queue_range(topic.name, queue_id)[1] > 0
        ):
            remark = f"queueId[{queue_id}] is illegal, topic[{topic.name}] has no such queue"
            raise Refusal(ResponseCode.SYSTEM_ERROR, remark)
        is_new = group not in state.groups and not state.offsets.topics_of(group)
        if is_new and (not is_name(group) or state.offsets.group_count() >= limits.GROUPS_MAX):
            remark = f"subscription group not exist, {group}: its name is invalid, or there are "
            remark += f"{limits.GROUPS_MAX} others"
            raise Refusal(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, remark)

    def search(self, _: Channel, request: Command) -> Command:
        """SEARCH_OFFSET_BY_TIMESTAMP (29): the message stored nearest to a time."""
        header = parse(SearchOffsetHeader, request.fields)
        store = self._state.store
        at = store.offset_at_time(header.topic, header.queue_id, header.timestamp, nearest=True)
        return self._offset(at)

    def maximum(self, _: Channel, request: Command) -> Command:
        """GET_MAX_OFFSET (30): the next offset of a queue."""
        header = parse(QueueHeader, request.fields)
        return self._offset(self._state.store.queue_range(header.topic, header.queue_id)[1])

    def minimum(self, _: Channel, request: Command) -> Command:
        """GET_MIN_OFFSET (31): the first offset of a queue."""
        header = parse(QueueHeader, request.fields)
        return self._offset(self._state.store.queue_range(header.topic, header.queue_id)[0])

    def _offset(self, offset: int) -> Command:
        fields = OffsetResult(offset).fields() | self._state.slave_fields
        return Command(ResponseCode.SUCCESS, fields=fields)

    def earliest(self, _: Channel, request: Command) -> Command:
        """GET_EARLIEST_MSG_STORETIME (32): when a queue's first message was stored, or -1."""
        header = parse(QueueHeader, request.fields)
        record = self._first(header.topic, header.queue_id)
        time_ms = -1 if record is None else store_ms_of(record)
        return Command(ResponseCode.SUCCESS, fields=TimestampResult(time_ms).fields())

    def all_groups(self, _: Channel, request: Command) -> Command:  # noqa: ARG002
        """GET_ALL_CONSUMER_OFFSET (43): the offsets of all groups."""
        return Command(ResponseCode.SUCCESS, body=self._state.offsets.dump())

    def _begins_in_memory(self, topic: str, queue_id: int) -> bool:
        record = self._first(topic, queue_id)
        if record is None:
            return True
        physical_offset = int.from_bytes(record[28:36], "big")
        return self._state.in_memory(physical_offset)

    def _first(self, topic: str, queue_id: int) -> memoryview | None:
        store = self._state.store
        low, _ = store.queue_range(topic, queue_id)
        found = store.read(topic, queue_id, low, max_bytes=1, max_count=1)
        return found.records[0] if found.records else None


def _offset(offset: int) -> Command:
    return Command(ResponseCode.SUCCESS, fields=OffsetResult(offset).fields())


_UNIQUE_KEY_MAX = 32
"""The limit of a query by unique id; the request cannot change it (`defaultQueryMaxNum`)."""
_QUERY_MAX = 64
"""The limit of other queries (`maxMsgsNumBatch`)."""


class MessageQueryHandler:
    """Finds single messages."""

    def __init__(self, state: RocketState) -> None:
        self._state = state
        self._searching = asyncio.Lock()

    async def by_key(self, channel: Channel, request: Command) -> None:
        """QUERY_MESSAGE (12): the messages with a key, or with one of the same hash, as in Java.

        Raises:
            Refusal: with 22 if no message has the key.
            RefusedError: with 1 for a negative number of messages.
        """
        header = parse(QueryMessageHeader, request.fields)
        if header.max_num < 0:
            raise negative_count(header.max_num)
        unique = header.unique_key_query == "true"
        found = await self._search(header, _UNIQUE_KEY_MAX if unique else header.max_num)
        # Anyone can find a key with the hash of another topic's key, and would get its messages.
        found = [one for one in found if decode(one, check_crc=False).topic == header.topic]
        if not found:
            raise Refusal(
                ResponseCode.QUERY_NOT_FOUND,
                "can not find message, maybe time range not correct",
                QueryMessageResult(0, 0).fields(),
            )
        newest = found[0]
        result = QueryMessageResult(
            store_ms_of(newest), int.from_bytes(newest[28:36], "big", signed=True)
        )
        channel.respond_pieces(request, result.fields(), found)

    async def _search(self, header: QueryMessageHeader, count: int) -> list[memoryview]:
        steps = self._state.store.search_key(
            header.topic,
            header.key,
            max_count=min(count, _QUERY_MAX),
            begin_ms=header.begin_ms,
            end_ms=header.end_ms,
        )
        found: list[memoryview] = []
        for record in steps:
            if record is None:
                break
            found.append(record)
        else:
            return found
        # Long searches take turns: each goes one step in a turn of the event loop.
        async with self._searching:
            for record in steps:
                if record is None:
                    await asyncio.sleep(0)
                else:
                    found.append(record)
        return found

    def by_offset(self, channel: Channel, request: Command) -> None:
        """VIEW_MESSAGE_BY_ID (33): the message at a log offset.

        Raises:
            Refusal: with 1 if no message begins at the offset, or it may not be read.
        """
        header = parse(ViewMessageHeader, request.fields)
        record = self._state.store.record_at(header.offset)
        if record is None:
            raise Refusal(
                ResponseCode.SYSTEM_ERROR, f"can not find message by the offset, {header.offset}"
            )
        # The request names no topic. Java's broker checks only the signature, so that every account
        # may read all messages.
        topic = topic_of(decode(record, check_crc=False))
        self._state.forbid(channel, request, topic, SUB)
        channel.respond_pieces(request, None, [record])
