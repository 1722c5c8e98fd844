"""The lag of consumer groups: the number of messages, and the age of the oldest one.

A group has a lag in a topic once it has committed an offset there, even without members. A
partition without a committed offset counts from its first message.

The age is that of the message with the lowest log offset among the next messages of all partitions.
Their log offsets are read from the files of the queues. A group whose offsets have not changed
keeps its oldest message (`_oldest`), and the log offsets of the last collection are kept
(`_places`). A collection looks up at most `LOOKUPS_MAX` others. The remaining groups keep the
message that was their oldest before, and come first in the next collection.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from coherer._record import layout
from coherer._rules.common.offsets import Position
from coherer._server.core.core import Core

LOOKUPS_MAX: Final = 1_000
"""The most queue entries that a collection reads; each takes 10 µs if it is not in memory."""


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
        self._next: dict[tuple[str, int, int], int | None] = {}
        self._oldest: dict[tuple[str, str, bool], tuple[Sequence[tuple[int, int]], int]] = {}
        self._seen: dict[tuple[str, str, bool], tuple[Sequence[tuple[int, int]], int]] = {}
        self._first: tuple[str, str] | None = None
        self._lookups = 0
        core.on_removal(self._forget)

    def collect(self) -> Iterator[Lag]:
        """Iterate over the lags of each group in each topic for which it has committed offsets.

        The caller may let other work run between two of them.
        """
        self._next, self._seen, self._lookups = {}, {}, 0
        ranges: dict[str, list[tuple[int, int, int]]] = {}
        items = self._core.offsets.items()
        at = next((n for n, item in enumerate(items) if item[:2] == self._first), 0)
        self._first = None
        for topic, group, positions in items[at:] + items[:at]:
            if topic not in ranges:
                ranges[topic] = self._ranges(topic)
            lag = self._lag(topic, group, positions, ranges[topic])
            if lag is not None:
                yield lag
        self._places = self._next
        if self._lookups >= LOOKUPS_MAX:
            self._oldest |= self._seen
        else:
            self._oldest = self._seen  # without those of groups and topics that are gone

    def _ranges(self, topic: str) -> list[tuple[int, int, int]]:
        """Partition, first offset and end of each partition of a topic that has messages."""
        known = self._core.topics.get(topic)
        ids = [] if known is None else known.partition_ids()
        found = [(one, *self._core.store.queue_range(topic, one)) for one in ids]
        return [one for one in found if one[1] < one[2]]

    def _lag(
        self,
        topic: str,
        group: str,
        positions: Mapping[int, Position],
        ranges: Sequence[tuple[int, int, int]],
    ) -> Lag | None:
        committed = {
            partition: position.offset
            for partition, position in positions.items()
            if position.offset >= 0 and not position.transient
        }
        if topic not in self._core.topics or not committed:
            return None
        read_to = self._core.counters.read_to
        messages = ready = 0
        behind: list[tuple[int, int]] = []
        unread: list[tuple[int, int]] = []
        for partition, begin, end in ranges:
            offset = committed.get(partition, begin)
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
        age_ms = self._age_ms(topic, group, behind, fetched=False)
        if unread == behind:
            return Lag(topic, group, messages, ready, age_ms, age_ms)
        ready_age_ms = self._age_ms(topic, group, unread, fetched=True)
        return Lag(topic, group, messages, ready, age_ms, ready_age_ms)

    def _age_ms(
        self, topic: str, group: str, queues: Sequence[tuple[int, int]], *, fetched: bool
    ) -> int | None:
        """The age of the oldest message at these offsets; 0 without offsets, None if unknown."""
        key = topic, group, fetched
        if not queues:
            return 0
        known = self._oldest.get(key)
        if known is not None and known[0] == queues:
            oldest_ms = known[1]
            self._keep_places(topic, queues)
        elif self._lookups < LOOKUPS_MAX:
            # In one log the message with the lowest log offset is the oldest.
            first = min(
                (
                    place
                    for partition, offset in queues
                    if (place := self._place(topic, partition, offset)) is not None
                ),
                default=None,
            )
            record = None if first is None else self._core.store.record_at(first)
            if record is None:
                return None
            oldest_ms = layout.store_ms_of(record)
            known = queues, oldest_ms
        else:
            self._first = self._first or (topic, group)
            if known is None:
                return None
            oldest_ms = known[1]
        self._seen[key] = known
        return max(0, self._core.wall_ms() - oldest_ms)

    def _forget(self, topic: str) -> None:
        """Forget a topic: a new topic of that name has other messages at the same offsets."""
        self._places.clear()
        self._next.clear()
        for table in (self._oldest, self._seen):
            for key in [key for key in table if key[0] == topic]:
                del table[key]

    def _keep_places(self, topic: str, queues: Sequence[tuple[int, int]]) -> None:
        for partition, offset in queues:
            key = topic, partition, offset
            place = self._places.get(key)
            if place is not None:
                self._next[key] = place

    def _place(self, topic: str, partition: int, offset: int) -> int | None:
        key = topic, partition, offset
        place = self._places.get(key)
        if place is None:
            self._lookups += 1
            place = self._core.store.place_of(topic, partition, offset)
        self._next[key] = place
        return place
