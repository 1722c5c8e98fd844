"""The topics that a broker serves, for both protocols, and their file.

RocketMQ's clients and operators make topics here, and sends do (`TopicTable.create_for_send`).
TubeMQ's master decides for itself which topics there are; the broker keeps what it was told last,
and `TubeTopics` is the part of the table that the master's word changes and that TubeMQ's clients
see. What neither made, such as `%RETRY%` topics and those in `record.reserved`, is RocketMQ's
alone.

The file is RocketMQ's `topics.json` (rocketmq 3.12, 6.10); what only TubeMQ knows stands in members
that RocketMQ skips, and only where it is not the default.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator

import msgspec

from coherer._record import system_topics
from coherer._rules.common.topic_file import TopicEntry, TopicsFile, write_file
from coherer._rules.common.versions import DataVersion
from coherer.errors import DamagedStoreError, ProtocolError

STORE_STRIDE = 10_000
"""A partition's id is store * 10,000 + its number in the store."""

INHERIT, WRITE, READ = 1, 2, 4
"""Bits of a topic's perm: it may be the model of new topics; producers, consumers may use it."""

UNIT, UNIT_SUB = 1, 2
"""Bits of a topic's system flag."""

RETRY_PREFIX = system_topics.RETRY_PREFIX
DLQ_PREFIX = system_topics.DLQ_PREFIX
OFFSET_MOVED_TOPIC = system_topics.OFFSET_MOVED_TOPIC


