"""The records of TubeMQ's administration.

The first half is public: the states of topics, brokers and groups. The second half is the records
in TubeMQ's HTTP answers, with the fields that are used here, and `ClusterOffsets`, which merges the
answers of all brokers. A negative number in an answer means "not set", which is None here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

import msgspec

from coherer._client.engine.lag import no_lag
from coherer._client.tubemq.webapi import Answer
from coherer.errors import UsageError

_STORE_STRIDE = 10_000

Key = tuple[int, str, int]
"""Broker id, topic, partition number."""


class TopicState(msgspec.Struct, frozen=True):
    """A topic of the cluster.

    Args:
        name: its name.
        partitions: broker id to the partition ids on that broker.
        writable: whether producers can send to it.
        readable: whether consumers can read it.
    """

    name: str
    partitions: Mapping[int, tuple[int, ...]]
    writable: bool
    readable: bool

    @property
    def count(self) -> int:
        """The number of partitions on all brokers."""
        return sum(map(len, self.partitions.values()))

    @property
    def keys(self) -> list[Key]:
        """All partitions as (broker, topic, partition)."""
        return [(b, self.name, p) for b in sorted(self.partitions) for p in self.partitions[b]]


class BrokerState(msgspec.Struct, frozen=True):
    """A broker that the master knows.

    Args:
        id: its id.
        host: its address.
        port: the port for clients.
        web_port: the port of its HTTP administration; 0 if it has none.
        managed: the status that administrators set: draft, online, only-read, only-write, offline.
        running: whether it is registered with the master now; None if the master does not report
            it.
        writable: whether it accepts messages.
        readable: whether it can be read.
        version: the version of its software, as it reports it.
    """

    id: int
    host: str
    port: int
    web_port: int
    managed: str
    running: bool | None = None
    writable: bool = False
    readable: bool = False
    version: str = ""


class MemberState(msgspec.Struct, frozen=True):
    """A member of a group.

    Args:
        id: its consumer id.
        address: its address as seen by the master.
    """

    id: str
    address: str | None = None


ROCKETMQ_OWN: Final = "%"
"""Begins the names of RocketMQ's own topics, such as %RETRY%group. A node keeps the offsets of both
protocols, but TubeMQ cannot read these topics, so that nothing else is known about them."""


class PartitionState(msgspec.Struct, frozen=True):
    """A partition, and the position of a group in it if it belongs to a group's state.

    All values are None if the broker did not report them.

    Args:
        topic: its topic.
        broker: the id of its broker.
        partition: its number.
        min_offset: the offset of the oldest message.
        max_offset: the offset of the next message.
        committed: the group's offset; None also if it has none.
        lag: how many messages the group is behind, see `_client.engine.lag`. Java's brokers count
            the messages of all partitions that share a store, so there it may be too high.
        owner: the consumer that reads it now; None if no consumer reads it, or if it is unknown.
        offset_step: how far an offset moves with one message: 28 for Java's brokers, whose offsets
            are positions in the index that all partitions of a store share. None if it is unknown.
    """

    topic: str
    broker: int
    partition: int
    min_offset: int | None = None
    max_offset: int | None = None
    committed: int | None = None
    lag: int | None = None
    owner: str | None = None
    offset_step: int | None = None

    @property
    def key(self) -> str:
        """TubeMQ's text form: `broker:topic:partition`."""
        return f"{self.broker}:{self.topic}:{self.partition}"


class GroupState(msgspec.Struct, frozen=True):
    """A consumer group.

    Args:
        name: its name.
        topics: the topics that its members consume now, or that it has offsets in.
        members: the connected members.
        partitions: its position in every partition of its topics.
        silent: ids of brokers that did not answer; the values of their partitions are None.
    """

    name: str
    topics: tuple[str, ...]
    members: tuple[MemberState, ...]
    partitions: tuple[PartitionState, ...]
    silent: tuple[int, ...] = ()

    @property
    def lag(self) -> int | None:
        """How many messages it is behind in all partitions; None if unknown (see `no_lag`).

        >>> known, unknown = PartitionState("t", 1, 0, lag=3), PartitionState("t", 1, 1)
        >>> GroupState("g", ("t",), (), (known,)).lag
        3
        >>> print(GroupState("g", ("t",), (), (known, unknown)).lag)
        None
        """
        if self.no_lag is not None:
            return None
        return sum(partition.lag or 0 for partition in self.partitions)

    @property
    def no_lag(self) -> str | None:
        """Why the lag is unknown; None if it is known."""
        away = {p.broker for p in self.partitions if p.lag is None and p.broker in self.silent}
        return no_lag(away, self.partitions)


