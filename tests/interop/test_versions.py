"""Older and newer releases: Java's clients on our node, and our client on Java's servers.

Each case is a release that sends, receives, delays, filters, retries and ends transactions, as far
as its protocol has these. A run of the tests takes two of the ten cases, by the day of the date:
all of them had their turn after five days. `COHERER_INTEROP_VERSIONS=all` takes all of them, and a
list of names with commas between takes those.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import time
import uuid
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

import coherer
from coherer.errors import UsageError
from tests.interop.peers.cache import JavaSystem, UnavailableError, prepare_release
from tests.interop.peers.clients import JavaClients, Package
from tests.interop.peers.driver import JavaDriver
from tests.interop.peers.ours import start_node
from tests.interop.peers.process import ENVIRONMENT, free_ports, listens
from tests.interop.peers.releases import CASES, DAYS, chosen
from tests.interop.peers.rocket_clients import Clients, Consumer, Producer
from tests.interop.peers.rocket_site import RocketSite
from tests.interop.peers.rocketmq import HOST, flags_of

pytestmark = pytest.mark.interop

DELAY_MS = 1_000  # of level 1
TIMED_MS = 1_500
TOOLS_TIMEOUT_S = 60


_CHOSEN = chosen(os.environ.get("COHERER_INTEROP_VERSIONS", ""), int(time.time() // 86_400))


def cases(kind: str) -> pytest.MarkDecorator:
    """The releases of a kind; those whose turn it is not are skipped, with the reason."""
    reason = "its turn is on another day (COHERER_INTEROP_VERSIONS=all)"
    return pytest.mark.parametrize(
        "release",
        [
            pytest.param(
                case.removeprefix(f"{kind}-"),
                marks=pytest.mark.skipif(case not in _CHOSEN, reason=reason),
            )
            for case in CASES
            if case.startswith(kind)
        ],
    )


def test_every_case_has_its_turn() -> None:
    runs = [chosen("", day) for day in range(20_000, 20_000 + DAYS)]
    assert sorted(case for run in runs for case in run) == sorted(CASES)
    assert max(map(len, runs)) == 2
    assert chosen("tubemq-client-1.5.0", 0) == ["tubemq-client-1.5.0"]


def system(kind: str, release: str) -> JavaSystem:
    """The jars of a release."""
    try:
        return prepare_release(kind, release)
    except UnavailableError as reason:
        if os.environ.get("CI"):
            raise
        pytest.skip(f"no {kind} {release}: {reason}")


@dataclass
class Pair:
    """Who sends and who receives, under names of the test's own."""

    clients: Clients
    language: str

    async def producer(self) -> Producer:
        return await self.clients.producer(self.language)

    async def consumer(self, topic: str, wanted: str | Mapping[str, str] = "*") -> Consumer:
        group = f"g{uuid.uuid4().hex[:10]}"
        return await self.clients.consumer(self.language, {topic: wanted}, group=group)


async def plays_everything(pair: Pair) -> None:
    """Sending, receiving, delay, transaction, filter and retry."""
    topic = f"t{uuid.uuid4().hex[:10]}"
    producer = await pair.producer()
    first = await producer.send(topic, "first", tag="red", properties={"n": "1"})
    await producer.send(topic, "again", tag="blue", properties={"n": "2", "FAIL_TIMES": "1"})
    await producer.batch(topic, ["batch 0", "batch 1"])
    everything = await pair.consumer(topic)
    tagged = await pair.consumer(topic, "red || green")
    selected = await pair.consumer(topic, {"sql": "n > 1"})
    await producer.send(topic, "late", delay_level=1, tag="green")
    await producer.transact(topic, "committed", "commit")
    await producer.transact(topic, "rolled back", "rollback")
    await producer.transact(topic, "checked", "unknown", "commit")
    found = {one["body"]: one for one in await everything.wait_for(7)}
    assert set(found) == {
        "first", "again", "batch 0", "batch 1", "late", "committed", "checked",
    }  # fmt: skip
    assert (found["first"]["tag"], found["first"]["properties"]["n"]) == ("red", "1")
    assert (found["first"]["queue"], found["first"]["offset"]) == (first["queue"], first["offset"])
    assert (found["again"]["attempt"], found["first"]["attempt"]) == (1, 0)
    assert found["late"]["stored_ms"] >= found["late"]["born_ms"] + DELAY_MS
    assert {one["body"] for one in await tagged.wait_for(2)} == {"first", "late"}
    assert [one["body"] for one in await selected.wait_for(1)] == ["again"]


