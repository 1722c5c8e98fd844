"""The committed offsets of consumer groups, their uncommitted reads, and the file that keeps them.

An offset counts messages: it is that of the next message to read. A read does not move it, but
leaves a *delta*. Committing adds the delta to the offset; a redelivery, or the loss of the
partition, drops it. A batch that was never committed is therefore read again.

The file is RocketMQ's `consumerOffset.json`. Both forms that peers write are accepted: the numeric
keys of Java's writer, and strict JSON.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Container, Iterator, Mapping
from operator import itemgetter

import msgspec

from coherer._common.decoding import decoder
from coherer._record.system_topics import READER_GROUP_PREFIX
from coherer._rules.common.java_json import quote_keys
from coherer.errors import DamagedStoreError


class Start(enum.Enum):
    """Where a group starts to read."""

    FIRST = 0
    """At its committed offset; a new group at the first message."""
    LATEST = 1
    """At its committed offset; a new group after the last message."""
    ALWAYS_LATEST = 2
    """After the last message, regardless of committed offsets."""


class Position:
    """The offset of a group in one partition. Made by `OffsetTable.open`.

    Attributes:
        offset: the next message to read; -1 until the starting offset is decided.
        delta: the number of messages read but not committed.
        transient: the group exists for this reader only. Such a position is discarded when the
            reader leaves, and not saved.
    """

    __slots__ = ("delta", "offset", "transient")

    def __init__(self, offset: int = -1, *, transient: bool = False) -> None:
        self.offset = offset
        self.delta = 0
        self.transient = transient

    def begin(self, start: Start, exact: int | None, minimum: int, maximum: int) -> int:
        """Decide where a reader starts. An uncommitted read is dropped.

        Args:
            start: where to start if the group has no committed offset.
            exact: the offset that the reader names, clamped to `minimum`..`maximum`.
            minimum: the offset of the first message that is stored.
            maximum: the offset after the last message.

        >>> Position().begin(Start.LATEST, None, 3, 9), Position(5).begin(Start.LATEST, None, 3, 9)
        (9, 5)
        >>> Position(5).begin(Start.FIRST, 1, 3, 9)
        3
        """
        self.delta = 0
        if start is Start.ALWAYS_LATEST:
            self.offset = maximum
        elif exact is not None and exact >= 0:
            self.offset = max(minimum, min(exact, maximum))
        elif self.offset < 0:
            self.offset = minimum if start is Start.FIRST else maximum
        return self.offset

    def move_to(self, offset: int) -> None:
        """Set the offset, forwards or backwards, as RocketMQ's clients and administrators do."""
        self.offset = offset
        self.delta = 0

    def commit(self, consumed: bool = True) -> int:
        """Commit the last read, or drop it so that it is read again. Returns the offset.

        >>> position = Position(5)
        >>> position.delta = 3
        >>> position.commit(), position.commit()
        (8, 8)
        """
        if consumed:
            self.offset += self.delta
        self.delta = 0
        return self.offset


