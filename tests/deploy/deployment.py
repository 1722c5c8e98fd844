"""Starts a node from the files of deploy/, and checks it from outside."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Self

import msgspec

from tests.interop.peers.process import free_ports

ROOT: Final = Path(__file__).parent.parent.parent
DEPLOY: Final = ROOT / "deploy"

PORTS: Final = (
    "MASTER_PORT", "BROKER_PORT", "ADMIN_PORT", "NAMESRV_PORT", "ROCKETMQ_PORT",
)  # fmt: skip
"""Ports that a test lets the system choose."""


class Started:
    """A node that a command has started.

    Args:
        command: the command, which runs `coherer serve`.
        environment: what the deployment sets; ports are replaced by free ones.
    """

    def __init__(self, command: Sequence[str], environment: Mapping[str, str]) -> None:
        self.metrics_port = free_ports(1)[0]
        self.environment = {
            **{name: value for name, value in os.environ.items() if name[:8] != "COHERER_"},
            **environment,
            **{f"COHERER_{port}": "0" for port in PORTS},
            "COHERER_METRICS_PORT": str(self.metrics_port),
        }
        self.process = subprocess.Popen(
            [*command, "--json"], env=self.environment, stdout=subprocess.PIPE
        )

    def ready(self) -> dict[str, Any]:
        """What the node prints once it serves."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, "the node has stopped"
        found: dict[str, Any] = msgspec.json.decode(line)
        return found

    def status(self, path: str, port: int | None = None) -> int:
        """The status with which the node answers."""
        url = f"http://127.0.0.1:{port or self.metrics_port}{path}"
        try:
            with urllib.request.urlopen(url, timeout=20) as answer:
                code: int = answer.status
                return code
        except urllib.error.HTTPError as error:
            with error:
                return error.code

    def stop(self) -> int:
        """Stop it as every deployment does, and return its exit code."""
        self.process.send_signal(signal.SIGTERM)
        code = self.process.wait(60)
        assert self.process.stdout is not None
        self.process.stdout.close()
        return code

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait(60)
        if self.process.stdout is not None:
            self.process.stdout.close()


COHERER: Final = str(Path(sys.executable).parent / "coherer")
