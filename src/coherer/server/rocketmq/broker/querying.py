"""Codes 12 and 33: messages by their keys, and one message by its place in the log (2.8)."""

from __future__ import annotations

from coherer.record.layout import store_ms_of
from coherer.rocketmq.codes import ResponseCode
from coherer.rocketmq.command import Command
from coherer.rocketmq.headers import (
    QueryMessageHeader,
    QueryMessageResult,
    ViewMessageHeader,
    negative_count,
    parse,
)
from coherer.server.rocketmq.broker.state import RocketState
from coherer.server.rocketmq.refusal import Refusal
from coherer.server.rocketmq.remoting import Channel

_UNIQUE_KEY_MAX = 32
"""A query by a client's unique id gets so many, whatever it asks for (`defaultQueryMaxNum`)."""
_QUERY_MAX = 64
"""`maxMsgsNumBatch`."""


class Queries:
    """Finds messages without reading queues."""

    def __init__(self, state: RocketState) -> None:
        self._state = state

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
        """Code 33.

        Raises:
            Refusal: with 1 when no message begins there.
        """
        header = parse(ViewMessageHeader, request.fields)
        record = self._state.store.record_at(header.offset)
        if record is None:
            raise Refusal(
                ResponseCode.SYSTEM_ERROR, f"can not find message by the offset, {header.offset}"
            )
        channel.respond_pieces(request, None, [record])
