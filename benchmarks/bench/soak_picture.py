"""A page with the curves of a soak: small multiples over one time, drawn as SVG."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape

from bench.soak_samples import Sample
from bench.trends import Trend

WIDTH, HEIGHT = 430, 150
LEFT, RIGHT, TOP, BOTTOM = 52, 10, 26, 22
COLOURS = ("#1f5fbf", "#b3261e", "#13795b", "#8a5a00")


@dataclass(frozen=True)
class Chart:
    """A small diagram.

    Args:
        title: with the unit.
        lines: by label, the name of the measurement.
        from_zero: whether the axis begins at 0; otherwise it shows the range, and a slope in it.
    """

    title: str
    lines: Mapping[str, str]
    from_zero: bool = False


CHARTS = (
    Chart("node: memory, MB", {"resident": "node_rss_mb", "anonymous": "node_anonymous_mb"}),
    Chart("node: anonymous memory, MB", {"": "node_anonymous_mb"}),
    Chart("node: open files", {"": "node_files"}),
    Chart("node: threads", {"": "node_threads"}, from_zero=True),
    Chart("node: mapped areas", {"": "node_maps"}),
    Chart("node: disk, MB", {"used": "disk_mb", "held by waiting messages": "held_mb"}, True),
    Chart("node: connections", {"": "connections"}, from_zero=True),
    Chart("node: topics and groups", {"topics": "topics", "groups": "groups"}, from_zero=True),
    Chart("node: lines of its metrics", {"": "series"}),
    Chart("CPU, % of a core", {
        "node": "node_cpu", "TubeMQ load": "tubemq_cpu", "RocketMQ load": "rocketmq_cpu"
    }, from_zero=True),
    Chart("node: loop lag, ms", {"mean": "lag_mean_ms", "at most": "lag_max_ms"}, from_zero=True),
    Chart("messages a second", {
        "stored": "stored_rate", "sent": "sent_rate", "received": "received_rate"
    }, from_zero=True),
    Chart("sent and not yet received", {"TubeMQ": "tubemq_missing", "RocketMQ": "rocketmq_missing"},
          from_zero=True),
    Chart("load: anonymous memory, MB", {
        "TubeMQ": "tubemq_anonymous_mb", "RocketMQ": "rocketmq_anonymous_mb"
    }),
    Chart("load: open files", {"TubeMQ": "tubemq_files", "RocketMQ": "rocketmq_files"}),
    Chart("load: threads", {"TubeMQ": "tubemq_threads", "RocketMQ": "rocketmq_threads"}, True),
)  # fmt: skip


def picture(
    samples: Sequence[Sample], trends: Mapping[str, Trend], warm_s: float, head: str, notes: str
) -> str:
    """An HTML page without other files.

    Args:
        samples: in order.
        trends: by name of a measurement, the line to draw.
        warm_s: when the measurement begins.
        head: the title.
        notes: the text below it.
    """
    drawn = "".join(_svg(chart, samples, trends, warm_s) for chart in CHARTS)
    return (
        f"<!doctype html><meta charset=utf-8><title>{escape(head)}</title>"
        "<style>body{font:14px system-ui,sans-serif;margin:16px;color:#222}"
        "svg text{font:11px system-ui,sans-serif}h1{font-size:18px}"
        "main{display:flex;flex-wrap:wrap;gap:8px}pre{font-size:12px}</style>"
        f"<h1>{escape(head)}</h1><main>{drawn}</main><pre>{escape(notes)}</pre>\n"
    )


def _svg(
    chart: Chart, samples: Sequence[Sample], trends: Mapping[str, Trend], warm_s: float
) -> str:
    points = {
        label: [(one["at_s"], one[name]) for one in samples if name in one]
        for label, name in chart.lines.items()
    }
    values = [value for line in points.values() for _, value in line] or [0.0]
    low, high = 0.0 if chart.from_zero else min(values), max(values)
    if high - low < abs(high) / 50 or high == low:  # a tiny range would look like a change
        middle, half = (low + high) / 2, max(abs(high) / 50, 0.5)
        low, high = middle - half, middle + half
    end_s = max((one["at_s"] for one in samples), default=0.0) or 1.0

    def x(at_s: float) -> float:
        return LEFT + at_s / end_s * (WIDTH - LEFT - RIGHT)

    def y(value: float) -> float:
        return TOP + (high - value) / (high - low) * (HEIGHT - TOP - BOTTOM)

    warm = f'width="{x(warm_s) - LEFT:.1f}" height="{HEIGHT - TOP - BOTTOM}"'
    parts = [
        f'<rect x="{LEFT}" y="{TOP}" {warm} fill="#f3f3f3"/>',
        _text(LEFT, 15, chart.title, 'font-weight="600"'),
    ]
    for value in (low, (low + high) / 2, high):
        at = f'x1="{LEFT}" y1="{y(value):.1f}" x2="{WIDTH - RIGHT}" y2="{y(value):.1f}"'
        parts.append(f'<line {at} stroke="#ddd"/>')
        parts.append(_text(LEFT - 5, y(value) + 4, _number(value), 'text-anchor="end" fill="#777"'))
    for share in (0.0, 0.5, 1.0):
        text = f"{end_s * share / 60:.1f}{' min' if share == 1 else ''}"
        anchor = ("start", "middle", "end")[int(share * 2)]
        more = f'text-anchor="{anchor}" fill="#777"'
        parts.append(_text(x(end_s * share), HEIGHT - 6, text, more))
    legend = WIDTH - RIGHT
    for (label, name), colour in reversed([*zip(chart.lines.items(), COLOURS, strict=False)]):
        line = " ".join(f"{x(at_s):.1f},{y(value):.1f}" for at_s, value in points[label])
        parts.append(f'<polyline points="{line}" fill="none" stroke="{colour}"/>')
        trend = trends.get(name)
        if trend is not None and trend.percent is not None:
            at = " ".join(
                f"{x(at_s):.1f},{y(trend.at(at_s)):.1f}" for at_s in (trend.begin_s, trend.end_s)
            )
            parts.append(f'<polyline points="{at}" stroke="#222" stroke-dasharray="4 3"/>')
        if label:
            parts.append(_text(legend, 15, f"● {label}", f'text-anchor="end" fill="{colour}"'))
            legend -= 7 * len(label) + 22
    return f'<svg width="{WIDTH}" height="{HEIGHT}" role="img">{"".join(parts)}</svg>'


def _text(x: float, y: float, text: str, more: str = "") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" {more}>{escape(text)}</text>'


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"
