"""The lag of consumer groups: the number of messages, and the age of the oldest one.

A group has a lag in a topic once it has committed an offset there, even without members. A
partition without a committed offset counts from its first message.

The age is that of the message with the lowest log offset among the next messages of all partitions.
Their log offsets are read from the files of the queues. A group whose offsets have not changed
keeps its oldest message (`_oldest`). Log offsets that were read are kept for other groups
(`_places`), until most of them are out of use. A collection looks up at most `LOOKUPS_MAX` others.
The remaining groups keep the message that was their oldest before, and come first in the next
collection.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final, NamedTuple, TypeAlias

from coherer._record import layout
from coherer._rules.common.offsets import Position
from coherer._server.core.core import Core

LOOKUPS_MAX: Final = 1_000
"""The most queue entries that a collection reads; each takes 10 µs if it is not in memory."""

_Ranges: TypeAlias = Sequence[tuple[int, int, int]]
_Key: TypeAlias = tuple[str, str, bool]
"""Topic, group, and whether its next messages are those to fetch; else those to acknowledge."""
_Oldest: TypeAlias = tuple[Sequence[tuple[int, int]], int]
"""Partition and offset of the next messages, and when the oldest of them was stored."""


class Lag(NamedTuple):
    """The lag of a group in a topic.

    Args:
        messages: the number of messages that are not acknowledged.
        ready: the number of messages that are not fetched.
        age_ms: the age of the oldest message that is not acknowledged; 0 if there is no such
            message, None if it cannot be read.
        ready_age_ms: the same for messages that are not fetched.
    """

    topic: str
    group: str
    messages: int
    ready: int
    age_ms: int | None
    ready_age_ms: int | None


class GroupLags:
    """Computes the lags of all groups."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._places: dict[tuple[str, int, int], int | None] = {}
        self._oldest: dict[_Key, _Oldest] = {}
        self._seen: dict[_Key, _Oldest] = {}
        self._ranges: dict[str, _Ranges | None] = {}
        self._first: tuple[str, str] | None = None
        self._lookups = 0
        self._now_ms = 0
        core.on_removal(self._forget)

    def collect(self) -> Iterator[Lag]:
        """Iterate over the lags of each group in each topic for which it has committed offsets.

        The caller may let other work run between two of them.
        """
        self._seen, self._lookups, self._now_ms = {}, 0, self._core.wall_ms()
        self._ranges = {}
        items = self._core.offsets.items()
        at = next((n for n, item in enumerate(items) if item[:2] == self._first), 0)
        self._first = None
        for topic, group, positions in items[at:] + items[:at]:
            if topic not in self._ranges:
                self._ranges[topic] = self._ranges_of(topic)
            ranges = self._ranges[topic]
            lag = None if ranges is None else self._lag(topic, group, positions, ranges)
            if lag is not None:
                yield lag
        if self._lookups >= LOOKUPS_MAX:
            self._oldest |= self._seen
        else:
            self._oldest = self._seen  # without those of groups and topics that are gone
        in_use = sum(len(queues) for queues, _ in self._seen.values())
        if len(self._places) > 2 * in_use + LOOKUPS_MAX:
            self._places.clear()
        self._ranges = {}

    def _ranges_of(self, topic: str) -> _Ranges | None:
        """Partition, first offset and end of each partition of a topic that has messages.

        None if the topic does not exist.
        """
        known = self._core.topics.get(topic)
        if known is None:
            return None
        found = [(one, *self._core.store.queue_range(topic, one)) for one in known.partition_ids()]
        return [one for one in found if one[1] < one[2]]

    def _lag(
        self, topic: str, group: str, positions: Mapping[int, Position], ranges: _Ranges
    ) -> Lag | None:
        if all(one.offset < 0 or one.transient for one in positions.values()):
            return None
        read_to = self._core.counters.read_to
        messages = ready = 0
        behind: list[tuple[int, int]] = []
        unread: list[tuple[int, int]] = []
        for partition, begin, end in ranges:
            position = positions.get(partition)
            offset = begin if position is None or position.transient else position.offset
            if offset >= end:
                continue
            if offset < begin:
                offset = begin
            behind.append((partition, offset))
            messages += end - offset
            fetched = read_to.get((group, topic, partition), offset)
            if fetched < offset:
                fetched = offset
            if fetched < end:
                unread.append((partition, fetched))
                ready += end - fetched
        if not behind:
            return Lag(topic, group, 0, 0, 0, 0)
        age_ms = self._age_ms((topic, group, False), behind)
        if unread == behind:
            return Lag(topic, group, messages, ready, age_ms, age_ms)
        ready_age_ms = self._age_ms((topic, group, True), unread) if unread else 0
        return Lag(topic, group, messages, ready, age_ms, ready_age_ms)

    def _age_ms(self, key: _Key, queues: Sequence[tuple[int, int]]) -> int | None:
        """The age of the oldest message at these offsets; None if it is unknown."""
        known = self._oldest.get(key)
        if known is None or known[0] != queues:
            if self._lookups < LOOKUPS_MAX:
                oldest_ms = self._oldest_ms(key[0], queues)
                if oldest_ms is None:
                    return None
                known = queues, oldest_ms
            else:
                self._first = self._first or key[:2]
                if known is None:
                    return None
        self._seen[key] = known
        return max(0, self._now_ms - known[1])

    def _oldest_ms(self, topic: str, queues: Sequence[tuple[int, int]]) -> int | None:
        """When the oldest message at these offsets was stored; None if it cannot be read."""
        # In one log the message with the lowest log offset is the oldest.
        places = (self._place(topic, partition, offset) for partition, offset in queues)
        first = min((place for place in places if place is not None), default=None)
        record = None if first is None else self._core.store.record_at(first)
        return None if record is None else layout.store_ms_of(record)

    def _place(self, topic: str, partition: int, offset: int) -> int | None:
        key = topic, partition, offset
        place = self._places.get(key)
        if place is None:
            self._lookups += 1
            place = self._places[key] = self._core.store.place_of(topic, partition, offset)
        return place

    def _forget(self, topic: str) -> None:
        """Forget a topic: a new topic of that name has other messages at the same offsets."""
        if topic in self._ranges:  # a collection is going on
            self._ranges[topic] = None
        self._places.clear()
        for table in (self._oldest, self._seen):
            for key in [key for key in table if key[0] == topic]:
                del table[key]
