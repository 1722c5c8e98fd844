"""The records that administration of a RocketMQ cluster returns."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from coherer._client.engine.lag import no_lag
from coherer._wire.rocketmq.names import Queue


class TopicState(msgspec.Struct, frozen=True):
    """A topic.

    Args:
        name: its name.
        partitions: the number of readable queues on all brokers.
        brokers: names of its brokers, to their number of readable queues.
        writable: whether any broker accepts messages.
        readable: whether it can be read from any broker.
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
        version: the name of the release; "" if it did not answer.
        put_per_s: stored messages per second, over the last ten seconds.
        get_per_s: delivered messages per second.
        runtime: its runtime information, by Java's names.
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
        address: its address as seen by the broker.
        language: the language of the client.
        version: the number of its release.
        heartbeat_ms: how long ago its last heartbeat came, in ms; None if the broker does not
            report it, as Java's do not.
    """

    id: str
    address: str | None = None
    language: str | None = None
    version: int = 0
    heartbeat_ms: int | None = None


class PartitionState(msgspec.Struct, frozen=True):
    """A queue, and the position of a group in it if it belongs to a group's state.

    Args:
        topic: its topic.
        broker: its broker's name.
        partition: its number.
        min_offset: the oldest offset; None if unknown.
        max_offset: the offset of the next message.
        committed: the group's offset.
        lag: how many messages the group is behind.
        last_ms: when the newest message was stored, or with a group the last message that it has
            consumed; 0 for none.
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
        """The queue, for a reader."""
        return Queue(self.topic, self.broker, self.partition)

    @property
    def key(self) -> str:
        """The text form of the command line: `broker:topic:partition`."""
        return f"{self.broker}:{self.topic}:{self.partition}"


class GroupState(msgspec.Struct, frozen=True):
    """A consumer group.

    Args:
        name: its name.
        topics: the topics that it has offsets in, or consumes now.
        members: the connected members.
        partitions: its position in each queue.
        model: `CLUSTERING` or `BROADCASTING`, as its members report it; None without members.
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
        """How many messages it is behind in all queues; None if unknown (see `no_lag`).

        >>> GroupState("g", ("t",), (), (PartitionState("t", "a", 0, lag=3),)).lag
        3
        """
        if self.no_lag is not None:
            return None
        return sum(partition.lag or 0 for partition in self.partitions)

    @property
    def no_lag(self) -> str | None:
        """Why the lag is unknown; None if it is known.

        >>> GroupState("g", ("t",), (), ()).no_lag
        'it has not committed an offset yet'
        """
        return no_lag(self.silent, self.partitions)
