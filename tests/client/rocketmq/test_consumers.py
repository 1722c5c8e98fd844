"""Consumers with the embedded node; `tests/interop/test_rocketmq_consumers.py` uses Java's."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest

from tests.client.rocket_consuming import SCENARIOS
from tests.client.rocket_scenario import Scenario, scenario_at


@pytest.mark.parametrize("run", SCENARIOS, ids=lambda run: run.__name__)
async def test_with_the_embedded_node(
    run: Callable[[Scenario], Awaitable[None]], coherer_rocketmq_url: str
) -> None:
    async with scenario_at(coherer_rocketmq_url) as scenario:
        await run(scenario)
