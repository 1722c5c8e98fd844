"""Charts: the data for uPlot, and a drawing for browsers without JavaScript."""

from __future__ import annotations

from typing import Final
from urllib.parse import urlencode

import msgspec

from coherer.console.history import SPANS, History

WIDTH, HEIGHT = 600, 120
"""The size of the drawing, in units of its view box."""

SERIES_MAX: Final = 16
"""The maximum number of lines in a chart; more could not be distinguished."""


class Line(msgspec.Struct, frozen=True):
    """A line of a chart: the time of each sample, s since 1970, and its value, None if unknown."""

    label: str
    times: list[float]
    values: list[float | None]


class Chart(msgspec.Struct, frozen=True):
    """A chart.

    Args:
        title: the quantity, with its unit.
        labels: the label of each series, by the series' name.
        lines: the samples in the time span.
        span_s: the length of the time span.
        now_s: the end of the time span, s since 1970.
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
    """Make a chart of the first `SERIES_MAX` series of `labels`; `span` is one of `SPANS`."""
    shown = dict(list(labels.items())[:SERIES_MAX])
    span_s = SPANS[span]
    lines: list[Line] = []
    for name, label in shown.items():
        points = history.points(name, now_s - span_s)
        times = [round(one.time_s, 1) for one in points]
        lines.append(Line(label, times, [one.value for one in points]))
    return Chart(title, shown, lines, span_s, now_s)
