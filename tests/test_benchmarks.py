"""The benchmarks start, measure and write; whether figures are good is not for a test."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

RUN = Path(__file__).parent.parent / "benchmarks" / "run.py"


@pytest.mark.slow
def test_a_short_run_of_ours_alone(tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    command = [sys.executable, str(RUN), "--quick", "--without-java"]
    command += ["--only", "sync-1,batches,latency,embedded,idle", "--json", str(out)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(out.read_text("utf-8"))
    assert found["machine"]["cores"] >= 1
    assert found["versions"]["coherer"] != "absent"
    for case in found["cases"]:
        median = case["pairs"]["ours client, ours broker"]["median"]
        assert (median["rate"] or median["p50_ms"]) > 0
    assert {single["key"] for single in found["singles"]} >= {"first-acknowledged", "idle"}
