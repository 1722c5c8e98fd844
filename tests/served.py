"""`coherer serve` as a process."""

from __future__ import annotations

import subprocess
import sys

import msgspec

from coherer.cli.serve.running import Ready

ROCKETMQ = ("--namesrv-port", "0", "--rocketmq-port", "0")
FREE = ("--master-port", "0", "--broker-port", "0", *ROCKETMQ, "--admin-port", "0")


class Served:
    """A `coherer serve --json` as a process."""

    def __init__(self, *words: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "coherer", "serve", "--json", *words],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def ready(self) -> Ready:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, self.process.communicate()[1]
        return msgspec.json.decode(line, type=Ready)

    def end(self, number: int) -> tuple[int, str, str]:
        self.process.send_signal(number)
        out, err = self.process.communicate(timeout=30)
        return self.process.returncode, out, err
