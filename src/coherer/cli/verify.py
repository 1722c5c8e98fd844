"""`coherer verify`: check the directory of a node that does not run, and repair it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from coherer.cli.options import Json
from coherer.cli.output import amount, say_json, say_table

if TYPE_CHECKING:
    from coherer._store.verify import Problem, VerifyReport

REPAIRABLE: Final = 3
"""Exit code: something is damaged, and `--repair` can make it again."""

LOST: Final = 4
"""Exit code: something is lost."""

app = typer.Typer(help="Check the files of a node that does not run.", add_completion=False)


@app.command()
def verify(
    directory: Annotated[
        Path, typer.Argument(help="The directory of the node.", show_default=False)
    ],
    repair: Annotated[
        bool,
        typer.Option(
            "--repair",
            help="Make queues and the key index again from the log, and take the .bak of "
            "configuration files that are damaged.",
        ),
    ] = False,
    as_json: Json = False,
) -> None:
    """Read the whole store and compare its parts; the node must not run.

    Exit codes: 0 all is well (or was repaired); 1 the directory is in use or cannot be read; 2 the
    command line is wrong; 3 something is damaged that `--repair` can make again; 4 messages or a
    configuration file are lost.
    """
    from coherer._server.node import verifying

    found = verifying.verify(directory)
    repaired: list[Problem] = []
    if repair and (not found.closed or any(problem.repairable for problem in found.problems)):
        verifying.repair(directory)
        before, found = found, verifying.verify(directory)
        repaired = [problem for problem in before.problems if problem not in found.problems]
    if as_json:
        say_json({"directory": str(directory), "verified": found, "repaired": repaired})
    else:
        _say(directory, found, repaired)
    raise typer.Exit(_exit_code(found))


def _exit_code(found: VerifyReport) -> int:
    if any(not problem.repairable for problem in found.problems):
        return LOST
    return REPAIRABLE if found.problems else 0


def _say(directory: Path, found: VerifyReport, repaired: list[Problem]) -> None:
    rows = [
        (one.part, one.where, one.what, one.messages, outcome)
        for problems, outcome in ((repaired, "repaired"), (found.problems, ""))
        for one in problems
        for outcome in [outcome or ("use --repair" if one.repairable else "lost")]
    ]
    if rows:
        say_table(("part", "where", "what", "messages", "outcome"), rows, empty="")
    typer.echo(
        f"{directory}: {amount(found.records, 'record')} in "
        f"{amount(found.log_end - found.log_begin, 'byte')} of the log, "
        f"{amount(found.queues, 'queue')}; "
        f"{'closed' if found.closed else 'not closed: the next start recovers'}; "
        f"{amount(len(found.problems), 'problem')}"
    )
