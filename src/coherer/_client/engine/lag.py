"""The lag of a group, by the same rule for both protocols.

The lag counts the messages that the brokers keep and the group has not acknowledged. If the group
has offsets in some partitions of a topic only, all messages of the others count, as in RocketMQ's
tools. If it has no offsets, the lag depends on where its consumers will begin: it is unknown.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Protocol


class Lagging(Protocol):
    """A partition, and a group's lag in it."""

    @property
    def lag(self) -> int | None:
        """In messages; None if it is unknown."""
        ...


def no_lag(silent: Collection[object], partitions: Iterable[Lagging]) -> str | None:
    """Why the lag of a group is unknown; None if it is known.

    Args:
        silent: brokers that did not answer.
        partitions: those that the group reads.

    >>> no_lag([2], []), no_lag([], [])
    ('broker 2 did not answer', 'it has not confirmed anything yet')
    """
    if silent:
        names = ", ".join(sorted(map(str, silent)))
        return f"broker{'s' * (len(silent) > 1)} {names} did not answer"
    lags = [partition.lag for partition in partitions]
    if not lags or None in lags:
        return "it has not confirmed anything yet"
    return None
