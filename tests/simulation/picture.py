"""Draws a failing history: who did what with one message, over time, with all faults.

Time is cut where nothing relevant happens. Events of other messages are small ticks.
"""

from __future__ import annotations

from collections.abc import Iterator
from html import escape
from itertools import pairwise
from typing import Final, NamedTuple

from tests.simulation.checker import Wrong
from tests.simulation.history import BEGINNINGS, FAULTS, Event, History

PX_S: Final = 24.0
GAP_S: Final = 4.0
"""Longer times in which nothing relevant happens are drawn as if they were so long."""
NEAR: Final = 16.0
"""The least distance of two relevant events."""
LANE: Final = 64
LEFT: Final = 120
TOP: Final = 96
RIGHT: Final = 260
LEVELS: Final = (-24, 26, -10, 40)
"""Where labels that follow each other stand, so that they do not cover each other."""
LABEL_PX: Final = 6.6
"""The width of a letter."""

COLOURS: Final = {
    "send": "#1f5fbf", "begun": "#1f5fbf", "stored": "#13795b", "failed": "#b3261e",
    "committed": "#13795b", "rolled back": "#8a5a00", "received": "#6b3fa0",
    "handled": "#13795b", "refused": "#b3261e", "kept": "#0b7285", "final": "#333333",
    "dead": "#333333",
}  # fmt: skip
ENDS: Final = {
    "killed": {"started"}, "power": {"started"}, "stop": {"started"}, "frozen": {"thawed"},
    "unplugged": {"plugged"}, "stopped": {"healed"}, "slow": {"fast"}, "full": {"recovered"},
    "sick": {"recovered"},
}  # fmt: skip
"""By beginning of a fault, what ends it."""


class Scale(NamedTuple):
    """Places of times.

    Args:
        marks: times and their places, in order.
        cuts: the places where time is cut, and how many seconds.
    """

    marks: list[tuple[float, float]]
    cuts: list[tuple[float, float]]

    def x(self, at_s: float) -> float:
        """The place of a time."""
        for (begin_s, begin), (end_s, end) in pairwise(self.marks):
            if at_s <= end_s:
                share = 0 if end_s == begin_s else max(at_s - begin_s, 0) / (end_s - begin_s)
                return begin + share * (end - begin)
        return self.marks[-1][1]


def scale(times: list[float]) -> Scale:
    """A scale on which these times can be told apart.

    >>> found = scale([0.0, 1.0, 100.0])
    >>> found.x(1.0) - found.x(0.0), found.x(100.0) - found.x(1.0), found.cuts
    (24.0, 96.0, [(192.0, 99.0)])
    """
    place, marks, cuts = float(LEFT), [(times[0], float(LEFT))], list[tuple[float, float]]()
    for before_s, after_s in pairwise(times):
        width = max(min(after_s - before_s, GAP_S) * PX_S, NEAR)
        if after_s - before_s > GAP_S:
            cuts.append((place + width / 2, after_s - before_s))
        place += width
        marks.append((after_s, place))
    return Scale(marks, cuts)


def picture(history: History, wrong: Wrong, command: str) -> str:
    """An HTML page with the picture of a broken promise.

    Args:
        wrong: what it shows.
        command: repeats the run.
    """
    mine = [event for event in history.events if wrong.message and event.message == wrong.message]
    faults = history.of(*FAULTS)
    shown = sorted([*mine, *faults], key=lambda event: event.at_s) or history.events[-20:]
    across = scale(sorted({event.at_s for event in shown}))
    nodes = dict.fromkeys(event.who for event in faults)
    lanes = [*nodes, *dict.fromkeys(one.who for one in mine if one.who not in nodes)]
    height = TOP + LANE * len(lanes) + 30
    width = across.marks[-1][1] + RIGHT
    parts = [
        *_lanes(lanes, across, width, height),
        *_others(history, lanes, across, wrong.message),
        *_faults(faults, lanes, across),
        *_events(mine, lanes, across),
    ]
    size = f'width="{width:.0f}" height="{height}" viewBox="0 0 {width:.0f} {height}"'
    head = f"{wrong.check}: {wrong.message} {wrong.text}"
    return (
        f"<!doctype html><meta charset=utf-8><title>{escape(head)}</title>"
        "<style>body{font:14px system-ui,sans-serif;margin:16px;color:#222}"
        "svg text{font:12px system-ui,sans-serif}code{background:#f2f2f2;padding:2px 4px}"
        "div{overflow-x:auto}</style>"
        f"<h1 style='font-size:18px'>{escape(head)}</h1>"
        f"<p><code>{escape(command)}</code></p>"
        f"<p>{_legend()}</p><div><svg {size}>{''.join(parts)}</svg></div>"
    )


