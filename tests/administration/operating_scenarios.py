"""Messages and the state of a cluster, for our node and for Java's RocketMQ."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta

import pytest

from coherer import admin
from coherer._administration import brokers as state
from coherer._administration import messages
from coherer._administration.access import RocketCluster
from coherer._administration.trace import GroupProgress, trace
from coherer.errors import RefusedError, UsageError
from coherer.message import Message
from tests.client.rocket_scenario import WAIT_S, Scenario, until


async def opened(scenario: Scenario, queues: int = 1) -> RocketCluster:
    client = scenario.client()
    await scenario.make(client, queues)
    return RocketCluster(scenario.url, client, client.admin())


def bodies(found: messages.Search) -> str:
    return b"".join(message.body for message in found.messages).decode()


async def messages_are_found(scenario: Scenario) -> None:
    cluster = await opened(scenario)
    topic = scenario.topic
    sent = await scenario.send(cluster.client, "a", "b", "c", tag="UA", keys=("k1", "k2"))
    first = sent[0]

    async def by_id() -> admin.Message | None:
        return await messages.by_id(cluster, first.id)

    await until(by_id)
    found = await by_id()
    assert found is not None
    assert (found.topic, found.broker, found.partition, found.offset) == (topic, "broker-a", 0, 0)
    assert (found.body, found.tag, found.keys) == (b"a", "UA", ("k1", "k2"))
    assert (found.id, found.unique_id, found.attempt) == (first.id, first.unique_id, 0)
    assert found.born_ms is not None
    assert found.stored_ms is not None

    async def indexed() -> bool:
        return (await messages.by_key(cluster, topic, "k1")).messages[2:] != ()

    await until(indexed)
    assert await messages.by_id(cluster, first.unique_id, topic=topic) == found
    with pytest.raises(RefusedError, match="name the topic"):
        await messages.by_id(cluster, first.unique_id)
    assert await messages.by_id(cluster, "0" * 32, topic=topic) is None
    assert await messages.at(cluster, topic, 0, 0) == found
    assert await messages.at(cluster, topic, 0, 3) is None
    with pytest.raises(UsageError, match="There is no partition 7"):
        await messages.at(cluster, topic, 7, 0)
    keyed = await messages.by_key(cluster, topic, "k2")
    assert (bodies(keyed), keyed.complete) == ("abc", True)
    assert (await messages.by_key(cluster, topic, "other")).messages == ()
    for one in keyed.messages:
        assert one.stored_ms is not None
        moment = datetime.fromtimestamp(one.stored_ms / 1000, UTC)
        before = await messages.by_key(cluster, topic, "k2", end=moment)
        assert before.messages == tuple(
            other for other in keyed.messages if (other.stored_ms or 0) < one.stored_ms
        )
        whole = await messages.by_key(cluster, topic, "k2", begin=moment)
        assert one in whole.messages


async def messages_are_searched(scenario: Scenario) -> None:
    cluster = await opened(scenario)
    topic = scenario.topic
    await scenario.send(cluster.client, *"abcde", queue=0)
    everything = await messages.search(cluster, topic)
    assert (bodies(everything), everything.complete, everything.scanned) == ("abcde", True, 5)
    some = await messages.search(cluster, topic, limit=2)
    assert (bodies(some), some.complete) == ("ab", False)
    wanted = await messages.search(cluster, topic, matches=lambda one: one.body == b"d")
    assert (bodies(wanted), wanted.scanned) == ("d", 5)
    assert bodies(await messages.search(cluster, topic, begin_offset=3)) == "de"
    third = everything.messages[2]
    assert third.stored_ms is not None
    moment = datetime.fromtimestamp(third.stored_ms / 1000, UTC)
    after = await messages.search(cluster, topic, begin=moment)
    assert "cde" in bodies(after)
    assert all((one.stored_ms or 0) >= third.stored_ms for one in after.messages)
    before = await messages.search(cluster, topic, end=moment)
    assert bodies(before) + bodies(after) == "abcde"
    later = await messages.search(cluster, topic, begin=datetime.now(UTC) + timedelta(days=1))
    assert later.messages == ()


async def what_became_of_a_message(scenario: Scenario) -> None:
    cluster = await opened(scenario)
    client, topic, group = cluster.client, scenario.topic, scenario.group
    async with client.producer(trace=f"{topic}_trace") as producer:
        await scenario.make(client, 1, f"{topic}_trace")
        receipts = [
            await producer.send(Message(topic, body, tag=tag))
            for body, tag in ((b"a", "UA"), (b"b", "DL"), (b"c", "UA"), (b"d", "UA"))
        ]
    options = {"start": "earliest", "batch_messages": 1, "trace": f"{topic}_trace"}
    consumer = client.consumer(group, {topic: "UA"}, **options)
    async with consumer, asyncio.timeout(WAIT_S):
        async for message in consumer:
            if message.body == b"c":
                await message.dead_letter(reason="why not")
                break
        await scenario.dead(client, 1)
        states: list[str] = []

        async def progress(number: int) -> GroupProgress:
            found = await messages.by_id(cluster, receipts[number].id)
            assert found is not None
            result = await trace(cluster, found, trace_topic=f"{topic}_trace")
            [one] = [one for one in result.groups if one.group == group]
            return one

        async def settled() -> bool:
            states[:] = [(await progress(number)).state for number in range(4)]
            return states[:3] == ["consumed", "filtered", "dead letter"]

        await until(settled)
        assert states[3] in {"not yet", "consumed"}

    async def steps() -> bool:
        found = await messages.by_id(cluster, receipts[0].id)
        assert found is not None
        result = await trace(cluster, found, trace_topic=f"{topic}_trace")
        kinds = [step.kind for step in result.steps]
        return kinds == ["sent", "delivered", "ended"] and {
            step.success for step in result.steps
        } == {True, None}

    await until(steps)
    found = await messages.by_id(cluster, receipts[0].id)
    assert found is not None
    untraced = await trace(cluster, found, trace_topic=f"{topic}_missing")
    assert (untraced.steps, untraced.traced) == ((), None)


async def the_state_of_a_cluster(scenario: Scenario) -> None:
    cluster = await opened(scenario, 2)
    client, topic, group = cluster.client, scenario.topic, scenario.group

    async def runs() -> bool:  # Java's registers before it answers
        return [one.status for one in await state.brokers(cluster)] == ["running"]

    await until(runs)
    [broker] = await state.brokers(cluster)
    assert (broker.name, broker.id, broker.role, broker.status) == (
        "broker-a", 0, "master", "running"
    )  # fmt: skip
    assert broker.version
    assert broker.in_per_s is not None
    assert broker.disk_used is not None
    assert 0 <= broker.disk_used <= 1
    assert broker.started_ms is not None
    await scenario.send(client, "a", "b")
    assert topic in await cluster.admin.topics.names()
    assert f"%RETRY%{group}" not in await cluster.admin.topics.names()
    [listed] = await cluster.admin.topics.list(topic)
    assert (listed.partitions, dict(listed.brokers)) == (2, {"broker-a": 2})
    async with client.consumer(group, {topic: "UA || DL"}, start="earliest") as consumer:
        await consumer.wait_assigned(int(WAIT_S * 1000))

        async def joined() -> bool:
            [found] = await cluster.admin.groups.list(group)
            return bool(found.subscriptions) and bool(found.partitions)

        await until(joined)
        [found] = await cluster.admin.groups.list(group)
        [member] = found.members
        assert (member.role, member.group) == ("consumer", group)
        assert found.subscriptions is not None
        assert set(found.subscriptions[topic].split(" || ")) == {"UA", "DL"}
        consumers = await cluster.admin.groups.consumers(group)
        assert consumers is not None
        assert [one.id for one in consumers.members] == [member.id]
        assert consumers.subscriptions == found.subscriptions
    assert await cluster.admin.topics.groups(topic) == [group]
    settings = (await cluster.admin.topics.settings(topic))["broker-a"]
    assert (settings.partitions, settings.writable, settings.readable) == (2, True, True)
    assert (await cluster.admin.topics.configs("broker-a"))[topic].partitions == 2
    partitions = await cluster.admin.topics.partitions(topic)
    assert sum(one.messages or 0 for one in partitions) == 2
    counter = await cluster.admin.brokers.counter("broker-a", "TOPIC_PUT_NUMS", topic)
    assert counter.minute.count >= 0  # samples, which Java takes every ten seconds
    assert group in await cluster.admin.groups.names()
    assert await cluster.admin.topics.list(f"{topic}_missing") == []
    assert await cluster.admin.groups.consumers(f"{group}_missing") is None
    async with client.producer(group=f"{group}_sender") as producer:
        await producer.send(Message(topic, b"c"))

        async def sender_is_known() -> bool:
            try:
                found = await cluster.admin.groups.producers(f"{group}_sender")
            except RefusedError:  # the broker does not know the group yet
                return False
            return [one.role for one in found] == ["producer"]

        await until(sender_is_known)


async def topics_are_altered(scenario: Scenario) -> None:
    cluster = await opened(scenario, 2)
    topic = scenario.topic
    await cluster.admin.topics.alter(topic, partitions=4)
    await until(lambda: _has(cluster, topic, partitions=4, writable=True))
    await cluster.admin.topics.alter(topic, writable=False)
    await until(lambda: _has(cluster, topic, partitions=4, writable=False))
    with pytest.raises(UsageError, match="4 queues"):
        await cluster.admin.topics.alter(topic, partitions=3)
    with pytest.raises(UsageError, match="nothing to change"):
        await cluster.admin.topics.alter(topic)
    await cluster.admin.topics.alter(topic, writable=True)
    await until(lambda: _has(cluster, topic, partitions=4, writable=True))


async def _has(cluster: RocketCluster, topic: str, *, partitions: int, writable: bool) -> bool:
    [found] = await cluster.admin.topics.list(topic)
    return (found.partitions, found.writable) == (partitions, writable)


SCENARIOS = (
    messages_are_found,
    messages_are_searched,
    what_became_of_a_message,
    the_state_of_a_cluster,
    topics_are_altered,
)
