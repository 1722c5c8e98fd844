"""Seeds that CI tries; `make simulate` tries more."""

from __future__ import annotations

import pytest

from tests.simulation.workload import run

PROTOCOLS = ("tubemq", "rocketmq")


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("seed", range(6))
def test_no_promise_is_broken(seed: int, protocol: str) -> None:
    history, wrong = run(seed, protocol)
    assert not wrong, f"{wrong[:5]}\n{history.timeline(wrong[0].message)}"
    assert len(history.of("final")) > 20, "hardly anything happened"


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_one_seed_is_one_run(protocol: str) -> None:
    first, _ = run(3, protocol)
    again, _ = run(3, protocol)
    assert first.timeline().splitlines() == again.timeline().splitlines()
