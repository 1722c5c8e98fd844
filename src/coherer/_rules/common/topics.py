"""The topics that a broker serves, for both protocols, and the file that keeps them.

RocketMQ's clients and administrators create topics, and so do sends (`TopicTable.create_for_send`).
TubeMQ's master decides which topics its brokers have; the broker keeps the latest configuration
that it was sent. `TubeMqTopics` is the part of the table that the master changes and that TubeMQ's
clients see. Internal topics, such as `%RETRY%` topics and those in `_record.system_topics`,
exist for RocketMQ only.

The file is RocketMQ's `topics.json` (docs/protocol/rocketmq.md, sections 3.12 and 6.10). TubeMQ's
own properties are stored, if they differ from the default, in members that RocketMQ ignores.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from coherer._common.decoding import convert
from coherer._record import system_topics
from coherer._rules.common.java_json import DataVersion, parse_file

STORE_STRIDE = 10_000
"""The id of a partition is store * 10,000 + its number in the store."""

INHERIT, WRITE, READ = 1, 2, 4
"""Bits of a topic's perm: template for new topics, open for producers, open for consumers."""

UNIT, UNIT_SUB = 1, 2
"""Bits of a topic's system flag."""


class Topic(msgspec.Struct, frozen=True, kw_only=True):
    """One topic.

    Args:
        name: its name.
        read_queues: the number of queues per store that consumers see.
        write_queues: the number of queues per store that producers see.
        perm: the sum of `READ`, `WRITE` and `INHERIT`.
        order: the topic is declared to be ordered.
        filter_type: `SINGLE_TAG` or `MULTI_TAG`.
        sys_flag: the sum of `UNIT` and `UNIT_SUB`.
        partitions_min: the number of partitions for TubeMQ's clients if an administrator of
            RocketMQ has reduced the queues below it, because TubeMQ's partitions never become
            fewer; otherwise 0.
        stores: TubeMQ's stores, each with the same number of partitions. RocketMQ's clients see
            the queues of the first store.
        status: 0 open, 1 closed for TubeMQ's clients, 2 and 3 being removed.
        message_bytes_max: the longest message that a TubeMQ client may send; None for the
            cluster's limit.
        tubemq: TubeMQ's master manages the topic.

    >>> Topic.of_master("flights", 2, stores=2).partition_ids()
    [0, 1, 10000, 10001]
    """

    name: str
    read_queues: int = 16
    write_queues: int = 16
    perm: int = READ | WRITE
    order: bool = False
    filter_type: str = "SINGLE_TAG"
    sys_flag: int = 0
    partitions_min: int = 0
    stores: int = 1
    status: int = 0
    message_bytes_max: int | None = None
    tubemq: bool = False

    @classmethod
    def of_master(
        cls,
        name: str,
        partitions: int,
        *,
        stores: int = 1,
        can_publish: bool = True,
        can_subscribe: bool = True,
        status: int = 0,
        message_bytes_max: int | None = None,
    ) -> Topic:
        """A topic from the configuration that TubeMQ's master sends."""
        return cls(
            name=name,
            read_queues=partitions,
            write_queues=partitions,
            perm=READ * can_subscribe | WRITE * can_publish,
            stores=stores,
            status=status,
            message_bytes_max=message_bytes_max,
            tubemq=True,
        )

    @property
    def partitions(self) -> int:
        """The number of TubeMQ partitions in each store."""
        return max(self.read_queues, self.write_queues, self.partitions_min)

    @property
    def can_publish(self) -> bool:
        """Whether producers may use the topic."""
        return bool(self.perm & WRITE)

    @property
    def can_subscribe(self) -> bool:
        """Whether consumers may use the topic."""
        return bool(self.perm & READ)

    def has_partition(self, partition: int) -> bool:
        """Whether the topic has a partition with this id."""
        return (
            partition >= 0
            and partition % STORE_STRIDE < self.partitions
            and partition // STORE_STRIDE < self.stores
        )

    def partition_ids(self) -> list[int]:
        """The ids of all partitions."""
        return [
            store * STORE_STRIDE + number
            for store in range(self.stores)
            for number in range(self.partitions)
        ]

    def text(self) -> str:
        """The topic as Java's error remarks print it (docs/protocol/rocketmq.md, section 2.4.2).

        >>> print(Topic(name="T1", perm=READ).text())
        TopicConfig [topicName=T1, readQueueNums=16, writeQueueNums=16, perm=R--, \
topicFilterType=SINGLE_TAG, topicSysFlag=0, order=false]
        """
        return (
            f"TopicConfig [topicName={self.name}, readQueueNums={self.read_queues}, "
            f"writeQueueNums={self.write_queues}, perm={perm_text(self.perm)}, "
            f"topicFilterType={self.filter_type}, topicSysFlag={self.sys_flag}, "
            f"order={'true' if self.order else 'false'}]"
        )


