"""Our consumers with every mix of our and Java's name server and broker."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from coherer._client.rocketmq.consuming.consumer import Consumer
from coherer._client.rocketmq.received import ReceivedBatch
from coherer._wire.rocketmq.names import Queue
from coherer.message import Message
from tests.client.rocket_consuming import SCENARIOS
from tests.client.rocket_scenario import (
    Scenario,
    ids,
    scenario_at,
    stored_is,
    take,
    texts,
    until,
)
from tests.interop.peers.rocket_site import Client as JavaClient
from tests.interop.peers.rocket_site import Cluster, RocketSite, wait_until

pytestmark = [pytest.mark.interop, pytest.mark.slow]


@pytest.mark.parametrize("run", SCENARIOS, ids=lambda run: run.__name__)
async def test_with_a_cluster(cluster: Cluster, run: Callable[[Scenario], Awaitable[None]]) -> None:
    async with scenario_at(cluster.url) as scenario:
        await run(scenario)


async def of_both(
    rocket: RocketSite, cluster: Cluster, scenario: Scenario, **options: object
) -> tuple[JavaClient, Consumer]:
    """A consumer of Java's and one of ours in one group, each with half of four queues."""
    client = scenario.client()
    await scenario.make(client, 4)
    await scenario.make(
        client, 1, f"%RETRY%{scenario.group}"
    )  # Java looks for it every 30 s otherwise
    java = await asyncio.to_thread(
        rocket.client,
        cluster,
        "push",
        group=scenario.group,
        topics={scenario.topic: "*"},
        **options,
    )
    ours = client.consumer(scenario.group, scenario.topic, start="earliest", **options)  # type: ignore[arg-type]
    await ours.start()
    await until(lambda: len(ids(ours, scenario.topic)) == 2)
    await until(lambda: java_queues(java, scenario.topic, 2))
    return java, ours


async def java_queues(java: JavaClient, topic: str, count: int) -> bool:
    queues = await asyncio.to_thread(java, "queues")
    return sum(queue["topic"] == topic for queue in queues) == count


async def test_a_group_of_java_and_us_shares_the_queues(
    rocket: RocketSite, cluster: Cluster
) -> None:
    async with scenario_at(cluster.url) as scenario:
        java, ours = await of_both(rocket, cluster, scenario)
        sender = scenario.client()
        await scenario.send(sender, *[str(number) for number in range(20)])
        found = texts(await take(ours, 10))
        # Delivery is at least once: on a busy machine a member can lose a queue for a moment.
        sent = {str(number) for number in range(20)}
        await asyncio.to_thread(wait_until, lambda: {*found, *java.bodies()} == sent)
        await asyncio.to_thread(java.close)
        await until(lambda: len(ids(ours, scenario.topic)) == 4)
        news = {"20", "21", "22", "23"}
        await scenario.send(sender, *sorted(news))
        rest: set[str] = set()
        while not news <= rest:
            rest.update(texts(await take(ours, 1)))
        # Java's consumer leaves without waiting for its last word to be booked.
        assert rest - news <= set(java.bodies())


async def test_of_two_confirmations_at_once_the_later_stays(
    rocket: RocketSite, cluster: Cluster
) -> None:
    """Side by side, Java's broker booked the older one last in about one of 25 tries."""
    pairs = 150
    async with scenario_at(cluster.url) as scenario:
        client = scenario.client()
        await scenario.make(client, 1)
        async with client.producer(scenario.topic) as producer:
            messages = [Message(scenario.topic, b"%d" % number) for number in range(2 * pairs)]
            (await producer.send_many(messages)).check()
        options: dict[str, Any] = {"start": "earliest", "batch_messages": 1}
        async with client.consumer(scenario.group, scenario.topic, **options) as consumer:
            for _ in range(pairs):
                one, two = await consumer.receive(), await consumer.receive()
                assert one is not None
                assert two is not None
                await asyncio.gather(consumer.commit(one), consumer.commit(two))
                assert await stored_is(consumer, two.queue, two.next_offset)


