"""The command `coherer`: finds the commands, and turns errors into one line and an exit code.

Exit codes: 0 done; 1 a server, the network or a disk said no; 2 the command line is wrong.
"""

from __future__ import annotations

from importlib import import_module
from typing import Annotated, Any, cast

import typer
from typer.core import TyperGroup
from typer.main import get_command

from coherer import __version__
from coherer.errors import CohererError

COMMANDS = {
    "serve": "coherer.cli.serve",
    "topics": "coherer.cli.topics",
    "produce": "coherer.cli.produce",
    "consume": "coherer.cli.consume",
    "groups": "coherer.cli.groups",
    "verify": "coherer.cli.verify",
    "demo": "coherer.cli.demo",
}
"""The module of each command; it has a Typer named `app`."""


class Commands(TyperGroup):
    """A group whose commands are imported when they are called for."""

    def list_commands(self, ctx: object) -> list[str]:
        """In the order of a first day with Coherer."""
        del ctx
        return list(COMMANDS)

    # Any: what typer calls a command depends on its version; the newer ones bring their own click.

    def get_command(self, ctx: object, cmd_name: str) -> Any:
        """The command of that name; None if there is none."""
        del ctx
        if cmd_name not in COMMANDS:
            return None
        app = cast("typer.Typer", import_module(COMMANDS[cmd_name]).app)
        command = get_command(app)
        command.name = cmd_name
        return command

    def invoke(self, ctx: Any) -> Any:
        """Run the command; an error of ours becomes one line."""
        try:
            return super().invoke(ctx)
        except CohererError as error:
            from coherer.cli.common import fail

            raise typer.Exit(fail(error)) from error


app = typer.Typer(
    name="coherer",
    cls=Commands,
    help="A message queue that speaks Apache TubeMQ and RocketMQ, with a data pipeline on Spark.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"coherer {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Say it and exit.")
    ] = False,
) -> None:
    del version


def main() -> None:
    """What the script `coherer` calls."""
    app()
