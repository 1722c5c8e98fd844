"""What an operator sees of a cluster: the same records over both protocols.

Administration returns them, `coherer.rocketmq`'s and `coherer.tubemq`'s; the command line and the
console show them.

```python
async with coherer.connect(url) as client:
    for group in await client.admin().groups.list():
        print(group.name, group.lag, [member.id for member in group.members])
```

A value that the cluster does not report is None, never zero. A field that only one protocol has
says so; over the other one it is None.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final, Literal

import msgspec

if TYPE_CHECKING:
    # Programs that speak TubeMQ alone do not load RocketMQ's names.
    from coherer._wire.rocketmq.names import Queue

__all__ = ["Account", "Broker", "Group", "Member", "Message", "Partition", "Topic", "TopicSettings"]


class _Record(msgspec.Struct, frozen=True):
    """A record that still knows the names that its fields had before 0.3."""

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> object:
            found = _RENAMED.get((type(self).__name__, name))
            if found is None:
                raise AttributeError(f"{type(self).__name__!r} has no attribute {name!r}")
            new, value = found
            warnings.warn(
                f"`{name}` is deprecated since 0.3; use `{new}`.", DeprecationWarning, stacklevel=2
            )
            return value(self)


class Broker(_Record, frozen=True):
    """A broker.

    Args:
        name: RocketMQ's name, which a master and its slaves share; TubeMQ's id.
        id: RocketMQ: 0 is the master; TubeMQ: its id.
        address: `host:port` for clients.
        role: `master` or `slave` over RocketMQ, `broker` over TubeMQ.
        status: `running`; `silent` if it does not answer; `stopped` if TubeMQ's master says so;
            None if it was not asked.
        writable: whether it accepts messages; TubeMQ only, RocketMQ has this for each topic.
        readable: whether it can be read; TubeMQ only.
        managed: the status that administrators set, `online` for example; TubeMQ only.
        web_port: the port of its HTTP administration; TubeMQ only.
        cluster: its cluster; RocketMQ only.
        version: the release of its software.
        in_per_s: messages stored per second, over the last ten seconds.
        out_per_s: messages delivered per second.
        disk_used: the used part of the disk, from 0 to 1.
        disk_bytes: the size of the disk.
        disk_free_bytes: the free space on the disk.
        started_ms: when it was started, ms since 1970.
        reported: RocketMQ: all values that the broker reports, by Java's names.
    """

    name: str
    id: int
    address: str
    role: Literal["master", "slave", "broker"]
    status: Literal["running", "silent", "stopped"] | None = None
    writable: bool | None = None
    readable: bool | None = None
    managed: str | None = None
    web_port: int | None = None
    cluster: str | None = None
    version: str | None = None
    in_per_s: float | None = None
    out_per_s: float | None = None
    disk_used: float | None = None
    disk_bytes: int | None = None
    disk_free_bytes: int | None = None
    started_ms: int | None = None
    reported: Mapping[str, str] = {}


class Topic(_Record, frozen=True):
    """A topic.

    Args:
        name: its name.
        partitions: the number of partitions on all brokers.
        brokers: the number of partitions by broker.
        writable: whether any broker accepts messages.
        readable: whether it can be read from any broker.
    """

    name: str
    partitions: int
    brokers: Mapping[str, int]
    writable: bool
    readable: bool


class Partition(_Record, frozen=True):
    """A partition of a topic; in a `Group` also the group's position in it.

    Args:
        topic: its topic.
        broker: the name of its broker, see `Broker`.
        partition: its number.
        min_offset: the offset of the oldest message.
        max_offset: the offset of the next message.
        committed: the group's offset; None also if it has none.
        lag: how many messages the group is behind. Java's TubeMQ brokers count the messages of all
            partitions that share a store, so there it may be too high.
        newest_ms: when the newest message was stored, ms since 1970; in a group, when the last
            message that the group has consumed was stored. RocketMQ only.
        owner: the member that reads it now; None if no member does. TubeMQ only: RocketMQ's
            members divide the queues among themselves.
        offset_step: how far an offset moves with one message: 1, or 28 for Java's TubeMQ brokers,
            whose offsets are positions in the index that all partitions of a store share.
    """

    topic: str
    broker: str
    partition: int
    min_offset: int | None = None
    max_offset: int | None = None
    committed: int | None = None
    lag: int | None = None
    newest_ms: int | None = None
    owner: str | None = None
    offset_step: int | None = None

    @property
    def key(self) -> str:
        """The text form: `broker:topic:partition`."""
        return f"{self.broker}:{self.topic}:{self.partition}"

    @property
    def messages(self) -> int | None:
        """The number of messages it holds.

        >>> Partition("t", "a", 0, 10, 15).messages, Partition("t", "a", 0).messages
        (5, None)
        """
        low, high, step = self.min_offset, self.max_offset, self.offset_step or 1
        return None if low is None or high is None else max(high - max(low, 0), 0) // step

    @property
    def queue(self) -> Queue:
        """RocketMQ: the queue, for a reader."""
        from coherer._wire.rocketmq.names import Queue

        return Queue(self.topic, self.broker, self.partition)


class TopicSettings(_Record, frozen=True):
    """The settings of a topic on a broker.

    Args:
        partitions: the number of partitions to read; RocketMQ's `readQueueNums`.
        writable: whether the broker accepts messages for it.
        readable: whether it can be read.
        stores: the number of stores of a TubeMQ broker that hold `partitions` each.
        write_partitions: RocketMQ: the number of queues that accept messages.
        flags: RocketMQ: `topicSysFlag`.
        ordered: RocketMQ: `order`; None if a name server was asked, which does not know it.
        filter: RocketMQ: `topicFilterType`; None likewise.
    """

    partitions: int
    writable: bool
    readable: bool
    stores: int | None = None
    write_partitions: int | None = None
    flags: int | None = None
    ordered: bool | None = None
    filter: str | None = None


class Account(_Record, frozen=True):
    """An account; its secret is never read.

    Args:
        name: its name; RocketMQ's access key.
        admin: whether it may change the cluster.
        addresses: addresses that need no signature; "" for none.
        topics: permissions by topic, `*` for the others.
        groups: permissions by group, `*` for the others.
    """

    name: str
    admin: bool
    addresses: str
    topics: Mapping[str, str]
    groups: Mapping[str, str]


class Message(_Record, frozen=True):
    """A message in a partition. Fields that the protocol does not carry are None.

    Args:
        topic: the topic that it is stored in, without a namespace.
        broker: the name of its RocketMQ broker or the id of its TubeMQ broker; "" if it is unknown.
        partition: its partition or queue.
        offset: its offset there; None from Java's TubeMQ brokers.
        id: the id that the broker gave it.
        unique_id: RocketMQ: the id that its sender generated; "" without one.
        tag: the tag.
        keys: RocketMQ's keys.
        time: the message time, which the sender set.
        born_ms: RocketMQ: when it was sent, ms since 1970.
        stored_ms: RocketMQ: when it was stored.
        attempt: RocketMQ: the number of earlier deliveries.
        flag: RocketMQ: the application's flag.
        body: the payload.
        properties: the application's properties.
        stored_properties: RocketMQ: all properties, as they are stored.
    """

    topic: str
    broker: str
    partition: int
    offset: int | None
    id: str
    unique_id: str
    tag: str | None
    keys: tuple[str, ...]
    time: datetime | None
    born_ms: int | None
    stored_ms: int | None
    attempt: int | None
    flag: int | None
    body: bytes
    properties: Mapping[str, str]
    stored_properties: Mapping[str, str] | None


class Member(_Record, frozen=True):
    """A connected client.

    Args:
        id: its client id, or TubeMQ's consumer id.
        group: its group.
        role: what it does.
        address: its address as seen by a server.
        language: the language of its library; RocketMQ only.
        version: the version of its library; RocketMQ only.
        heartbeat_ms: how long ago its last heartbeat came, in ms; RocketMQ only, and Java's brokers
            do not report it.
    """

    id: str
    group: str = ""
    role: Literal["consumer", "producer"] = "consumer"
    address: str | None = None
    language: str | None = None
    version: str | None = None
    heartbeat_ms: int | None = None


class Group(_Record, frozen=True):
    """A consumer group.

    Args:
        name: its name.
        topics: the topics that its members consume now, or that it has offsets in.
        members: the connected members.
        partitions: its position in every partition of its topics.
        silent: brokers that did not answer, or have no master or no administration; what their
            partitions hold is unknown.
        model: `CLUSTERING` or `BROADCASTING`, if it has members; RocketMQ only.
        subscriptions: the filter by topic, if it has members; RocketMQ only. `*` accepts all
            messages, `x || y` those with one of these tags, and `SQL92 a > 1` is an expression.
    """

    name: str
    topics: tuple[str, ...] = ()
    members: tuple[Member, ...] = ()
    partitions: tuple[Partition, ...] = ()
    silent: tuple[str, ...] = ()
    model: str | None = None
    subscriptions: Mapping[str, str] | None = None

    @property
    def lag(self) -> int | None:
        """How many messages it is behind in all partitions; None if unknown (see `no_lag`).

        The lag is the number of messages that the brokers have and the group has not acknowledged.
        If the group has offsets in only some partitions of a topic, all messages of the other
        partitions count, as in RocketMQ's tools.

        >>> known, unknown = Partition("t", "1", 0, lag=3), Partition("t", "1", 1)
        >>> Group("g", ("t",), partitions=(known,)).lag
        3
        >>> print(Group("g", ("t",), partitions=(known, unknown)).lag)
        None
        """
        if self.no_lag is not None:
            return None
        return sum(partition.lag or 0 for partition in self.partitions)

    @property
    def no_lag(self) -> str | None:
        """Why the lag is unknown; None if it is known.

        >>> Group("g").no_lag
        'it has not committed an offset yet'
        >>> Group("g", silent=("a", "b")).no_lag
        'brokers a, b did not answer'
        """
        if self.silent:
            names = ", ".join(sorted(self.silent))
            return f"broker{'s' * (len(self.silent) > 1)} {names} did not answer"
        # A group without offsets has no known lag: it depends on where its consumers will begin.
        if not self.partitions or any(one.lag is None for one in self.partitions):
            return "it has not committed an offset yet"
        return None


_RENAMED: Final[Mapping[tuple[str, str], tuple[str, Callable[[Any], object]]]] = {
    ("Broker", "host"): ("address", lambda one: one.address.rpartition(":")[0]),
    ("Broker", "port"): ("address", lambda one: int(one.address.rpartition(":")[2])),
    ("Broker", "running"): ("status", lambda one: one.status and one.status == "running"),
    ("Broker", "put_per_s"): ("in_per_s", lambda one: one.in_per_s or 0.0),
    ("Broker", "get_per_s"): ("out_per_s", lambda one: one.out_per_s or 0.0),
    ("Broker", "runtime"): ("reported", lambda one: one.reported),
    ("Topic", "count"): ("partitions", lambda one: one.partitions),
    ("Partition", "last_ms"): ("newest_ms", lambda one: one.newest_ms or 0),
}
"""Old names of fields: by record and name, the new name and the old value."""
