"""Child processes that never outlive their test.

Each child leads a process group of its own and has a pipe as its stdin: the group is killed by
`stop`, and where the test process itself dies the pipe ends, which our children take as an order
to exit (`Leash.java`, `Driver.java`, `node_main.py`).
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO

GRACE_S = 5.0
POLL_S = 0.05
PORTS = (18_000, 32_000)
ENVIRONMENT = dict(os.environ)
"""What children inherit, as it was in the beginning. They are started in threads, while pytest
changes the environment in the main one: an `exec` that reads the real one then may fail with "Bad
address"."""
_RANDOM = random.SystemRandom()  # the common one is set anew for each test
_GIVEN: set[int] = set()
_LOCK = threading.Lock()


class StartError(Exception):
    """A child did not come up; the text holds the end of its log."""


class Child:
    """A process in its own group, with its output in a log file.

    Args:
        name: for messages, and the log's name.
        command: what to run.
        logs: folder of the log.
        pipe_stdout: stdout is read by the caller instead of going to the log.
        env: further environment variables.
    """

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        logs: Path,
        *,
        pipe_stdout: bool = False,
        env: Mapping[str, str] | None = None,
    ) -> None:
        self.name = name
        self.log = logs / f"{name}.log"
        with self.log.open("ab") as log:
            self.process: subprocess.Popen[bytes] = subprocess.Popen(
                list(command),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE if pipe_stdout else log,
                stderr=log,
                start_new_session=True,
                cwd=logs,
                env={**ENVIRONMENT, **(env or {})},
            )

    @property
    def pid(self) -> int:
        """Its process id, also its group's."""
        return self.process.pid

    @property
    def running(self) -> bool:
        """Whether it has not ended."""
        return self.process.poll() is None

    @property
    def stdin(self) -> IO[bytes]:
        """The pipe into it."""
        assert self.process.stdin is not None
        return self.process.stdin

    @property
    def stdout(self) -> IO[bytes]:
        """The pipe out of it, where asked for."""
        assert self.process.stdout is not None
        return self.process.stdout

    def wait_for(self, ready: Callable[[], bool], timeout_s: float, what: str) -> None:
        """Polls until ready.

        Raises:
            StartError: it ended, or the time is up.
        """
        until = time.monotonic() + timeout_s
        while not ready():
            if not self.running:
                raise StartError(f"{self.name} ended before {what}:\n{self.log_end()}")
            if time.monotonic() > until:
                raise StartError(f"{self.name}: no {what} in {timeout_s:.0f} s:\n{self.log_end()}")
            time.sleep(POLL_S)

    def log_end(self, size_bytes: int = 3000) -> str:
        """The last of what it said."""
        return self.log.read_bytes()[-size_bytes:].decode("utf-8", "replace")

    def kill(self) -> None:
        """SIGKILL to its group, at once."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)
        self.process.wait(GRACE_S)

    def stop(self, grace_s: float = GRACE_S) -> None:
        """SIGTERM, some grace, then SIGKILL to whatever is left of the group."""
        if self.running and grace_s > 0:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(grace_s)
        self.kill()
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()


def free_ports(count: int, *, and_beside: Sequence[int] = ()) -> list[int]:
    """Ports that nobody listens on now by any address, and that were not given before.

    They are below those that systems give to connections, which come and go all the time: between
    this and the start of a server nobody else takes them by chance. Java's servers listen by all
    addresses of the machine, so one that is taken by 127.0.1.2 only is no good.

    Args:
        count: how many.
        and_beside: the distances of neighbours that must be free as well.
    """
    ports: list[int] = []
    with _LOCK:
        while len(ports) < count:
            port = _RANDOM.randrange(*PORTS)
            wanted = {port, *(port + distance for distance in and_beside)}
            if wanted.isdisjoint(_GIVEN) and all(map(_is_free, wanted)):
                _GIVEN.update(wanted)
                ports.append(port)
    return ports


def _is_free(port: int) -> bool:
    with socket.socket() as one:
        try:
            one.bind(("", port))
        except OSError:
            return False
    return True


def listens(port: int, host: str = "127.0.0.1") -> bool:
    """Whether somebody accepts connections there."""
    try:
        socket.create_connection((host, port), timeout=0.5).close()
    except OSError:
        return False
    return True
