"""Measurements of Coherer alone: start, memory."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

from bench.results import Single
from bench.usage import resident_mb
from tests.interop.peers.process import Child

HERE = Path(__file__).parent
IDLE_S = 3.0
START_TIMEOUT_S = 60.0


def embedded(folder: Path, repetitions: int) -> list[Single]:
    """Time from start to the first message, for both protocols; each run in a new process."""
    found = []
    for protocol, title in (("tubemq", "TubeMQ"), ("rocketmq", "RocketMQ")):
        command = [sys.executable, str(HERE / "embedded_main.py"), "first", str(folder), protocol]
        runs = []
        for _ in range(repetitions):
            begin = time.perf_counter()
            done = subprocess.run(command, capture_output=True, timeout=START_TIMEOUT_S, check=True)
            whole_ms = (time.perf_counter() - begin) * 1000
            runs.append({**json.loads(done.stdout), "whole_ms": whole_ms})
        for key, text, goal in (
            ("first_ms", "embedded node, start to first receipt", 300),
            ("received_ms", "embedded node, start to first message received", None),
            ("whole_ms", "a whole process: Python, imports, node, message, stop", None),
        ):
            values = [run[key] for run in runs]
            found.append(Single(f"{protocol}-{key}", f"{text} ({title})", "ms", values, goal=goal))
    return found


def memory(name: str, key: str, pids: list[int]) -> list[Single]:
    """Resident memory of a system's broker, and the part of it that is not pages of files."""
    found: list[Single] = []
    for kind, suffix in (("VmRSS", ""), ("RssAnon", ", without pages of files")):
        sizes = [size for pid in pids if (size := resident_mb(pid, kind)) is not None]
        if sizes:
            found.append(Single(f"{key}{suffix and '-heap'}", name + suffix, "MB", [sum(sizes)]))
    return found


def idle(folder: Path, repetitions: int) -> list[Single]:
    """Resident memory of an idle node."""
    values = []
    for number in range(repetitions):
        command = [sys.executable, str(HERE / "embedded_main.py"), "idle", str(folder)]
        child = Child(f"idle-{number}", command, folder, pipe_stdout=True)
        try:
            if not child.stdout.readline():
                raise RuntimeError(child.log_end())
            time.sleep(IDLE_S)
            value = resident_mb(child.pid)
            if value is not None:
                values.append(value)
        finally:
            child.stop()
    if not values:
        return []
    return [Single("idle", "memory of an idle node", "MB", values, goal=80)]
