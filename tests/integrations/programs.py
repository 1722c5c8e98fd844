"""Programs that tests start, wait for and kill."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Self, TypeVar

ROOT = Path(__file__).parents[2]
WAIT_S = 120.0

T = TypeVar("T")


class Program:
    """A program of Python and its children; they are killed at the end of its `with` block.

    Args:
        arguments: Python's arguments, `-m` and a module for example.
        log: the file that receives its output, appended.
        folder: its working directory.
        environment: variables of its environment, beside those of this process.
    """

    def __init__(self, *arguments: str, log: Path, folder: Path = ROOT, **environment: str) -> None:
        self.log = log
        with log.open("ab") as output:
            self.process = subprocess.Popen(
                [sys.executable, *arguments],
                cwd=folder,
                env=os.environ | environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def await_text(self, text: str) -> None:
        """Wait until its log contains a text."""

        def found() -> bool:
            assert self.process.poll() is None, self.log.read_text()
            return text in self.log.read_text()

        until(found, f"{text!r} in {self.log}")

    def kill(self) -> None:
        """Kill it and its children at once."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def stop(self) -> int:
        """Ask it to end, and return its exit code."""
        self.process.terminate()
        return self.process.wait(WAIT_S)


def until(holds: Callable[[], T], what: str = "the condition") -> T:
    """Check again every few milliseconds until a condition holds; return its value."""
    deadline = time.monotonic() + WAIT_S
    while not (found := holds()):
        assert time.monotonic() < deadline, f"{what} does not hold after {WAIT_S} s"
        time.sleep(0.02)
    return found


def lines(path: Path) -> list[str]:
    """Return the lines of a file that another process writes."""
    return path.read_text().splitlines() if path.exists() else []


def added_lines(page: str) -> set[str]:
    """Return the lines that the change on a page adds to a program."""
    [change] = re.findall(r"```diff\n(.*?)```", page, re.DOTALL)
    added = {line[1:] for line in change.splitlines() if line.startswith("+")}
    assert added
    return added