def perm_text(perm: int) -> str:
    """The text form of a perm.

    >>> perm_text(6), perm_text(7), perm_text(0)
    ('RW-', 'RWX', '---')
    """
    return "".join(
        letter if perm & bit else "-" for letter, bit in (("R", READ), ("W", WRITE), ("X", INHERIT))
    )


class TopicTable:
    """The topics of a broker, by name.

    Every change increases `version` and calls the callbacks registered with `watch`.

    >>> table = TopicTable([Topic(name="flights", read_queues=8)])
    >>> TopicTable.load(table.dump())["flights"].read_queues
    8
    """

    def __init__(self, topics: Iterable[Topic] = ()) -> None:
        self._topics = {topic.name: topic for topic in topics}
        self._internal: set[str] = set()
        self._entries: dict[str, tuple[Topic, bytes]] = {}
        self._watchers: list[Callable[[], None]] = []
        self.version: DataVersion = DataVersion()

    def get(self, name: str) -> Topic | None:
        """The topic, or None if it does not exist."""
        return self._topics.get(name)

    def __getitem__(self, name: str) -> Topic:
        return self._topics[name]

    def __contains__(self, name: str) -> bool:
        return name in self._topics

    def __iter__(self) -> Iterator[Topic]:
        return iter(list(self._topics.values()))

    def __len__(self) -> int:
        return len(self._topics)

    def names(self) -> list[str]:
        """The names of all topics."""
        return list(self._topics)

    def watch(self, changed: Callable[[], None]) -> None:
        """Call `changed` after every change."""
        self._watchers.append(changed)

    def add_internal(self, topics: Iterable[Topic], names: Iterable[str] = ()) -> None:
        """Add the topics that every RocketMQ broker has; existing ones keep their properties.

        As in Java's broker, neither the version nor the file changes.

        Args:
            topics: the topics of `TopicDefaults`.
            names: names of further internal topics.
        """
        for topic in topics:
            self._internal.add(topic.name)
            self._topics.setdefault(topic.name, topic)
        self._internal.update(names)

    def system_names(self) -> frozenset[str]:
        """The names that this broker keeps for itself, those of `add_internal` among them."""
        return frozenset(system_topics.SYSTEM_TOPICS) | self._internal

    def is_system(self, name: str) -> bool:
        """Whether every RocketMQ broker has the topic, or this one keeps the name for itself."""
        return name in self._internal or system_topics.is_system_topic(name)

    def is_internal(self, name: str) -> bool:
        """Whether the topic belongs to RocketMQ's broker and is hidden from TubeMQ's clients."""
        return self.is_system(name) or name.startswith(
            (system_topics.RETRY_PREFIX, system_topics.DLQ_PREFIX)
        )

    # -- changes by RocketMQ

    def put(self, topic: Topic, now_ms: int) -> None:
        """Create or change a topic. Its TubeMQ properties stay.

        As in Java, writing an equal topic also counts as a change.
        """
        old = self._topics.get(topic.name)
        if old is not None:
            fewer = old.tubemq and topic.partitions < old.partitions
            topic = msgspec.structs.replace(
                topic,
                partitions_min=old.partitions if fewer else 0,
                stores=old.stores,
                status=old.status,
                message_bytes_max=old.message_bytes_max,
                tubemq=old.tubemq,
            )
        self._topics[topic.name] = topic
        self._changed(now_ms)

    def touch(self, now_ms: int) -> None:
        """Raise the version and notify, though no topic has changed (section 2.12, code 25)."""
        self._changed(now_ms)

    def remove(self, name: str, now_ms: int) -> bool:
        """Remove a topic. Returns whether it existed."""
        if self._topics.pop(name, None) is None:
            return False
        self._changed(now_ms)
        return True

    def create_for_send(
        self,
        name: str,
        model: str,
        queues: int,
        sys_flag: int,
        now_ms: int,
        *,
        auto_create: bool = True,
    ) -> Topic | None:
        """The topic that a producer sends to, created from a template if it does not exist.

        Args:
            model: the template, which the request names as its default topic.
            queues: the number of queues that the producer asks for; the template's is the maximum.
            sys_flag: the system flag of the new topic.
            now_ms: the time.
            auto_create: whether `TBW102` may be a template.

        Returns:
            The topic; None if it cannot be created.
        """
        found = self._topics.get(name)
        if found is not None:
            return found
        pattern = self._topics.get(model)
        if pattern is None:
            return None
        perm = pattern.perm
        if model == system_topics.AUTO_CREATE_TOPIC and not auto_create:
            perm = READ | WRITE
        if not perm & INHERIT:
            return None
        count = max(0, min(queues, pattern.write_queues))
        made = Topic(
            name=name,
            read_queues=count,
            write_queues=count,
            perm=perm & ~INHERIT,
            sys_flag=sys_flag,
            filter_type=pattern.filter_type,
        )
        self._topics[name] = made
        self._changed(now_ms)
        return made

    def ensure_topic(
        self, name: str, queues: int, now_ms: int, *, perm: int = READ | WRITE, sys_flag: int = 0
    ) -> Topic:
        """The topic, created if it does not exist. An existing topic is not changed."""
        found = self._topics.get(name)
        if found is not None:
            return found
        made = Topic(
            name=name, read_queues=queues, write_queues=queues, perm=perm, sys_flag=sys_flag
        )
        self._topics[name] = made
        self._changed(now_ms)
        return made

    def order(self, names: Collection[str], now_ms: int) -> bool:
        """Declare exactly these topics to be ordered. Returns whether anything has changed."""
        wrong = [topic for topic in self if topic.order != (topic.name in names)]
        for topic in wrong:
            self._topics[topic.name] = msgspec.structs.replace(topic, order=not topic.order)
        if wrong:
            self._changed(now_ms)
        return bool(wrong)

    def follow(self, master: TopicTable) -> bool:
        """Copy the topics and the version of a RocketMQ master. Returns whether they differed.

        Internal topics that the master does not have stay.
        """
        if master.version == self.version:
            return False
        kept = {name: topic for name, topic in self._topics.items() if name in self._internal}
        self._topics = kept | master._topics
        self.version = master.version
        for changed in self._watchers:
            changed()
        return True

    # -- changes by TubeMQ's master

    def replace(self, topics: Iterable[Topic], now_ms: int = 0) -> bool:
        """Set the topics that TubeMQ's master manages. Returns whether anything has changed.

        A topic that the master no longer lists is removed; topics that it never listed stay. The
        RocketMQ properties of a topic stay.
        """
        managed = {topic.name: self._merged(topic) for topic in topics}
        new = {topic.name: topic for topic in self._topics.values() if not topic.tubemq} | managed
        if new == self._topics:
            return False
        self._topics = new
        self._changed(now_ms)
        return True

    def _merged(self, topic: Topic) -> Topic:
        topic = msgspec.structs.replace(topic, tubemq=True)
        old = self._topics.get(topic.name)
        if old is None:
            return topic
        same = old.partitions == topic.partitions
        merged = msgspec.structs.replace(
            topic,
            read_queues=old.read_queues if same else topic.read_queues,
            write_queues=old.write_queues if same else topic.write_queues,
            partitions_min=old.partitions_min if same else 0,
            perm=topic.perm | old.perm & INHERIT,
            order=old.order,
            filter_type=old.filter_type,
            sys_flag=old.sys_flag,
        )
        return old if merged == old else merged

    # -- the file

    def dump(self) -> bytes:
        """The content of the file.

        The file is written at every change, so the text of unchanged topics is cached.
        """
        before = self._entries
        self._entries = {
            name: known
            if (known := before.get(name)) is not None and known[0] is topic
            else (topic, _written(topic))
            for name, topic in sorted(self._topics.items())
        }
        return write_file(self.version, [text for _, text in self._entries.values()])

    @classmethod
    def load(
        cls, data: bytes, loads: Callable[[bytes], object] = msgspec.json.decode
    ) -> TopicTable:
        """Read the content of the file.

        Args:
            loads: a JSON parser; files by Java's writers need one for fastjson's dialect.

        Raises:
            DamagedStoreError: the content is not valid.
        """
        read = parse_file("topics.json", data, TopicsFile, loads)
        table = cls(
            convert(entry.given() | {"name": name}, Topic)
            for name, entry in read.topics.items()
            if entry is not None
        )
        table.version = read.version or DataVersion()
        return table

    def _changed(self, now_ms: int) -> None:
        self.version = self.version.next(now_ms)
        for changed in self._watchers:
            changed()


