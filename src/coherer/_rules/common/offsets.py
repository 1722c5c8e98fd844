"""How far each group has read: positions, uncommitted reads, and their file.

A position counts messages: it is the offset of the next message to read. A read moves nothing, it
leaves a *delta*; confirming adds the delta, rejecting or losing the partition drops it. So a
package that nobody confirmed is read again.

The file is RocketMQ's `consumerOffset.json`. It is read in both forms that peers write: with the
bare numbers as keys of Java's writer, and as strict JSON.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator

import msgspec

from coherer._rules.common.java_json import quote_keys
from coherer.errors import DamagedStoreError


class Start(enum.Enum):
    """Where a group starts to read."""

    FIRST = 0
    """At its position; a new group at the first message."""
    LATEST = 1
    """At its position; a new group behind the last message."""
    ALWAYS_LATEST = 2
    """Behind the last message, whatever its position says."""


class Position:
    """A group's place in one partition. Made by `OffsetTable.open`.

    Attributes:
        offset: the next message to read; -1 while nobody has decided where to start.
        delta: messages that were read and neither confirmed nor rejected.
        passing: it was started at a place that the reader named, and never confirmed: nothing
            is remembered of it when its reader leaves.
    """

    __slots__ = ("delta", "offset", "passing")

    def __init__(self, offset: int = -1) -> None:
        self.offset = offset
        self.delta = 0
        self.passing = False

    def begin(self, start: Start, exact: int | None, minimum: int, maximum: int) -> int:
        """Settle where a reader begins; an uncommitted read is dropped.

        Args:
            start: what to do where the group has no position.
            exact: the place that the reader names, moved into `minimum` to `maximum`.
            minimum: the first message that is there.
            maximum: the offset behind the last one.

        >>> Position().begin(Start.LATEST, None, 3, 9), Position(5).begin(Start.LATEST, None, 3, 9)
        (9, 5)
        >>> Position(5).begin(Start.FIRST, 1, 3, 9)
        3
        """
        self.delta = 0
        if start is Start.ALWAYS_LATEST:
            self.offset = maximum
        elif exact is not None and exact >= 0:
            self.passing = self.passing or self.offset < 0
            self.offset = max(minimum, min(exact, maximum))
        elif self.offset < 0:
            self.offset = minimum if start is Start.FIRST else maximum
        return self.offset

    def move_to(self, offset: int) -> None:
        """Put it somewhere, be it back, as RocketMQ's clients do."""
        self.offset = offset
        self.delta = 0
        self.passing = False

    def commit(self, consumed: bool = True) -> int:
        """Confirm what was read, or drop it to be read again. Returns the position.

        >>> position = Position(5)
        >>> position.delta = 3
        >>> position.commit(), position.commit()
        (8, 8)
        """
        if consumed and self.delta:
            self.offset += self.delta
            self.passing = False
        self.delta = 0
        return self.offset


