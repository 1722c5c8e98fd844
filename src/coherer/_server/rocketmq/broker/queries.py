"""Codes 14, 15, 29, 30, 31, 32, 43: how far groups are, and where queues begin and end (2.7)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from coherer._record import properties
from coherer._record.layout import decode, store_ms_of
from coherer._rules.rocketmq.acl import SUB
from coherer._server.rocketmq.broker.state import RocketState
from coherer._server.rocketmq.remoting import Channel, Refusal
from coherer._wire.rocketmq.codes import ResponseCode
from coherer._wire.rocketmq.command import Command
from coherer._wire.rocketmq.group_offsets import ZERO_FIELD
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

if TYPE_CHECKING:
    from coherer._server.rocketmq.acl import Access

_NEW_GROUP = "Not found, V3_0_6_SNAPSHOT maybe this group consumer boot first"
_NEW_GROUP_EXACT = "Not found, do not set to zero, maybe this group boot first"


class OffsetHandler:
    """Offsets of groups and of queues."""

    def __init__(self, state: RocketState) -> None:
        self._state = state

    def query(self, _: Channel, request: Command) -> Command:
        """Code 14: where a group stands.

        A client that asks for it (`ZERO_FIELD`, RocketMQ 5's) is told exactly whether the group
        has an offset; the field is repeated, so that the client knows that. Others get Java's
        answer.

        Raises:
            Refusal: with 22 when it stands nowhere, and the queue does not begin in memory.
        """
        header = parse(QueryOffsetHeader, request.fields)
        topic, queue_id = header.topic, header.queue_id
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

    def update(self, _: Channel, request: Command) -> Command:
        """Code 15: where a group stands from now on, be it back. Nothing is checked, as in Java."""
        header = parse(UpdateOffsetHeader, request.fields)
        self._state.commit(
            header.consumer_group, header.topic, header.queue_id, header.commit_offset
        )
        return Command(ResponseCode.SUCCESS)

    def search(self, _: Channel, request: Command) -> Command:
        """Code 29: the message that was stored nearest to a time."""
        header = parse(SearchOffsetHeader, request.fields)
        return _offset(
            self._state.store.offset_at_time(
                header.topic, header.queue_id, header.timestamp, nearest=True
            )
        )

    def maximum(self, _: Channel, request: Command) -> Command:
        """Code 30: the next offset of a queue."""
        header = parse(QueueHeader, request.fields)
        return _offset(self._state.store.queue_range(header.topic, header.queue_id)[1])

    def minimum(self, _: Channel, request: Command) -> Command:
        """Code 31: the first offset of a queue."""
        header = parse(QueueHeader, request.fields)
        return _offset(self._state.store.queue_range(header.topic, header.queue_id)[0])

    def earliest(self, _: Channel, request: Command) -> Command:
        """Code 32: when the first message of a queue was stored, -1 when there is none."""
        header = parse(QueueHeader, request.fields)
        record = self._first(header.topic, header.queue_id)
        time_ms = -1 if record is None else store_ms_of(record)
        return Command(ResponseCode.SUCCESS, fields=TimestampResult(time_ms).fields())

    def everything(self, _: Channel, request: Command) -> Command:  # noqa: ARG002
        """Code 43: where all groups stand."""
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
"""A query by a client's unique id gets so many, whatever it asks for (`defaultQueryMaxNum`)."""
_QUERY_MAX = 64
"""`maxMsgsNumBatch`."""


class MessageQueryHandler:
    """Finds messages without reading queues.

    Args:
        state: what the broker's parts share.
        access: who may read what; None for everybody everything.
    """

    def __init__(self, state: RocketState, access: Access | None = None) -> None:
        self._state = state
        self._access = access

    def by_key(self, channel: Channel, request: Command) -> None:
        """Code 12. Java leaves it to clients to drop keys that only have the same hash.

        Raises:
            Refusal: with 22 when there is none.
            RefusedError: with 1 when fewer than none are wanted.
        """
        header = parse(QueryMessageHeader, request.fields)
        if header.max_num < 0:
            raise negative_count(header.max_num)
        unique = header.unique_key_query == "true"
        found = self._state.store.by_key(
            header.topic,
            header.key,
            max_count=min(_UNIQUE_KEY_MAX if unique else header.max_num, _QUERY_MAX),
            begin_ms=header.begin_ms,
            end_ms=header.end_ms,
        )
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

    def by_offset(self, channel: Channel, request: Command) -> None:
        """Code 33. The request names no topic; with accounts, the message's own one decides.

        Java's broker only looks at the signature, so that each account may read all messages.

        Raises:
            Refusal: with 1 when no message begins there, or it may not be read.
        """
        header = parse(ViewMessageHeader, request.fields)
        record = self._state.store.record_at(header.offset)
        if record is None:
            raise Refusal(
                ResponseCode.SYSTEM_ERROR, f"can not find message by the offset, {header.offset}"
            )
        if self._access is not None:
            found = decode(record, check_crc=False)
            # One that waits in a topic of the broker's own has its topic in a property.
            own = properties.decode(found.properties).get(properties.REAL_TOPIC)
            topic = own or found.topic
            refusal = self._access.lacks(channel, request, topic, SUB)
            if refusal is not None:
                raise Refusal(refusal.code, refusal.remark or "")
        channel.respond_pieces(request, None, [record])
