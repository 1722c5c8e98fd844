"""The checks find bugs that are planted. CI tries a sample; `tools/simulate.py --mutants` all."""

from __future__ import annotations

import pytest

from tests.simulation.mutants import MUTANTS, found_by_seed

SEEDS = 30
SAMPLE = (
    "answers before the disk",
    "positions run ahead",
    "confirms what it hands out",
    "timed too early",
    "never asks back",
    "dead letters are lost",
    "orderly goes on",
)
"""Each is found within a few seeds, by another check."""


@pytest.mark.parametrize("name", SAMPLE)
def test_a_planted_bug_is_found(name: str) -> None:
    assert found_by_seed(MUTANTS[name], range(SEEDS)), f"{SEEDS} seeds have not found it"
