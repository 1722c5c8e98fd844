"""The long runs with kills, made short: `struck_sink` and `struck_tube` say how to make them long.

Everything that works for a query dies at random moments: Python's processes, the driver with its
Java, the broker.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import uuid
from collections import Counter
from pathlib import Path

import pytest

from coherer.blocking.rocketmq import connect
from tests.interop.peers.cache import UnavailableError, prepare
from tests.interop.peers.rocket_site import RocketSite
from tests.spark import struck_sink
from tests.spark.transacting import ROWS, Run, seen, struck, transact
from tests.spark.transactions_job import PLACES

pytestmark = [
    pytest.mark.interop,
    pytest.mark.spark,
    pytest.mark.slow,
    pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="finds processes in /proc"),
]

ROOT = Path(__file__).parents[2]
BATCHES = 40
MESSAGES = 12_000
TIMEOUT_S = 500


@pytest.mark.parametrize("kind", ["java", "ours"])
def test_transactions_in_many_micro_batches(rocket: RocketSite, kind: str, tmp_path: Path) -> None:
    """`run` itself compares the topic with what was to be sent."""
    names = rocket.names(kind)
    broker = rocket.broker(kind, names)
    url, topic = f"rocketmq://{names}", f"t{uuid.uuid4().hex[:10]}"
    with connect(url) as client:
        client.admin().topics.create(topic, 4, wait_ms=10_000)
    given = argparse.Namespace(batches=BATCHES, seed=1, broker_every=BATCHES // 2, chance=0.3)
    counts = struck_sink.run(broker, url, topic, tmp_path, given)
    assert counts["broker killed"] >= 2
    assert counts["task killed"] > 0
    assert counts["commit killed"] > 0


def test_a_java_broker_killed_at_each_step(rocket: RocketSite, tmp_path: Path) -> None:
    """In a stream of Spark; one step in each micro-batch, in its tasks and in its commit."""
    names = rocket.names("java")
    broker = rocket.broker("java", names)
    url, topic = f"rocketmq://{names}", f"t{uuid.uuid4().hex[:10]}"

    def restart() -> None:
        broker.kill()
        broker.start()
        broker.wait()

    with connect(url) as client:
        client.admin().topics.create(topic, 4, wait_ms=10_000)
    plan = {number: (place, "broker") for number, place in enumerate(PLACES)}
    transact(url, topic, tmp_path, Run(len(plan) + 1, plan), restart)
    assert struck(tmp_path) == Counter(" / ".join(strike) for strike in plan.values())
    found = seen(url, topic)
    assert set(found.values()) == {1}
    assert set(found) >= set(range((len(plan) + 1) * ROWS))


@pytest.fixture
def tubemq() -> None:
    """Skips where Java's TubeMQ is not to be had."""
    try:
        prepare("tubemq")
    except UnavailableError as reason:
        if os.environ.get("CI"):
            raise
        pytest.skip(f"no Java TubeMQ: {reason}")


@pytest.mark.usefixtures("tubemq")
def test_a_java_tubemq_topic_lands_once(tmp_path: Path) -> None:
    """Several stores with several partitions each, messages of many sizes, some with tags."""
    words = [str(MESSAGES), "--rate", "1000", "--every", "2", "--weights", "3", "1", "1", "1"]
    done = subprocess.run(
        [sys.executable, "-m", "tests.spark.struck_tube", *words, "--home", str(tmp_path)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0, (done.stdout + done.stderr)[-4000:]
    assert "missing 0 [], twice 0 [], not at the broker 0 []" in done.stdout
    (kills,) = re.findall(r" kills: (\{.*\})", done.stdout)
    assert "broker" in kills
    assert "worker" in kills
