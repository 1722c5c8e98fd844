"""`coherer config`: checks, shows and prints the configuration of `coherer serve`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import msgspec
import typer

from coherer._server.options.exposure import warnings
from coherer.cli.options import Json
from coherer.cli.output import amount, print_json, print_table, warn
from coherer.cli.serve.node_config import (
    changed_over_rocketmq,
    check_node,
    console_settings,
    console_warnings,
    from_file,
    log_options,
    named,
    node_options,
    shown,
    unknown_variables,
)
from coherer.cli.serve.node_config import example as example_file
from coherer.cli.serve.options import Config, values_of
from coherer.errors import UsageError

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    help="Check and show the configuration of `coherer serve`.",
)


class Shown(msgspec.Struct):
    """An option as `coherer config show --json` prints it.

    Args:
        name: as in a configuration file.
        value: as in a configuration file.
        source: "default", or the option as the user wrote it.
    """

    name: str
    value: str
    source: str


class Checked(msgspec.Struct):
    """A valid file as `coherer config check --json` prints it.

    Args:
        options: the number of options that it sets.
        warnings: those that a node with these options would log.
    """

    file: str
    options: int
    warnings: list[str]


@app.command()
def check(
    file: Annotated[Path, typer.Argument(help="The configuration file.")],
    as_json: Json = False,
) -> None:
    """Check a configuration file and the files that it names; print the warnings of a node."""
    values = from_file(file)
    log_options(values)
    options, console = node_options(values), console_settings(values)
    try:
        check_node(options, console)
    except UsageError as error:
        raise named(error, values) from error
    if options.tls is not None:
        try:
            options.tls.server_context()
        except UsageError as error:
            raise named(error, values) from error
    found = [*warnings(options), *console_warnings(console, options)]
    if as_json:
        print_json(Checked(str(file), len(values), found))
        return
    for text in found:
        warn(text)
    typer.echo(f"{file} is valid; it sets {amount(len(values), 'option')}.")


@app.command()
def show(*, config: Config = None, as_json: Json = False) -> None:
    """Show all options, and where each value comes from: a file, the environment, or a default.

    Settings that RocketMQ's administration has changed (updateBrokerConfig) follow, with Java's
    names: they are stored in the directory of the node and take precedence over its options.
    """
    values = values_of({"config": config})
    node_options(values)
    log_options(values)
    for text in unknown_variables():
        warn(text)
    rows = [Shown(*row) for row in [*shown(values), *changed_over_rocketmq(values)]]
    if as_json:
        print_json(rows)
        return
    print_table(
        ("option", "value", "from"),
        [(row.name, row.value, row.source) for row in rows],
        empty="There are no options.",
    )


@app.command()
def example() -> None:
    """Print a configuration file with all options, their meaning and their defaults."""
    typer.echo(example_file(), nl=False)
