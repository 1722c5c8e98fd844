"""The chart of an audit: messages per minute, and latency below."""

# matplotlib's own types leave `**kwargs` untyped, which strict checking reports at every call.
# pyright: reportUnknownMemberType=false

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Final

from coherer.cli.audit.report import Report

MARGIN: Final = timedelta(minutes=1)
"""Space on both sides, so that a single minute is visible."""


def draw(report: Report, path: Path) -> None:
    """Draw the minutes of a report to a PNG file."""
    # matplotlib is an extra.
    from matplotlib.dates import AutoDateLocator, ConciseDateFormatter
    from matplotlib.figure import Figure

    minutes = [one for one in report.minutes if one.minute is not None]
    times = [one.minute for one in minutes if one.minute is not None]
    series = {
        "sent": [one.sent for one in minutes],
        "stored": [one.stored for one in minutes],
    }
    for group in minutes[0].consumed if minutes else ():
        series[f"consumed by {group}"] = [one.consumed.get(group, 0) for one in minutes]
    if any(one.landed is not None for one in minutes):
        series["landed"] = [one.landed or 0 for one in minutes]
    figure = Figure(figsize=(11, 6), dpi=120, layout="constrained")
    figure.suptitle(report.topic)
    above, below = figure.subplots(2, 1, sharex=True, height_ratios=(2, 1))
    for label, counts in series.items():
        above.plot(times, counts, marker=".", label=label)
    above.set_ylabel("messages a minute")
    above.set_ylim(bottom=0)
    above.legend()
    below.plot(times, [one.p50_ms for one in minutes], marker=".", label="p50")
    below.plot(times, [one.p99_ms for one in minutes], marker=".", label="p99")
    below.set_ylabel("stored after, ms")
    below.legend()
    if times:
        below.set_xlim(times[0] - MARGIN, times[-1] + MARGIN)
    locator = AutoDateLocator()  # type: ignore[no-untyped-call]
    below.xaxis.set_major_locator(locator)
    form = ConciseDateFormatter(locator)  # type: ignore[no-untyped-call]
    below.xaxis.set_major_formatter(form)
    figure.savefig(path, format="png")
