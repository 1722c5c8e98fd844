"""Groups that are reset while their members run."""

from __future__ import annotations

import pytest

import coherer
from coherer.errors import UsageError
from coherer.message import Message
from coherer.testing import SimulatedNode


async def test_a_group_that_has_just_begun_reads_again(coherer_simulated: SimulatedNode) -> None:
    """It has no position at the broker yet, which then refuses to reset its members."""
    async with (
        coherer.connect(coherer_simulated.rocketmq_url) as client,
        client.producer() as producer,
        client.consumer("shop", "orders", start="earliest") as consumer,
    ):
        await producer.send(Message("orders", b"42"))
        batch = await consumer.receive()
        assert batch is not None
        batch.ack()
        await client.admin().groups.reset_offsets("shop", "orders", "earliest")
        again = await consumer.receive(10_000)
        assert again is not None
        assert again.bodies() == [b"42"]


async def test_an_offset_beyond_the_end_skips_no_later_message(
    coherer_simulated: SimulatedNode,
) -> None:
    async with (
        coherer.connect(coherer_simulated.rocketmq_url) as client,
        client.producer() as producer,
    ):
        await producer.send(Message("orders", b"41"))
        moved = await client.admin().groups.reset_offsets("shop", "orders", 1 << 70)
        ends = {
            one.queue: one.max_offset for one in await client.admin().topics.partitions("orders")
        }
        assert moved == ends
        await producer.send_batch([Message("orders", b"42")] * 3)
        async with client.consumer("shop", "orders") as consumer:
            seen: list[bytes] = []
            while len(seen) < 3:
                batch = await consumer.receive(10_000)
                assert batch is not None
                seen += batch.bodies()
                batch.ack()
    assert seen == [b"42"] * 3


@pytest.mark.parametrize("name", [" ", "a b", "DEFAULT_CONSUMER"])
async def test_a_name_that_no_group_can_have_gets_no_offsets(
    coherer_simulated: SimulatedNode, name: str
) -> None:
    async with coherer.connect(coherer_simulated.rocketmq_url) as client:
        groups = client.admin().groups
        coherer_simulated.create_topic("orders")
        for changed in (
            groups.reset_offsets(name, "orders", "earliest"),
            groups.set_offsets(name, {}),
            groups.copy_offsets("shop", name, "orders"),
        ):
            with pytest.raises(UsageError, match="group name"):
                await changed
