"""The periodic steps of a running node: none of them can disable another."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from coherer._server.node.node import Node
from coherer.errors import StoreFullError
from coherer.testing.clock import ManualClock
from tests.server.node_harness import options

EXPECTED = {
    "flushing the store",
    "saving offsets",
    "saving the broker's files",
    "keeping the size limit",
    "deleting expired messages",
    "delivering delayed messages",
    "delivering timed messages",
    "checking transactions",
    "expiring TubeMQ consumers",
    "registering with the node's name server",
    "reporting to the node's TubeMQ master",
    "reloading accounts",
}
"""Some of the steps, among them those that lost messages or offsets when they stopped."""


class Steps:
    """Replaces the work of all steps of a node: counts the runs, and makes one step fail."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self.names = frozenset(node.upkeep.failures)
        self.failing, self.error = "", Exception()
        self.ran: Counter[str] = Counter()
        self._changed = asyncio.Event()
        for name in self.names:
            node.upkeep.replace(name, self._work_of(name))

    def _work_of(self, name: str) -> Callable[[], None]:
        def work() -> None:
            self.ran[name] += 1
            self._changed.set()
            if name == self.failing:
                raise self.error

        return work

    async def all_run_twice(self, clock: ManualClock) -> None:
        """Wait until each step, the failing one too, has run twice."""
        self.ran.clear()
        while any(self.ran[name] < 2 for name in self.names):
            clock.advance(120_000)
            self._changed.clear()
            await self._changed.wait()


@pytest.mark.parametrize("error", [StoreFullError("The disk is full."), ZeroDivisionError("bug")])
async def test_a_step_that_raises_disables_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    monkeypatch.setattr("coherer._server.node.node.TICK_S", 0.001)
    clock = ManualClock()
    async with Node(options(tmp_path), now_ms=clock.now_ms) as node:
        steps = Steps(node)
        assert steps.names >= EXPECTED
        steps.error = error
        for name in sorted(steps.names):
            before, steps.failing = node.upkeep.failures, name
            await steps.all_run_twice(clock)
            after = node.upkeep.failures
            assert [one for one in after if after[one] > before[one]] == [name]
        text = (await node.metrics.text()).decode()
        assert f'step="{name}"' in text
        failures = [
            line for line in text.splitlines() if line.startswith("coherer_upkeep_failures_total{")
        ]
        assert len(failures) == len(steps.names)
        assert not any(line.endswith(" 0") for line in failures)
