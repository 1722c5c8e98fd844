"""The command `coherer`: finds the subcommands, and prints an error as one line.

Exit codes: 0 success; 1 a server, the network or a disk failed, or the requested thing does not
exist; 2 the command line is wrong; 130 interrupted.
"""

from __future__ import annotations

import errno
import os
import re
import sys
from difflib import get_close_matches
from importlib import import_module
from typing import Annotated, Any, Final, cast

import typer
from typer.core import TyperGroup
from typer.main import get_command

from coherer._common.version import __version__
from coherer.errors import CohererError

COMMANDS = {
    "serve": "coherer.cli.serve.command",
    "topics": "coherer.cli.topics",
    "produce": "coherer.cli.produce",
    "consume": "coherer.cli.consume",
    "groups": "coherer.cli.groups",
    "status": "coherer.cli.status",
    "top": "coherer.cli.top",
    "messages": "coherer.cli.messages",
    "dead-letters": "coherer.cli.dead_letters",
    "brokers": "coherer.cli.brokers",
    "config": "coherer.cli.config",
    "console": "coherer.cli.console",
    "accounts": "coherer.cli.accounts",
    "drain": "coherer.cli.drain",
    "verify": "coherer.cli.verify",
    "backup": "coherer.cli.backup",
    "restore": "coherer.cli.restore",
    "export": "coherer.cli.export",
    "audit": "coherer.cli.audit.command",
    "replay": "coherer.cli.replay.command",
    "demo": "coherer.cli.demo.command",
}
"""The module of each command; its `app` is a Typer."""

_OUTPUT_LOST: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO})
"""Why a write to an open file fails; typer handles a closed pipe."""


def _unwrapped(text: str) -> str:
    r"""A docstring with a line for each paragraph, so that a help text fits any terminal.

    >>> _unwrapped("One.\n\nTwo and\nthree.")
    'One.\n\nTwo and three.'
    """
    return re.sub(r"(?<!\n)\n(?!\n)", " ", text)


class Commands(TyperGroup):
    """A group that imports a command when it is called."""

    def list_commands(self, ctx: object) -> list[str]:
        """The commands in the order in which a new user needs them."""
        del ctx
        return list(COMMANDS)

    # Any: the class of a command depends on the version of typer; newer ones bundle click.

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """The command that the first word names; an unknown one is refused, with a suggestion."""
        name = args[0] if args else ""
        if name not in COMMANDS and (close := get_close_matches(name, COMMANDS, n=1)):
            ctx.fail(f"No such command {name!r}. Did you mean {close[0]}?")
        return super().resolve_command(ctx, args)

    def get_command(self, ctx: object, cmd_name: str) -> Any:
        """The command with that name, or None."""
        del ctx
        if cmd_name not in COMMANDS:
            return None
        app = cast("typer.Typer", import_module(COMMANDS[cmd_name]).app)
        command = get_command(app)
        command.name = cmd_name
        for one in (command, *getattr(command, "commands", {}).values()):
            one.help = _unwrapped(one.help or "")
        return command

    def invoke(self, ctx: Any) -> Any:
        """Run the command, and print a `CohererError` or a failed write to stdout as one line."""
        from coherer.cli.common import fail

        try:
            result = super().invoke(ctx)
            sys.stdout.flush()
        except CohererError as error:
            raise typer.Exit(fail(error)) from error
        except OSError as error:
            if error.filename is not None or error.errno not in _OUTPUT_LOST:
                raise
            _discard_output()
            text = f"The output cannot be written: {error.strerror}."
            raise typer.Exit(fail(CohererError(text))) from error
        return result


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


def _open_standard_streams() -> None:
    """Open the standard streams that the caller has closed, such as with `<&-`.

    Otherwise a connection gets the number of a standard stream, and uvloop aborts the process.
    """
    for number, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # gets the lowest free number, this one
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(number, mode, encoding="utf-8", closefd=False))


def _discard_output() -> None:
    """Have Python not fail again when it writes the rest of the output at the end."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.close(nowhere)


def main() -> None:
    """Run the command that the arguments of the process name."""
    _open_standard_streams()
    app()
