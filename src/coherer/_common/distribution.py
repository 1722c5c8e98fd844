"""The distribution of a value: how often it was within each limit, as in Prometheus' histograms."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence


class Distribution:
    """Counts values in buckets.

    Args:
        bounds: upper limits, ascending; a value equal to a limit is within it.

    Attributes:
        counts: how many values are within each limit but not the one before; the last number is for
            values above all limits.

    >>> seconds = Distribution((0.01, 0.1))
    >>> for value in (0.001, 0.1, 3):
    ...     seconds.add(value)
    >>> seconds.counts, seconds.sum
    ([1, 1, 1], 3.101)
    """

    __slots__ = ("bounds", "counts", "sum")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = tuple(bounds)
        self.counts = [0] * (len(self.bounds) + 1)
        self.sum: float = 0

    def add(self, value: float, times: int = 1) -> None:
        """Count a value that occurred `times` times."""
        self.counts[bisect_left(self.bounds, value)] += times
        self.sum += value * times
