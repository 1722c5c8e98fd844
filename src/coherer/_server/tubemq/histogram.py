"""A distribution of durations in the form of TubeMQ's HTTP administration."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from coherer._server.http.params import Answer  # loaded with the first request of HTTP

BUCKETS: Final = 18
EMPTY_MIN: Final = (1 << 63) - 1
EMPTY_MAX: Final = -(1 << 63)
_SHARES: Final = {"P99": 0.99, "P999": 0.999, "P9999": 0.9999}


class Histogram:
    """The distribution of durations in ms.

    >>> calls = Histogram()
    >>> for ms in (0, 3, 70):
    ...     calls.count(ms)
    >>> calls.form()
    {'count': 3, 'min': 0, 'max': 70, 'cells': {'cell_0t2': 1, 'cell_2t4': 1, 'cell_64t128': 1}, \
    'P99': 4, 'P999': 4, 'P9999': 4}
    """

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        """Reset all counts."""
        self._count, self._min, self._max = 0, EMPTY_MIN, EMPTY_MAX
        self._buckets = [0] * BUCKETS

    def count(self, ms: int) -> None:
        """Count a duration."""
        self._count += 1
        self._min, self._max = min(self._min, ms), max(self._max, ms)
        self._buckets[min(max(ms, 1).bit_length() - 1, BUCKETS - 1)] += 1

    def summary(self) -> Answer:
        """Count, minimum and maximum."""
        return {"count": self._count, "min": self._min, "max": self._max}

    def form(self) -> Answer:
        """All values; empty buckets are omitted."""
        cells: Answer = {_bucket_name(n): count for n, count in enumerate(self._buckets) if count}
        shares: Answer = {name: self._upper(share) for name, share in _SHARES.items()}
        return {**self.summary(), "cells": cells, **shares}

    def _upper(self, share: float) -> int:
        """The upper bound of the bucket that holds this share of all durations, or the maximum."""
        if not self._count:
            return 0
        left = int(self._count * share)
        last = max(n for n, count in enumerate(self._buckets) if count)
        for n, count in enumerate(self._buckets):
            left -= count
            if left <= 0 and count:
                return self._max if n == last else 1 << (n + 1)
        return self._max


def _bucket_name(number: int) -> str:
    low = 0 if number == 0 else 1 << number
    return f"cell_{low}t{'Max' if number == BUCKETS - 1 else 1 << (number + 1)}"
