"""Topics are there when they are created, and groups of Java's consumers share queues at once."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from coherer._wire.rocketmq.codes import RequestCode
from tests.client.rocket_scenario import scenario_at
from tests.interop.peers.driver import Driver
from tests.interop.peers.rocket_site import Client, Cluster, RocketSite, wait_until
from tests.interop.peers.rocketmq import has_route

pytestmark = [pytest.mark.interop, pytest.mark.slow]

ROUNDS = 4
SHARED_S = 10.0
"""Java's consumers rebalance by themselves every 20 s."""


async def test_a_name_server_knows_a_topic_when_it_is_created(cluster: Cluster) -> None:
    async with scenario_at(cluster.url) as scenario:
        client = scenario.client()
        await scenario.make(client, 1)
        for number in range(20):
            topic = f"{scenario.topic}_{number}"
            answer = await scenario.ask(
                client,
                RequestCode.UPDATE_AND_CREATE_TOPIC,
                topic=topic,
                defaultTopic="TBW102",
                readQueueNums="1",
                writeQueueNums="1",
                perm="6",
                topicFilterType="SINGLE_TAG",
            )
            assert answer.code == 0
            assert await asyncio.to_thread(has_route, cluster.namesrv, topic)


@pytest.fixture(scope="module")
def drivers(rocket: RocketSite) -> Iterator[list[Driver]]:
    """Three processes with clients that rebalance as seldom as Java's do."""
    made = [rocket.new_driver(rebalance_ms=20_000, heap_mb=256) for _ in range(3)]
    yield made
    for driver in made:
        driver.stop()


@pytest.fixture(scope="module")
def names(rocket: RocketSite) -> str:
    """A name server with two of our brokers."""
    address = rocket.names("ours")
    for name in ("broker-a", "broker-b"):
        rocket.broker("ours", address, broker_name=name)
        wait_until(lambda name=name: has_route(address, name))
    return address


@pytest.mark.parametrize(("orderly", "members"), [(True, 2), (False, 3)])
def test_a_group_whose_members_start_together_has_shared_its_queues_soon(
    drivers: list[Driver], names: str, orderly: bool, members: int
) -> None:
    """A lock that is refused, or half a route, would cost 20 to 30 s."""
    for number in range(ROUNDS):
        topic = f"shared{members}_{number}"
        asyncio.run(created(names, topic))
        group: list[Client] = []
        stop = threading.Event()
        producer = Client(drivers[0], "producer", {"namesrv": names, "group": f"p{topic}"})
        feeding = threading.Thread(target=feed, args=(producer, topic, stop))
        feeding.start()
        try:
            joining = [
                threading.Thread(target=join, args=(driver, names, topic, orderly, group))
                for driver in drivers[:members]
            ]
            for one in joining:
                one.start()
            for one in joining:
                one.join()
            assert len(group) == members
            start = time.monotonic()
            while not shared([queues(client, topic) for client in group]):
                assert time.monotonic() - start < SHARED_S
        finally:
            stop.set()
            feeding.join()
            for client in [*group, producer]:
                client.close()


async def created(names: str, topic: str) -> None:
    async with scenario_at(f"rocketmq://{names}") as scenario:
        await scenario.client().admin().topics.create(topic, 4)


def feed(producer: Client, topic: str, stop: threading.Event) -> None:
    while not stop.wait(0.01):
        producer.send(topic, "x", tag="a")


def join(driver: Driver, names: str, topic: str, orderly: bool, group: list[Client]) -> None:
    wanted: dict[str, Any] = {
        "namesrv": names,
        "group": f"g{topic}",
        "topics": {topic: "*" if orderly else "a || b"},
        "orderly": orderly,
    }
    group.append(Client(driver, "push", wanted))


def queues(client: Client, topic: str) -> set[tuple[str, int]]:
    return {
        (queue["broker"], queue["queue"]) for queue in client("queues") if queue["topic"] == topic
    }


def shared(held: list[set[tuple[str, int]]]) -> bool:
    """Whether every queue has one owner, and nobody has two queues more than another."""
    sizes = sorted(map(len, held))
    return sum(sizes) == len(set().union(*held)) == 8 and sizes[-1] - sizes[0] <= 1
