"""The consumer groups that a broker knows, and RocketMQ's file of them (rocketmq 6.10)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import msgspec

from coherer._record import system_topics
from coherer._rules.common.versions import DataVersion
from coherer.errors import DamagedStoreError, ProtocolError


class Group(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """One group, with RocketMQ's settings at their defaults; TubeMQ knows only the name.

    Args:
        group_name: its name.
        consume_enable: whether it may consume at all.
        consume_broadcast_enable: whether each of its consumers may read everything.
        consume_from_min_enable: kept for Java's tools; nothing reads it.
        notify_consumer_ids_changed_enable: its consumers are told when one comes or goes.
        retry_max_times: a message that failed so often is put with the dead letters.
        retry_queue_nums: queues of its `%RETRY%` topic.
        broker_id: which broker of the name to read from.
        which_broker_when_consume_slowly: which instead, while it is far behind.
    """

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

    Who wants to know of changes says so with `watch`; every change is a new `version`.

    >>> table = GroupTable()
    >>> table.add("readers"), table.add("readers")
    (True, False)
    >>> "readers" in GroupTable.load(table.dump())
    True
    """

    def __init__(self, groups: Iterable[Group] = ()) -> None:
        self._groups = {group.group_name: group for group in groups}
        self._watchers: list[Callable[[], None]] = []
        self.version: DataVersion = DataVersion()

    def __contains__(self, name: str) -> bool:
        return name in self._groups

    def __iter__(self) -> Iterator[Group]:
        return iter(list(self._groups.values()))

    def __len__(self) -> int:
        return len(self._groups)

    def get(self, name: str) -> Group | None:
        """The group, or None."""
        return self._groups.get(name)

    def watch(self, changed: Callable[[], None]) -> None:
        """Have `changed` called after every change."""
        self._watchers.append(changed)

    def provide(self) -> None:
        """Have the groups that every RocketMQ broker has; the version stays, as in Java."""
        for name in system_topics.SYSTEM_GROUPS:
            self._groups.setdefault(name, Group(group_name=name))

    def add(self, name: str, now_ms: int = 0) -> bool:
        """Remember a group. Returns whether it is new."""
        if name in self._groups:
            return False
        self._groups[name] = Group(group_name=name)
        self._changed(now_ms)
        return True

    def find(self, name: str, now_ms: int, *, auto_create: bool = True) -> Group | None:
        """The group, made where that is allowed (3.6).

        >>> table = GroupTable()
        >>> table.find("g", 0, auto_create=False) is None
        True
        >>> table.find("CID_RMQ_SYS_TRANS", 0, auto_create=False).retry_max_times
        16
        """
        found = self._groups.get(name)
        if found is None and (auto_create or name.startswith(system_topics.SYSTEM_GROUP_PREFIX)):
            self.add(name, now_ms)
            found = self._groups[name]
        return found

    def put(self, group: Group, now_ms: int) -> None:
        """Make a group or change it."""
        self._groups[group.group_name] = group
        self._changed(now_ms)

    def remove(self, name: str, now_ms: int = 0) -> bool:
        """Forget a group. Returns whether it was known."""
        if self._groups.pop(name, None) is None:
            return False
        self._changed(now_ms)
        return True

    def follow(self, master: GroupTable) -> bool:
        """Have what a master has, and its version. Returns whether that is another now."""
        if master.version == self.version:
            return False
        own = {
            name: group
            for name, group in self._groups.items()
            if name in system_topics.SYSTEM_GROUPS
        }
        self._groups = own | master._groups
        self.version = master.version
        for changed in self._watchers:
            changed()
        return True

    def dump(self) -> bytes:
        """The file's content."""
        return msgspec.json.format(
            msgspec.json.encode(_File(self.version, dict(sorted(self._groups.items())))), indent=1
        )

    @classmethod
    def load(
        cls, data: bytes, loads: Callable[[bytes], object] = msgspec.json.decode
    ) -> GroupTable:
        """Read the file.

        Args:
            data: its content.
            loads: reads JSON; what Java's writers make of it needs a reader that knows them.

        Raises:
            DamagedStoreError: it is not such a file.
        """
        try:
            read = msgspec.convert(loads(data), _File, strict=False)
        except (msgspec.MsgspecError, ProtocolError, ValueError) as error:
            raise DamagedStoreError(f"subscriptionGroup.json cannot be read: {error}") from error
        table = cls()
        table._groups = read.groups
        table.version = read.version
        return table

    def _changed(self, now_ms: int) -> None:
        self.version = self.version.next(now_ms)
        for changed in self._watchers:
            changed()


class _File(msgspec.Struct):
    version: DataVersion = msgspec.field(name="dataVersion", default_factory=DataVersion)
    groups: dict[str, Group] = msgspec.field(
        name="subscriptionGroupTable", default_factory=dict[str, Group]
    )
