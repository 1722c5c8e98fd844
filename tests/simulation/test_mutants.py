"""The checks find bugs that are planted. CI tries a sample; `tools/simulate.py --mutants` all."""

from __future__ import annotations

from collections.abc import Collection
from itertools import count, islice
from typing import Final

import pytest

from tests.simulation.mutants import MUTANTS, found_by
from tests.simulation.plan import Plan, plan

pytestmark = pytest.mark.slow

RUNS: Final = 90
"""At least one of eight runs that have what it needs finds each of these bugs. So none is missed by
chance when a change of the product makes other histories out of the same seeds."""
POWER: Final = ("power", "drop")
SAMPLE: Final[dict[str, tuple[Collection[str], ...]]] = {
    "answers before the disk": (["sync"], POWER),
    "acknowledged is forgotten when leaving": (["leave"],),
    "confirms what it hands out": (["crash", "freeze"],),
    "acknowledges what it fetches": (["crash", "freeze"],),
    "accounts change after a restart": (["warden"],),
    "waiting pulls go on": (["warden"],),
    "backups lack the end": (["backup"],),
    "streams forget brokers that are down (rocketmq)": (["spark"], ["two"]),
    "recovered messages have no keys": (["kill", *POWER],),
    "files take gaps for damage (rocketmq)": (["spark"], POWER),
    "times stop at gaps": (POWER,),
    "late answers count": (["caller"],),
    "heirs leave no gap": (["heir"],),
}
"""By name: what a run needs, one of each of these parts."""


@pytest.mark.parametrize("name", SAMPLE)
def test_a_planted_bug_is_found(name: str) -> None:
    mutant, needs = MUTANTS[name], SAMPLE[name]
    plans = (plan(seed, mutant.protocol) for seed in count())
    runs = islice((one for one in plans if has(one, needs)), RUNS)
    assert found_by(mutant, runs), f"{RUNS} runs have not found it"


def has(one: Plan, needs: Collection[Collection[str]]) -> bool:
    kinds = [fault.kind for fault in one.faults]
    parts = {one.shape, one.flush, *one.words(), *kinds}
    return all(parts.intersection(need) for need in needs)
