"""Planted bugs of what is read without a group: streams of Spark, keys, times, answers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import pytest

from coherer._client.rocketmq import client as rocketmq_client
from coherer._client.rocketmq.consuming import reader as rocketmq_reader
from coherer._client.rocketmq.request_reply import PendingReplies
from coherer._store.recovery import Replayer
from coherer.spark import file_rows
from coherer.spark.cursor import Cursor
from coherer.spark.offsets import latest
from coherer.spark.reading import RangeRows
from coherer.spark.source import StreamReader

Patch = pytest.MonkeyPatch


def streams_read_to_the_present(patch: Patch) -> None:
    """A micro-batch has all messages that are there when it is planned."""
    real = StreamReader.partitions

    def partitions(reader: Any, start: Any, end: Any) -> Any:
        newest = latest(reader._cursor_or_new().fetch_bounds(start))
        return real(reader, start, {**end, **newest})

    patch.setattr(StreamReader, "partitions", partitions)


def streams_forget_brokers_that_are_down(patch: Patch) -> None:
    """A stream begins anew in the partitions of a broker that was away."""
    real = Cursor._end_of

    def end_of(cursor: Any, topic: str, key: str, at: int, bounds: Any) -> int:
        return real(cursor, topic, key, at if key in bounds.get(topic, {}) else 0, bounds)

    patch.setattr(Cursor, "_end_of", end_of)


def gaps_are_bad_records(patch: Patch) -> None:
    """A stream takes the gap that a power cut has left for damaged messages."""

    def gap(rows: Any, low: int, high: int, bad: Any) -> Iterator[Any]:
        yield from rows._missing(low, high, bad)

    patch.setattr(RangeRows, "_gap", gap)


def recovered_messages_have_no_keys(patch: Patch) -> None:
    """What a start finds in the log is not added to the index of keys."""

    def add(_: Any, keys: Any) -> None:
        keys.drop(len(keys))

    patch.setattr(Replayer, "_add_all_keys", add)


def times_stop_at_gaps(patch: Patch) -> None:
    """A search by time takes an offset without a message for an old one."""

    async def first_since(rpc: Any, queue: Any, low: int, high: int, time_ms: int) -> int:
        while low < high:
            middle = (low + high) // 2
            first = await rocketmq_reader._first_of(rpc, queue, middle, middle + 1)
            if first is None or first[1] < time_ms:
                low = middle + 1
            else:
                high = middle
        return low

    patch.setattr(rocketmq_client, "first_since", first_since)


def late_answers_count(patch: Patch) -> None:
    """An answer to an earlier request is taken for that of the present one."""
    real = PendingReplies._received

    def received(replies: Any, link: Any, request: Any) -> None:
        if replies._waiting:
            number = next(iter(replies._waiting))
            properties = request.fields["properties"]
            before, name, after = properties.partition("CORRELATION_ID\x01")
            _, end, rest = after.partition("\x02")
            request.fields["properties"] = before + name + number + end + rest
        real(replies, link, request)

    patch.setattr(PendingReplies, "_received", received)


def files_take_gaps_for_damage(patch: Patch) -> None:
    """Who reads files finds bad records in the gap that a power cut has left."""
    real = file_rows.entries_of

    def entries_of(*place: Any) -> Any:
        found, _ = real(*place)
        return found, found.pick(slice(0))

    patch.setattr(file_rows, "entries_of", entries_of)


_STREAMS: Final = (
    streams_read_to_the_present,
    streams_forget_brokers_that_are_down,
    gaps_are_bad_records,
    files_take_gaps_for_damage,
)
MUTANTS: Final = {
    "tubemq": _STREAMS,
    "rocketmq": (
        *_STREAMS,
        recovered_messages_have_no_keys,
        times_stop_at_gaps,
        late_answers_count,
    ),
}
