"""Consumers whose calls are cancelled, at each step: no partition is left that nobody reads."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest

from coherer._wire.tubemq import methods
from coherer._wire.tubemq.names import Partition
from coherer.errors import UsageError
from coherer.testing import SimulatedCluster
from coherer.tubemq import Client, Consumer, Message, ReceivedBatch, connect
from tests.client.scripted_answers import HANDLERS
from tests.client.scripted_cluster import Asked, FakeCluster
from tests.client.tube_clients import consumer_of, quick
from tests.waiting import until

STEPS = range(1, 14)
LEASE_MS = 60_000
"""A broker gives a partition to another member 30 s after the last sign of life."""

alone = pytest.mark.coherer_cluster(brokers=1)
at_each_step = pytest.mark.parametrize("steps", STEPS)


@asynccontextmanager
async def consuming(
    cluster: SimulatedCluster,
) -> AsyncGenerator[tuple[Client, Consumer, ReceivedBatch]]:
    """A consumer with a batch in hand."""
    await cluster.create_topic("jobs", 1)
    async with connect(cluster.url) as client, client.producer() as producer:
        await producer.send(Message("jobs", b"first"))
        async with client.consumer("workers", "jobs", start="earliest") as consumer:
            batch = await consumer.receive()
            assert batch is not None
            yield client, consumer, batch


async def cancelled(work: Coroutine[Any, Any, object], steps: int, *, often: bool = False) -> None:
    """Run a coroutine for so many steps of the loop, and cancel it: once, or at each step then."""
    task = asyncio.create_task(work)
    for _ in range(steps):
        await asyncio.sleep(0)
    task.cancel()
    while often and not task.done():
        await asyncio.sleep(0)
        task.cancel()
    await asyncio.wait([task])


@alone
@at_each_step
@pytest.mark.parametrize("call", ["commit", "seek", "retry"])
async def test_messages_still_come(
    coherer_simulated_cluster: SimulatedCluster, call: str, steps: int
) -> None:
    async with consuming(coherer_simulated_cluster) as (client, consumer, batch):
        calls = {
            "commit": lambda: consumer.commit(batch),
            "seek": lambda: consumer.seek("1:jobs:0", 0),
            "retry": batch.retry,
        }
        await cancelled(calls[call](), steps)
        with suppress(UsageError):  # done before, or not valid any more
            batch.ack()
        async with client.producer() as producer:
            await producer.send(Message("jobs", b"second"))
        bodies: list[bytes] = []
        while b"second" not in bodies:
            found = await consumer.receive(LEASE_MS)
            assert found is not None
            bodies += map(bytes, found.bodies())
            found.ack()


@alone
@at_each_step
@pytest.mark.parametrize("often", [False, True])
async def test_a_member_that_has_left_keeps_nothing(
    coherer_simulated_cluster: SimulatedCluster, steps: int, often: bool
) -> None:
    """`often` is what anyio does to all that is awaited in a cancelled scope."""
    async with consuming(coherer_simulated_cluster) as (client, consumer, _):
        await cancelled(consumer.close(), steps, often=often)
        async with client.consumer("workers", "jobs", start="earliest") as other:
            found = await other.receive(LEASE_MS)
            assert found is not None
            assert found.bodies() == [b"first"]


@alone
@pytest.mark.parametrize("event", ["assigned", "revoked"])
async def test_what_a_member_takes_or_gives_up_when_it_is_closed(
    coherer_simulated_cluster: SimulatedCluster, event: str
) -> None:
    """Its rebalance ends there, and a broker would keep the partitions for 30 s."""
    cluster = coherer_simulated_cluster
    await cluster.create_topic("jobs", 2)
    closing: list[asyncio.Task[None]] = []

    def close(_: object) -> None:
        if not closing:
            closing.append(asyncio.create_task(first.close()))

    async with connect(cluster.url) as client, client.producer() as producer:
        for _ in range(2):
            await producer.send(Message("jobs", b"work"))
        if event == "assigned":
            first = client.consumer("workers", "jobs", on_assigned=stuck_after(close))
        else:
            first = client.consumer("workers", "jobs", on_revoked=close)
        await first.start()
        async with connect(cluster.url) as other:
            second = other.consumer("workers", "jobs", start="earliest")
            if event == "revoked":
                await first.wait_assigned()
                await second.start()
            await until(lambda: closing)
            await closing[0]
            if event == "assigned":
                await second.start()
            now_s = asyncio.get_running_loop().time
            closed_s = now_s()
            await until(lambda: len(second.assignment) == 2)
            assert now_s() - closed_s < 20
            await second.close()


def stuck_after(work: Callable[[object], None]) -> Callable[[object], Awaitable[None]]:
    """A listener that never returns."""

    async def listener(partitions: object) -> None:
        work(partitions)
        await asyncio.Event().wait()

    return listener


async def test_a_registration_that_is_not_answered_when_the_consumer_is_closed(
    fake: FakeCluster,
) -> None:
    fake.topics = {"demo": 1}
    held: list[Asked] = []
    fake.script(methods.PARTITION_REGISTER, held.append)
    cluster = quick(fake)
    async with consumer_of(cluster):
        await fake.until(lambda: held)
    [_, back] = fake.asked(methods.PARTITION_REGISTER)
    assert back.opType == methods.UNREGISTER
    await cluster.pool.close()


async def test_a_partition_that_is_lost_during_a_seek(fake: FakeCluster) -> None:
    """The broker says so before it answers the seek. Then two read it for the same member."""
    fake.topics = {"demo": 1}
    lost: list[Partition] = []
    held: list[Asked] = []
    cluster = quick(fake, heartbeat_ms=10)
    async with consumer_of(cluster, on_revoked=lost.extend) as consumer:
        [partition] = await consumer.wait_assigned(2_000)
        fake.script(methods.PARTITION_REGISTER, held.append)
        seeking = asyncio.create_task(consumer.seek(partition, 0))
        await fake.until(lambda: held)

        def deny(asked: Asked) -> None:
            asked.answer(hasPartFailure=True, failureInfo=[f"411:{partition.text()}"])

        fake.script(methods.PARTITION_HEARTBEAT, deny)
        await until(lambda: lost)
        HANDLERS[methods.PARTITION_REGISTER](held[0])
        await seeking
        await fake.until(lambda: len(fake.asked(methods.PARTITION_REGISTER)) == 3)
        await consumer.wait_assigned(2_000)
        fetching = [t for t in asyncio.all_tasks() if t.get_name() == f"fetch {partition.key}"]
        assert len(fetching) == 1
    await cluster.pool.close()


@at_each_step
async def test_a_reader_that_has_left_keeps_no_group(fake: FakeCluster, steps: int) -> None:
    """Each open reader has a group of its own, and closed ones leave theirs to the next."""
    fake.topics = {"demo": 1}
    async with connect(f"tubemq://127.0.0.1:{fake.master.port}") as client:
        [partition] = await client.partitions("demo")
        for _ in range(2):
            reader = client.reader(partition, 0)
            await reader.start()
            await cancelled(reader.close(), steps)
        groups = {one.groupName for one in fake.asked(methods.PARTITION_REGISTER)}
        assert len(groups) == 1


async def test_a_producer_that_is_cancelled_while_it_waits_leaves(fake: FakeCluster) -> None:
    """The master would keep it for as long as the client is open."""
    fake.topics = {"demo": 1}
    fake.script(methods.SEND_MESSAGE, lambda _: None)
    async with connect(f"tubemq://127.0.0.1:{fake.master.port}") as client:
        producer = client.producer("demo")
        await producer.start()
        sending = asyncio.create_task(producer.send(Message("demo", b"x")))
        await fake.until(lambda: fake.asked(methods.SEND_MESSAGE))
        await cancelled(producer.close(), 1)
        assert fake.asked(methods.PRODUCER_CLOSE)
        sending.cancel()
