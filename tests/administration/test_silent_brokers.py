"""What the administration says about brokers that it cannot ask."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from coherer._administration.access import RocketCluster, opened
from coherer._administration.dead_letters import page, queue, queues
from coherer._administration.export import export
from coherer._administration.messages import at, by_id, by_key, search
from coherer._administration.overview import overview
from coherer._administration.replay import replay
from coherer._administration.trace import trace
from coherer.errors import UnavailableError
from coherer.message import Message
from coherer.rocketmq import Queue, connect
from coherer.testing import SimulatedCluster
from tests.administration.letters import GROUP, KEY, TOPIC, made_dead

COPIED_S = 30
"""A slave copies the topics every 10 s."""

QUEUES = (Queue(TOPIC, "broker-a", 0), Queue(TOPIC, "broker-b", 0))

with_slaves = pytest.mark.coherer_cluster(brokers=2, slaves=True, apart=True)


@asynccontextmanager
async def with_letters(simulated: SimulatedCluster) -> AsyncGenerator[RocketCluster]:
    """The cluster, with a dead letter at each broker."""
    async with opened(simulated.rocketmq_url) as cluster:
        assert isinstance(cluster, RocketCluster)
        await made_dead(cluster, [b"x"], brokers=2)
        await asyncio.sleep(COPIED_S)
        yield cluster


@with_slaves
async def test_dead_letters(coherer_simulated_cluster: SimulatedCluster, tmp_path: Path) -> None:
    async with with_letters(coherer_simulated_cluster) as cluster:
        first, second = coherer_simulated_cluster.brokers
        async with first.down():
            await asyncio.sleep(1)
            [known] = await queues(cluster)
            assert (known.count, known.left_out) == (1, ("broker-a",))
            assert [one.broker for one in (await page(cluster, GROUP)).letters] == ["broker-b"]
            with pytest.raises(UnavailableError, match=r"No master of broker-a .*Nothing was done"):
                await replay(cluster, GROUP)
            with pytest.raises(UnavailableError, match="No master of broker-a"):
                await export(cluster, GROUP, tmp_path / "letters.jsonl")
        await asyncio.sleep(COPIED_S)
        done = await replay(cluster, GROUP)
        assert (done.total, done.sent) == (2, 2)
        assert await export(cluster, GROUP, tmp_path / "letters.jsonl") == 2
        lines = (tmp_path / "letters.jsonl").read_bytes().splitlines()
        assert {json.loads(line)["broker"] for line in lines} == {"broker-a", "broker-b"}
        async with second.down():
            await asyncio.sleep(1)
            found = await queue(cluster, GROUP)
            assert found is not None
            assert found.left_out == ("broker-b",)


@with_slaves
async def test_groups_topics_and_overview(
    coherer_simulated_cluster: SimulatedCluster,
) -> None:
    async with with_letters(coherer_simulated_cluster) as cluster:
        [before] = await cluster.admin.groups.list(GROUP)
        assert (before.silent, before.lag) == ((), 0)
        assert (await overview(cluster)).lag == 0
        async with coherer_simulated_cluster.brokers[0].down():
            await asyncio.sleep(1)
            [group] = await cluster.admin.groups.list(GROUP)
            assert (group.silent, group.lag) == (("broker-a",), None)
            parts = await cluster.admin.topics.partitions(TOPIC)
            assert [(one.broker, one.max_offset) for one in parts] == [
                ("broker-a", None),
                ("broker-b", 1),
            ]
            seen = await overview(cluster)
            assert seen.lag is None
            assert "No master of broker broker-a is registered, only a slave." in [
                one.text for one in seen.problems
            ]


@with_slaves
async def test_the_overview_shows_slaves_that_lack_messages(
    coherer_simulated_cluster: SimulatedCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with with_letters(coherer_simulated_cluster) as cluster:
        await asyncio.sleep(10)
        assert not (await overview(cluster)).problems
        monkeypatch.setattr("coherer._administration.overview.SLAVE_BEHIND_BYTES", -1)
        assert [one.text for one in (await overview(cluster)).problems] == [
            f"Broker {name}, slave 1, lacks 0 bytes of its master's log."
            for name in ("broker-a", "broker-b")
        ]


@with_slaves
async def test_changes_of_groups(coherer_simulated_cluster: SimulatedCluster) -> None:
    """Without one of the masters, none says that it was done."""
    async with with_letters(coherer_simulated_cluster) as cluster:
        groups = cluster.admin.groups

        async def committed(group: str) -> dict[str, int | None]:
            [found] = await groups.list(group)
            return {one.broker: one.committed for one in found.partitions if one.topic == TOPIC}

        await groups.create("other")
        before = await committed(GROUP)
        assert len(before) == 2
        no_master = pytest.raises(UnavailableError, match="No master of broker-b is registered")
        async with coherer_simulated_cluster.brokers[1].down():
            await asyncio.sleep(1)
            with no_master:
                await groups.copy_offsets(GROUP, "other", TOPIC)
            for to in ("earliest", 0):
                with no_master:
                    await groups.reset_offsets(GROUP, TOPIC, to)
            with no_master:
                await groups.set_offsets(GROUP, dict.fromkeys(QUEUES, 0))
        await asyncio.sleep(COPIED_S)
        assert (await committed(GROUP), await committed("other")) == (before, {})
        await groups.copy_offsets(GROUP, "other", TOPIC)
        assert await committed("other") == before


@with_slaves
async def test_a_group_is_deleted_in_part(coherer_simulated_cluster: SimulatedCluster) -> None:
    async with with_letters(coherer_simulated_cluster) as cluster:
        groups = cluster.admin.groups
        async with coherer_simulated_cluster.brokers[1].down():
            await asyncio.sleep(1)
            with pytest.raises(UnavailableError, match=r"broker-b .*other brokers only"):
                await groups.delete(GROUP)
        await asyncio.sleep(COPIED_S)
        [found] = await groups.list(GROUP)
        assert {one.broker for one in found.partitions if one.committed} == {"broker-b"}
        await groups.delete(GROUP)
        assert GROUP not in await groups.names()


@with_slaves
async def test_a_slave_knows_the_groups_of_its_broker(
    coherer_simulated_cluster: SimulatedCluster,
) -> None:
    """They are not left out because the master is away."""
    async with with_letters(coherer_simulated_cluster) as cluster:
        groups, topics = cluster.admin.groups, cluster.admin.topics
        await groups.create("alone", ["broker-a"])
        await topics.create("here", 1, ["broker-a"], wait_ms=10_000)
        await groups.set_offsets("alone", {Queue("here", "broker-a", 0): 0})
        async with (
            connect(coherer_simulated_cluster.rocketmq_url) as client,
            client.consumer("members", "here") as consumer,
        ):
            await consumer.wait_assigned()
            await asyncio.sleep(COPIED_S)
            async with coherer_simulated_cluster.brokers[0].down():
                await asyncio.sleep(1)
                assert {"alone", "members"} <= set(await groups.names())
                assert {"alone", "members"} <= {one.name for one in await groups.list()}
                assert await topics.groups("here") == ["alone", "members"]
                found = await groups.consumers("members")
                assert found is not None
                assert len(found.members) == 1


@with_slaves
async def test_no_broker_has_a_master(
    coherer_simulated_cluster: SimulatedCluster,
) -> None:
    async with with_letters(coherer_simulated_cluster) as cluster:
        first, second = coherer_simulated_cluster.brokers
        async with first.down(), second.down():
            await asyncio.sleep(1)
            with pytest.raises(UnavailableError, match="No master of broker-a, broker-b"):
                await cluster.admin.groups.list()


@pytest.mark.coherer_cluster(brokers=2, apart=True)
async def test_a_broker_does_not_answer_a_search(
    coherer_simulated_cluster: SimulatedCluster,
) -> None:
    """What it may have is not said to be nowhere."""
    silent = coherer_simulated_cluster.brokers[1].faults
    async with with_letters(coherer_simulated_cluster) as cluster:
        found = await by_key(cluster, TOPIC, KEY)
        assert {one.broker for one in found.messages} == {"broker-a", "broker-b"}
        assert (found.complete, found.problem) == (True, "")
        [first, second] = sorted(found.messages, key=lambda one: one.broker)
        with silent.lose_answer("QUERY_MESSAGE"):
            found = await by_key(cluster, TOPIC, KEY)
            assert ([one.broker for one in found.messages], found.complete) == (["broker-a"], False)
            assert "No answer in time" in found.problem
            for id_ in (second.unique_id, "0" * 32):
                with pytest.raises(UnavailableError, match="No answer in time"):
                    await cluster.admin.messages.by_unique_id(TOPIC, id_)
            assert await cluster.admin.messages.by_unique_id(TOPIC, first.unique_id) is not None
            [group] = (await trace(cluster, second)).groups
            assert group.state == "unknown"
            assert "No answer in time" in group.why
        [group] = (await trace(cluster, second)).groups
        assert group.state == "dead letter"


@pytest.mark.coherer_cluster(brokers=2, apart=True)
async def test_searches_over_tubemq(coherer_simulated_cluster: SimulatedCluster) -> None:
    """The master knows that a broker is down, and its partitions are left out."""
    async with opened(coherer_simulated_cluster.url) as cluster:
        async with cluster.client.producer() as producer:
            sent = [await producer.send(Message(TOPIC, b"%d" % one)) for one in range(40)]
        first, second = ([one for one in sent if one.broker == name] for name in ("1", "2"))
        assert first
        assert second
        whole = await search(cluster, TOPIC)
        assert (len(whole.messages), whole.complete, whole.problem) == (40, True, "")
        async with coherer_simulated_cluster.brokers[1].down():
            await asyncio.sleep(5)
            found = await search(cluster, TOPIC)
            assert (len(found.messages), found.complete) == (len(first), False)
            assert "Broker 2 is down" in found.problem
            assert (await search(cluster, TOPIC, broker="1")).complete
            assert await by_id(cluster, first[0].id, topic=TOPIC) is not None
            assert await at(cluster, TOPIC, first[0].partition, 0, broker="1") is not None
            down = pytest.raises(UnavailableError, match="Broker 2 is down")
            with down:
                await by_id(cluster, second[0].id, topic=TOPIC)
            for broker in ("2", None):
                with down:
                    await at(cluster, TOPIC, second[0].partition, 0, broker=broker)