def _written(topic: Topic) -> bytes:
    return TopicEntry.of(msgspec.structs.asdict(topic)).line(topic.name)


class TubeMqTopics:
    """The topics that TubeMQ's clients see: all but the internal ones.

    >>> table = TopicTable([Topic(name="flights"), Topic(name="%RETRY%g")])
    >>> [topic.name for topic in TubeMqTopics(table)]
    ['flights']
    """

    def __init__(self, table: TopicTable) -> None:
        self._table = table

    def get(self, name: str) -> Topic | None:
        """The topic, or None if it does not exist or is internal."""
        return None if self._table.is_internal(name) else self._table.get(name)

    def __getitem__(self, name: str) -> Topic:
        found = self.get(name)
        if found is None:
            raise KeyError(name)
        return found

    def __iter__(self) -> Iterator[Topic]:
        return (topic for topic in self._table if not self._table.is_internal(topic.name))

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def replace(self, topics: Iterable[Topic], now_ms: int = 0) -> bool:
        """Set the topics that TubeMQ's master manages. Returns whether anything has changed."""
        return self._table.replace(topics, now_ms)


# -- the file

_TUBEMQ_DEFAULTS = {"partitions_min": 0, "stores": 1, "status": 0, "tubemq": False}
_NAMES = {
    "name": "topic_name",
    "read_queues": "read_queue_nums",
    "write_queues": "write_queue_nums",
    "perm": "perm",
    "order": "order",
    "filter_type": "topic_filter_type",
    "sys_flag": "topic_sys_flag",
    "partitions_min": "partitions_min",
    "stores": "num_topic_stores",
    "status": "status_id",
    "message_bytes_max": "max_msg_size",
    "tubemq": "tubemq",
}
"""Field names of `Topic`, and those of `TopicEntry`."""

