"""Consumers with our node; `tests/interop/test_rocketmq_consumers.py` has the same with Java's."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest

from tests.client.consuming_place import Place, place_at
from tests.client.rocket_consuming import SCENARIOS


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.__name__)
async def test_with_our_node(
    scenario: Callable[[Place], Awaitable[None]], coherer_rocketmq_url: str
) -> None:
    async with place_at(coherer_rocketmq_url) as place:
        await scenario(place)