class Topic(msgspec.Struct, frozen=True, kw_only=True):
    """One topic.

    Args:
        name: its name.
        read_queues: how many queues consumers see; of each of its stores.
        write_queues: how many queues producers see; of each of its stores.
        perm: the sum of `READ`, `WRITE` and `INHERIT`.
        order: it was declared to be ordered.
        filter_type: `SINGLE_TAG` or `MULTI_TAG`.
        sys_flag: the sum of `UNIT` and `UNIT_SUB`.
        partitions_min: so many its TubeMQ clients have, where an operator of RocketMQ has left its
            own clients fewer queues: TubeMQ's partitions never become fewer. Else 0.
        stores: TubeMQ's way to have more partitions than one file sequence can take. RocketMQ's
            clients see the queues of the first.
        status: 0 open, 1 closed for TubeMQ's clients, 2 and 3 being removed.
        message_bytes_max: the longest message that a TubeMQ client may send; None for the
            cluster's limit.
        tubemq: TubeMQ's master knows it, and its word counts.

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
        """A topic as TubeMQ's master describes it."""
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
        """The partitions of each of its stores, as TubeMQ counts them."""
        return max(self.read_queues, self.write_queues, self.partitions_min)

    @property
    def can_publish(self) -> bool:
        """Whether producers may use it."""
        return bool(self.perm & WRITE)

    @property
    def can_subscribe(self) -> bool:
        """Whether consumers may use it."""
        return bool(self.perm & READ)

    def has_partition(self, partition: int) -> bool:
        """Whether the id is one of this topic's."""
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
        """The topic as remarks of refusals name it (2.4.2).

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
    """The letters for a perm.

    >>> perm_text(6), perm_text(7), perm_text(0)
    ('RW-', 'RWX', '---')
    """
    return "".join(
        letter if perm & bit else "-" for letter, bit in (("R", READ), ("W", WRITE), ("X", INHERIT))
    )


class TopicTable:
    """The topics of a broker, by name.

    Who wants to know of changes says so with `watch`; every change is a new `version`.

    >>> table = TopicTable([Topic(name="flights", read_queues=8)])
    >>> TopicTable.load(table.dump())["flights"].read_queues
    8
    """

    def __init__(self, topics: Iterable[Topic] = ()) -> None:
        self._topics = {topic.name: topic for topic in topics}
        self._own: set[str] = set()
        self._entries: dict[str, tuple[Topic, bytes]] = {}
        self._watchers: list[Callable[[], None]] = []
        self.version: DataVersion = DataVersion()

    def get(self, name: str) -> Topic | None:
        """The topic, or None."""
        return self._topics.get(name)

    def __getitem__(self, name: str) -> Topic:
        return self._topics[name]

    def __contains__(self, name: str) -> bool:
        return name in self._topics

    def __iter__(self) -> Iterator[Topic]:
        return iter(list(self._topics.values()))

    def __len__(self) -> int:
        return len(self._topics)

    def watch(self, changed: Callable[[], None]) -> None:
        """Have `changed` called after every change."""
        self._watchers.append(changed)

    def provide(self, topics: Iterable[Topic], names: Iterable[str] = ()) -> None:
        """Have the topics that a RocketMQ broker always has; those of the file are as they were.

        Java's brokers do the same in memory: neither the version nor the file changes.

        Args:
            topics: what `TopicDefaults` says.
            names: further ones that are no user's.
        """
        for topic in topics:
            self._own.add(topic.name)
            self._topics.setdefault(topic.name, topic)
        self._own.update(names)

    def system_names(self) -> frozenset[str]:
        """The names that this broker keeps for itself, those of `provide` among them."""
        return frozenset(system_topics.SYSTEM_TOPICS) | self._own

    def is_own(self, name: str) -> bool:
        """Whether the topic is no user's: TubeMQ's clients do not see it."""
        return (
            name in self._own
            or system_topics.is_system_topic(name)
            or name.startswith((RETRY_PREFIX, DLQ_PREFIX))
        )

    # -- RocketMQ's ways to change it

    def put(self, topic: Topic, now_ms: int) -> None:
        """Make a topic or change it. What only TubeMQ knows of it stays.

        Also a topic that was exactly so is a change, as in Java.
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
        """Have everybody look at the topics again, though none has changed (2.12, code 25)."""
        self._changed(now_ms)

    def remove(self, name: str, now_ms: int) -> bool:
        """Forget a topic. Returns whether there was one."""
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
        """The topic that somebody sends to, made after the model of another where it is missing.

        Args:
            name: the topic.
            model: the topic that the request names as the default one.
            queues: how many queues the producer would like; the model's number is the most.
            sys_flag: the new topic's.
            now_ms: the time.
            auto_create: whether `TBW102` is a model.

        Returns:
            The topic; None when it cannot be made.
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

    def create_for_return(
        self, name: str, queues: int, now_ms: int, *, perm: int = READ | WRITE, sys_flag: int = 0
    ) -> Topic:
        """The topic for what comes back from consumers, made where it is missing.

        One that is there stays as it is, whatever is asked for.
        """
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
        """These topics are ordered and no other is. Returns whether anything is different now."""
        wrong = [topic for topic in self if topic.order != (topic.name in names)]
        for topic in wrong:
            self._topics[topic.name] = msgspec.structs.replace(topic, order=not topic.order)
        if wrong:
            self._changed(now_ms)
        return bool(wrong)

    def follow(self, master: TopicTable) -> bool:
        """Have what a RocketMQ master has, and its version. Returns whether that is another now.

        Topics that every broker has and the master does not stay.
        """
        if master.version == self.version:
            return False
        own = {name: topic for name, topic in self._topics.items() if name in self._own}
        self._topics = own | master._topics
        self.version = master.version
        for changed in self._watchers:
            changed()
        return True

    # -- TubeMQ's

    def replace(self, topics: Iterable[Topic], now_ms: int = 0) -> bool:
        """Take what TubeMQ's master says of its topics. Returns whether anything is different now.

        A topic that the master does not name any more is forgotten; those that it never named stay
        as they are. Of a topic that RocketMQ made too, what TubeMQ cannot say stays.
        """
        told = {topic.name: self._merged(topic) for topic in topics}
        new = {topic.name: topic for topic in self._topics.values() if not topic.tubemq} | told
        if new == self._topics:
            return False
        self._topics = new
        self._changed(now_ms)
        return True

    def _merged(self, told: Topic) -> Topic:
        told = msgspec.structs.replace(told, tubemq=True)
        old = self._topics.get(told.name)
        if old is None:
            return told
        same = old.partitions == told.partitions
        merged = msgspec.structs.replace(
            told,
            read_queues=old.read_queues if same else told.read_queues,
            write_queues=old.write_queues if same else told.write_queues,
            partitions_min=old.partitions_min if same else 0,
            perm=told.perm | old.perm & INHERIT,
            order=old.order,
            filter_type=old.filter_type,
            sys_flag=old.sys_flag,
        )
        return old if merged == old else merged

    # -- the file

    def dump(self) -> bytes:
        """The file's content.

        It is written with every change, so what was written of a topic before is not made again.
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
        """Read the file.

        Args:
            data: its content.
            loads: reads JSON; what Java's writers make of it needs a reader that knows them.

        Raises:
            DamagedStoreError: it is not such a file.
        """
        try:
            read = msgspec.convert(loads(data), TopicsFile, strict=False)
        except (msgspec.MsgspecError, ProtocolError, ValueError) as error:
            raise DamagedStoreError(f"topics.json cannot be read: {error}") from error
        table = cls(
            msgspec.convert(entry.given() | {"name": name}, Topic)
            for name, entry in (read.topics or {}).items()
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


class TubeTopics:
    """The topics as TubeMQ's clients see them: those of users.

    >>> table = TopicTable([Topic(name="flights"), Topic(name="%RETRY%g")])
    >>> [topic.name for topic in TubeTopics(table)]
    ['flights']
    """

    def __init__(self, table: TopicTable) -> None:
        self._table = table

    def get(self, name: str) -> Topic | None:
        """The topic, or None."""
        return None if self._table.is_own(name) else self._table.get(name)

    def __getitem__(self, name: str) -> Topic:
        found = self.get(name)
        if found is None:
            raise KeyError(name)
        return found

    def __iter__(self) -> Iterator[Topic]:
        return (topic for topic in self._table if not self._table.is_own(topic.name))

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def replace(self, topics: Iterable[Topic], now_ms: int = 0) -> bool:
        """Take what the master says. Returns whether anything is different now."""
        return self._table.replace(topics, now_ms)
