"""Dead letters of a group on two brokers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import pytest

from coherer._administration import brokers as state
from coherer._administration import dead_letters, messages
from coherer._administration.access import RocketCluster, opened
from coherer._administration.replay import replay
from coherer._server.node.node import Node
from coherer.errors import CohererError, UsageError
from coherer.message import Message
from coherer.testing import async_embedded_node
from tests.client.rocket_scenario import WAIT_S, until

BROKERS = ("broker-a", "broker-b")
ORDER = "abcdef"


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[RocketCluster]:
    """Two nodes that share a name server."""
    async with async_embedded_node(tmp_path / "a") as first:
        names = first.rocketmq_url.removeprefix("rocketmq://")
        async with second_node(tmp_path, names), opened(names_url(names)) as site:
            assert isinstance(site, RocketCluster)
            await until(lambda: registered(site))
            yield site


def names_url(names: str) -> str:
    return f"rocketmq://{names}"


async def registered(site: RocketCluster) -> bool:
    return [one.name for one in await state.brokers(site)] == list(BROKERS)


async def test_dead_letters_of_all_brokers(cluster: RocketCluster) -> None:
    await dead_on_both(cluster)
    found = await dead_letters.queue(cluster, "billing")
    assert found is not None
    assert [(part.broker, part.count) for part in found.parts] == [("broker-a", 3), ("broker-b", 3)]
    times: list[int] = []
    cursor = None
    while True:
        page = await dead_letters.page(cluster, "billing", limit=4, cursor=cursor)
        times += [letter.stored_ms for letter in page.letters]
        for letter in page.letters:
            assert await dead_letters.get(cluster, "billing", letter.id) == letter
            assert letter.reason == f"no {letter.body.decode()}"
        cursor = page.cursor
        if cursor is None:
            break
    assert times == sorted(times, reverse=True)
    assert len(times) == len(ORDER)
    done = await replay(cluster, "billing")
    assert (done.sent, done.already) == (6, 0)
    again = await replay(cluster, "billing")
    assert (again.sent, again.already) == (0, 6)
    copies = await messages.search(
        cluster, "orders", matches=lambda one: "cohererReplayOf" in one.properties
    )
    assert sorted(one.body.decode() for one in copies.messages) == list(ORDER)
    with pytest.raises(UsageError, match="Several brokers have partition 0"):
        await messages.at(cluster, "orders", 0, 0)
    assert await messages.at(cluster, "orders", 0, 0, broker="broker-b") is not None


async def test_a_broker_that_is_away_takes_both_with_it(tmp_path: Path) -> None:
    """Its dead letters and their replays: nothing is sent twice."""
    async with async_embedded_node(tmp_path / "a") as first:
        names = first.rocketmq_url.removeprefix("rocketmq://")
        async with opened(names_url(names)) as cluster:
            assert isinstance(cluster, RocketCluster)
            async with second_node(tmp_path, names):
                await until(lambda: registered(cluster))
                await dead_on_both(cluster)
                assert (await replay(cluster, "billing")).sent == 6
                ids = [one.id for one in (await dead_letters.page(cluster, "billing")).letters]
            await until(lambda: has_queues(cluster, 1))
            alone = await replay(cluster, "billing")
            assert (alone.total, alone.sent, alone.already) == (3, 0, 3)
        # It comes back at another address. The dead letters keep their ids.
        async with second_node(tmp_path, names), opened(names_url(names)) as again:
            assert isinstance(again, RocketCluster)
            await until(lambda: registered(again))
            await until(lambda: has_queues(again, 2))
            both = await replay(again, "billing")
            assert (both.total, both.sent, both.already) == (6, 0, 6)
            for name in ids:
                letter = await dead_letters.get(again, "billing", name)
                assert letter is not None
                assert letter.id == name


def second_node(tmp_path: Path, names: str) -> AbstractAsyncContextManager[Node]:
    return async_embedded_node(
        tmp_path / "b", namesrv=names, broker_name="broker-b", protocols=frozenset({"rocketmq"})
    )


async def dead_on_both(cluster: RocketCluster) -> None:
    """Six dead letters, three on each broker."""
    await cluster.admin.topics.create("orders", 1)
    await until(lambda: has_queues(cluster, 2))
    async with cluster.client.producer() as producer:
        for number, body in enumerate(ORDER):
            queue = (await cluster.client.partitions("orders"))[number % 2]
            await producer.send(Message("orders", body.encode()), queue=queue)
    async with cluster.client.consumer("billing", "orders", start="earliest") as consumer:
        left = len(ORDER)
        async with asyncio.timeout(WAIT_S):
            async for message in consumer:
                await message.dead_letter(reason=f"no {message.body.decode()}")
                left -= 1
                if not left:
                    break

    async def all_dead() -> bool:
        found = await dead_letters.queue(cluster, "billing")
        return found is not None and found.count == len(ORDER)

    await until(all_dead)


async def has_queues(site: RocketCluster, count: int) -> bool:
    try:
        return len(await site.client.partitions("orders")) == count
    except CohererError:
        return False
