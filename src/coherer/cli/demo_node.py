"""The node of the demo: a process of its own, that ends when whoever started it does.

It watches its standard input. The pipe closes when the parent closes it, and also when the parent
is killed, so that nothing is ever left running. It has its own session: a Ctrl-C in the terminal
reaches the parent alone, which then stops things in order.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import IO, Final, Self

import msgspec

from coherer._net import run
from coherer.cli.demo_flights import TOPIC
from coherer.errors import UnavailableError

PARTITIONS: Final = 8
STOP_S: Final = 10
"""A node that takes longer to stop is killed."""


class Started(msgspec.Struct, frozen=True):
    """What the node says when it is ready.

    Args:
        urls: where clients connect, by protocol.
    """

    urls: dict[str, str]


class DemoNode:
    """Starts the node, and stops it again at the end of the `with` block.

    Args:
        directory: where it keeps its messages; its log goes beside it.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._process: subprocess.Popen[bytes] | None = None
        self._log: IO[bytes] | None = None
        self._urls: dict[str, str] | None = None

    def __enter__(self) -> Self:
        self._log = self._directory.with_suffix(".log").open("wb")
        self._process = subprocess.Popen(  # noqa: S603 - our own module, run by this Python
            [sys.executable, "-m", "coherer.cli.demo_processes", str(self._directory)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            start_new_session=True,
        )
        return self

    def urls(self) -> dict[str, str]:
        """Waits until it is ready, and says where clients of each protocol connect.

        Raises:
            UnavailableError: it ended instead.
        """
        if self._urls is not None:
            return self._urls
        assert self._process is not None  # noqa: S101 - narrows
        assert self._process.stdout is not None  # noqa: S101 - narrows
        line = self._process.stdout.readline()
        if not line:
            said = self._directory.with_suffix(".log").read_text(errors="replace").strip()
            raise UnavailableError("The node did not start.", hint=said[-1000:])
        self._urls = msgspec.json.decode(line, type=Started).urls
        return self._urls

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._process is not None:
            try:
                self._process.communicate(timeout=STOP_S)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.communicate()
        if self._log is not None:
            self._log.close()


async def _serve(directory: Path) -> None:
    from coherer._server.node.node import Node, NodeOptions

    options = NodeOptions(
        directory=directory,
        master_port=0,
        broker_port=0,
        admin_port=None,
        namesrv_port=0,
        rocketmq_port=0,
    )
    async with Node(options) as node:
        node.create_topic(TOPIC, PARTITIONS)
        started = Started({"tubemq": node.url, "rocketmq": node.rocketmq_url})
        sys.stdout.buffer.write(msgspec.json.encode(started) + b"\n")
        sys.stdout.flush()
        await asyncio.get_running_loop().run_in_executor(None, sys.stdin.buffer.read)


if __name__ == "__main__":
    run(_serve(Path(sys.argv[1])))