def broker_of(key: str) -> int:
    """The broker id in a partition key.

    >>> broker_of("3:flights:0")
    3

    Raises:
        UsageError: it is not a partition key.
    """
    broker, _, rest = key.partition(":")
    _, _, partition = rest.rpartition(":")
    if not (broker.isdecimal() and partition.isdecimal()):
        raise UsageError(
            f"{key!r} is not a valid partition key.", hint="Use a key like 1:flights:0."
        )
    return int(broker)


# -- the records of the HTTP answers


class Deployment(msgspec.Struct, rename="camel"):
    """A topic on a broker; with a status other than 0 it is being deleted."""

    broker_id: int
    num_topic_stores: int = 1
    num_partitions: int = 1
    topic_status_id: int = 0


class TopicRecord(msgspec.Struct, rename="camel"):
    """A record of admin_query_topic_info."""

    topic_name: str
    topic_info: list[Deployment] = []
    is_srv_accept_publish: bool = False
    is_srv_accept_subscribe: bool = False

    def brokers(self, *statuses: int) -> list[int]:
        """The brokers that have it with one of these statuses."""
        return [d.broker_id for d in self.topic_info if d.topic_status_id in statuses]

    def state(self) -> TopicState:
        """The public record."""
        partitions = {
            d.broker_id: tuple(
                store * _STORE_STRIDE + number
                for store in range(d.num_topic_stores)
                for number in range(d.num_partitions)
            )
            for d in self.topic_info
            if d.topic_status_id == 0
        }
        return TopicState(
            self.topic_name, partitions, self.is_srv_accept_publish, self.is_srv_accept_subscribe
        )


class BrokerRun(msgspec.Struct, rename="camel"):
    """A record of admin_query_broker_run_status."""

    broker_id: int
    run_status: str = "-"
    accept_publish: bool | str = False
    accept_subscribe: bool | str = False
    broker_version: str = ""


class BrokerRecord(msgspec.Struct, rename="camel"):
    """A record of admin_query_broker_configure."""

    broker_id: int
    broker_ip: str
    broker_port: int
    broker_tls_port: int = 0
    broker_web_port: int = 0
    manage_status: str = ""

    def state(self, run: BrokerRun | None) -> BrokerState:
        """The public record."""
        status = run or BrokerRun(self.broker_id)
        running = status.run_status == "running"
        return BrokerState(
            id=self.broker_id,
            host=self.broker_ip,
            port=self.broker_port,
            web_port=max(self.broker_web_port, 0),
            managed=self.manage_status,
            running=None if run is None else running,
            writable=running and status.accept_publish in {True, "true"},
            readable=running and status.accept_subscribe in {True, "true"},
            version=status.broker_version.strip("-"),
        )


class ItemResult(msgspec.Struct, rename="camel"):
    """The result of one item of a change."""

    success: bool = True
    err_code: int = 200
    err_info: str = ""


class Subscription(msgspec.Struct, rename="camel"):
    """A record of admin_query_sub_info."""

    consume_group: str
    topic_set: list[str] = []


class Consumer(msgspec.Struct, rename="camel"):
    """A record of admin_query_consume_group_detail."""

    consumer_id: str
    received_from: str = ""


class PartitionOffsetRange(msgspec.Struct, rename="camel"):
    """The oldest offset and the end of a partition at a broker."""

    partition_id: int
    offset_min: int = -1
    offset_max: int = -1
    offset_at_time: int | None = None


class TopicOffsetRanges(msgspec.Struct, rename="camel"):
    """A record of admin_query_pubinfo: the offsets of a topic at a broker."""

    topic_name: str
    offset_info: list[PartitionOffsetRange] = []


class CommittedPartition(msgspec.Struct, rename="camel"):
    """The offset of a group in a partition."""

    partition_id: int
    cur_offset: int = -1


class UnreadPartition(msgspec.Struct, rename="camel"):
    """The age of the oldest unread message of a partition."""

    partition_id: int
    age_ms: int


