"""How far a group is behind, by the same rule for both protocols.

A group is behind by the messages that are kept and that it has not confirmed. Where it has begun a
topic but not each of its partitions, all that is kept of the others counts, as in RocketMQ's tools.
Where it has not confirmed anything, the lag depends on where its consumers will begin: unknown.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Protocol


class Lagging(Protocol):
    """A partition, and how far a group is behind in it."""

    @property
    def lag(self) -> int | None:
        """In messages; None where it is not known."""
        ...


def no_lag(silent: Collection[object], partitions: Iterable[Lagging]) -> str | None:
    """Why the lag of a group is not known; None when it is.

    Args:
        silent: brokers that did not answer.
        partitions: what the group reads.

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
