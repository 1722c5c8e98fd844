"""What commands print: tables for people, JSON for programs, an error as one line on stderr."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Awaitable, Callable, Generator, Iterable, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final, TypeVar, cast

import msgspec
import typer

from coherer._common.moments import moment
from coherer.errors import AuthorizationError, CohererError, UsageError

# Not for --json.
if TYPE_CHECKING:
    from rich.table import Table

T = TypeVar("T")

FAILED, MISUSED, INTERRUPTED = 1, 2, 130
"""Exit codes."""

UNKNOWN: Final = "?"
_GAP: Final = " " * 3
"""Between the columns of a table."""
_LIKE_A_TERMINAL: Final = ("FORCE_COLOR", "TTY_COMPATIBLE")
"""Variables with which users of rich say that something else is as good as a terminal."""
_UNITS: Final = ("B", "KiB", "MiB", "GiB", "TiB")
_UNIT: Final = 1024
_CONTROLS: Final = {
    code: "\N{REPLACEMENT CHARACTER}"
    for code in [*range(32), *range(127, 160)]
    if code != ord("\n")
}


def fail(error: CohererError) -> int:
    """Print an error on stderr, and return the exit code for it."""
    typer.secho("error: ", err=True, nl=False, fg="red", bold=True)
    typer.echo(readable(" ".join(str(error).split())), err=True)
    return MISUSED if isinstance(error, UsageError) else FAILED


async def again(ask: Callable[[], Awaitable[T]]) -> T | CohererError:
    """Ask once more in a view that goes on when nothing answers; returns the error then.

    Raises:
        UsageError, AuthorizationError: asking again does not help.
    """
    try:
        return await ask()
    except (UsageError, AuthorizationError):
        raise
    except CohererError as error:
        return error


def warn(text: str) -> None:
    """Print a warning on stderr."""
    typer.secho("warning: ", err=True, nl=False, fg="yellow", bold=True)
    typer.echo(readable(text), err=True)


def print_json(value: object) -> None:
    """Print a JSON value on one line of stdout, and flush."""
    try:
        line = msgspec.json.encode(value).decode()
        line.encode(sys.stdout.encoding or "utf-8")
    except UnicodeEncodeError:  # another encoding, or the path of a file that is not UTF-8
        line = json.dumps(msgspec.to_builtins(value), separators=(",", ":"))
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def print_table(columns: Sequence[str], rows: Iterable[Sequence[object]], *, empty: str) -> None:
    """Print a table, or `empty` on stderr; None is shown as unknown, numbers are right-aligned."""
    listed = list(rows)
    if not listed:
        typer.echo(empty, err=True)
        return
    if not sys.stdout.isatty() and not any(map(os.environ.get, _LIKE_A_TERMINAL)):
        typer.echo("\n".join(_plain(columns, listed)))
        return
    from rich.console import Console  # not for --json and pipes

    Console().print(table(columns, listed))


def _plain(columns: Sequence[str], rows: Sequence[Sequence[object]]) -> Generator[str]:
    r"""The lines of a table in a pipe, which has no width: nothing is truncated.

    They look as those of `table`. Rich takes half a millisecond for a line.

    >>> print(*_plain(["topic", "messages"], [["a", 1_000], ["long name", None]]), sep="\n")
    topic       messages
    ────────────────────
    a              1,000
    long name          ?
    """
    listed = [[cell_text(cell).replace("\n", " ") for cell in row] for row in rows]
    cells = list(zip(columns, *listed, strict=True))
    widths = [max(map(_width, column)) for column in cells]
    numbers = [_are_numbers(column) for column in zip(*rows, strict=True)]

    def line(row: Sequence[str]) -> str:
        return _GAP.join(
            " " * (width - _width(cell)) + cell
            if is_number
            else cell + " " * (width - _width(cell))
            for cell, width, is_number in zip(row, widths, numbers, strict=True)
        )

    is_utf = (sys.stdout.encoding or "utf-8").lower().startswith("utf")
    yield line(columns)
    yield ("─" if is_utf else "-") * (sum(widths) + len(_GAP) * (len(widths) - 1))
    yield from map(line, listed)


def _are_numbers(cells: Iterable[object]) -> bool:
    return all(cell is None or type(cell) is int for cell in cells)


def _width(text: str) -> int:
    """The number of columns that a text takes in a terminal."""
    if text.isascii():
        return len(text)
    from rich.cells import cell_len  # few names need it

    return cell_len(text)


def table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> Table:
    """Make a table for a terminal; see `print_table`."""
    # Not for --json.
    from rich import box
    from rich.table import Table
    from rich.text import Text

    found = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
    listed = list(rows)
    for column, cells in zip(
        columns, zip(*listed, strict=True) if listed else [()] * len(columns), strict=True
    ):
        found.add_column(column, justify="right" if _are_numbers(cells) else "left")
    for row in listed:
        found.add_row(*(Text(cell_text(cell)) for cell in row))
    return found


def print_done(kind: str, name: str, done: str, *, as_json: bool) -> None:
    """Report a change, such as `print_done("topic", "flights", "created", as_json=False)`."""
    if as_json:
        print_json({kind: name, "done": done})
    else:
        typer.echo(f"{name}: {done}")


@contextmanager
def progress_bar(label: str) -> Generator[Callable[[str, int, int | None], None]]:
    """Show a progress bar on stderr if that is a terminal.

    Yields a function that takes a text, the number of done items, and the total or None.
    """
    if not sys.stderr.isatty():
        yield lambda _text, _done, _total: None
        return
    # Scripts show no progress: 30 ms.
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn

    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(label, total=None)
        yield lambda text, done, total: bar.update(
            task, description=text or label, completed=done, total=total
        )


def amount(count: int, thing: str) -> str:
    """A count with its noun.

    >>> amount(1, "message"), amount(2_000, "byte")
    ('1 message', '2,000 bytes')
    """
    return f"{count:,} {thing}{'s' * (count != 1)}"


def cell_text(cell: object) -> str:
    """The text of a table cell.

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
            return readable(str(cell))


