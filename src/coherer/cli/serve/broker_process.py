"""One broker process of `coherer serve --brokers N`: `python -m coherer.cli.serve.broker_process`.

The supervisor starts it, and controls it with the messages of `broker_messages`. It runs in a new
session, so Ctrl-C in a terminal reaches only the supervisor, which stops the brokers in order.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager

import msgspec

from coherer import _net as net
from coherer._common.logs import Log
from coherer._server.options.node import NodeOptions
from coherer.cli.output import FAILED, MISUSED
from coherer.cli.serve.broker_messages import (
    Alive,
    Announce,
    Ask,
    Begin,
    Drain,
    Drained,
    Failed,
    FromBroker,
    Registered,
    Reload,
    Siblings,
    ToBroker,
    given_of,
    line_of,
    options_of,
    serving,
)
from coherer.cli.serve.log_output import LogOutput
from coherer.cli.serve.node_config import log_options
from coherer.cli.serve.options import values_of
from coherer.cli.serve.running import Host, drain, run
from coherer.errors import CohererError, UsageError

_log = Log(logging.getLogger(__name__))
_READ_BYTES = 1 << 16


class Lines:
    """Reads lines from the standard input; `os.read` holds no lock when the process ends."""

    def __init__(self) -> None:
        self._rest = b""

    def next(self) -> bytes | None:
        """Wait for the next line; None at the end of the input."""
        while b"\n" not in self._rest:
            more = os.read(0, _READ_BYTES)
            if not more:
                return None
            self._rest += more
        line, _, self._rest = self._rest.partition(b"\n")
        return line


def send(message: FromBroker) -> None:
    """Send a message to the supervisor, if it still runs."""
    try:
        os.write(1, line_of(message))
    except OSError:
        _log.plain.debug("The supervisor has stopped reading.")


class BrokerHost(Host):
    """Connects a node to the supervisor: passes on its commands, and reports the node's state.

    Args:
        lines: the supervisor's messages.
    """

    def __init__(self, lines: Lines) -> None:
        super().__init__(as_json=True)
        self._lines = lines

    @contextmanager
    def stopping(self) -> Generator[asyncio.Event]:
        """An event that is set at the end of the input, and by the first SIGTERM."""
        with super().stopping() as stopped:
            self._loop, self._stopped = asyncio.get_running_loop(), stopped
            yield stopped

    @contextmanager
    def reloading(self, action: Callable[[], None]) -> Generator[None]:
        """Read the supervisor's messages; call `action` at each `Reload`."""
        threading.Thread(
            target=self._read, args=(action,), name="coherer-supervisor", daemon=True
        ).start()
        yield

    def opened(self) -> None:
        """Report the ports of the node."""
        send(serving(self.node))

    def ready(self) -> None:
        """Report that the node has registered."""
        send(Registered())

    def drained(self) -> None:
        """Report that the node is drained."""
        send(Drained())

    def _read(self, action: Callable[[], None]) -> None:
        while (line := self._lines.next()) is not None:
            message = msgspec.json.decode(line, type=ToBroker)
            if isinstance(message, Siblings):
                self._loop.call_soon_threadsafe(self.node.siblings.update, message.states)
            elif isinstance(message, Announce):
                self._loop.call_soon_threadsafe(self.node.rocketmq.announce)
            elif isinstance(message, Ask):
                self._loop.call_soon_threadsafe(send, Alive())
            elif isinstance(message, Drain):
                self._loop.call_soon_threadsafe(drain, self.node)
            elif isinstance(message, Reload):
                self._loop.call_soon_threadsafe(action)
        self._loop.call_soon_threadsafe(self._stopped.set)


def main() -> int:
    """Run the broker that the first line describes. Returns the exit code."""
    lines = Lines()
    line = lines.next()
    if line is None:
        return 0
    if (hangup := getattr(signal, "SIGHUP", None)) is not None:
        signal.signal(hangup, signal.SIG_IGN)  # the supervisor gets it, too, and sends `Reload`
    begin = msgspec.json.decode(line, type=Begin)
    log: LogOutput | None = None
    try:
        options = options_of(begin)
        log = LogOutput(log_options(values_of(given_of(begin))), broker=options.broker_id)
        opened = log

        def reload() -> NodeOptions:
            opened.change(log_options(values_of(given_of(begin))))
            return options_of(begin)

        net.run(run(options, reload, as_json=True, host=BrokerHost(lines)))
    except CohererError as error:
        usage = isinstance(error, UsageError)
        send(Failed(error.text, error.hint, usage))
        return MISUSED if usage else FAILED
    finally:
        if log is not None:
            log.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
