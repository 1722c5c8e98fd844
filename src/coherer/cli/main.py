"""The command `coherer`: finds the subcommands, and prints an error as one line.

Exit codes: 0 success; 1 a server, the network or a disk failed, or the requested thing does not
exist; 2 the command line is wrong; 130 interrupted.
"""

from __future__ import annotations

import errno
import os
import re
import sys
from collections.abc import Callable
from difflib import get_close_matches
from importlib import import_module
from typing import Annotated, Any, Final, NamedTuple

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command

from coherer._common.loading import collector_paused
from coherer._common.version import __version__
from coherer.cli.values import lightened
from coherer.errors import CohererError


class Entry(NamedTuple):
    """A command in the list of `coherer --help`.

    Attributes:
        module: its module below `coherer.cli`; the module's `app` is a Typer.
        help: the first paragraph of its help. It stands here too, so that the list imports nothing.
    """

    module: str
    help: str


COMMANDS = {
    "serve": Entry("serve.command", "Run a node for TubeMQ and RocketMQ until Ctrl-C or SIGTERM."),
    "topics": Entry("topics", "List, create, alter, delete and describe topics."),
    "produce": Entry(
        "produce",
        "Send messages from files or stdin; by default each line is a message.",
    ),
    "consume": Entry(
        "consume",
        "Print messages as they arrive, and acknowledge them once they are printed.",
    ),
    "groups": Entry("groups", "List, describe, reset and delete consumer groups."),
    "status": Entry("status", "Show the state of a node or a cluster, with warnings."),
    "top": Entry("top", "Show the rates of topics and groups, live."),
    "messages": Entry("messages", "Find messages by id, key, position or time, and trace them."),
    "dead-letters": Entry(
        "dead_letters",
        "Show and replay dead letters, the messages that RocketMQ groups have given up on.",
    ),
    "brokers": Entry(
        "brokers",
        "Show the brokers: address, role, version, rates and disk. "
        "`?` stands for an unknown value.",
    ),
    "config": Entry("config", "Check and show the configuration of `coherer serve`."),
    "console": Entry(
        "console",
        "Serve the console: dead letters, topics, groups, messages, clients, brokers, accounts.",
    ),
    "accounts": Entry("accounts", "Create, list, change and remove the accounts of a node."),
    "drain": Entry(
        "drain",
        "Move producers elsewhere, wait until connected consumers have read everything, and stop.",
    ),
    "verify": Entry(
        "verify",
        "Read the whole store and compare its parts. The node must be stopped.",
    ),
    "backup": Entry(
        "backup",
        "Copy the directory of a node, which may run, or update an earlier backup.",
    ),
    "restore": Entry(
        "restore",
        "Write the directory of a node from a backup. Then start the node with --directory TO.",
    ),
    "export": Entry("export", "Write the messages of a topic to Parquet files, with Spark."),
    "audit": Entry(
        "audit.command",
        "Count the messages of a topic per partition and minute, with Spark.",
    ),
    "replay": Entry(
        "replay.command",
        "Send messages of a topic again: to another topic with Spark, or to a group.",
    ),
    "demo": Entry(
        "demo.command",
        "Send a year of flights through a node into a Spark table, and answer three questions.",
    ),
}

_OUTPUT_LOST: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO})
"""Errors of a write to an open file; typer handles a closed pipe."""


def _unwrapped(text: str) -> str:
    r"""Join the lines of each paragraph, so that a help text fits any terminal.

    >>> _unwrapped("One.\n\nTwo and\nthree.")
    'One.\n\nTwo and three.'
    """
    return re.sub(r"(?<!\n)\n(?!\n)", " ", text)


# Any: the class of a command depends on the version of typer; newer ones bundle click.


def load(name: str) -> Any:
    """Import a command."""
    with collector_paused():
        command: Any = get_command(import_module(f"coherer.cli.{COMMANDS[name].module}").app)
    command.name = name
    for one in (command, *getattr(command, "commands", {}).values()):
        one.help = _unwrapped(one.help or "")
        one.get_params = _then_lightened(one.get_params)
    return command


def _then_lightened(get_params: Callable[[Any], list[Any]]) -> Callable[[Any], list[Any]]:
    return lambda ctx: lightened(get_params(ctx))


class Commands(TyperGroup):
    """A group that imports a command when it is called."""

    def list_commands(self, ctx: object) -> list[str]:
        """The commands in the order in which a new user needs them."""
        del ctx
        return list(COMMANDS)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """The command that the first word names; an unknown one is refused, with a suggestion."""
        name = args[0] if args else ""
        if name in COMMANDS:
            return name, load(name), args[1:]
        if close := get_close_matches(name, COMMANDS, n=1):
            ctx.fail(f"No such command {name!r}. Did you mean {close[0]}?")
        return super().resolve_command(ctx, args)

    def get_command(self, ctx: object, cmd_name: str) -> Any:
        """A command for the list of commands: its name and help; `resolve_command` imports it."""
        del ctx
        found = COMMANDS.get(cmd_name)
        return None if found is None else TyperCommand(cmd_name, help=found.help)

    def main(self, *args: Any, **options: Any) -> Any:
        """Run the command line; a failed write to stdout is one line on stderr."""
        try:
            return super().main(*args, **options)
        except OSError as error:
            if error.filename is not None or error.errno not in _OUTPUT_LOST:
                raise
            _discard_output()
            text = f"The output cannot be written: {error.strerror}."
            sys.exit(_shown(CohererError(text)))

    def get_params(self, ctx: Any) -> list[Any]:
        """The options before the command."""
        return lightened(super().get_params(ctx))

    def invoke(self, ctx: Any) -> Any:
        """Run the command; a `CohererError` is one line on stderr."""
        try:
            result = super().invoke(ctx)
            sys.stdout.flush()
        except CohererError as error:
            raise typer.Exit(_shown(error)) from error
        return result


def _shown(error: CohererError) -> int:
    # `coherer --help` and `--version` load neither msgspec nor asyncio: 60 ms of 140.
    from coherer.cli.output import fail

    return fail(error)


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
    reconfigure = getattr(sys.stdout, "reconfigure", None)  # no stream of a test has it
    if reconfigure is not None:
        # A name that its encoding does not have is shown as on stderr, instead of a traceback.
        reconfigure(errors="backslashreplace")


def _discard_output() -> None:
    """Discard the rest of the output, so that Python does not fail again when it exits."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.close(nowhere)


def main() -> None:
    """Run the command that the arguments of the process name."""
    _open_standard_streams()
    app()
