"""Administration of groups whose offsets are at several brokers, of which one is away."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from coherer._server.node.node import Node
from coherer.errors import RefusedError, UnavailableError, UsageError
from coherer.testing import SimulatedCluster, async_embedded_node
from coherer.tubemq import Admin, connect
from tests.server.node_harness import options
from tests.waiting import until

WAIT_S = 20

two_brokers = pytest.mark.coherer_cluster(brokers=2, apart=True, admin_port=0)


async def brokers_of(admin: Admin, group: str) -> set[str]:
    """The brokers that have offsets of a group."""
    return {
        one.broker
        for state in await admin.groups.list(group)
        for one in state.partitions
        if one.committed is not None
    }


@two_brokers
async def test_a_group_is_deleted_where_it_can_be(
    coherer_simulated_cluster: SimulatedCluster,
) -> None:
    """And the error says where it was not."""
    await coherer_simulated_cluster.create_topic("jobs", 2)
    async with connect(coherer_simulated_cluster.url) as client:
        admin = client.admin()
        await admin.groups.set_offsets("workers", {"1:jobs:0": 0, "2:jobs:1": 0})
        await admin.groups.set_offsets("others", {"2:jobs:0": 0})
        assert await brokers_of(admin, "workers") == {"1", "2"}
        async with coherer_simulated_cluster.brokers[1].down():
            with pytest.raises(
                UnavailableError, match=r"workers is deleted at the others only"
            ) as caught:
                await admin.groups.delete("workers")
            assert "again" in caught.value.hint
            assert await brokers_of(admin, "workers") == set()
            for group in ("others", "workers"):
                with pytest.raises(UnavailableError, match=f"Broker 2 .*{group} is not at the"):
                    await admin.groups.delete(group)
        await asyncio.sleep(30)
        assert await brokers_of(admin, "workers") == {"2"}
        for group in ("workers", "others"):
            await admin.groups.delete(group)
        assert await admin.groups.names() == []
        with pytest.raises(RefusedError, match="There is no group workers"):
            await admin.groups.delete("workers")


@two_brokers
async def test_offsets_of_partitions_that_are_not_there(
    coherer_simulated_cluster: SimulatedCluster,
) -> None:
    """Brokers pass over them, and the caller would think that they are set."""
    async with connect(coherer_simulated_cluster.url) as client:
        groups = client.admin().groups
        await client.admin().topics.create("jobs", 1, brokers=[1], wait_ms=10_000)
        for key in ("1:jobs:7", "2:jobs:0", "1:nothing:0"):
            with pytest.raises(UsageError, match=f"no partition {key}. Nothing was changed"):
                await groups.set_offsets("workers", {"1:jobs:0": 0, key: 0})
        assert await groups.list("workers") == []
        await groups.set_offsets("workers", {"1:jobs:0": 0})
        assert len(await groups.list("workers")) == 1


async def test_a_broker_without_administration(tmp_path: Path) -> None:
    """What it has is unknown, and not said to be nothing."""
    async with async_embedded_node(tmp_path / "1", admin_port=0) as first:
        place = {"roles": frozenset({"broker"}), "master": first.url.removeprefix("tubemq://")}
        second = Node(
            options(tmp_path / "2", broker_id=2, broker_name="b", heartbeat_ms=10, **place)
        )
        async with second, connect(first.url) as client:
            await second.ready()
            admin = client.admin()
            await admin.topics.create("jobs", 1, wait_ms=10_000)

            async def is_at_both() -> bool:
                return len(await client.partitions("jobs")) == 2

            await until(is_at_both, WAIT_S)
            async with client.consumer("workers", "jobs", start="earliest") as consumer:
                await until(lambda: len(consumer.assignment) == 2, WAIT_S)
                [state] = await admin.groups.list("workers")
                assert (state.silent, state.lag) == (("2",), None)
                assert state.no_lag == "broker 2 did not answer"
            with pytest.raises(UnavailableError, match="Broker 2 has no HTTP administration"):
                await admin.groups.set_offsets("workers", {"2:jobs:0": 0})
            with pytest.raises(UnavailableError, match="Broker 2 cannot be asked; group workers"):
                await admin.groups.delete("workers")
