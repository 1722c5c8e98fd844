"""Progress bars on stderr, if that is a terminal."""

from __future__ import annotations

import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn


@contextmanager
def bytes_copied(what: str, *, shown: bool = True) -> Generator[Callable[[int, int], None]]:
    """Show a progress bar; yields a function that takes the copied and the total bytes."""
    if not shown or not sys.stderr.isatty():
        yield lambda _done, _total: None
        return

    text, left = TextColumn("{task.description}"), TimeRemainingColumn()
    columns = (text, BarColumn(), DownloadColumn(), left)
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(what, total=None)

        def show(done: int, total: int) -> None:
            bar.update(task, completed=done, total=max(total, 1))

        yield show
