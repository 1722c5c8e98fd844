"""Every example runs as it stands, as a process of its own, against a node."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from coherer.testing import EmbeddedNode

EXAMPLES = Path(__file__).parent.parent.parent / "examples"

SAYS = {
    "produce.py": ["stored in partition", "3 more are stored", "1000 futures are done"],
    "consume.py": ["1004 messages"],
    "pull.py": [
        "took [b'wash up'], and",
        "took [b'wash up'] again, and it worked",
        "the group continues at offset 1",
    ],
    "filters.py": ["['rain', 'rain', 'snow']"],
    "blocking_api.py": ["100 sent, 0 failed", "read 100"],
    "to_arrow.py": ["value: binary", "'tag': ['even', 'odd'], 'count_all': [5000, 5000]"],
    "lag.py": ["couriers: 20 behind in 4 partitions", "couriers: 0 behind"],
}
ROCKETMQ_SAYS = {
    "rocketmq_transaction.py": ["committed: COMMIT", "ROLLBACK", "the ledger sees 100 cents"],
    "rocketmq_orders.py": [
        "steps of big orders: ['new', 'sent']",
        "packed: ['o1 at attempt 1', 'o2 at attempt 0']",
        "the answer is 42",
    ],
}
SPARK_SAYS = {"spark_table.py": ["shop|  500"]}
ROCKETMQ_SPARK_SAYS = {
    "audit_and_replay.py": ["10 not landed, 0 doubled", "the table is complete: True"],
}
BEFORE = {"consume.py": "produce.py"}


def run(*words: str, timeout: int = 60) -> str:
    done = subprocess.run(
        [sys.executable, "-W", "error", *words],
        capture_output=True,
        text=True,
        check=False,
        timeout=timeout,
        cwd=EXAMPLES,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_none_is_forgotten() -> None:
    scripts = {path.name for path in EXAMPLES.glob("*.py")}
    assert scripts == {*SAYS, *ROCKETMQ_SAYS, *SPARK_SAYS, *ROCKETMQ_SPARK_SAYS, "test_orders.py"}
    text = (EXAMPLES / "README.md").read_text("utf-8")
    assert all(f"[{name}]({name})" in text for name in scripts)


@pytest.mark.parametrize("name", SAYS)
def test_it_runs(name: str, coherer_node: EmbeddedNode) -> None:
    if name in BEFORE:
        run(BEFORE[name], coherer_node.url)
    said = run(name, coherer_node.url, coherer_node.admin_url)
    for text in SAYS[name]:
        assert text in said


@pytest.mark.parametrize("name", ROCKETMQ_SAYS)
def test_it_runs_on_rocketmq(name: str, coherer_rocketmq_url: str) -> None:
    said = run(name, coherer_rocketmq_url)
    for text in ROCKETMQ_SAYS[name]:
        assert text in said


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.parametrize("name", SPARK_SAYS)
def test_it_runs_on_spark(name: str, coherer_node: EmbeddedNode) -> None:
    said = run(name, coherer_node.url, timeout=180)
    for text in SPARK_SAYS[name]:
        assert text in said


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.parametrize("name", ROCKETMQ_SPARK_SAYS)
def test_it_runs_on_spark_over_rocketmq(name: str, coherer_rocketmq_url: str) -> None:
    said = run(name, coherer_rocketmq_url, timeout=600)
    for text in ROCKETMQ_SPARK_SAYS[name]:
        assert text in said


def test_the_tests_of_the_examples_pass() -> None:
    said = run("-m", "pytest", "-q", "-p", "no:cacheprovider", "test_orders.py")
    assert "1 passed" in said
