"""Messages that need much more memory than their pull: zlib makes a thousand bytes of one."""

from __future__ import annotations

from typing import Any

import pytest

from coherer._client.rocketmq.consuming import assigned_queue, reader
from coherer.rocketmq import Message, connect
from coherer.testing import SimulatedNode

SIZE = 100_000
LIMIT = 250_000
COUNT = 7


@pytest.fixture(autouse=True)
def limited(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (assigned_queue, reader):
        monkeypatch.setattr(module, "INFLATED_MAX", LIMIT)


async def send(node: SimulatedNode, client: Any) -> None:
    node.create_topic("jobs", 1)
    async with client.producer() as producer:
        for number in range(COUNT):
            await producer.send(Message("jobs", bytes([number]) * SIZE, tag="a"))


@pytest.mark.parametrize("topics", [["jobs"], {"jobs": "a"}], ids=["all", "filtered"])
@pytest.mark.parametrize("options", [{}, {"orderly": True}, {"batch_messages": 2}], ids=str)
async def test_a_consumer_gets_them_in_several_batches(
    coherer_simulated: SimulatedNode, topics: Any, options: dict[str, Any]
) -> None:
    async with connect(coherer_simulated.rocketmq_url) as client:
        await send(coherer_simulated, client)
        numbers: list[int] = []
        async with client.consumer("workers", topics, start="earliest", **options) as consumer:
            while len(numbers) < COUNT:
                batch = await consumer.receive(60_000)
                assert batch is not None
                bodies = batch.bodies()
                assert sum(map(len, bodies)) <= LIMIT
                numbers += [body[0] for body in bodies]
                await consumer.commit(batch)
            assert {one.offset for one in consumer.progress.values()} >= {COUNT}
            assert {one.left_out for one in consumer.progress.values()} == {0}
        assert numbers == list(range(COUNT))


async def test_a_reader_gets_them_in_several_batches(coherer_simulated: SimulatedNode) -> None:
    async with connect(coherer_simulated.rocketmq_url) as client:
        await send(coherer_simulated, client)
        [queue] = await client.partitions("jobs")
        sizes: list[int] = []
        async with client.reader(queue, 0) as source:
            while (batch := await source.read()) is not None:
                sizes.append(len(batch))
                assert sum(map(len, batch.bodies())) <= LIMIT
            assert (source.left_out, source.position) == (0, COUNT)
        assert sizes == [2, 2, 2, 1]
