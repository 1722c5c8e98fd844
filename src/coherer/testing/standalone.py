"""`coherer-node`: a node for tests in other languages, which lives as long as the test does.

It prints one line of JSON with its addresses, and nothing else. It ends when its standard input
ends, when the process that started it ends, and on SIGTERM.
"""

from __future__ import annotations

import argparse
import asyncio
import errno
import os
import signal
import stat
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final

import msgspec

from coherer._server.node.node import Node
from coherer.errors import CohererError, UsageError
from coherer.testing.embedded import async_embedded_node

_LOOK_S: Final = 0.2


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a node until the test ends; returns the exit code."""
    parent = os.getppid()  # before anybody knows of the node, and may end
    parser = argparse.ArgumentParser(
        prog="coherer-node",
        description="Run a node for a test in any language. It prints its addresses as one line of "
        "JSON, and ends with its standard input or with the process that has started it.",
    )
    parser.add_argument(
        "--topic",
        action="append",
        type=_topic,
        default=[],
        metavar="NAME[=PARTITIONS]",
        help="create a topic; repeat it for more",
    )
    parser.add_argument("--directory", help="keep the files there; default: a temporary directory")
    given = parser.parse_args(arguments)
    try:
        asyncio.run(_run(given.directory, given.topic, parent))
    except CohererError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


def _topic(text: str) -> tuple[str, int]:
    name, _, partitions = text.partition("=")
    if not name or not (partitions or "1").isdecimal() or partitions == "0":
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME or NAME=PARTITIONS, as orders=4")
    return name, int(partitions or 1)


async def _run(directory: str | None, topics: Sequence[tuple[str, int]], parent: int) -> None:
    ended, loop = asyncio.Event(), asyncio.get_running_loop()
    if sys.platform != "win32":  # its event loops handle no signals
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, ended.set)
    async with async_embedded_node(directory) as node:
        for name, partitions in topics:
            node.create_topic(name, partitions)
        _tell(_addresses(node))
        _watch_input(lambda: loop.call_soon_threadsafe(ended.set))
        while not ended.is_set() and os.getppid() == parent:
            with suppress(TimeoutError):
                async with asyncio.timeout(_LOOK_S):
                    await ended.wait()


def _tell(addresses: dict[str, object]) -> None:
    try:
        # Not buffered: Python would try again at its end, and change the exit code.
        os.write(_output(), msgspec.json.encode(addresses) + b"\n")
    except OSError as error:
        raise UsageError(
            f"The addresses cannot be written to the standard output: {error.strerror}.",
            hint="Start coherer-node with a pipe, and read one line.",
        ) from error


def _output() -> int:
    if sys.stdout is None:  # it was closed; its number may belong to a file of the node by now
        raise OSError(errno.EBADF, os.strerror(errno.EBADF))
    return sys.stdout.fileno()


def _addresses(node: Node) -> dict[str, object]:
    return {
        "tubemq": node.url,
        "rocketmq": node.rocketmq_url,
        "name_server": node.rocketmq_url.partition("://")[2],
        "admin": f"http://{node.options.host}:{node.admin_port}",
        "pid": os.getpid(),
    }


def _watch_input(ended: Callable[[], object]) -> None:
    """Call a function when the standard input ends, if another process holds its other end."""
    try:
        mode = os.fstat(0).st_mode
    except OSError:  # it is closed
        return
    if not (stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode)):
        return

    def read() -> None:
        with suppress(OSError):
            while os.read(0, 4096):
                pass
        with suppress(RuntimeError):  # the loop has ended
            ended()

    threading.Thread(target=read, daemon=True, name="standard input").start()


if __name__ == "__main__":
    sys.exit(main())
