"""`coherer verify`: checks the files of a stopped node, and repairs them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Final

import typer

from coherer._server.node import verifying
from coherer._store.backup_files import is_backup
from coherer._store.verify import Problem, VerifyReport
from coherer.cli.options import Json
from coherer.cli.output import amount, print_json, print_table

REPAIRABLE: Final = 3
"""Exit code: files are damaged that the next start, or `--repair`, rebuilds."""

LOST: Final = 4
"""Exit code: data is lost."""

app = typer.Typer(help="Check the files of a stopped node.", add_completion=False)


@app.command()
def verify(
    directory: Annotated[
        Path, typer.Argument(help="The directory of the node, or a backup.", show_default=False)
    ],
    repair: Annotated[
        bool,
        typer.Option(
            "--repair",
            help="Rebuild queues and the key index from the log, and restore damaged "
            "configuration files from their .bak.",
        ),
    ] = False,
    as_json: Json = False,
) -> None:
    """Read the whole store and compare its parts. The node must be stopped.

    A backup can be checked while its node runs; all its checksums are compared.

    Exit codes: 0 no problems, or all repaired; 1 the directory is in use or unreadable; 2 the
    command line is wrong; 3 files are damaged that the next start, or `--repair`, rebuilds; 4
    messages or a configuration file are lost.
    """
    found = verifying.verify(directory)
    repaired: list[Problem] = []
    repairable = not found.closed or any(problem.repairable for problem in found.problems)
    if repair and repairable:
        verifying.repair(directory)
        before, found = found, verifying.verify(directory)
        repaired = [problem for problem in before.problems if problem not in found.problems]
    if as_json:
        print_json({"directory": str(directory), "verified": found, "repaired": repaired})
    else:
        _report(directory, found, repaired, backup=is_backup(directory))
    raise typer.Exit(_exit_code(found))


def _exit_code(found: VerifyReport) -> int:
    if any(not problem.repairable for problem in found.problems):
        return LOST
    return REPAIRABLE if found.problems else 0


def _report(directory: Path, found: VerifyReport, repaired: list[Problem], *, backup: bool) -> None:
    state = "closed" if found.closed else "not closed: the next start recovers"
    rows = [
        (one.part, one.where, one.what, one.messages, outcome)
        for problems, outcome in ((repaired, "repaired"), (found.problems, ""))
        for one in problems
        for outcome in [outcome or one.outcome]
    ]
    if rows:
        print_table(("part", "where", "what", "messages", "outcome"), rows, empty="")
    if any(one.repairable for one in found.problems):
        typer.echo("The next start repairs this; --repair does it now.")
    typer.echo(
        f"{directory}: {amount(found.records, 'record')} in "
        f"{amount(found.log_end - found.log_begin, 'byte')} of the log, "
        f"{amount(found.queues, 'queue')}; "
        f"{'a backup' if backup else state}; "
        f"{amount(len(found.problems), 'problem')}"
    )
