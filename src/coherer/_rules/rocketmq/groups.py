"""The consumer groups of a broker, their file, and the topics that every RocketMQ broker has.

See docs/protocol/rocketmq.md, section 6.10.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import msgspec

from coherer._record import system_topics
from coherer._rules.common.java_json import DataVersion, parse_file
from coherer._rules.common.topics import INHERIT, READ, WRITE, Topic


class Group(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A group, with RocketMQ's default settings; TubeMQ uses only the name.

    Args:
        group_name: its name.
        consume_enable: whether it may consume.
        consume_broadcast_enable: whether it may consume in broadcasting mode.
        consume_from_min_enable: kept for Java's tools; unused.
        notify_consumer_ids_changed_enable: whether its consumers are notified of joins and leaves.
        retry_max_times: the number of retries before a message becomes a dead letter.
        retry_queue_nums: queues of its `%RETRY%` topic.
        broker_id: the id of the broker to read from.
        which_broker_when_consume_slowly: the id of the broker to read from while it lags far
            behind.
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
    """The groups of a broker, by name. Every change increments `version`.

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
        """Call `changed` after every change."""
        self._watchers.append(changed)

    def add_internal(self) -> None:
        """Add the system groups of every RocketMQ broker; as in Java, the version stays."""
        for name in system_topics.SYSTEM_GROUPS:
            self._groups.setdefault(name, Group(group_name=name))

    def add(self, name: str, now_ms: int = 0) -> bool:
        """Add a group. Returns whether it is new."""
        if name in self._groups:
            return False
        self._groups[name] = Group(group_name=name)
        self._changed(now_ms)
        return True

    def find(self, name: str, now_ms: int, *, auto_create: bool = True) -> Group | None:
        """The group; creates it where that is allowed (section 3.6).

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
        """Add or replace a group."""
        self._groups[group.group_name] = group
        self._changed(now_ms)

    def remove(self, name: str, now_ms: int = 0) -> bool:
        """Delete a group. Returns whether it existed."""
        if self._groups.pop(name, None) is None:
            return False
        self._changed(now_ms)
        return True

    def follow(self, master: GroupTable) -> bool:
        """Take over a master's groups and version. Returns whether the version has changed."""
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
        file = _File(version=self.version, groups=dict(sorted(self._groups.items())))
        return msgspec.json.format(msgspec.json.encode(file), indent=1)

    @classmethod
    def load(
        cls, data: bytes, loads: Callable[[bytes], object] = msgspec.json.decode
    ) -> GroupTable:
        """Read the file.

        Args:
            data: its content.
            loads: a JSON reader, for the dialect of Java's writers.

        Raises:
            DamagedStoreError: the file is invalid.
        """
        read = parse_file("subscriptionGroup.json", data, _File, loads)
        table = cls()
        table._groups = read.groups
        table.version = read.version
        return table

    def _changed(self, now_ms: int) -> None:
        self.version = self.version.next(now_ms)
        for changed in self._watchers:
            changed()


class _File(msgspec.Struct, kw_only=True):
    version: DataVersion = msgspec.field(name="dataVersion", default_factory=DataVersion)
    groups: dict[str, Group] = msgspec.field(name="subscriptionGroupTable")


_SCHEDULE_QUEUES = 18
_BENCHMARK_QUEUES = 1024


class TopicDefaults(msgspec.Struct, frozen=True, kw_only=True):
    """The topics that every broker has.

    Args:
        cluster: the cluster's name.
        broker: the broker's name.
        auto_create: whether a send may create a topic.
        queues: queues of the template of such topics (`defaultTopicQueueNums`).
        cluster_topic: whether the topic with the cluster's name, which has 16 queues, is a
            template.
        broker_topic: whether the topic with the broker's name is a template.
        trace: whether there is a topic for traces.
        trace_topic: its name.
    """

    cluster: str = "DefaultCluster"
    broker: str = "broker-a"
    auto_create: bool = True
    queues: int = 8
    cluster_topic: bool = True
    broker_topic: bool = True
    trace: bool = False
    trace_topic: str = system_topics.TRACE_TOPIC

    def topics(self) -> list[Topic]:
        """The topics.

        >>> [topic.name for topic in TopicDefaults(auto_create=False).topics()][:3]
        ['SELF_TEST_TOPIC', 'BenchmarkTest', 'DefaultCluster']
        """
        model = READ | WRITE | INHERIT
        made = [_square(system_topics.SELF_TEST_TOPIC, 1)]
        if self.auto_create:
            made.append(_square(system_topics.AUTO_CREATE_TOPIC, self.queues, model))
        made += [
            _square(system_topics.BENCHMARK_TOPIC, _BENCHMARK_QUEUES),
            _square(
                self.cluster,
                16 if self.cluster_topic else 1,
                model if self.cluster_topic else READ | WRITE,
            ),
            _square(self.broker, 1, model if self.broker_topic else READ | WRITE),
            _square(system_topics.OFFSET_MOVED_TOPIC, 1),
            _square(system_topics.SCHEDULE_TOPIC, _SCHEDULE_QUEUES),
            _square(self.reply_topic, 1),
        ]
        return [*made, _square(self.trace_topic, 1)] if self.trace else made

    @property
    def reply_topic(self) -> str:
        """The topic for replies to requests (section 2.14)."""
        return self.cluster + system_topics.REPLY_TOPIC_SUFFIX


def _square(name: str, queues: int, perm: int = READ | WRITE) -> Topic:
    return Topic(name=name, read_queues=queues, write_queues=queues, perm=perm)
