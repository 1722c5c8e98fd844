"""Dead letters of the embedded node; `tests/interop/test_operator.py` uses Java's clusters."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from coherer._administration import dead_letters
from coherer._administration.access import opened
from coherer.errors import UsageError
from tests.administration.dead_letter_scenarios import SCENARIOS, dead_letters_are_exported
from tests.client.rocket_scenario import Scenario, scenario_at


@pytest.mark.parametrize("run", SCENARIOS, ids=lambda run: run.__name__)
async def test_with_the_embedded_node(
    run: Callable[[Scenario], Awaitable[None]], coherer_rocketmq_url: str
) -> None:
    async with scenario_at(coherer_rocketmq_url) as scenario:
        await run(scenario)


async def test_export(coherer_rocketmq_url: str, tmp_path: Path) -> None:
    async with scenario_at(coherer_rocketmq_url) as scenario:
        await dead_letters_are_exported(scenario, tmp_path)


async def test_tubemq_has_none(coherer_url: str) -> None:
    async with opened(coherer_url) as cluster:
        with pytest.raises(UsageError, match=r"TubeMQ has no dead letters.*rocketmq://"):
            await dead_letters.queues(cluster)
