"""A received message as the clients of both protocols return it, as a type."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Protocol


class AnyMessage(Protocol):
    """A received message of either protocol; see `coherer.message` for the fields."""

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
