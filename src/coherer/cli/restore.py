"""`coherer restore`: turns a backup into the directory of a node."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from coherer._store.restore import restore as run
from coherer.cli.options import Json
from coherer.cli.output import amount, print_json
from coherer.cli.progress import bytes_copied

app = typer.Typer(add_completion=False)


@app.command()
def restore(
    source: Annotated[Path, typer.Argument(metavar="DIR", help="The directory of the backup.")],
    target: Annotated[
        Path,
        typer.Argument(metavar="TO", help="The new directory of the node: missing, or empty."),
    ],
    *,
    as_json: Json = False,
) -> None:
    """Write the directory of a node from a backup. Then start the node with --directory TO.

    Every byte is compared with its checksum. The first start of the node recovers the directory, as
    after a crash. If a restore is interrupted, repeat it; until then no node starts in TO.
    """
    with bytes_copied("Restoring", shown=not as_json) as progress:
        report = run(source, target, progress=progress)
    if as_json:
        print_json(report)
        return
    typer.echo(
        f"{target}: {amount(report.files, 'file')}, {amount(report.written_bytes, 'byte')}. "
        f"Start the node with: coherer serve --directory {target}"
    )
