"""The slope of a noisy measurement, and how certain it is.

A process that leaks has a rising floor: buffers of a moment only make the measurement higher. So
the time is cut into pieces, and the lowest value of each is taken. The line through these is that
of Theil and Sen, the median of the slopes of all pairs: a single step or peak does not move it, as
it does least squares. Its interval is Sen's (1968), from Kendall's variance of the number of rising
pairs; it assumes no distribution. Memory is not independent from minute to minute, which makes such
an interval too narrow: the variance grows by (1 + r) / (1 - r), where r is the correlation of
neighbouring residuals, as for an autoregressive series.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations, pairwise
from statistics import fmean, median

PIECES = 24
"""At least so many pieces, if there are as many values."""
PIECE_S = 60.0
LEAST = 6
"""Fewer pieces say nothing about a slope."""
NORMAL_95 = 1.96
CORRELATION_MAX = 0.95


@dataclass(frozen=True)
class Trend:
    """A line through a measurement, and the interval that contains its slope with 95 %.

    Args:
        begin: the value of the line at its begin.
        percent: the slope in percent of `begin` in an hour; None if there are too few values.
        low, high: the ends of the interval.
        begin_s, end_s: the time of the line.
    """

    begin: float
    percent: float | None
    low: float
    high: float
    begin_s: float
    end_s: float

    def at(self, at_s: float) -> float:
        """The value of the line."""
        return self.begin * (1 + (self.percent or 0.0) / 100 * (at_s - self.begin_s) / 3600)

    def verdict(self, goal: float) -> str:
        """`met`, `missed`, or `unknown` if the interval contains the goal."""
        if self.percent is None:
            return "unknown"
        return "met" if self.high <= goal else "missed" if self.low > goal else "unknown"


def floors(times_s: Sequence[float], values: Sequence[float]) -> list[tuple[float, float]]:
    """The lowest value of each piece of the time, in order, with its time."""
    span_s = times_s[-1] - times_s[0]
    piece_s = min(PIECE_S, span_s / PIECES)
    found: dict[int, tuple[float, float]] = {}
    for at_s, value in zip(times_s, values, strict=True):
        number = min(int((at_s - times_s[0]) / piece_s), int(span_s / piece_s)) if piece_s else 0
        if number not in found or value < found[number][1]:
            found[number] = at_s, value
    return [found[number] for number in sorted(found)]


def trend(times_s: Sequence[float], values: Sequence[float]) -> Trend:
    """The slope of values that were measured at these times; there is at least one.

    >>> hour = [60.0 * n for n in range(61)]
    >>> found = trend(hour, [100.0 + 2 * n / 60 + n % 3 for n in range(61)])
    >>> round(found.percent, 1), found.verdict(1.0), found.verdict(3.0)
    (2.0, 'missed', 'met')
    """
    points = floors(times_s, values)
    begin_s, end_s = points[0][0], points[-1][0]
    if len(points) < LEAST:
        return Trend(points[0][1], None, -math.inf, math.inf, begin_s, end_s)
    slopes = sorted((b[1] - a[1]) / (b[0] - a[0]) for a, b in combinations(points, 2))
    slope = median(slopes)
    begin = median(value - slope * (at_s - begin_s) for at_s, value in points)
    residuals = [value - begin - slope * (at_s - begin_s) for at_s, value in points]
    count, correlation = len(points), _correlation(residuals)
    variance = count * (count - 1) * (2 * count + 5) / 18
    variance *= (1 + correlation) / (1 - correlation)
    half = NORMAL_95 * math.sqrt(variance) / 2
    # Beyond all pairs nothing is known about an end of the interval.
    first, last = math.floor(len(slopes) / 2 - half), math.ceil(len(slopes) / 2 + half)
    low = slopes[first] if first >= 0 else -math.inf
    high = slopes[last] if last < len(slopes) else math.inf
    if slopes[0] == slopes[-1]:
        low = high = slope
    scale = 360_000 / begin if begin else 0.0
    low, high = (end * scale if scale else 0.0 for end in (low, high))
    return Trend(begin, slope * scale, low, high, begin_s, end_s)


def _correlation(residuals: Sequence[float]) -> float:
    """The correlation of neighbours, not below 0: the interval never becomes narrower."""
    mean = fmean(residuals)
    spread = sum((one - mean) ** 2 for one in residuals)
    if not spread:
        return 0.0
    both = sum((a - mean) * (b - mean) for a, b in pairwise(residuals))
    return min(max(both / spread, 0.0), CORRELATION_MAX)
