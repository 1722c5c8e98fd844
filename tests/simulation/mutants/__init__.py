"""Bugs that tests plant, to see whether the checks find them.

Each is a function that patches the product; its docstring says what goes wrong then. Many are bugs
that the product once had.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final, NamedTuple

import pytest

from tests.simulation.checker import judge
from tests.simulation.mutants import clients, masters, operators, readers, servers, storage
from tests.simulation.plan import Plan
from tests.simulation.workload import run

Plant = Callable[[pytest.MonkeyPatch], None]


class Mutant(NamedTuple):
    """A planted bug.

    Args:
        plant: patches the product.
        protocol: of the runs that look for it.
    """

    plant: Plant
    protocol: str


def _all() -> dict[str, Mutant]:
    found: dict[str, Mutant] = {}
    for module in (storage, servers, clients, readers, operators, masters):
        for protocol, plants in module.MUTANTS.items():
            for plant in plants:
                name = plant.__name__.replace("_", " ")
                if name in found:
                    name = f"{name} ({protocol})"
                found[name] = Mutant(plant, protocol)
    return found


MUTANTS: Final = _all()


def found_by(mutant: Mutant, runs: Iterable[Plan]) -> tuple[int, str] | None:
    """The first seed that finds a planted bug, and the checks that do; None if none finds it."""
    for one in runs:
        with pytest.MonkeyPatch.context() as patch:
            mutant.plant(patch)
            history, _ = run(one)
        if wrong := judge(history):
            return one.seed, ", ".join(dict.fromkeys(each.check for each in wrong))
    return None
