"""Our consumers with every mix of our and Java's name server and broker."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest
from peers.rocket_site import Cluster
from rocket_consuming import SCENARIOS, Place, place_at

pytestmark = [pytest.mark.interop, pytest.mark.slow]


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.__name__)
async def test_with_a_cluster(
    cluster: Cluster, scenario: Callable[[Place], Awaitable[None]]
) -> None:
    async with place_at(cluster.url) as place:
        await scenario(place)
