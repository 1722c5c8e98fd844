"""How `run` divides batches among workers, and members that a group cannot tell apart."""

from __future__ import annotations

import asyncio

import coherer
from coherer._client.rocketmq.received import ReceivedBatch
from coherer.rocketmq import average, by_circle
from tests.client.rocket_scenario import WAIT_S, ids, scenario_at, until


async def test_workers_process_that_many_batches_at_a_time(coherer_rocketmq_url: str) -> None:
    """The first three meet in the handler, although all messages are in one queue."""
    async with scenario_at(coherer_rocketmq_url) as scenario:
        client = scenario.client()
        await scenario.make(client, 1)
        await scenario.send(client, *"abcdefgh")
        sizes: list[int] = []
        inside: list[int] = [0]
        met = asyncio.Event()

        async def handle(batch: ReceivedBatch) -> None:
            sizes.append(len(batch))
            inside.append(inside[-1] + 1)
            if inside[-1] == 3:
                met.set()
            async with asyncio.timeout(WAIT_S):
                await met.wait()
            await asyncio.sleep(0)
            inside.append(inside[-1] - 1)

        options = {"start": "earliest", "batch_messages": 1}
        async with client.consumer(scenario.group, scenario.topic, **options) as consumer:
            working = asyncio.create_task(consumer.run(handle, workers=3))
            await until(lambda: len(sizes) == 8 and inside[-1] == 0)
            await consumer.close()
            await working
        assert max(inside) == 3
        assert sizes == [1] * 8


async def test_members_with_one_client_id_get_the_same_messages(coherer_rocketmq_url: str) -> None:
    async with scenario_at(coherer_rocketmq_url) as scenario:
        client, other = scenario.client(instance="one"), scenario.client(instance="one")
        await scenario.make(client, 1)
        await scenario.send(client, *"abcd")
        async with (
            client.consumer(scenario.group, scenario.topic, start="earliest") as first,
            other.consumer(scenario.group, scenario.topic, start="earliest") as second,
        ):
            for consumer in (first, second):
                batch = await consumer.receive(timeout_ms=10_000)
                assert batch is not None
                assert batch.bodies() == [b"a", b"b", b"c", b"d"]


async def test_members_of_both_protocols_get_the_same_messages(
    coherer_url: str, coherer_rocketmq_url: str, coherer_topic: str
) -> None:
    group = f"g_{coherer_topic}"
    async with (
        coherer.connect(coherer_url) as tube,
        coherer.connect(coherer_rocketmq_url) as rocket,
        tube.producer(coherer_topic) as producer,
        tube.consumer(group, coherer_topic, start="earliest") as first,
        rocket.consumer(group, coherer_topic, start="earliest") as second,
    ):
        await producer.send(coherer.Message(coherer_topic, b"a"))
        for consumer in (first, second):
            batch = await consumer.receive(timeout_ms=10_000)
            assert batch is not None
            assert batch.bodies() == [b"a"]


async def test_shares_of_different_strategies_overlap(coherer_rocketmq_url: str) -> None:
    async with scenario_at(coherer_rocketmq_url) as scenario:
        client, other = scenario.client(), scenario.client()
        await scenario.make(client, 4)
        async with (
            client.consumer(scenario.group, scenario.topic, strategy=average) as first,
            other.consumer(scenario.group, scenario.topic, strategy=by_circle) as second,
        ):

            def shares() -> list[list[int]]:
                return [ids(one, scenario.topic) for one in (first, second)]

            await until(lambda: [len(share) for share in shares()] == [2, 2])
            one, two = map(set, shares())
            assert one & two
            assert one | two != {0, 1, 2, 3}