@pytest.fixture
async def ours(rocket: RocketSite) -> AsyncIterator[Clients]:
    """Makes clients at our node."""
    async with Clients(rocket, rocket.cluster("ours"), f"g{uuid.uuid4().hex[:10]}") as clients:
        yield clients


@cases("rocketmq-client")
async def test_a_java_client_of_rocketmq_on_our_node(ours: Clients, release: str) -> None:
    await asyncio.to_thread(system, "rocketmq-client", release)
    pair = Pair(ours, f"java-{release}")
    await plays_everything(pair)
    if release.startswith("5."):
        await times(pair)
        await pulls(ours, release)
        await asyncio.to_thread(tools, ours, release)


async def times(pair: Pair) -> None:
    """Timed messages."""
    topic = f"t{uuid.uuid4().hex[:10]}"
    producer = await pair.producer()
    await producer.send(topic, "now")
    consumer = await pair.consumer(topic)
    due_ms = int(time.time() * 1000) + TIMED_MS
    for name, value in (
        ("TIMER_DELAY_MS", TIMED_MS),
        ("TIMER_DELIVER_MS", due_ms),
        ("TIMER_DELAY_SEC", 1),
    ):
        await producer.send(topic, name, properties={name: str(value)})
    found = {one["body"]: one for one in await consumer.wait_for(4)}
    waited = {name: one["stored_ms"] - one["born_ms"] for name, one in found.items()}
    assert waited["TIMER_DELAY_MS"] >= TIMED_MS
    assert waited["TIMER_DELAY_SEC"] >= 1_000
    assert found["TIMER_DELIVER_MS"]["stored_ms"] >= due_ms
    with pytest.raises(Exception, match="timer message illegal"):
        await producer.send(topic, "x", properties={"TIMER_DELAY_SEC": str(3 * 86_400 + 1)})


async def pulls(clients: Clients, release: str) -> None:
    """The lite pull consumer, which pulls by another code."""
    topic, group = f"t{uuid.uuid4().hex[:10]}", f"g{uuid.uuid4().hex[:10]}"
    producer = await clients.producer("ours")
    for number in range(5):
        await producer.send(topic, str(number))
    puller = await asyncio.to_thread(
        clients.site.client,
        clients.cluster,
        "pull",
        f"java-{release}",
        group=group,
        topics={topic: "*"},
    )
    found: list[Any] = []
    async with asyncio.timeout(30):
        while len(found) < 5:
            found += await asyncio.to_thread(puller, "poll")
    assert len(found) == 5
    await asyncio.to_thread(puller.close)


def tools(clients: Clients, release: str) -> None:
    """`mqadmin`, as far as it asks in ways that 4.9 does not know."""
    java, topic = system("rocketmq-client", release), f"t{uuid.uuid4().hex[:10]}"
    folder = clients.site.folder / f"tools-{topic}"
    folder.mkdir(parents=True)

    def run(*words: str) -> str:
        main = "org.apache.rocketmq.tools.command.MQAdminStartup"
        command = java.command(main, *words, flags=flags_of(folder), heap_mb=256)
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=TOOLS_TIMEOUT_S, check=False,
            env={**ENVIRONMENT, "NAMESRV_ADDR": clients.cluster.namesrv},
        )  # fmt: skip
        return done.stdout + done.stderr

    address = clients.cluster.broker.address
    assert "success" in run("updateTopic", "-b", address, "-t", topic, "-r", "4", "-w", "4")
    with coherer.blocking.rocketmq.connect(f"rocketmq://{clients.cluster.namesrv}") as client:
        with client.producer(topic) as producer:
            for _ in range(3):
                producer.send(coherer.Message(topic, b"x"))
        with client.consumer("readers_" + topic, topic, start="earliest") as consumer:
            for number, message in enumerate(consumer, 1):
                message.ack()
                if number == 3:
                    break
    status = run("topicStatus", "-t", topic)
    assert sum(f"broker-a                          {queue}" in status for queue in range(4)) == 4, (
        status
    )
    progress = run("consumerProgress", "-g", "readers_" + topic)
    assert "Diff Total: 0" in progress, progress


