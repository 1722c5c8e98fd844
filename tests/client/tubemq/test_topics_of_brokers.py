"""Administration of topics at several brokers, of which one is away."""

from __future__ import annotations

import asyncio

import pytest

from coherer.errors import RefusedError
from coherer.testing import SimulatedCluster
from coherer.tubemq import connect


@pytest.mark.coherer_cluster(brokers=2, apart=True, admin_port=0)
@pytest.mark.parametrize("exist_ok", [False, True])
async def test_a_broker_has_still_to_delete_the_old_topic(
    coherer_simulated_cluster: SimulatedCluster, exist_ok: bool
) -> None:
    """To say that it has the topic would be wrong: soon it has not."""
    await coherer_simulated_cluster.create_topic("jobs", 2)
    async with connect(coherer_simulated_cluster.url) as client:
        topics = client.admin().topics
        async with coherer_simulated_cluster.brokers[1].down():
            await topics.delete("jobs")
            await asyncio.sleep(30)
            with pytest.raises(RefusedError, match=r"Broker 2 has still to delete .*Nothing was"):
                await topics.create("jobs", 2, exist_ok=exist_ok)
            assert await topics.list() == []
        await asyncio.sleep(30)
        await topics.create("jobs", 2, exist_ok=exist_ok)
        [found] = await topics.list("jobs")
        assert found.brokers == {"1": 2, "2": 2}


@pytest.mark.coherer_cluster(brokers=2, apart=True, admin_port=0)
async def test_the_others_are_named(coherer_simulated_cluster: SimulatedCluster) -> None:
    await coherer_simulated_cluster.create_topic("jobs", 2)
    async with connect(coherer_simulated_cluster.url) as client:
        topics = client.admin().topics
        async with coherer_simulated_cluster.brokers[1].down():
            await topics.delete("jobs")
            await asyncio.sleep(30)
            await topics.create("jobs", 2, ["1"], wait_ms=30_000)
            [found] = await topics.list("jobs")
            assert found.brokers == {"1": 2}
