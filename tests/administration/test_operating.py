"""Messages and the state of the embedded node, over both protocols."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest

from coherer._administration import brokers as state
from coherer._administration import messages
from coherer._administration.access import TubeCluster, opened
from coherer._administration.trace import steps_of, trace
from coherer.errors import RefusedError, UsageError
from coherer.message import Message
from tests.administration.operating_scenarios import SCENARIOS
from tests.client.rocket_scenario import Scenario, scenario_at


@pytest.mark.parametrize("run", SCENARIOS, ids=lambda run: run.__name__)
async def test_with_the_embedded_node(
    run: Callable[[Scenario], Awaitable[None]], coherer_rocketmq_url: str
) -> None:
    async with scenario_at(coherer_rocketmq_url) as scenario:
        await run(scenario)


async def test_over_tubemq(coherer_url: str, coherer_topic: str) -> None:
    topic = coherer_topic
    async with opened(coherer_url) as cluster:
        assert isinstance(cluster, TubeCluster)
        async with cluster.client.producer(topic) as producer:
            for body, tag in ((b"a", "UA"), (b"b", "DL"), (b"c", "UA")):
                await producer.send(Message(topic, body, tag=tag))
        everything = await messages.search(cluster, topic)
        assert [one.body for one in everything.messages] == [b"a", b"b", b"c"]
        first = everything.messages[0]
        assert (first.stored_ms, first.attempt, first.stored_properties) == (None, None, None)
        tagged = await messages.search(cluster, topic, matches=lambda one: one.tag == "DL")
        assert [one.body for one in tagged.messages] == [b"b"]
        assert await messages.by_id(cluster, first.id, topic=topic) == first
        assert await messages.by_id(cluster, "0", topic=topic) is None
        assert await messages.at(cluster, topic, 0, 0) == first
        assert await messages.at(cluster, topic, 0, 99) is None
        with pytest.raises(UsageError, match="reading their topic"):
            await messages.by_id(cluster, first.id)
        with pytest.raises(UsageError, match="search over its rocketmq"):
            await messages.by_key(cluster, topic, "k")
        group = f"g_{topic}"
        async with cluster.client.consumer(group, topic, start="earliest") as consumer:
            batch = await consumer.receive(timeout_ms=10_000)
            assert batch is not None
            await consumer.commit(batch)
            found = await trace(cluster, first)
            [progress] = [one for one in found.groups if one.group == group]
            assert (progress.state, found.traced) == ("consumed", None)
            [joined] = await cluster.admin.groups.list(group)
            assert [(one.role, one.group) for one in joined.members] == [("consumer", group)]
            assert joined.subscriptions is None
        assert await cluster.admin.topics.groups(topic) == [group]
        [settings] = (await cluster.admin.topics.settings(topic)).values()
        assert (settings.writable, settings.readable, settings.stores) == (True, True, 1)
        [broker] = await state.brokers(cluster)
        assert (broker.role, broker.status) == ("broker", "running")
        assert broker.in_per_s is not None, "a node reports its own rates"
        assert broker.disk_bytes is not None
        assert topic in await cluster.admin.topics.names()
        assert group in await cluster.admin.groups.names()


async def test_a_topic_is_altered_over_tubemq(coherer_url: str, coherer_topic: str) -> None:
    async with opened(coherer_url) as cluster:
        assert isinstance(cluster, TubeCluster)
        await cluster.admin.topics.alter(coherer_topic, partitions=3, writable=False)
        [found] = await cluster.admin.topics.list(coherer_topic)
        assert (found.partitions, found.writable, found.readable) == (3, False, True)
        with pytest.raises(UsageError, match="3 partitions"):
            await cluster.admin.topics.alter(coherer_topic, partitions=2)
        with pytest.raises(UsageError, match="nothing to change"):
            await cluster.admin.topics.alter(coherer_topic)
        with pytest.raises(RefusedError, match="no such topic"):
            await cluster.admin.topics.alter(f"{coherer_topic}_missing", partitions=2)
        await cluster.admin.topics.alter(coherer_topic, writable=True)
        [found] = await cluster.admin.topics.list(coherer_topic)
        assert found.writable


async def test_an_id_over_tubemq_is_looked_for_in_the_newest_of_each_partition(
    coherer_url: str, coherer_topic: str
) -> None:
    topic = f"{coherer_topic}_2"
    async with opened(coherer_url) as cluster:
        assert isinstance(cluster, TubeCluster)
        await cluster.admin.topics.create(topic, 2)
        async with cluster.client.producer(topic) as producer:
            await producer.send_many(Message(topic, b"%d" % one) for one in range(800))
        everything = (await messages.search(cluster, topic, limit=1000)).messages
        assert len(everything) == 800
        newest = [max(o.offset or 0 for o in everything if o.partition == part) for part in (0, 1)]
        for one in everything:
            if (one.partition, one.offset) in enumerate(newest):
                assert await messages.by_id(cluster, one.id, topic=topic, limit=10) == one
        with pytest.raises(RefusedError, match="newest ones; older ones were not read"):
            await messages.by_id(cluster, everything[0].id, topic=topic, limit=10)
        assert await messages.by_id(cluster, everything[0].id, topic=topic) == everything[0]


def test_a_traced_number_of_any_length_is_read() -> None:
    long = "9" * 5_000  # any client may send records of a trace
    [step] = steps_of(f"SubAfter\x01R\x01M\x01{long}\x01true\x01\x010\x01{long}\x01g", {"M"})
    assert (step.kind, step.took_ms, step.time_ms) == ("ended", None, None)


@pytest.mark.parametrize("number", [0, 2**31, 10**30])
async def test_a_number_of_queues_that_no_request_holds_is_refused(
    coherer_rocketmq_url: str, coherer_topic: str, number: int
) -> None:
    async with opened(coherer_rocketmq_url) as cluster:
        with pytest.raises(UsageError, match=f"queues, not {number}"):
            await cluster.admin.topics.create(f"{coherer_topic}_new", number)
        with pytest.raises(UsageError, match=f"queues, not {number}"):
            await cluster.admin.topics.alter(coherer_topic, partitions=number)
