"""What administration tells of a RocketMQ cluster."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from coherer._client.engine.lag import no_lag
from coherer._wire.rocketmq.names import Queue


class TopicState(msgspec.Struct, frozen=True):
    """A topic.

    Args:
        name: its name.
        partitions: how many queues can be read, on all brokers.
        brokers: names of the brokers that have it, to their queues that can be read.
        writable: whether a broker takes messages.
        readable: whether a broker gives messages.
    """

    name: str
    partitions: int
    brokers: Mapping[str, int] = {}
    writable: bool = True
    readable: bool = True


class BrokerState(msgspec.Struct, frozen=True):
    """A broker.

    Args:
        name: its name; a master and its slaves have the same.
        id: 0 is the master.
        address: `host:port`.
        cluster: its cluster.
        version: the release's name; "" when it did not answer.
        put_per_s: messages that come, over the last ten seconds.
        get_per_s: messages that go.
        runtime: all that it tells of itself, by Java's names.
    """

    name: str
    id: int
    address: str
    cluster: str = ""
    version: str = ""
    put_per_s: float = 0.0
    get_per_s: float = 0.0
    runtime: Mapping[str, str] = {}


class MemberState(msgspec.Struct, frozen=True):
    """A member of a group.

    Args:
        id: its client id.
        address: where its broker sees it.
        language: what it is written in.
        version: the number of its release.
    """

    id: str
    address: str | None = None
    language: str | None = None
    version: int = 0


class PartitionState(msgspec.Struct, frozen=True):
    """A queue, and where a group is in it when it is one of a group's.

    Args:
        topic: its topic.
        broker: its broker's name.
        partition: its number.
        min_offset: the oldest message; None where that is not told.
        max_offset: where the next message will be.
        committed: where the group goes on.
        lag: how many messages the group is behind.
        last_ms: when the newest message was stored, or with a group the last one that it has dealt
            with; 0 for none.
    """

    topic: str
    broker: str
    partition: int
    min_offset: int | None = None
    max_offset: int | None = None
    committed: int | None = None
    lag: int | None = None
    last_ms: int = 0

    @property
    def queue(self) -> Queue:
        """As readers want it."""
        return Queue(self.topic, self.broker, self.partition)

    @property
    def key(self) -> str:
        """As the command line writes it: `broker:topic:partition`."""
        return f"{self.broker}:{self.topic}:{self.partition}"


class GroupState(msgspec.Struct, frozen=True):
    """A group of consumers.

    Args:
        name: its name.
        topics: what it has offsets of, or consumes now.
        members: who is there now.
        partitions: where it is.
        model: `CLUSTERING` or `BROADCASTING`, as its members say; None without any.
        silent: brokers that did not answer.
    """

    name: str
    topics: tuple[str, ...]
    members: tuple[MemberState, ...]
    partitions: tuple[PartitionState, ...]
    model: str | None = None
    silent: tuple[str, ...] = ()

    @property
    def lag(self) -> int | None:
        """How many messages it is behind on all queues; None if that is not known (`no_lag`).

        >>> GroupState("g", ("t",), (), (PartitionState("t", "a", 0, lag=3),)).lag
        3
        """
        if self.no_lag is not None:
            return None
        return sum(partition.lag or 0 for partition in self.partitions)

    @property
    def no_lag(self) -> str | None:
        """Why the lag is not known; None when it is.

        >>> GroupState("g", ("t",), (), ()).no_lag
        'it has not confirmed anything yet'
        """
        return no_lag(self.silent, self.partitions)
