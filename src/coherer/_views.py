"""Messages and states of a cluster as the clients of both protocols return them, as types.

The structs of each protocol have these attributes, and more.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Protocol


class TopicState(Protocol):
    """A topic of the cluster."""

    @property
    def name(self) -> str:
        """The name of the topic."""
        ...

    @property
    def writable(self) -> bool:
        """Whether producers can send to it."""
        ...

    @property
    def readable(self) -> bool:
        """Whether consumers can read it."""
        ...


class PartitionState(Protocol):
    """A partition or queue, and the position of a group in it."""

    @property
    def topic(self) -> str:
        """The topic."""
        ...

    @property
    def partition(self) -> int:
        """The number of the partition or queue."""
        ...

    @property
    def key(self) -> str:
        """`broker:topic:partition`."""
        ...

    @property
    def min_offset(self) -> int | None:
        """The offset of the oldest message; None if it is unknown."""
        ...

    @property
    def max_offset(self) -> int | None:
        """The offset of the next message; None if it is unknown."""
        ...

    @property
    def committed(self) -> int | None:
        """The group's committed offset; None if it has not committed, or it is unknown."""
        ...

    @property
    def lag(self) -> int | None:
        """How many messages the group is behind; None if it is unknown."""
        ...


class GroupState(Protocol):
    """A consumer group."""

    @property
    def name(self) -> str:
        """The name of the group."""
        ...

    @property
    def topics(self) -> Sequence[str]:
        """The topics that it consumes or has offsets of."""
        ...

    @property
    def partitions(self) -> Sequence[PartitionState]:
        """Its position in every partition of its topics."""
        ...

    @property
    def lag(self) -> int | None:
        """How many messages it is behind; None if that is unknown (`no_lag` says why)."""
        ...

    @property
    def no_lag(self) -> str | None:
        """Why the lag is unknown; None if it is known."""
        ...


class AnyMessage(Protocol):
    """A received message of either protocol; see `coherer.message` for what the fields mean."""

    @property
    def topic(self) -> str:
        """The topic."""
        ...

    @property
    def body(self) -> bytes:
        """The payload."""
        ...

    @property
    def tag(self) -> str | None:
        """The tag that consumers filter by."""
        ...

    @property
    def time(self) -> datetime | None:
        """The time that its sender gave; naive with TubeMQ."""
        ...

    @property
    def keys(self) -> tuple[str, ...]:
        """The keys to look it up by (RocketMQ)."""
        ...

    @property
    def properties(self) -> Mapping[str, str]:
        """Further names and values."""
        ...

    @property
    def id(self) -> str:
        """The broker's id for the message."""
        ...

    @property
    def broker(self) -> str:
        """The broker's id (TubeMQ) or name (RocketMQ)."""
        ...

    @property
    def partition(self) -> int:
        """The number of the partition or queue."""
        ...

    @property
    def offset(self) -> int | None:
        """The offset in the partition; None where the protocol does not have it."""
        ...
