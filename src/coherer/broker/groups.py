"""The consumer groups that a broker has seen, and RocketMQ's file of them."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from coherer.errors import DamagedStoreError


class Group(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """One group, with RocketMQ's settings at their defaults; TubeMQ knows only the name."""

    group_name: str
    broker_id: int = 0
    consume_broadcast_enable: bool = True
    consume_enable: bool = True
    consume_from_min_enable: bool = True
    notify_consumer_ids_changed_enable: bool = True
    retry_max_times: int = 16
    retry_queue_nums: int = 1
    which_broker_when_consume_slowly: int = 1


class GroupTable:
    """The groups of a broker, by name.

    >>> table = GroupTable()
    >>> table.add("readers"), table.add("readers")
    (True, False)
    >>> "readers" in GroupTable.load(table.dump(now_ms=0))
    True
    """

    def __init__(self) -> None:
        self._groups: dict[str, Group] = {}
        self._version = 0

    def __contains__(self, name: str) -> bool:
        return name in self._groups

    def __iter__(self) -> Iterator[Group]:
        return iter(self._groups.values())

    def add(self, name: str) -> bool:
        """Remember a group. Returns whether it is new."""
        if name in self._groups:
            return False
        self._groups[name] = Group(group_name=name)
        self._version += 1
        return True

    def remove(self, name: str) -> bool:
        """Forget a group. Returns whether it was known."""
        if self._groups.pop(name, None) is None:
            return False
        self._version += 1
        return True

    def dump(self, now_ms: int) -> bytes:
        """The file's content."""
        return msgspec.json.format(
            msgspec.json.encode(_File(_Version(self._version, now_ms), self._groups)), indent=1
        )

    @classmethod
    def load(cls, data: bytes) -> GroupTable:
        """Read the file.

        Raises:
            DamagedStoreError: it is not such a file.
        """
        try:
            read = msgspec.json.decode(data, type=_File)
        except msgspec.DecodeError as error:
            raise DamagedStoreError(f"subscriptionGroup.json cannot be read: {error}.") from error
        table = cls()
        table._groups = read.groups
        table._version = read.version.counter
        return table


class _Version(msgspec.Struct):
    counter: int = 0
    timestamp: int = 0


class _File(msgspec.Struct):
    version: _Version = msgspec.field(name="dataVersion", default_factory=_Version)
    groups: dict[str, Group] = msgspec.field(
        name="subscriptionGroupTable", default_factory=dict[str, Group]
    )