class CommittedTopic(msgspec.Struct, rename="camel"):
    """The offsets of a group in a topic; Java's brokers do not report what is unread."""

    topic_name: str
    offsets: list[CommittedPartition] = []
    unread: list[UnreadPartition] = []


class GroupOffsets(msgspec.Struct, rename="camel"):
    """A record of admin_query_offset."""

    group_name: str
    sub_info: list[CommittedTopic] = []


class Owner(msgspec.Struct, rename="pascal"):
    """A record of admin_query_consumer_regmap: `group:topic:partition`, and its reader."""

    partition: str
    consumer: str


class DeployedTopics(msgspec.Struct, rename="camel"):
    """A record of admin_query_deployed_topics: the topics of a broker."""

    topic_name: list[str] = []


class GroupList(msgspec.Struct, rename="camel"):
    """A record of admin_query_group: groups that a broker knows."""

    group_name: list[str] = []


class BrokerAnswers(msgspec.Struct):
    """The answers of one broker."""

    ranges: Answer[TopicOffsetRanges]
    offsets: list[GroupOffsets]
    owners: list[Owner]


class ClusterOffsets:
    """The offsets of partitions and groups, merged from the answers of all brokers."""

    def __init__(self) -> None:
        self.silent: list[int] = []
        self._ends: dict[Key, PartitionOffsetRange] = {}
        self._steps: dict[int, int] = {}
        self._committed: dict[str, dict[Key, int]] = {}
        self._owners: dict[tuple[str, Key], str] = {}

    @property
    def groups(self) -> Iterable[str]:
        """The groups that have offsets."""
        return self._committed.keys()

    @property
    def topics(self) -> set[str]:
        """The topics that a group has offsets in."""
        return {topic for begun in self._committed.values() for _, topic, _ in begun}

    def add(self, broker: int, answers: BrokerAnswers | None) -> None:
        """Add the answers of a broker; None if it did not answer."""
        if answers is None:
            self.silent.append(broker)
            return
        self._steps[broker] = max(answers.ranges.offset_step, 1)
        for topic in answers.ranges.data_set:
            for offsets in topic.offset_info:
                self._ends[broker, topic.topic_name, offsets.partition_id] = offsets
        for group in answers.offsets:
            committed = self._committed.setdefault(group.group_name, {})
            for entry in group.sub_info:
                if entry.topic_name.startswith(ROCKETMQ_OWN):
                    continue
                for one in entry.offsets:
                    if one.cur_offset >= 0:
                        committed[broker, entry.topic_name, one.partition_id] = one.cur_offset
        for owner in answers.owners:
            group_name, topic_name, partition = owner.partition.rsplit(":", 2)
            self._owners[group_name, (broker, topic_name, int(partition))] = owner.consumer

    def partition(self, key: Key, group: str | None = None) -> PartitionState:
        """The state of a partition, with the position of a group in it."""
        broker, topic, number = key
        ends = self._ends.get(key, PartitionOffsetRange(number))
        high = ends.offset_max if ends.offset_max >= 0 else None
        committed, owner, lag = None, None, None
        if group is not None:
            committed = self._committed.get(group, {}).get(key)
            owner = self._owners.get((group, key))
        low = ends.offset_min if ends.offset_min >= 0 else None
        done = committed
        if committed is None and group is not None and self._begun(group, topic):
            done = low
        if done is not None and high is not None:
            lag = -(-max(high - done, 0) // self._steps[broker])
        step = self._steps.get(broker)
        return PartitionState(topic, broker, number, low, high, committed, lag, owner, step)

    def _begun(self, group: str, topic: str) -> bool:
        """Whether a group has an offset in a topic."""
        return any(begun == topic for _, begun, _ in self._committed.get(group, {}))

    def group(
        self,
        name: str,
        online: Subscription | None,
        members: tuple[MemberState, ...],
        topics: Iterable[TopicState],
    ) -> GroupState:
        """The state of a group."""
        subscribed = set(online.topic_set) if online is not None else set[str]()
        begun = self._committed.get(name, {})
        names = subscribed | {topic for _, topic, _ in begun}
        keys = {key for topic in topics if topic.name in names for key in topic.keys} | begun.keys()
        ordered = sorted(keys, key=lambda key: (key[1], key[0], key[2]))
        return GroupState(
            name=name,
            topics=tuple(sorted(names)),
            members=members,
            partitions=tuple(self.partition(key, name) for key in ordered),
            silent=tuple(self.silent),
        )