class OffsetTable:
    """The offsets of all groups.

    >>> table = OffsetTable()
    >>> table.open("readers", "flights", 0).offset = 7
    >>> table.dump()
    b'{"offsetTable":{"flights@readers":{0:7}}}'
    >>> OffsetTable.load(table.dump()).find("readers", "flights", 0).offset
    7
    """

    def __init__(self) -> None:
        self._groups: dict[str, dict[str, dict[int, Position]]] = {}  # by group and topic
        self._used_ms: dict[tuple[str, str], int] = {}  # by topic and group

    def find(self, group: str, topic: str, partition: int) -> Position | None:
        """The position of a group in a partition, or None."""
        return self._groups.get(group, {}).get(topic, {}).get(partition)

    def open(self, group: str, topic: str, partition: int) -> Position:
        """The position of a group in a partition; created with offset -1 if it does not exist."""
        positions = self._groups.setdefault(group, {}).setdefault(topic, {})
        position = positions.get(partition)
        if position is None:
            transient = group.startswith(READER_GROUP_PREFIX)
            position = positions[partition] = Position(transient=transient)
        return position

    def left(self, group: str, topic: str, partition: int) -> None:
        """Drop the uncommitted read of a reader that has left, and a transient position."""
        position = self.find(group, topic, partition)
        if position is not None:
            position.delta = 0
            if position.transient or position.offset < 0:
                positions = self._groups[group][topic]
                del positions[partition]
                if not positions:
                    self._remove(topic, group)

    def remove(self, group: str, topics: frozenset[str] | None = None) -> bool:
        """Remove the group's offsets of these topics, or of all. Returns whether any existed."""
        removed = [
            topic for topic in self._groups.get(group, ()) if topics is None or topic in topics
        ]
        for topic in removed:
            self._remove(topic, group)
        return bool(removed)

    def remove_topic(self, topic: str) -> None:
        """Remove all groups' offsets of a deleted topic."""
        for group in self.groups_of(topic):
            self._remove(topic, group)

    def items(self) -> list[tuple[str, str, Mapping[int, Position]]]:
        """Return topic, group and the positions by partition of all groups."""
        return [
            (topic, group, positions)
            for group, topics in self._groups.items()
            for topic, positions in topics.items()
        ]

    def groups(self) -> set[str]:
        """All groups with a position."""
        return set(self._groups)

    def group_count(self) -> int:
        """The number of groups with a position."""
        return len(self._groups)

    def groups_of(self, topic: str) -> list[str]:
        """All groups with a position in a topic."""
        return [group for group, topics in self._groups.items() if topic in topics]

    def saved_groups(self) -> set[str]:
        """All groups with a position that is saved, i.e. outlives its reader."""
        return {
            group
            for _, group, positions in self.items()
            if any(p.offset >= 0 and not p.transient for p in positions.values())
        }

    def topics_of(self, group: str) -> list[str]:
        """All topics in which a group has a position."""
        return list(self._groups.get(group, ()))

    def of(self, group: str) -> Iterator[tuple[str, int, Position]]:
        """Topic, partition and position of everything that a group reads."""
        for topic, positions in self._groups.get(group, {}).items():
            for partition, position in positions.items():
                yield topic, partition, position

    def chosen(
        self, groups: Container[str] | None = None, topics: Container[str] | None = None
    ) -> dict[str, dict[str, Mapping[int, Position]]]:
        """Return the positions of some groups in some topics, by group, topic and partition.

        Args:
            groups: the groups; None for all.
            topics: the topics; None for all.
        """
        found: dict[str, dict[str, Mapping[int, Position]]] = {}
        for topic, group, positions in self.items():
            if (groups is None or group in groups) and (topics is None or topic in topics):
                found.setdefault(group, {})[topic] = positions
        return found

    def merge(self, others: OffsetTable) -> None:
        """Copy the offsets of another table; entries that only this table has stay."""
        for topic, group, positions in others.items():
            for partition, position in positions.items():
                self.open(group, topic, partition).offset = position.offset

    def correct(self, end_of: Callable[[str, int], int]) -> int:
        """Move offsets that are behind the end of their partition back to it.

        Otherwise the group would skip the next messages.

        Args:
            end_of: returns the next offset of a topic and partition.

        Returns:
            The number of offsets that were moved.

        >>> table = OffsetTable()
        >>> table.open("readers", "flights", 0).offset = 20
        >>> table.correct(lambda topic, partition: 10), table.dump()
        (1, b'{"offsetTable":{"flights@readers":{0:10}}}')
        """
        moved = 0
        for topic, _, positions in self.items():
            for partition, position in positions.items():
                end = end_of(topic, partition)
                if position.offset > end:
                    position.move_to(end)
                    moved += 1
        return moved

    def forget_idle(self, now_ms: int, idle_ms: int, in_use: set[tuple[str, str]]) -> None:
        """Remove the offsets of groups that have not read a topic for `idle_ms`.

        Args:
            now_ms: the time. Use is only noticed at calls, so call this regularly.
            idle_ms: how long offsets are kept without use.
            in_use: the (topic, group) pairs that are being read now.
        """
        for topic, group, _ in self.items():
            used_ms = self._used_ms.setdefault((topic, group), now_ms)
            if (topic, group) in in_use:
                self._used_ms[topic, group] = now_ms
            elif now_ms - used_ms >= idle_ms:
                self._remove(topic, group)

    def dump(self) -> bytes:
        """The content of the file, as Java writes it: partitions are numeric keys."""
        parts: list[bytes] = []
        for topic, group, positions in sorted(self.items(), key=itemgetter(0, 1)):
            numbers = ",".join(
                f"{partition}:{position.offset}"
                for partition, position in sorted(positions.items())
                if position.offset >= 0 and not position.transient
            )
            if numbers:
                name = msgspec.json.encode(f"{topic}@{group}")
                parts.append(name + b":{" + numbers.encode() + b"}")
        return b'{"offsetTable":{' + b",".join(parts) + b"}}"

    @classmethod
    def load(cls, data: bytes) -> OffsetTable:
        """Read the content of the file.

        Raises:
            DamagedStoreError: the content is not valid.
        """
        try:
            read = decoder(_File).decode(quote_keys(data))
        except msgspec.DecodeError as error:
            raise DamagedStoreError(f"consumerOffset.json cannot be read: {error}.") from error
        table = cls()
        for name, offsets in read.offsets.items():
            topic, _, group = name.partition("@")
            if group.startswith(READER_GROUP_PREFIX):
                continue  # of a version that saved them
            for partition, offset in offsets.items():
                table.open(group, topic, partition).offset = offset
        return table

    def _remove(self, topic: str, group: str) -> None:
        topics = self._groups[group]
        del topics[topic]
        if not topics:
            del self._groups[group]
        self._used_ms.pop((topic, group), None)


class _File(msgspec.Struct):
    offsets: dict[str, dict[int, int]] = msgspec.field(name="offsetTable")
