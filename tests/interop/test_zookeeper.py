"""Several TubeMQ masters that elect one of them in ZooKeeper."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from kazoo.client import KazooClient

from coherer import Message, tubemq
from coherer import _net as net
from coherer._wire.tubemq import methods
from coherer._wire.tubemq.session import Failure
from coherer.errors import CohererError
from tests.interop.peers.cache import JavaSystem, UnavailableError, prepare
from tests.interop.peers.clients import JavaClients, closing
from tests.interop.peers.driver import JavaDriver
from tests.interop.peers.java import HOST, TOKEN
from tests.interop.peers.ours import OurBroker, start_node
from tests.interop.peers.process import Child, StartError, free_ports
from tests.interop.peers.zookeeper import ZooKeeper, ZooKeepers
from tests.server.node_harness import producer as registration
from tests.server.raw_client import RawClient
from tests.waiting import until

pytestmark = [pytest.mark.interop]

SESSION_MS = 2_000
WAIT_S = 60.0


@pytest.fixture(scope="module")
def tube() -> JavaSystem:
    try:
        return prepare("tubemq").short_lived()
    except UnavailableError as reason:
        if os.environ.get("CI"):
            raise
        pytest.skip(f"no Java TubeMQ, which has the jars of ZooKeeper: {reason}")


@pytest.fixture(scope="module")
def keeper(tube: JavaSystem, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ZooKeeper]:
    server = ZooKeeper(tube, tmp_path_factory.mktemp("keeper") / "zookeeper")
    server.start()
    yield server
    server.stop()


class Master:
    """A master of the ensemble."""

    def __init__(
        self, folder: Path, keeper: ZooKeeper, root: str, session_ms: int = SESSION_MS
    ) -> None:
        self._session_ms = session_ms
        self.port, self.web_port = free_ports(2)
        self.address = f"{HOST}:{self.port}"
        self._folder, self._zookeeper = folder, keeper.address + root
        self.child: Child

    def start(self) -> None:
        self.child = start_node(
            f"master-{self.port}",
            self._folder,
            HOST,
            roles=["master"],
            master_port=self.port,
            admin_port=self.web_port,
            admin_token=TOKEN,
            zookeeper=self._zookeeper,
            zookeeper_session_ms=self._session_ms,
        )

    async def answer(self) -> str:
        """Whether it accepts a producer: "active", "standby" or "away"."""
        try:
            client = await net.dial(HOST, self.port, RawClient)
        except CohererError:
            return "away"
        try:
            async with asyncio.timeout(5):
                found = await client.post(methods.PRODUCER_REGISTER, registration("x"))
        except TimeoutError:
            return "away"
        finally:
            client.wire.close()
        if isinstance(found, Failure):
            assert found.exception.endswith("StandbyException")
            assert "is not master now" in found.text
            return "standby"
        return "active"

    async def becomes(self, state: str) -> float:
        """Wait until it is in this state. Returns the seconds."""
        begin = time.monotonic()

        async def reached() -> bool:
            return await self.answer() == state

        await until(reached, WAIT_S)
        return time.monotonic() - begin


class Ensemble:
    """Two masters and a broker."""

    def __init__(self, folder: Path, keeper: ZooKeeper) -> None:
        self.root = f"/{folder.name}"
        self.masters = [Master(folder / name, keeper, self.root) for name in ("one", "two")]
        self.addresses = ",".join(one.address for one in self.masters)
        self.url = f"tubemq://{self.addresses}"
        self.broker = OurBroker(folder / "broker", 1, self.addresses, heartbeat_ms=200)

    async def start(self) -> None:
        one, two = self.masters
        one.start()
        await one.becomes("active")
        two.start()
        await two.becomes("standby")
        self.broker.start()
        await asyncio.to_thread(self.broker.wait)

    def stop(self) -> None:
        for one in self.masters:
            if hasattr(one, "child"):
                if one.child.running:
                    os.kill(one.child.pid, signal.SIGCONT)
                one.child.stop(grace_s=0)
        self.broker.stop()

    def client(self) -> tubemq.Client:
        return tubemq.connect(self.url, heartbeat_ms=200, timeout_ms=2_000)


@pytest.fixture
async def ensemble(keeper: ZooKeeper, tmp_path: Path) -> AsyncIterator[Ensemble]:
    made = Ensemble(tmp_path, keeper)
    try:
        await made.start()
        yield made
    finally:
        made.stop()


def kill(master: Master) -> None:
    master.child.stop(grace_s=0)


def stop(master: Master) -> None:
    master.child.stdin.close()
    master.child.process.wait(WAIT_S)
    master.child.stop(grace_s=0)


async def exists(client: tubemq.Client, topic: str) -> bool:
    try:
        return bool(await client.partitions(topic))
    except CohererError:
        return False


async def create(ensemble: Ensemble, topic: str) -> None:
    """Create a topic at the active master."""

    async def created() -> bool:
        async with ensemble.client() as client, client.producer() as producer:
            try:
                await producer.publish(topic)
            except CohererError:
                return False
        return True

    await until(created, WAIT_S)


async def send(producer: tubemq.Producer, topic: str, bodies: list[bytes]) -> None:
    (await producer.send_many(Message(topic, body) for body in bodies)).check()


@pytest.mark.parametrize("end", [kill, stop])
async def test_clients_and_brokers_move_to_the_standby(
    ensemble: Ensemble, end: Callable[[Master], None], record_property: Callable[..., None]
) -> None:
    one, two = ensemble.masters
    await create(ensemble, "jobs")
    async with (
        ensemble.client() as client,
        client.producer("jobs") as producer,
        client.consumer("readers", "jobs", start="earliest") as consumer,
    ):
        await send(producer, "jobs", [b"before"])
        assert [bytes(m.body) for m in await _batch(consumer)] == [b"before"]
        begin = time.monotonic()
        await asyncio.to_thread(end, one)
        elected_s = await two.becomes("active")
        await send(producer, "jobs", [b"after"])
        assert [bytes(m.body) for m in await _batch(consumer)] == [b"after"]
        await create(ensemble, "new")  # brokers have registered with the new master
        moved_s = time.monotonic() - begin
    record_property("elected_s", elected_s)
    record_property("moved_s", moved_s)
    print(f"{end.__name__}: elected after {elected_s:.2f} s, all moved after {moved_s:.2f} s")
    one.start()
    assert await one.becomes("standby") < WAIT_S
    assert await two.answer() == "active", "the one that comes back does not take over"


async def _batch(consumer: Any) -> Any:
    batch = await consumer.receive(30_000)
    assert batch is not None
    batch.ack()
    await consumer.commit()
    return batch


async def test_javas_clients_move_to_the_standby(
    tube: JavaSystem, ensemble: Ensemble, tmp_path: Path
) -> None:
    one, two = ensemble.masters
    await create(ensemble, "java")
    driver = JavaDriver(tube, tmp_path)
    try:
        clients = JavaClients(driver, lambda: driver)
        producer = await clients.producer(ensemble.addresses, ["java"])
        async with closing(producer):
            assert (await producer.send(Message("java", b"before"))).offset == 0
            kill(one)
            await two.becomes("active")
            sent = [await producer.send(Message("java", b"after")) for _ in range(20)]
            assert all(found.partition for found in sent)
        puller = await clients.puller(ensemble.addresses, "readers", {"java": []})
        bodies: list[bytes] = []
        while len(bodies) < 21:
            package = await puller.get(30_000)
            assert package is not None
            bodies += package.bodies
            await puller.confirm(package)
        assert sorted(bodies) == [b"after"] * 20 + [b"before"]
        await puller.close()
    finally:
        driver.stop()


async def test_a_paused_master_does_not_act_when_it_goes_on(ensemble: Ensemble) -> None:
    one, two = ensemble.masters
    await create(ensemble, "jobs")
    os.kill(one.child.pid, signal.SIGSTOP)
    await two.becomes("active")
    await create(ensemble, "later")
    os.kill(one.child.pid, signal.SIGCONT)
    states = {await one.answer() for _ in range(50)}
    assert states == {"standby"}, "it refuses its very first request, and all after it"
    assert await two.answer() == "active"
    kill(two)
    await one.becomes("active")
    async with ensemble.client() as client:
        await until(lambda: exists(client, "later"), WAIT_S)


async def test_a_server_that_has_lost_the_others_keeps_no_master(
    tube: JavaSystem, tmp_path: Path
) -> None:
    granted_ms = SESSION_MS // 2
    keepers = ZooKeepers(tube, tmp_path, granted_ms)
    one = two = None
    try:
        await keepers.start()
        first, second, _ = keepers.servers
        one = Master(tmp_path / "one", first, "/lost")
        one.start()
        await one.becomes("active")
        two = Master(tmp_path / "two", second, "/lost")
        two.start()
        await two.becomes("standby")
        keepers.proxy.requests.black_hole = keepers.proxy.answers.black_hole = True
        await two.becomes("active")
        assert await one.answer() == "standby", "its server has not noticed anything yet"
        assert await asyncio.to_thread(first.mode) == "follower"
        assert f"grants a session of {granted_ms // 1000} s, not of" in one.child.log.read_text()
    finally:
        for master in (one, two):
            if master is not None:
                kill(master)
        await keepers.stop()


async def test_without_zookeeper_no_master_is_active_and_brokers_serve(
    keeper: ZooKeeper, ensemble: Ensemble
) -> None:
    one, two = ensemble.masters
    await create(ensemble, "jobs")
    async with ensemble.client() as client, client.producer("jobs") as producer:
        await send(producer, "jobs", [b"1"])
        keeper.stop()
        await one.becomes("standby")
        assert await two.answer() == "standby"
        await send(producer, "jobs", [b"2"])
        await asyncio.to_thread(keeper.start)

        async def active() -> bool:
            return "active" in {await one.answer(), await two.answer()}

        await until(active, WAIT_S)
        states = {await one.answer(), await two.answer()}
        assert states == {"active", "standby"}
        await create(ensemble, "after")
        await send(producer, "jobs", [b"3"])
        await until(lambda: exists(client, "after"), WAIT_S)


async def test_javas_masters_are_not_mixed_with_ours(keeper: ZooKeeper, tmp_path: Path) -> None:
    other = KazooClient(keeper.address)
    await asyncio.to_thread(other.start)
    root = f"/{tmp_path.name}"
    try:
        await asyncio.to_thread(
            lambda: other.create(
                f"{root}/masterHA/nodeId:", b"10.0.0.9:8715", ephemeral=True, sequence=True,
                makepath=True,
            )
        )  # fmt: skip
        master = Master(tmp_path / "master", keeper, root)
        master.start()
        with pytest.raises(StartError, match="is not a Coherer master"):
            await asyncio.to_thread(lambda: master.child.wait_for(lambda: False, WAIT_S, "the end"))
        master.child.stop(grace_s=0)
    finally:
        await asyncio.to_thread(other.stop)
        other.close()


async def test_metadata_lies_at_javas_paths(keeper: ZooKeeper, ensemble: Ensemble) -> None:
    await create(ensemble, "flights")
    client = KazooClient(keeper.address)
    await asyncio.to_thread(client.start)
    try:
        meta = f"{ensemble.root}/metaData"

        def names(path: str) -> list[str]:
            found: list[str] = client.get_children(f"{meta}/{path}")
            return sorted(found)

        def written() -> bool:
            return "1:flights" in names("topicDeployConfig")

        await until(written, WAIT_S)
        assert names("brokerConfig") == ["1"]
        masters = client.get_children(f"{ensemble.root}/masterHA")
        assert len(masters) == 2
        assert all(name.startswith("nodeId:") for name in masters)
    finally:
        await asyncio.to_thread(client.stop)
        client.close()
