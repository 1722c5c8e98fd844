"""Charts: the data for uPlot, and a drawing for browsers without JavaScript."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final
from urllib.parse import urlencode

import msgspec

from coherer.console.history import SPANS, History, Point

WIDTH, HEIGHT = 600, 120
"""The size of the drawing, in units of its view box."""

SERIES_MAX: Final = 16
"""The most lines in a chart; more could not be distinguished."""


class Line(msgspec.Struct, frozen=True):
    """A line of a chart.

    Args:
        label: its name in the legend.
        times: the time of each sample, s since 1970.
        values: the value at each time; None where it is unknown.
    """

    label: str
    times: list[float]
    values: list[float | None]


class Chart(msgspec.Struct, frozen=True):
    """A chart.

    Args:
        title: what it shows, with its unit.
        labels: the label of each series, by the series' name.
        lines: the samples in the time span.
        span_s: the time span in s.
        now_s: its end, s since 1970.
    """

    title: str
    labels: dict[str, str]
    lines: list[Line]
    span_s: int
    now_s: float

    @property
    def source(self) -> str:
        """The query of the URL that returns its data."""
        return urlencode([("series", f"{name}={label}") for name, label in self.labels.items()])

    @property
    def known(self) -> list[float]:
        """All known values."""
        return [value for line in self.lines for value in line.values if value is not None]

    @property
    def top(self) -> float:
        """The greatest known value, at least 1."""
        return max(self.known, default=1.0) or 1.0

    @property
    def paths(self) -> list[str]:
        """The path of each line in an SVG drawing; unknown values leave gaps."""
        return [self._path(line) for line in self.lines]

    @property
    def newest(self) -> list[tuple[str, float | None]]:
        """The newest value of each line, with its label; None if it is unknown."""
        return [(line.label, line.values[-1] if line.values else None) for line in self.lines]

    def _path(self, line: Line) -> str:
        begin = self.now_s - self.span_s
        parts: list[str] = []
        up = False
        for time_s, value in zip(line.times, line.values, strict=True):
            if value is None:
                up = False
                continue
            x = (time_s - begin) / self.span_s * WIDTH
            y = HEIGHT - value / self.top * (HEIGHT - 4) - 2
            parts.append(f"{'L' if up else 'M'}{x:.1f} {y:.1f}" + ("" if up else "h0.1"))
            up = True
        return "".join(parts)


def chart(history: History, title: str, labels: dict[str, str], span: str, now_s: float) -> Chart:
    """Make a chart of series.

    Args:
        history: the samples.
        title: what it shows, with its unit.
        labels: the label of each series, by the series' name; the first `SERIES_MAX` are drawn.
        span: one of `SPANS`.
        now_s: the current time, s since 1970.
    """
    shown = dict(list(labels.items())[:SERIES_MAX])
    span_s = SPANS[span]
    lines = [_line(label, history.points(name, now_s - span_s)) for name, label in shown.items()]
    return Chart(title, shown, lines, span_s, now_s)


def _line(label: str, points: Sequence[Point]) -> Line:
    return Line(label, [round(one.time_s, 1) for one in points], [one.value for one in points])
