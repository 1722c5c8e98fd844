"""Java's clients with the brokers of `coherer serve --brokers 2`."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

import coherer
from coherer import Message
from coherer.cli.serve.running import Ready
from tests.interop.peers.cache import prepare
from tests.interop.peers.clients import JavaClients, closing
from tests.interop.peers.driver import JavaDriver
from tests.interop.peers.rocket_site import Client, RocketSite

pytestmark = [pytest.mark.interop]

FREE = (
    *("--master-port", "0", "--broker-port", "0", "--admin-port", "0"),
    *("--namesrv-port", "0", "--rocketmq-port", "0", "--default-partitions", "2"),
)


@pytest.fixture
def ready(tmp_path: Path) -> Iterator[Ready]:
    node = subprocess.Popen(
        [sys.executable, "-m", "coherer", "serve", "--json", "--brokers", "2", *FREE],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
    )
    try:
        assert node.stdout is not None
        yield msgspec.json.decode(node.stdout.readline(), type=Ready)
    finally:
        node.send_signal(signal.SIGTERM)
        node.communicate(timeout=60)
        assert node.returncode == 0


async def used(url: str, topic: str) -> set[str]:
    """The brokers that have messages of a topic."""
    async with coherer.connect(url) as client:
        ends = await client.offsets(topic)
    return {one.key.partition(":")[0] for one, (_, end) in ends.items() if end}


async def create(url: str, topic: str) -> None:
    async with coherer.connect(url) as client, asyncio.timeout(60):
        await client.admin().topics.create(topic, 2)
        while len(await client.partitions(topic)) < 4:
            pass  # each turn asks the servers


async def test_javas_tubemq_clients(rocket: RocketSite, ready: Ready, tmp_path: Path) -> None:
    del rocket  # it skips the test where there is no Java
    await create(ready.url, "tube")
    master = ready.url.removeprefix("tubemq://")
    driver = JavaDriver(prepare("tubemq").short_lived(), tmp_path)
    try:
        clients = JavaClients(driver, lambda: driver)
        bodies = [b"%d" % number for number in range(100)]
        producer = await clients.producer(master, ["tube"])
        async with closing(producer):
            for body in bodies:
                await producer.send(Message("tube", body))
        assert await used(ready.url, "tube") == {"1", "2"}
        puller = await clients.puller(master, "readers", {"tube": []})
        got: list[bytes] = []
        async with asyncio.timeout(60):
            while len(got) < 100:
                package = await puller.get(30_000)
                assert package is not None
                got += package.bodies
                await puller.confirm(package)
        assert sorted(got) == sorted(bodies)
        await puller.close()
    finally:
        driver.stop()


async def test_javas_rocketmq_clients(rocket: RocketSite, ready: Ready) -> None:
    assert ready.rocketmq_url is not None
    await create(ready.rocketmq_url, "rocket")
    namesrv = ready.rocketmq_url.removeprefix("rocketmq://")
    driver = await asyncio.to_thread(rocket.new_driver)

    def exchange() -> list[str]:
        producer = Client(driver, "producer", {"namesrv": namesrv, "group": "sellers"})
        consumer = Client(
            driver, "push", {"namesrv": namesrv, "group": "readers", "topics": {"rocket": "*"}}
        )
        try:
            for number in range(100):
                producer.send("rocket", str(number))
            consumer.wait_for(100)
            return consumer.bodies()
        finally:
            consumer.close()
            producer.close()

    try:
        found = await asyncio.to_thread(exchange)
    finally:
        await asyncio.to_thread(driver.stop)
    assert sorted(found) == sorted(map(str, range(100)))
    assert await used(ready.rocketmq_url, "rocket") == {"broker-a", "broker-b"}
