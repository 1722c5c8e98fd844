"""Runs `transactions_job` to its end, however often it dies, and counts what consumers see."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

from coherer.blocking.rocketmq import connect

ROOT = Path(__file__).parents[2]
JOB = ["-m", "tests.spark.transactions_job"]
ROWS = 100
ATTEMPT_S = 300


class Run(NamedTuple):
    """What a job does.

    Args:
        batches: how many micro-batches of `ROWS` rows.
        plan: by the number of a micro-batch: a place and a victim; see `transactions_job`.
        master: Spark's.
        quiet_s: `QUIET_S`, shorter.
    """

    batches: int
    plan: Mapping[int, tuple[str, str]]
    master: str = "local[2]"
    quiet_s: float = 1.0


def transact(
    url: str, topic: str, home: Path, run: Run, restart: Callable[[], None] | None = None
) -> int:
    """Starts the job until it reports its end; returns how often its driver was started."""
    done = threading.Event()

    def serve() -> None:
        while not done.wait(0.05):
            for wish in home.glob("broker-*"):
                assert restart is not None
                restart()
                wish.unlink()

    server = threading.Thread(target=serve, name="broker")
    server.start()
    try:
        for attempt in range(1, run.batches + 2):
            if _attempt(url, topic, home, run):
                return attempt
    finally:
        done.set()
        server.join()
    raise AssertionError((home / "errors").read_text()[-3_000:])


def _attempt(url: str, topic: str, home: Path, run: Run) -> bool:
    arguments = [url, topic, str(home), str(run.batches), str(ROWS), json.dumps(run.plan)]
    arguments.append(run.master)
    with (home / "errors").open("ab") as errors:
        job = subprocess.Popen(
            [sys.executable, *JOB, *arguments],
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            cwd=ROOT,
            env={**os.environ, "QUIET_S": str(run.quiet_s)},
        )
    watchdog = threading.Timer(max(ATTEMPT_S, run.batches * 3), job.kill)
    watchdog.start()
    try:
        assert job.stdout is not None
        lines: list[str] = []
        with (home / "log").open("a") as log:
            for line in job.stdout:
                lines.append(line.strip())
                log.write(line)
        job.wait()
        return "done" in lines
    finally:
        watchdog.cancel()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(job.pid, signal.SIGKILL)
        if job.stdout is not None:
            job.stdout.close()


def struck(home: Path) -> Counter[str]:
    """How often each place was struck, with its victim."""
    return Counter(path.read_text() for path in home.glob("struck-*"))


def seen(url: str, topic: str) -> Counter[int]:
    """The numbers in the topic."""
    found: Counter[int] = Counter()
    with connect(url) as client:
        for queue, (first, _) in client.offsets(topic).items():
            with client.reader(queue, first) as reader:
                while (batch := reader.read()) is not None:
                    found.update(map(int, batch.bodies()))
    return found