_NOTHING = object()


class TopicEntry(msgspec.Struct, rename="camel", omit_defaults=True):
    """A topic in the file; None for members that the file does not have."""

    topic_name: str | None = None
    read_queue_nums: int | None = None
    write_queue_nums: int | None = None
    perm: int | None = None
    order: bool | None = None
    topic_filter_type: str | None = None
    topic_sys_flag: int | None = None
    partitions_min: int | None = None
    num_topic_stores: int | None = None
    status_id: int | None = None
    max_msg_size: int | None = None
    tubemq: bool | None = None

    @classmethod
    def of(cls, topic: Mapping[str, object]) -> TopicEntry:
        """The entry for a topic, given as a mapping of all its fields; the reverse of `given`."""
        members: dict[str, Any] = {
            there: value
            for here, there in _NAMES.items()
            if (value := topic[here]) != _TUBEMQ_DEFAULTS.get(here, _NOTHING)
        }
        return cls(**members)

    def line(self, name: str) -> bytes:
        """The text of the entry in the file, after its name as key."""
        text = msgspec.json.format(msgspec.json.encode({name: self}), indent=1)
        return text[2:-2].replace(b"\n", b"\n ")

    def given(self) -> dict[str, object]:
        """The members that the entry has, by the field names of `Topic`."""
        return {
            here: value
            for here, there in _NAMES.items()
            if (value := getattr(self, there)) is not None
        }


class TopicsFile(msgspec.Struct, kw_only=True):
    """The content of the file."""

    version: DataVersion | None = msgspec.field(name="dataVersion", default=None)
    topics: dict[str, TopicEntry | None] = msgspec.field(name="topicConfigTable")


def write_file(version: DataVersion, lines: Sequence[bytes]) -> bytes:
    """The content of the file.

    Args:
        version: the version of the table.
        lines: the `TopicEntry.line` of each topic, ordered by name.

    >>> entry = TopicEntry(topic_name="flights")
    >>> print(write_file(DataVersion(), [entry.line("flights")]).decode())
    {
     "dataVersion": {
      "counter": 0,
      "timestamp": 0
     },
     "topicConfigTable": {
      "flights": {
       "topicName": "flights"
      }
     }
    }
    """
    head = msgspec.json.format(msgspec.json.encode({"dataVersion": version}), indent=1)
    table = b"{\n " + b",\n ".join(lines) + b"\n }" if lines else b"{}"
    return head[:-2] + b',\n "topicConfigTable": ' + table + b"\n}"
