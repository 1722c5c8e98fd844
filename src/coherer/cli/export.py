"""`coherer export`: writes a topic, or the dead letters of a group, to Parquet files."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from coherer.cli import jobs
from coherer.cli.job_arguments import JobArguments, with_arguments
from coherer.errors import UsageError

app = typer.Typer(help="Write a topic to Parquet files.", add_completion=False)


@app.command()
@with_arguments
def export(
    given: JobArguments,
    to: Annotated[
        str | None,
        typer.Option("--to", metavar="DIR", help="A new directory for the files. Required."),
    ] = None,
    columns: Annotated[
        str | None,
        typer.Option(
            help="The columns, in this order: offset,value. Default: those of Spark's source, and "
            "properties."
        ),
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the directory.")] = False,
) -> None:
    """Write the messages of a topic to Parquet files, with Spark.

    They come from the brokers of --url, or from the files of --store without a broker. Exit codes:
    0 written; 1 the source, Spark or a disk failed; 2 the command line is wrong; 130 interrupted.
    """
    jobs.check_installed()
    chosen = tuple(name.strip() for name in columns.split(",")) if columns else None
    source = given.source(chosen)
    parts = source.preview()
    if given.dry_run:
        jobs.print_preview(parts, as_json=given.as_json)
        return
    if to is None:
        raise UsageError("Option --to is missing.", hint="Name a directory for the files.")
    unfinished = "://" not in to and _is_unfinished(Path(to))
    if not (overwrite or unfinished) and "://" not in to and Path(to).exists():
        raise UsageError(f"{to} exists.", hint="Name a new directory, or use --overwrite.")
    mode = "overwrite" if overwrite or unfinished else "error"
    jobs.copy(
        source,
        to,
        given.spark_remote,
        source.table,
        lambda rows: rows.write.mode(mode).parquet(to),
        as_json=given.as_json,
    )


def _is_unfinished(directory: Path) -> bool:
    """Whether a run that failed or was killed left a directory: Spark makes it first."""
    names = {path.name for path in directory.iterdir()} if directory.is_dir() else {""}
    return not names or "_temporary" in names
