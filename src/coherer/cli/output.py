"""What the commands print: tables for people, JSON for programs, one line for an error."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, cast

import msgspec
import typer

from coherer.errors import CohererError, UsageError

if TYPE_CHECKING:
    from rich.table import Table

FAILED, MISUSED, INTERRUPTED = 1, 2, 130
UNKNOWN = "?"


def fail(error: CohererError) -> int:
    """Say an error on stderr; the exit code for it."""
    typer.secho("error: ", err=True, nl=False, fg="red", bold=True)
    typer.echo(" ".join(str(error).split()), err=True)
    return MISUSED if isinstance(error, UsageError) else FAILED


def print_json(value: object) -> None:
    """One JSON value on one line of stdout, at once."""
    sys.stdout.write(msgspec.json.encode(value).decode() + "\n")
    sys.stdout.flush()


def print_table(columns: Sequence[str], rows: Iterable[Sequence[object]], *, empty: str) -> None:
    """A table for people; None is shown as unknown, and numbers stand on the right.

    Args:
        columns: the headings.
        rows: as many cells each.
        empty: what is said when there are no rows.
    """
    listed = list(rows)
    if not listed:
        typer.echo(empty, err=True)
        return
    from rich.console import Console

    console = Console()
    if not console.is_terminal:
        # A pipe is no screen: nothing is cut off there.
        console = Console(width=10_000)
    console.print(_table(columns, listed))


def _table(columns: Sequence[str], rows: Sequence[Sequence[object]]) -> Table:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
    for column, cells in zip(columns, zip(*rows, strict=True), strict=True):
        numbers = all(cell is None or type(cell) is int for cell in cells)
        table.add_column(column, justify="right" if numbers else "left")
    for row in rows:
        table.add_row(*(Text(cell_text(cell)) for cell in row))
    return table


def amount(count: int, thing: str) -> str:
    """How many there are of something.

    >>> amount(1, "message"), amount(2_000, "byte")
    ('1 message', '2,000 bytes')
    """
    return f"{count:,} {thing}{'s' * (count != 1)}"


def cell_text(cell: object) -> str:
    """How a cell is written.

    >>> [cell_text(cell) for cell in (None, 1234567, True, ("a", "b"), "x")]
    ['?', '1,234,567', 'yes', 'a, b', 'x']
    """
    match cell:
        case None:
            return UNKNOWN
        case bool():
            return "yes" if cell else "no"
        case int():
            return f"{cell:,}"
        case tuple():
            return ", ".join(map(cell_text, cast("tuple[object, ...]", cell)))
        case _:
            return str(cell)
