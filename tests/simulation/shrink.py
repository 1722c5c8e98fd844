"""Finds the smallest part of a plan that still breaks a promise: leaves out one after another."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from tests.simulation.plan import Plan
from tests.simulation.workload import run

RUNS_MAX: Final = 100


def breaks(plan: Plan, check: str) -> bool:
    """Whether a check finds something in the run of a plan."""
    return any(one.check == check for one in run(plan)[1])


def shrink(plan: Plan, check: str, runs_max: int = RUNS_MAX) -> Plan:
    """The plan without what a check does not need to find something.

    Args:
        plan: one that breaks the check.
        check: its name.
        runs_max: the number of runs to spend.
    """
    runs = 0
    while True:
        words = plan.words()
        for fewer in _fewer(words):
            if runs >= runs_max:
                return plan
            runs += 1
            if breaks(plan.only(fewer), check):
                plan = plan.only(fewer)
                break
        else:
            return plan


def _fewer(words: list[str]) -> Iterator[list[str]]:
    """Without a half, without a quarter, and so on, and in the end without single words."""
    size = len(words) // 2
    while size:
        for begin in range(0, len(words), size):
            yield words[:begin] + words[begin + size :]
        size //= 2
