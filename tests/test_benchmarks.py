"""The benchmarks run and write results; no test checks the figures."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

RUN = Path(__file__).parent.parent / "benchmarks" / "run.py"


@pytest.mark.slow
def test_a_quick_run_without_java(tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    command = [sys.executable, str(RUN), "--quick", "--without-java"]
    rocketmq = "rocketmq-sync-1,rocketmq-pull,rocketmq-latency"
    command += ["--only", f"sync-1,batches,latency,{rocketmq},embedded,idle", "--json", str(out)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(out.read_text("utf-8"))
    assert found["machine"]["cores"] >= 1
    assert found["versions"]["coherer"] != "absent"
    cases = [case for one in found["results"] for case in one["cases"]]
    assert {one["protocol"] for one in found["results"]} >= {"TubeMQ", "RocketMQ"}
    for case in cases:
        median = case["pairs"]["coherer client, coherer broker"]["median"]
        assert (median["rate"] or median["p50_ms"]) > 0
    singles = [single["key"] for one in found["results"] for single in one["singles"]]
    assert set(singles) >= {"tubemq-first_ms", "rocketmq-received_ms", "idle"}