async def test_retries_go_to_whoever_has_the_queue(rocket: RocketSite, cluster: Cluster) -> None:
    async with scenario_at(cluster.url) as scenario:
        java, ours = await of_both(rocket, cluster, scenario)
        retry = f"%RETRY%{scenario.group}"

        async def settled() -> bool:
            return bool(ids(ours, retry)) != await java_queues(java, retry, 1)

        await until(settled)
        retry_is_ours = bool(ids(ours, retry))
        sender = scenario.client()
        if retry_is_ours:  # what Java fails comes to us: 10 s later, as Java wants it
            for queue in range(4):
                await scenario.send(sender, f"{queue}", queue=queue, properties={"FAIL_TIMES": "1"})
            found = await take(ours, 4)
            assert sorted(texts(found)) == ["0", "1", "2", "3"]
            assert sorted(message.attempt for message in found) == [0, 0, 1, 1]
            assert all(message.topic == scenario.topic for message in found)
        else:
            for queue in range(4):
                await scenario.send(sender, f"{queue}", queue=queue)
            async with asyncio.timeout(30):
                for _ in range(2):
                    batch = await ours.receive()
                    assert batch is not None
                    for message in batch:
                        await message.retry(later=1)
            got = await asyncio.to_thread(java.wait_for, 4)
            assert sorted(java.bodies()) == ["0", "1", "2", "3"]
            assert sorted(one["attempt"] for one in got) == [0, 0, 1, 1]
        await asyncio.to_thread(java.close)


async def test_order_is_kept_in_a_group_of_java_and_us(
    rocket: RocketSite, cluster: Cluster
) -> None:
    async with scenario_at(cluster.url) as scenario:
        java, ours = await of_both(rocket, cluster, scenario, orderly=True)
        seen: list[str] = []

        async def handle(batch: ReceivedBatch) -> None:
            seen.extend(body.decode() for body in batch.bodies())

        working = asyncio.create_task(ours.run(handle, workers=2))
        sender = scenario.client()
        for queue in range(4):
            await scenario.send(sender, *[f"{queue}.{number}" for number in range(10)], queue=queue)
        await until(lambda: len(seen) + len(java.messages()) >= 40)
        await ours.close()
        await working
        for bodies in (seen, java.bodies()):
            for queue in range(4):
                numbers = [body for body in bodies if body.startswith(f"{queue}.")]
                assert numbers in ([], [f"{queue}.{number}" for number in range(10)])
        assert sorted(seen + java.bodies()) == sorted(
            f"{q}.{n}" for q in range(4) for n in range(10)
        )
        await until(lambda: java_queues(java, scenario.topic, 4))  # they were unlocked
        await asyncio.to_thread(java.close)


async def test_javas_tools_ask_our_consumer(rocket: RocketSite, cluster: Cluster) -> None:
    async with scenario_at(cluster.url) as scenario:
        client = scenario.client()
        await scenario.make(client, 1)
        [receipt, _] = await scenario.send(client, "first", "second")
        admin = await asyncio.to_thread(rocket.client, cluster, "admin")

        async def run(*arguments: str) -> str:
            return str(await asyncio.to_thread(admin, "run", arguments=list(arguments)))

        async with client.consumer(scenario.group, scenario.topic, start="earliest") as consumer:
            assert texts(await take(consumer, 2)) == ["first", "second"]
            [state] = await client.admin().groups.list(scenario.group)
            [own_id] = [member.id for member in state.members]
            said = await run("consumerStatus", "-g", scenario.group, "-i", own_id, "-s")
            assert "PROP_CONSUME_TYPE" in said
            assert scenario.topic in said
            connected = await run("consumerConnection", "-g", scenario.group)
            assert own_id in connected
            assert "PYTHON" in connected
            await consumer.commit()
            progress = await run("consumerProgress", "-g", scenario.group)
            assert scenario.topic in progress
            directly = asyncio.create_task(
                run("queryMsgById", "-i", receipt.id, "-g", scenario.group, "-d", own_id)
            )
            async with asyncio.timeout(20):
                batch = await consumer.receive()
            assert batch is not None
            assert batch.bodies() == [b"first"]
            batch.ack()
            assert "CR_SUCCESS" in await directly
            await until(lambda: stored_is(consumer, Queue(scenario.topic, "broker-a", 0), 2))
            said = await run(
                "resetOffsetByTime",
                "-g",
                scenario.group,
                "-t",
                scenario.topic,
                "-s",
                "0",
                "-f",
                "true",
            )
            assert scenario.topic in said
            assert texts(await take(consumer, 2)) == ["first", "second"]
        await asyncio.to_thread(admin.close)
