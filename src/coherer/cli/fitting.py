"""Fits the parts of a view into the height of a terminal.

* The parts are in the order of their importance. A part that fits is shown whole.
* A table that does not fit loses rows at its end, and a line says how many.
* A part without room for a row is not shown, and the last line names it.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from rich.console import Console, Group, RenderableType
from rich.text import Text

from coherer.cli.output import readable, table
from coherer.errors import CohererError


class Part(msgspec.Struct, frozen=True):
    """A part of a view.

    Args:
        name: shown if the part is not.
        columns: of a table with `rows`; a part without columns has `lines`.
    """

    name: str
    columns: Sequence[str] = ()
    rows: Sequence[Sequence[object]] = ()
    lines: Sequence[RenderableType] = ()

    @property
    def size(self) -> int:
        """The number of rows or lines."""
        return len(self.rows) + len(self.lines)

    def shown(self, count: int) -> RenderableType:
        """The part with its first rows."""
        hidden = self.size - count
        more = [Text(f"… {hidden} more", style="dim")] if hidden else []
        if not self.columns:
            return Group(*self.lines[:count], *more)
        return Group(table(self.columns, self.rows[:count]), *more)


def fitted(parts: Sequence[Part], console: Console, height: int | None) -> RenderableType:
    """Return the parts below each other, with an empty line between them.

    Args:
        parts: the most important one first; those without rows are not shown.
        console: sets the width.
        height: the number of lines that fit; None for any number.
    """
    left = height
    shown: list[RenderableType] = []
    hidden: list[str] = []
    wanted = [part for part in parts if part.size]
    for number, part in enumerate(wanted):
        gap = int(bool(shown))
        # One line for the names of the parts that are not shown.
        kept = int(number + 1 < len(wanted) or bool(hidden))
        room = None if left is None else left - gap - kept
        count = _count(part, console, room)
        if not count:
            hidden.append(part.name)
            continue
        one = part.shown(count)
        shown += [*([Text()] * gap), one]
        if left is not None:
            left -= gap + lines_of(one, console)
    if hidden:
        shown.append(Text(f"Not shown: {', '.join(hidden)}.", style="dim"))
    return Group(*shown)


def _count(part: Part, console: Console, room: int | None) -> int:
    """The number of rows of a part that fit."""
    if room is None or lines_of(part.shown(part.size), console) <= room:
        return part.size
    most = min(part.size - 1, room)
    return next(
        (n for n in range(most, 0, -1) if lines_of(part.shown(n), console) <= room),
        0,
    )


def lines_of(one: RenderableType, console: Console) -> int:
    """The number of lines of a text or a table on a console."""
    return len(console.render_lines(one, pad=False))


def unreachable(error: CohererError) -> RenderableType:
    """What a view shows while it gets no answer."""
    return Text.assemble(
        ("! ", "bold red"), readable(" ".join(str(error).split())), (" It is asked again.", "dim")
    )
