"""`coherer backup`: copies the directory of a running or stopped node."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from coherer._server.node.version import check_version
from coherer._server.options.siblings import directories_in
from coherer._store.backup import back_up
from coherer.cli.options import Json
from coherer.cli.output import amount, print_json, warn
from coherer.cli.progress import bytes_copied
from coherer.cli.serve.node_config import DIRECTORY

Directory = Annotated[
    Path,
    typer.Option(
        "--directory",
        "-d",
        envvar="COHERER_DIRECTORY",
        help="The directory of the node, on this machine.",
    ),
]

app = typer.Typer(add_completion=False)


@app.command()
def backup(
    target: Annotated[
        Path,
        typer.Argument(
            metavar="DIR", help="The directory of the backup: a new one, or an earlier backup."
        ),
    ],
    *,
    directory: Directory = DIRECTORY,
    accounts: Annotated[
        bool,
        typer.Option(help="Copy conf/, which contains accounts and their secrets."),
    ] = True,
    verify: Annotated[
        bool,
        typer.Option(
            "--verify",
            help="Compare the whole earlier backup, not only a part of it.",
        ),
    ] = False,
    as_json: Json = False,
) -> None:
    """Copy the directory of a node, which may run, or update an earlier backup.

    The backup is the state at one point of the log: all messages before it, and the offsets, topics
    and groups at that point. If it is interrupted, the previous backup stays valid. If the
    directory has another history, or if the log of the node is damaged, nothing is changed, and the
    exit code is not 0. Missing or damaged files of the backup are copied again.
    `coherer verify DIR` checks a backup, `coherer restore DIR TO` restores it. Each broker of
    `serve --brokers` needs a backup of its own.
    """
    check_version(directory)
    with bytes_copied("Copying", shown=not as_json) as progress:
        report = back_up(directory, target, accounts=accounts, everything=verify, progress=progress)
    for name in report.repaired:
        warn(f"{target}/data/{name} was missing or damaged. It was copied again.")
    for other in directories_in(directory):
        warn(
            f"This backup does not contain {other}, the files of another broker of the node. "
            f"Back them up to another directory: --directory {other}."
        )
    if as_json:
        print_json(report)
        return
    log = ""
    if report.log_end is not None:
        log = f"the log from {report.log_begin:,} to {report.log_end:,}; "
    typer.echo(
        f"{target}: {log}{amount(report.files, 'file')}, {report.copied:,} of them copied now "
        f"({amount(report.copied_bytes, 'byte')})"
    )