def _legend() -> str:
    kinds = ["send", "stored", "received", "handled", "refused", "kept", "final", "failed"]
    words = [f"<span style='color:{COLOURS[kind]}'>● {kind}</span>" for kind in kinds]
    return " &nbsp; ".join(
        [*words, "<span style='color:#d9822b'>▬ fault</span>", "╎ other messages"]
    )


def _text(x: float, y: float, text: str, more: str = "") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" {more}>{escape(text)}</text>'


def _y(lanes: list[str], who: str) -> float:
    return TOP + LANE * (lanes.index(who) + 0.5)


def _lanes(lanes: list[str], across: Scale, width: float, height: int) -> Iterator[str]:
    for who in lanes:
        y = _y(lanes, who)
        yield f'<line x1="{LEFT}" y1="{y}" x2="{width - 20:.0f}" y2="{y}" stroke="#ddd"/>'
        yield _text(8, y + 4, who, 'font-weight="600"')
    last = -100.0
    for at_s, x in across.marks:
        if x - last >= 56:
            ends = f'y1="{TOP - 22}" x2="{x:.1f}" y2="{height - 24}"'
            yield f'<line x1="{x:.1f}" {ends} stroke="#f0f0f0"/>'
            yield _text(x, TOP - 28, f"{at_s:.2f} s", 'fill="#777" text-anchor="middle"')
            last = x
    for x, for_s in across.cuts:
        size = f'width="10" height="{height - TOP}"'
        yield f'<rect x="{x - 5:.1f}" y="{TOP - 22}" {size} fill="#fafafa"/>'
        yield _text(x, height - 8, f"⋯ {for_s:.0f} s", 'fill="#999" text-anchor="middle"')


def _others(history: History, lanes: list[str], across: Scale, message: str) -> Iterator[str]:
    begin_s, end_s = across.marks[0][0], across.marks[-1][0]
    for event in history.events:
        known = event.who in lanes and begin_s <= event.at_s <= end_s
        if known and event.message and event.message != message and event.what in COLOURS:
            x, y = across.x(event.at_s), _y(lanes, event.who)
            yield (
                f'<line x1="{x:.1f}" y1="{y - 5}" x2="{x:.1f}" y2="{y + 5}" '
                f'stroke="{COLOURS[event.what]}" stroke-opacity=".3">'
                f"<title>{escape(str(event).strip())}</title></line>"
            )


def _faults(faults: list[Event], lanes: list[str], across: Scale) -> Iterator[str]:
    level = 0
    for number, event in enumerate(faults):
        if event.what not in BEGINNINGS:
            continue
        ends = ENDS.get(event.what, set())
        later = (one for one in faults[number:] if one.who == event.who and one.what in ends)
        end = next(later, event)
        x, y = across.x(event.at_s), _y(lanes, event.who)
        width = max(across.x(end.at_s) - x, 4)
        dark = event.what in {"killed", "power", "crashed"}
        yield (
            f'<rect x="{x:.1f}" y="{y - 8}" width="{width:.1f}" height="16" rx="2" '
            f'fill="{"#c2410c" if dark else "#d9822b"}" fill-opacity="{0.75 if dark else 0.45}">'
            f"<title>{escape(str(event).strip())}</title></rect>"
        )
        level += 1
        words = f"{event.what} {event.note}".strip()
        yield _text(x, y - 12 if level % 2 else y + 22, words, 'fill="#9a3412"')


def _events(mine: list[Event], lanes: list[str], across: Scale) -> Iterator[str]:
    for before, after in pairwise(mine):
        if before.who != after.who:
            x1, y1 = across.x(before.at_s), _y(lanes, before.who)
            x2, y2 = across.x(after.at_s), _y(lanes, after.who)
            yield (
                f'<line x1="{x1:.1f}" y1="{y1}" x2="{x2:.1f}" y2="{y2}" '
                'stroke="#999" stroke-dasharray="3 3"/>'
            )
    free: dict[tuple[str, int], float] = {}
    for event in mine:
        x, y, colour = across.x(event.at_s), _y(lanes, event.who), COLOURS.get(event.what, "#333")
        place = f" {event.place.queue}:{event.place.offset}" if event.place else ""
        tries = f" (attempt {event.attempt})" if event.attempt else ""
        words = f"{event.what}{tries}{place} {event.note}".rstrip()
        level = next((one for one in LEVELS if free.get((event.who, one), 0) <= x), LEVELS[0])
        free[event.who, level] = x + LABEL_PX * len(words)
        yield (
            f'<line x1="{x:.1f}" y1="{y}" x2="{x:.1f}" y2="{y + level - 4}" stroke="{colour}" '
            f'stroke-opacity=".4"/><circle cx="{x:.1f}" cy="{y}" r="5" fill="{colour}">'
            f"<title>{escape(str(event).strip())}</title></circle>"
        )
        yield _text(x + 2, y + level, words, f'fill="{colour}"')