class OffsetTable:
    """The positions of all groups.

    >>> table = OffsetTable()
    >>> table.open("readers", "flights", 0).offset = 7
    >>> table.dump()
    b'{"offsetTable":{"flights@readers":{0:7}}}'
    >>> OffsetTable.load(table.dump()).find("readers", "flights", 0).offset
    7
    """

    def __init__(self) -> None:
        self._positions: dict[tuple[str, str], dict[int, Position]] = {}
        self._used_ms: dict[tuple[str, str], int] = {}

    def find(self, group: str, topic: str, partition: int) -> Position | None:
        """The position, if there is one."""
        return self._positions.get((topic, group), {}).get(partition)

    def open(self, group: str, topic: str, partition: int) -> Position:
        """The position, made where it is missing (its offset is -1 then)."""
        positions = self._positions.setdefault((topic, group), {})
        position = positions.get(partition)
        if position is None:
            position = positions[partition] = Position()
        return position

    def left(self, group: str, topic: str, partition: int) -> None:
        """A reader has left: its uncommitted read is dropped, and a passing position forgotten."""
        position = self.find(group, topic, partition)
        if position is not None:
            position.delta = 0
            if position.passing or position.offset < 0:
                self._remove(topic, group, partition)

    def remove(self, group: str, topics: frozenset[str] | None = None) -> bool:
        """Forget what a group read of these topics, or of all. Says whether there was anything."""
        keys = [
            key
            for key in self._positions
            if key[1] == group and (topics is None or key[0] in topics)
        ]
        for key in keys:
            del self._positions[key]
            self._used_ms.pop(key, None)
        return bool(keys)

    def remove_topic(self, topic: str) -> None:
        """Forget what all groups read of a topic that is no more."""
        for key in [key for key in self._positions if key[0] == topic]:
            del self._positions[key]
            self._used_ms.pop(key, None)

    def groups(self) -> set[str]:
        """Every group with a position."""
        return {group for _, group in self._positions}

    def groups_of(self, topic: str) -> list[str]:
        """Every group with a position in a topic."""
        return [group for name, group in self._positions if name == topic]

    def saved_groups(self) -> set[str]:
        """Every group with a position that outlives its reader."""
        return {
            group
            for (_, group), positions in self._positions.items()
            if any(place.offset >= 0 and not place.passing for place in positions.values())
        }

    def of(self, group: str) -> Iterator[tuple[str, int, Position]]:
        """Topic, partition and position of everything that a group reads."""
        for (topic, name), positions in self._positions.items():
            if name == group:
                for partition, position in positions.items():
                    yield topic, partition, position

    def merge(self, others: OffsetTable) -> None:
        """Take over the positions of another table; what only this one has stays."""
        for (topic, group), positions in others._positions.items():
            for partition, position in positions.items():
                self.open(group, topic, partition).offset = position.offset

    def forget_idle(self, now_ms: int, idle_ms: int, in_use: set[tuple[str, str]]) -> None:
        """Drop groups that have not read a topic for `idle_ms`.

        Args:
            now_ms: the time; call it now and then, use is seen to that precision.
            idle_ms: how long a group may rest.
            in_use: (topic, group) pairs that are being read.
        """
        for key in list(self._positions):
            used_ms = self._used_ms.setdefault(key, now_ms)
            if key in in_use:
                self._used_ms[key] = now_ms
            elif now_ms - used_ms >= idle_ms:
                del self._positions[key], self._used_ms[key]

    def dump(self) -> bytes:
        """The file's content, written as Java writes it: partitions are bare numbers."""
        parts: list[bytes] = []
        for (topic, group), positions in sorted(self._positions.items()):
            numbers = ",".join(
                f"{partition}:{position.offset}"
                for partition, position in sorted(positions.items())
                if position.offset >= 0 and not position.passing
            )
            if numbers:
                name = msgspec.json.encode(f"{topic}@{group}")
                parts.append(name + b":{" + numbers.encode() + b"}")
        return b'{"offsetTable":{' + b",".join(parts) + b"}}"

    @classmethod
    def load(cls, data: bytes) -> OffsetTable:
        """Read the file.

        Raises:
            DamagedStoreError: it is not such a file.
        """
        try:
            read = msgspec.json.decode(quote_keys(data), type=_File)
        except msgspec.DecodeError as error:
            raise DamagedStoreError(f"consumerOffset.json cannot be read: {error}.") from error
        table = cls()
        for name, offsets in read.offsets.items():
            topic, _, group = name.partition("@")
            for partition, offset in offsets.items():
                table.open(group, topic, partition).offset = offset
        return table

    def _remove(self, topic: str, group: str, partition: int) -> None:
        positions = self._positions[topic, group]
        del positions[partition]
        if not positions:
            del self._positions[topic, group]
            self._used_ms.pop((topic, group), None)


class _File(msgspec.Struct):
    offsets: dict[str, dict[int, int]] = msgspec.field(
        name="offsetTable", default_factory=dict[str, dict[int, int]]
    )
