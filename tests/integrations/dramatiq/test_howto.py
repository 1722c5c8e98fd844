"""The program of docs/how-to/dramatiq.md runs as it is printed, against a node."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import threading
from pathlib import Path

PAGE = Path(__file__).parents[3] / "docs/how-to/dramatiq.md"
TEXT = PAGE.read_text("utf-8")
[SHOP] = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)


def test_the_new_lines_are_those_of_the_program() -> None:
    (change,) = re.findall(r"```diff\n(.*?)```", TEXT, re.DOTALL)
    added = [line[1:] for line in change.splitlines() if line.startswith("+")]
    assert added
    assert all(line in SHOP.splitlines() for line in added)


def test_the_application(url: str, tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(SHOP.replace("rocketmq://127.0.0.1:9876", url), "utf-8")
    subprocess.run([sys.executable, "shop.py"], cwd=tmp_path, check=True, timeout=60)
    command = [sys.executable, "-m", "dramatiq", "shop", "--processes", "2", "--threads", "2"]
    worker = subprocess.Popen(
        command,
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,  # where Dramatiq writes what its processes print
        text=True,
        start_new_session=True,
    )
    guard = threading.Timer(120, os.killpg, (worker.pid, signal.SIGKILL))
    guard.start()
    try:
        assert worker.stdout is not None
        printed: set[str] = set()  # a worker that joins may repeat a message of another
        while len(printed) < 2 and (line := worker.stdout.readline()):
            if line.startswith("order"):
                printed.add(line)
        worker.terminate()
        worker.communicate()
    finally:
        guard.cancel()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(worker.pid, signal.SIGKILL)
        worker.wait()
    assert worker.returncode == 0
    assert printed == {"order 1: 42 EUR\n", "order 2: 7 EUR\n"}
