"""The answers of TubeMQ's administration.

These are the records in TubeMQ's HTTP answers, with the fields that are used here, and
`ClusterOffsets`, which merges the answers of all brokers. A negative number in an answer means "not
set", which is None in the public records (`coherer.admin`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Final

import msgspec

from coherer._client.tubemq.administration.webapi import Answer
from coherer.admin import Broker, Group, Member, Partition, Topic, TopicSettings
from coherer.errors import UsageError

_STORE_STRIDE = 10_000

Key = tuple[int, str, int]
"""Broker id, topic, partition number."""


ROCKETMQ_OWN: Final = "%"
"""Begins the names of RocketMQ's own topics, such as %RETRY%group. A node keeps the offsets of both
protocols, but TubeMQ cannot read these topics, so that nothing else is known about them."""


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

    @property
    def keys(self) -> list[Key]:
        """All partitions, in order."""
        return [
            (one.broker_id, self.topic_name, store * _STORE_STRIDE + number)
            for one in sorted(self.topic_info, key=lambda one: one.broker_id)
            if one.topic_status_id == 0
            for store in range(one.num_topic_stores)
            for number in range(one.num_partitions)
        ]

    def topic(self) -> Topic:
        """The public record."""
        counts = Counter(str(broker) for broker, _, _ in self.keys)
        return Topic(
            self.topic_name,
            counts.total(),
            dict(counts),
            self.is_srv_accept_publish,
            self.is_srv_accept_subscribe,
        )

    def settings(self) -> dict[str, TopicSettings]:
        """The public records of its settings, by broker."""
        return {
            str(one.broker_id): TopicSettings(
                one.num_partitions,
                writable=self.is_srv_accept_publish,
                readable=self.is_srv_accept_subscribe,
                stores=one.num_topic_stores,
            )
            for one in sorted(self.topic_info, key=lambda one: one.broker_id)
            if one.topic_status_id == 0
        }


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

    @property
    def address(self) -> str:
        """`host:port` for clients."""
        return f"{self.broker_ip}:{self.broker_port}"

    @property
    def web_port(self) -> int:
        """The port of its HTTP administration; 0 if it has none."""
        return max(self.broker_web_port, 0)

    def broker(self, run: BrokerRun | None) -> Broker:
        """The public record.

        Args:
            run: its state at the master; None if the master does not report it.
        """
        status = run or BrokerRun(self.broker_id)
        running = status.run_status == "running"
        return Broker(
            name=str(self.broker_id),
            id=self.broker_id,
            address=self.address,
            role="broker",
            status=None if run is None else "running" if running else "stopped",
            writable=running and status.accept_publish in {True, "true"},
            readable=running and status.accept_subscribe in {True, "true"},
            managed=self.manage_status or None,
            web_port=self.web_port or None,
            version=status.broker_version.strip("-") or None,
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
    """The offsets of a group in a topic; Java's brokers do not report unread messages."""

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
        self._begun: dict[str, set[str]] = {}  # topics in which a group has an offset
        self._owners: dict[tuple[str, Key], str] = {}

    @property
    def groups(self) -> Iterable[str]:
        """The groups that have offsets."""
        return self._committed.keys()

    @property
    def topics(self) -> set[str]:
        """The topics that a group has offsets in."""
        return set[str]().union(*self._begun.values())

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
            begun = self._begun.setdefault(group.group_name, set())
            for entry in group.sub_info:
                if entry.topic_name.startswith(ROCKETMQ_OWN):
                    continue
                for one in entry.offsets:
                    if one.cur_offset >= 0:
                        begun.add(entry.topic_name)
                        committed[broker, entry.topic_name, one.partition_id] = one.cur_offset
        for owner in answers.owners:
            group_name, topic_name, partition = owner.partition.rsplit(":", 2)
            self._owners[group_name, (broker, topic_name, int(partition))] = owner.consumer

    def partition(self, key: Key, group: str | None = None) -> Partition:
        """A partition, with the position of a group in it."""
        broker, topic, number = key
        ends = self._ends.get(key, PartitionOffsetRange(number))
        high = ends.offset_max if ends.offset_max >= 0 else None
        committed, owner, lag = None, None, None
        if group is not None:
            committed = self._committed.get(group, {}).get(key)
            owner = self._owners.get((group, key))
        low = ends.offset_min if ends.offset_min >= 0 else None
        done = committed
        if committed is None and group is not None and topic in self._begun.get(group, ()):
            done = low
        if done is not None and high is not None:
            lag = -(-max(high - done, 0) // self._steps[broker])
        return Partition(
            topic,
            str(broker),
            number,
            low,
            high,
            committed,
            lag,
            owner=owner,
            offset_step=self._steps.get(broker),
        )

    def group(
        self,
        name: str,
        online: Subscription | None,
        members: tuple[Member, ...],
        topics: Mapping[str, TopicRecord],
    ) -> Group:
        """A group; `topics` are those of the cluster, by name."""
        subscribed = set(online.topic_set) if online is not None else set[str]()
        names = subscribed | self._begun.get(name, set())
        keys = {key for topic in names if topic in topics for key in topics[topic].keys}
        keys |= self._committed.get(name, {}).keys()
        ordered = sorted(keys, key=lambda key: (key[1], key[0], key[2]))
        partitions = tuple(self.partition(key, name) for key in ordered)
        silent = {
            key[0]
            for key, partition in zip(ordered, partitions, strict=True)
            if partition.lag is None and key[0] in self.silent
        }
        return Group(
            name=name,
            topics=tuple(sorted(names)),
            members=members,
            partitions=partitions,
            silent=tuple(map(str, sorted(silent))),
        )
