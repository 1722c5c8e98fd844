"""The checks find bugs that are planted. CI tries a sample; `tools/simulate.py --mutants` all."""

from __future__ import annotations

import pytest

from tests.simulation.mutants import MUTANTS, found_by_seed

pytestmark = pytest.mark.slow

SEEDS = 30
SAMPLE = {
    "answers before the disk": ("short", 11),
    "acknowledged is forgotten when leaving": ("short", 3),
    "confirms what it hands out": ("short", 0),
    "acknowledges what it fetches": ("short", 2),
    "accounts change after a restart": ("short", 2),
    "waiting pulls go on": ("short", 2),
    "backups lack the end": ("short", 5),
    "streams forget brokers that are down (rocketmq)": ("short", 7),
    "recovered messages have no keys": ("short", 13),
    "files take gaps for damage (rocketmq)": ("short", 10),
    "times stop at gaps": ("short", 10),
    "late answers count": ("short", 13),
    "heirs leave no gap": ("short", 14),
    "slaves cut at damage": ("short", 923),
    "delays stop in gaps": ("short", 25),
    "forgets entries that come meanwhile": ("short", 17),
    "replays share their locks": ("short", 1),
    "files are deleted too soon": ("long", 6),
}
"""By name, the form and the seed that finds it; on another Python it may be a later one."""


@pytest.mark.parametrize("name", SAMPLE)
def test_a_planted_bug_is_found(name: str) -> None:
    form, first = SAMPLE[name]
    found = found_by_seed(MUTANTS[name], range(first, first + SEEDS), form)
    assert found, f"{SEEDS} seeds have not found it"
