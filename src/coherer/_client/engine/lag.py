"""The lag of a group, by the same rule for both protocols.

The lag is the number of messages that the brokers have and the group has not acknowledged. If the
group has offsets in only some partitions of a topic, all messages of the other partitions count, as
in RocketMQ's tools. A group without offsets has no known lag: it depends on where its consumers
will begin.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Protocol


class HasLag(Protocol):
    """The state of a group in a partition."""

    @property
    def lag(self) -> int | None:
        """The lag in messages; None if it is unknown."""
        ...


def no_lag(silent: Collection[object], partitions: Iterable[HasLag]) -> str | None:
    """Why the lag of a group is unknown; None if it is known.

    Args:
        silent: brokers that did not answer.
        partitions: the partitions that the group reads.

    >>> no_lag([2], []), no_lag([], [])
    ('broker 2 did not answer', 'it has not committed an offset yet')
    """
    if silent:
        names = ", ".join(sorted(map(str, silent)))
        return f"broker{'s' * (len(silent) > 1)} {names} did not answer"
    lags = [partition.lag for partition in partitions]
    if not lags or None in lags:
        return "it has not committed an offset yet"
    return None
