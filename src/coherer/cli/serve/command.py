"""`coherer serve`: runs a node until a signal stops it."""

from __future__ import annotations

import logging

import typer

from coherer import _net as net
from coherer._common.logs import Log
from coherer.cli.serve.log_output import LogOutput
from coherer.cli.serve.node_config import (
    check_node,
    console_settings,
    console_warnings,
    log_options,
    named,
    node_options,
    unknown_variables,
)
from coherer.cli.serve.options import signature, values_of
from coherer.cli.serve.running import Host, log_place, reload, run
from coherer.errors import UsageError

_log = Log(logging.getLogger(__name__))

app = typer.Typer(add_completion=False)


def serve(*, as_json: bool = False, **given: object) -> None:
    """Run a node for TubeMQ and RocketMQ until Ctrl-C or SIGTERM.

    Options come from the file of --config, from environment variables (COHERER_ and the option's
    name in the file, such as COHERER_BROKER_PORT), and from the command line, which takes
    precedence. On SIGHUP the node reads the file again, and reopens the log file. On SIGUSR1 the
    node drains, as with `coherer drain`.
    """
    values = values_of(given)
    options, console = node_options(values), console_settings(values)
    log = LogOutput(log_options(values))
    try:
        for text in (*unknown_variables(), *console_warnings(console, options)):
            _log.plain.warning("%s", text)
        check_node(options, console)
        if options.brokers > 1:
            from coherer.cli.serve.supervisor import supervise  # only --brokers needs it

            net.run(supervise(options, given, log, as_json=as_json, console=console))
        else:
            host = Host(as_json=as_json, log_file=log_place(log))
            work = run(
                options,
                lambda: reload(given, log, console),
                as_json=as_json,
                host=host,
                console=console,
            )
            net.run(work)
    except UsageError as error:
        raise named(error, values) from error
    finally:
        log.close()


vars(serve)["__signature__"] = signature()
app.command()(serve)
