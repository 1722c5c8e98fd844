"""A few long runs; `make test` tries 200 short ones (`tools/simulate.py`)."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.simulation.plan import plan
from tests.simulation.workload import run

pytestmark = pytest.mark.slow

PROTOCOLS = ("tubemq", "rocketmq")
SEEDS = {"tubemq": 6, "rocketmq": 14}
"""With two slaves over RocketMQ."""
ORDER_OF_SETS = 7
TIMELINE = """
import os, sys
os.getpid = lambda: 7
from tests.simulation.plan import plan
from tests.simulation.workload import run
print(run(plan(int(sys.argv[1]), sys.argv[2]))[0].timeline())
"""


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("seed", range(2))
def test_no_promise_is_broken(seed: int, protocol: str) -> None:
    history, wrong = run(plan(seed, protocol, "long"))
    assert not wrong, f"{wrong[:5]}\n{history.timeline(wrong[0].message)}"
    assert len(history.of("final")) > 20, "hardly anything happened"


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_one_seed_is_one_run(protocol: str, tmp_path: Path) -> None:
    here = run(plan(SEEDS[protocol], protocol))[0].timeline()
    # Another process, with fewer digits, directory, order of sets, and zone of time.
    environment = {
        **os.environ,
        "TMPDIR": str(tmp_path),
        "PYTHONHASHSEED": str(ORDER_OF_SETS),
        "TZ": "Asia/Kathmandu",
    }
    command = [sys.executable, "-c", TIMELINE, str(SEEDS[protocol]), protocol]
    there = subprocess.run(command, env=environment, check=True, capture_output=True, text=True)
    assert there.stdout.splitlines() == here.splitlines()


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_plan_is_the_sum_of_its_words(protocol: str) -> None:
    whole = plan(5, protocol)
    assert whole.only(whole.words()) == whole
    small = whole.only([*whole.senders[:1], *whole.groups[:1], str(whole.faults[0])])
    assert small.words() == [str(whole.faults[0]), whole.senders[0], whole.groups[0]]
    history, _ = run(small)
    assert {event.who for event in history.of("send")} == set(small.senders)


def test_masters_elect_one_of_them() -> None:
    histories = [run(plan(seed, "tubemq")) for seed in (16, 23, 56, 88, 112)]
    terms = founded = 0
    for history, wrong in histories:
        assert not wrong, f"{wrong[:5]}\n{history.timeline(wrong[0].message)}"
        routes = [event for event in history.of("failed") if "partition any more" in event.note]
        assert not routes, "producers keep their partitions while another master becomes active"
        founded += len(history.of("founded"))
        terms += len({event.term for event in history.of("acting")})
    assert founded > len(histories), "no topic was created"
    assert terms > len(histories), "no master was replaced"