@cases("rocketmq-server")
async def test_our_client_on_javas_servers(releases: RocketSite, release: str) -> None:
    await asyncio.to_thread(system, "rocketmq-server", release)
    cluster = await asyncio.to_thread(releases.cluster, f"java-{release}")
    async with Clients(releases, cluster, f"g{uuid.uuid4().hex[:10]}") as clients:
        pair = Pair(clients, "ours")
        await plays_everything(pair)
        await our_times(pair, timers=release.startswith("5."))
    log = cluster.broker.child.log.read_text() if cluster.broker.child else ""
    assert "NullPointerException" not in log


async def our_times(pair: Pair, *, timers: bool) -> None:
    """Any time where the broker is of 5.x; where it is older, levels, and an error otherwise."""
    topic = f"t{uuid.uuid4().hex[:10]}"
    producer = await pair.producer()
    await producer.send(topic, "now")
    consumer = await pair.consumer(topic)
    await producer.send(topic, "level", delay=timedelta(seconds=1))
    if not timers:
        with pytest.raises(UsageError, match="older than 5"):
            await producer.send(topic, "x", delay=timedelta(milliseconds=TIMED_MS))
        found = await consumer.wait_for(2)
        assert [one["body"] for one in found] == ["now", "level"]
        return
    at = datetime.now(UTC) + timedelta(seconds=4)
    await producer.send(topic, "time", deliver_at=at)
    found = {one["body"]: one for one in await consumer.wait_for(3)}
    # 5.x counts whole seconds, and may be one early.
    assert found["level"]["stored_ms"] >= found["level"]["born_ms"]
    assert found["time"]["stored_ms"] >= int(at.timestamp() * 1000) - 1_000


@dataclass
class Tube:
    """Our node, and a JVM with clients."""

    master: str
    clients: JavaClients
    topic: str


@pytest.fixture
def tube(tmp_path: Path, release: str) -> Any:
    """Clients of a release at a node of ours."""
    java = system("tubemq-client", release)
    master_port, broker_port = free_ports(2)
    topic = f"t{uuid.uuid4().hex[:10]}"
    node = start_node(
        "node", tmp_path / "node", HOST, master_port=master_port, broker_port=broker_port,
        admin_port=None, rocketmq_port=None, namesrv_port=None, topics={topic: 2},
    )  # fmt: skip
    try:
        node.wait_for(lambda: listens(broker_port), 60, "listening port")
        driver = JavaDriver(java, tmp_path)
        try:
            yield Tube(f"{HOST}:{master_port}", JavaClients(driver, lambda: driver), topic)
        finally:
            driver.stop()
    finally:
        node.stop()


@cases("tubemq-client")
async def test_a_java_client_of_tubemq_on_our_node(tube: Tube, release: str) -> None:
    """Sending, receiving, filter, and a package that is not confirmed comes again."""
    topic = tube.topic
    producer = await tube.clients.producer(tube.master, [topic])
    sent = [
        await producer.send(coherer.Message(topic, f"{release} {number}".encode(), tag=tag))
        for number, tag in enumerate(["red", "blue", "red"])
    ]
    assert len({(one.partition, one.offset) for one in sent}) == 3
    everything = await tube.clients.puller(tube.master, "everything", {topic: []})
    filtered = await tube.clients.puller(tube.master, "filtered", {topic: ["blue"]})
    bodies: list[bytes] = []
    refused: Package | None = None
    while len(bodies) < 3:
        package = await everything.get()
        assert package is not None
        if refused is None:
            refused = package
            await everything.confirm(package, consumed=False)
            continue
        bodies += package.bodies
        await everything.confirm(package)
    assert sorted(bodies) == [f"{release} {number}".encode() for number in range(3)]
    package = await filtered.get()
    assert package is not None
    assert package.bodies == [f"{release} 1".encode()]
    for client in (everything, filtered, producer):
        await client.close()
