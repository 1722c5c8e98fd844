"""The benchmarks run and write results; no test checks the figures."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from random import Random

import pytest

RUN = Path(__file__).parent.parent / "benchmarks" / "run.py"


@pytest.mark.slow
def test_a_quick_run_without_java(tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    command = [sys.executable, str(RUN), "--quick", "--without-java"]
    rocketmq = "rocketmq-sync-1,rocketmq-pull,rocketmq-latency,embedded"
    command += [
        "--only",
        f"sync-1,batches,latency,blocking-many,{rocketmq},idle,scan,commands,large,connections",
        "--json",
        str(out),
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=1_800, check=False)
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
    assert set(singles) >= {
        "tubemq-first_ms",
        "rocketmq-received_ms",
        "idle",
        "scan-100-all columns",
        "command-fixture",
        "large-metrics-size",
        "connections-rocketmq-balance-Coherer",
        "connections-tubemq-balance-Coherer",
    }


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="it reads /proc")
def test_a_short_soak(tmp_path: Path) -> None:
    command = [sys.executable, str(RUN.with_name("soak.py")), "--minutes", "0.1", "--every", "0.5"]
    command += ["--rate", "40", "--out", str(tmp_path / "out"), "--folder", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=1_800, check=False)
    assert done.returncode in (0, 1), done.stdout + done.stderr
    found = json.loads((tmp_path / "out" / "soak.json").read_text("utf-8"))
    # In seconds only a slope may be wrong.
    assert not [one for one in found["problems"] if "the slope" not in one]
    counts = found["counts"]
    assert counts["received"] > counts["sent"] > 0
    assert found["samples"][-1]["node_anonymous_mb"] > 0
    page = (tmp_path / "out" / "soak.html").read_text("utf-8")
    assert "<polyline" in page
    assert [one.name for one in tmp_path.iterdir()] == ["out"]


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> None:
    """The modules of the benchmarks can be imported."""
    monkeypatch.syspath_prepend(str(RUN.parent))


@pytest.mark.usefixtures("bench")
def test_the_comparison_with_kafka_judges_medians() -> None:
    from bench import spark_cases
    from bench.spark_results import SparkResults, SparkSample

    batch, floor = (
        next(case for case in spark_cases.CASES if case.key == key)
        for key in ("spark-batch-1k-1", "spark-floor-8")
    )
    figures = {"kafka": (100.0, 90.0), "kafka-tuned": (200.0, 96.0), "rocketmq": (170.0, 60.0)}
    contenders = [one for one in spark_cases.CONTENDERS if one.key in figures]
    results = SparkResults([batch, floor], contenders, "4")
    for one in contenders:
        rate, ms = figures[one.key]
        for factor in (1, 1, 5):  # a median takes no notice of the last
            cpu = dict.fromkeys(("broker", "jvm", "workers"), factor / 2)
            results.add(batch, one, SparkSample(10, rate * factor, None, cpu))
            results.add(floor, one, SparkSample(10, 1_000, ms * factor, cpu))
    assert results.ratio(batch, "rocketmq", "kafka") == 1.7
    assert results.ratio(floor, "rocketmq", "kafka") == 1.5
    assert results.met(batch, "rocketmq"), "1.0 of default and 0.8 of tuned"
    assert results.met(floor, "rocketmq"), "1.58 times as fast as tuned"
    assert not results.met(floor, "kafka")
    assert "| 1.70, 0.85 \u2713 |" in results.markdown()
    assert "0.50 + 0.50 + 0.50" in results.markdown()


@pytest.mark.usefixtures("bench")
def test_a_crossed_topic_is_compared_with_rocketmqs_own_format() -> None:
    from bench import spark_cases
    from bench.spark_results import SparkResults, SparkSample

    crossed = next(one for one in spark_cases.CASES if one.key == "spark-batch-crossed-8")
    contenders = [one for one in spark_cases.CONTENDERS if one.can(crossed)]
    assert [one.key for one in contenders] == ["tubemq", "rocketmq"]
    results = SparkResults([crossed], contenders, "4")
    cpu = dict.fromkeys(("broker", "jvm", "workers"), 0.5)
    for one, rate in zip(contenders, (82.0, 100.0), strict=True):
        results.add(crossed, one, SparkSample(10, rate, None, cpu))
    assert results.met(crossed, "rocketmq")
    assert not results.met(crossed, "tubemq"), "it takes more than 1.2 times as long"
    assert "| 0.82 \u2717 |" in results.markdown()
    assert "of rocketmq" in results.markdown()


@pytest.mark.usefixtures("bench")
def test_a_slope_is_judged_by_its_interval() -> None:
    from bench.trends import trend

    random = Random(7)
    times_s = [2.0 * number for number in range(1_800)]
    noise = [random.expovariate(1.0) for _ in times_s]

    def found(percent: float, share: float = 1.0) -> str:
        some = [
            (at_s, 100 + percent * at_s / 3600 + more)
            for at_s, more in zip(times_s, noise, strict=True)
            if at_s <= share * 3600
        ]
        return trend(*zip(*some, strict=True)).verdict(1.0)

    assert found(0.0) == "met"
    assert found(3.0) == "missed"
    assert found(0.0, share=0.05) == "unknown", "three minutes"
    assert found(3.0, share=0.0005) == "unknown", "two seconds"


@pytest.mark.usefixtures("bench")
def test_a_constant_has_a_certain_slope_and_a_step_has_none() -> None:
    from bench.trends import trend

    times_s = [60.0 * number for number in range(49)]
    constant = trend(times_s, [8.0] * 49)
    assert (constant.percent, constant.low, constant.high) == (0.0, 0.0, 0.0)
    assert trend(times_s, [0.0] * 49).verdict(1.0) == "met"
    assert trend(times_s, [100.0] * 24 + [102.0] * 25).verdict(1.0) == "unknown"