def readable(text: str) -> str:
    r"""The text without control characters, with which a client could command the terminal.

    Clients choose their ids, and the texts of servers may quote them.

    >>> readable("\x1b[31mred")
    '\ufffd[31mred'
    """
    return text.translate(_CONTROLS)


def time_text(time_ms: int | None) -> str | None:
    """Format a time in UTC; None if it is unknown.

    >>> time_text(1_700_000_000_123), time_text(None)
    ('2023-11-14 22:13:20.123Z', None)
    """
    if time_ms is None:
        return None
    return moment(time_ms).isoformat(" ", "milliseconds").replace("+00:00", "Z")


def iso_time(time_ms: int | None) -> str | None:
    """A time for programs: ISO 8601 in UTC; None if it is unknown.

    >>> iso_time(1_700_000_000_123), iso_time(None)
    ('2023-11-14T22:13:20.123Z', None)
    """
    text = time_text(time_ms)
    return None if text is None else text.replace(" ", "T")


def size(size_bytes: int | None) -> str:
    """Format a number of bytes.

    >>> size(None), size(1023), size(1 << 20), size(3 << 29)
    ('?', '1,023 B', '1.0 MiB', '1.5 GiB')
    """
    if size_bytes is None:
        return UNKNOWN
    if size_bytes < _UNIT:
        return f"{size_bytes:,} B"
    value, units = float(size_bytes), iter(_UNITS[1:])
    unit = _UNITS[0]
    while value >= _UNIT and (following := next(units, None)) is not None:
        value, unit = value / _UNIT, following
    return f"{value:,.1f} {unit}"


def age(age_ms: int | None) -> str:
    """Format an age in ms; `?` if it is unknown.

    >>> age(None), age(61_000)
    ('?', '1 min 1 s')
    """
    return UNKNOWN if age_ms is None else duration(age_ms / 1000)


def duration(seconds: float) -> str:
    """Format a time span in its two largest units.

    >>> duration(4), duration(3_700), duration(200_000)
    ('4 s', '1 h 1 min', '2 d 7 h')
    """
    left, parts = int(seconds), list[str]()
    for name, span in (("d", 86_400), ("h", 3_600), ("min", 60), ("s", 1)):
        count, left = divmod(left, span)
        if count or (name == "s" and not parts):
            parts.append(f"{count} {name}")
    return " ".join(parts[:2])


def body_text(body: bytes, limit: int = 200) -> str:
    r"""Format the beginning of a body: text on one line, or hexadecimal digits.

    >>> body_text(b"a\nb"), body_text(b"\xff\x00"), body_text(b"abc", 2)
    ('a b', 'ff00', 'ab…')
    """
    try:
        text = " ".join(body.decode().split())
    except UnicodeDecodeError:
        text = body[:limit].hex()
    readable = "".join(char if char.isprintable() else "\N{REPLACEMENT CHARACTER}" for char in text)
    return readable if len(readable) <= limit else f"{readable[:limit]}…"
