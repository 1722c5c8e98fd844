"""Codes 12 and 33: messages by their keys, and one message by its place in the log (2.8)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from coherer._record import properties
from coherer._record.layout import decode, store_ms_of
from coherer._rules.rocketmq.acl import SUB
from coherer._server.rocketmq.broker.state import RocketState
from coherer._server.rocketmq.remoting import Channel, Refusal
from coherer._wire.rocketmq.codes import ResponseCode
from coherer._wire.rocketmq.command import Command
from coherer._wire.rocketmq.headers import (
    QueryMessageHeader,
    QueryMessageResult,
    ViewMessageHeader,
    negative_count,
    parse,
)

if TYPE_CHECKING:  # what reads its files takes its time to load, and few need it
    from coherer._server.rocketmq.acl import Access

_UNIQUE_KEY_MAX = 32
"""A query by a client's unique id gets so many, whatever it asks for (`defaultQueryMaxNum`)."""
_QUERY_MAX = 64
"""`maxMsgsNumBatch`."""


class Queries:
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
