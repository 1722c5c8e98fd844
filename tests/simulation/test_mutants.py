"""The checks find bugs that are planted. CI tries a sample; `tools/simulate.py --mutants` all."""

from __future__ import annotations

import pytest

from tests.simulation.mutants import MUTANTS, found_by_seed

SEEDS = 30
SAMPLE = {
    "answers before the disk": 0,
    "acknowledged is forgotten when leaving": 0,
    "confirms what it hands out": 1,
    "acknowledges what it fetches": 0,
    "accounts change after a restart": 2,
    "backups lack the end": 8,
    "files are deleted too soon": 6,
}
"""By name, the seed that finds it; on another Python it may be a later one."""


@pytest.mark.parametrize("name", SAMPLE)
def test_a_planted_bug_is_found(name: str) -> None:
    first = SAMPLE[name]
    found = found_by_seed(MUTANTS[name], range(first, first + SEEDS))
    assert found, f"{SEEDS} seeds have not found it"
