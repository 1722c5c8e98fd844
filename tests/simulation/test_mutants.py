"""The checks find bugs that are planted."""

from __future__ import annotations

import pytest

from tests.simulation.mutants import MUTANTS
from tests.simulation.workload import run

SEEDS = 30
"""Most are found within five."""


@pytest.mark.parametrize("name", MUTANTS)
def test_a_planted_bug_is_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    mutant = MUTANTS[name]
    mutant.plant(monkeypatch)
    for seed in range(SEEDS):
        _, wrong = run(seed, mutant.protocol)
        if any(one.check == mutant.found_by for one in wrong):
            return
    pytest.fail(f"{SEEDS} seeds have not found it")
