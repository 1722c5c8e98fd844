"""Partitions that come to a group while it runs: it misses no message of them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import pytest

from coherer.testing import SimulatedCluster
from coherer.tubemq import Admin, Client, Consumer, Message, connect

SENT = 60

alone = pytest.mark.coherer_cluster(brokers=1, admin_port=0)
by_members = pytest.mark.parametrize("members", [1, 2, 3])


@asynccontextmanager
async def running(client: Client, members: int, **options: Any) -> AsyncGenerator[list[bytes]]:
    """Members of a group, which run for a minute before; and what they receive."""
    received: list[bytes] = []

    async def receive(consumer: Consumer) -> None:
        async for batch in consumer.batches():
            received.extend(map(bytes, batch.bodies()))

    async with AsyncExitStack() as stack, asyncio.TaskGroup() as tasks:
        receiving: list[asyncio.Task[None]] = []
        for _ in range(members):
            consumer = client.consumer("workers", "jobs", **options)
            await stack.enter_async_context(consumer)
            receiving.append(tasks.create_task(receive(consumer)))
        await asyncio.sleep(60)
        yield received
        for task in receiving:
            task.cancel()


async def send(url: str) -> list[bytes]:
    """Send messages to all partitions, from a client that learns of them at once."""
    bodies = [b"%d" % number for number in range(SENT)]
    async with connect(url) as client, client.producer() as producer:
        for body in bodies:
            await producer.send(Message("jobs", body))
    return bodies


async def check_all(cluster: SimulatedCluster, received: list[bytes]) -> None:
    sent = await send(cluster.url)
    await asyncio.sleep(60)
    assert sorted(received) == sorted(sent)


@asynccontextmanager
async def jobs(cluster: SimulatedCluster) -> AsyncGenerator[tuple[Client, Admin]]:
    """A client, and an old message in each partition of the topic."""
    async with connect(cluster.url) as client:
        admin = client.admin()
        await admin.topics.create("jobs", 6, wait_ms=60_000)
        await send(cluster.url)
        await asyncio.sleep(1)
        yield client, admin


@alone
@by_members
async def test_a_topic_grows(coherer_simulated_cluster: SimulatedCluster, members: int) -> None:
    cluster = coherer_simulated_cluster
    async with jobs(cluster) as (client, admin), running(client, members) as received:
        await admin.topics.alter("jobs", partitions=12)
        await check_all(cluster, received)


@alone
@by_members
async def test_a_topic_is_created_again(
    coherer_simulated_cluster: SimulatedCluster, members: int
) -> None:
    """Its partitions go to other members than before."""
    cluster = coherer_simulated_cluster
    async with jobs(cluster) as (client, admin), running(client, members) as received:
        await admin.topics.delete("jobs")
        await asyncio.sleep(60)
        await admin.topics.create("jobs", 12)
        await check_all(cluster, received)


@alone
@pytest.mark.parametrize(("start", "old"), [("latest", 0), ("earliest", SENT)])
async def test_old_messages_are_left_to_who_wants_them(
    coherer_simulated_cluster: SimulatedCluster, start: str, old: int
) -> None:
    """Also by a member that comes later, and gets partitions of the others."""
    async with (
        jobs(coherer_simulated_cluster) as (client, _),
        running(client, 1, start=start) as received,
        running(client, 1, start=start) as later,
    ):
        sent = await send(coherer_simulated_cluster.url)
        await asyncio.sleep(60)
        assert (len(received) + len(later), bool(later)) == (len(sent) + old, True)
