"""The command `coherer`: finds the subcommands, and prints an error as one line.

Exit codes: 0 success; 1 a server, the network or a disk failed; 2 the command line is wrong.
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
"""The module of each command; its `app` is a Typer."""


class Commands(TyperGroup):
    """A group that imports a command when it is called."""

    def list_commands(self, ctx: object) -> list[str]:
        """The commands in the order in which a new user needs them."""
        del ctx
        return list(COMMANDS)

    # Any: the class of a command depends on the version of typer; newer ones bundle click.

    def get_command(self, ctx: object, cmd_name: str) -> Any:
        """The command with that name, or None."""
        del ctx
        if cmd_name not in COMMANDS:
            return None
        app = cast("typer.Typer", import_module(COMMANDS[cmd_name]).app)
        command = get_command(app)
        command.name = cmd_name
        return command

    def invoke(self, ctx: Any) -> Any:
        """Run the command, and print a `CohererError` as one line."""
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
        bool,
        typer.Option(
            "--version", callback=_version, is_eager=True, help="Show the version and exit."
        ),
    ] = False,
) -> None:
    del version


def main() -> None:
    """The entry point of the script `coherer`."""
    app()
