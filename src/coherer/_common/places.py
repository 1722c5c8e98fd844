"""Where a partition is: broker and number, as people and records name them over both protocols."""

from __future__ import annotations

from typing import Protocol, TypeAlias

Place: TypeAlias = tuple[str, int]
"""RocketMQ's broker name or TubeMQ's broker id, and the number of the queue or partition."""


class _Broker(Protocol):
    @property
    def id(self) -> int: ...


class AnyPartition(Protocol):
    """`coherer.rocketmq.Queue` or `coherer.tubemq.Partition`."""

    @property
    def broker(self) -> str | _Broker: ...

    @property
    def id(self) -> int: ...

    @property
    def key(self) -> str: ...


def place_of(partition: AnyPartition) -> Place:
    """Return the place of a partition."""
    broker = partition.broker
    return broker if isinstance(broker, str) else str(broker.id), partition.id
