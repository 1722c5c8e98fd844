"""A master of one kind and a slave of the other: the log, the tables, waiting, and taking over."""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from peers.rocket_clients import Clients
from peers.rocket_site import Broker, Client, Cluster, OurRocket, RocketSite, wait_until
from peers.rocketmq import PATIENT, JavaRocketBroker

pytestmark = [pytest.mark.interop, pytest.mark.slow]

SEGMENT_BYTES = 1024 * 1024
WAIT_S = 40.0
QUEUES = 2
PAIRS = [("java", "ours"), ("ours", "java"), ("ours", "ours")]
Start = Callable[..., Broker]

_NUMBERS = itertools.count(1)


class Pair:
    """A name server, a master, and a slave that may come later.

    Args:
        site: the peers.
        kinds: the master's, the slave's.
        folder: for their files.
        sync: the master's sends wait for the slave.
    """

    def __init__(
        self, site: RocketSite, kinds: tuple[str, str], folder: Path, *, sync: bool = False
    ) -> None:
        self.site = site
        self._kinds = kinds
        self._folder = folder
        self.name = f"pair{next(_NUMBERS)}"
        self.topic = f"{self.name}-topic"
        self.namesrv = site.names("java" if kinds[0] == "java" else "ours")
        self.master = self._broker(kinds[0], "SYNC_MASTER" if sync else "ASYNC_MASTER")
        self.slave: Broker | None = None
        self._clients: list[Client] = []

    def start(self) -> None:
        """Start the master, and make the topic."""
        self.master.start()
        self.master.wait()
        tools = self.client("admin")
        queues = ["-r", str(QUEUES), "-w", str(QUEUES)]
        where = ["-b", self.master.address]
        tools("run", arguments=["updateTopic", *where, "-t", self.topic, *queues])

    def follow(self) -> Broker:
        """Start the slave."""
        self.slave = self._broker(self._kinds[1], "SLAVE")
        self.slave.start()
        self.slave.wait()
        return self.slave

    def client(self, kind: str, **parameters: object) -> Client:
        """A Java client of both."""
        cluster = Cluster(self.name, self.namesrv, self.master)
        self._clients.append(self.site.client(cluster, kind, "java", **parameters))
        return self._clients[-1]

    def stop(self) -> None:
        """End everything."""
        for client in self._clients:
            client.close()
        for broker in (self.slave, self.master):
            if broker is not None:
                broker.kill()

    def _broker(self, kind: str, role: str) -> Broker:
        folder, number = self._folder / role, int(role == "SLAVE")
        if kind == "java":
            return JavaRocketBroker(
                self.site.java,
                folder,
                self.namesrv,
                name=self.name,
                broker_id=number,
                settings={
                    "mappedFileSizeCommitLog": SEGMENT_BYTES,
                    "brokerRole": role,
                    **PATIENT,
                },
            )
        broker = OurRocket(
            folder,
            namesrv=self.namesrv,
            broker_name=self.name,
            role=role,
            rocketmq_broker_id=number,
            ha_port=None if number else 0,
            segment_bytes=SEGMENT_BYTES,
        )
        broker.name = self.name
        return broker

    def slave_has(self, offset: int) -> bool:
        """Whether the slave's log goes at least so far."""
        return self.slave is not None and log_end(self.slave) >= offset


def log_end(broker: Broker) -> int:
    """Where a log ends: behind the last byte of its files that is not zero, about."""
    directory = broker.store if isinstance(broker, JavaRocketBroker) else broker.folder / "data"
    files = (directory / "commitlog").glob("[0-9]*")
    held = {int(file.name): len(file.read_bytes().rstrip(b"\0")) for file in files}
    return max([begin + size for begin, size in held.items() if size], default=0)


def send(producer: Client, topic: str, bodies: list[str]) -> list[str]:
    """Send messages; gives their statuses."""
    return [producer.send(topic, body)["status"] for body in bodies]


@pytest.fixture(params=PAIRS, ids="-".join)
def pair(rocket: RocketSite, request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Pair]:
    made = Pair(rocket, request.param, tmp_path)
    try:
        made.start()
        yield made
    finally:
        made.stop()


@pytest.fixture(params=PAIRS, ids="-".join)
def sync_pair(rocket: RocketSite, request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Pair]:
    made = Pair(rocket, request.param, tmp_path, sync=True)
    try:
        made.start()
        yield made
    finally:
        made.stop()


def test_a_slave_follows_and_serves_when_the_master_is_gone(pair: Pair) -> None:
    producer = pair.client("producer", group="writers")
    first = [f"first {number}" for number in range(50)]
    assert set(send(producer, pair.topic, first)) == {"SEND_OK"}
    pair.follow()
    # A new slave begins with the file of the log that is the last one then.
    wait_until(lambda: pair.slave_has(log_end(pair.master)), WAIT_S)
    # More than a file of the log, so that blanks and new files go over as well.
    large = [f"large {number} " + "x" * 3_000 for number in range(500)]
    assert set(send(producer, pair.topic, large)) == {"SEND_OK"}
    reader = pair.client("push", group="readers", topics={pair.topic: "*"})
    reader.wait_for(len(first) + len(large), timeout_s=WAIT_S)
    end = log_end(pair.master)
    wait_until(lambda: pair.slave_has(end), WAIT_S)
    wait_until(lambda: knows_group(pair, "readers"), WAIT_S)
    reader.close()
    pair.master.kill()
    later = pair.client("push", group="later", topics={pair.topic: "*"})
    later.wait_for(len(first) + len(large), timeout_s=WAIT_S)
    assert Counter(later.bodies()) == Counter(first + large)
    assert {one["broker"] for one in later.messages()} == {pair.name}
    assert Counter(asyncio.run(read_by_us(pair, len(first) + len(large)))) == Counter(first + large)


async def read_by_us(pair: Pair, count: int) -> list[str]:
    """What our own client reads from the slave."""
    cluster = Cluster(pair.name, pair.namesrv, pair.master)
    async with Clients(pair.site, cluster, f"{pair.name}-ours") as clients:
        consumer = await clients.consumer("ours", {pair.topic: "*"})
        return [one["body"] for one in await consumer.wait_for(count)]


def knows_group(pair: Pair, group: str) -> bool:
    """Whether the slave has the positions of a group, by its file."""
    assert pair.slave is not None
    slave = pair.slave
    directory = slave.store if isinstance(slave, JavaRocketBroker) else slave.folder / "data"
    path = directory / "config" / "consumerOffset.json"
    try:
        return f"{pair.topic}@{group}" in path.read_text()
    except FileNotFoundError:  # also for a moment while Java writes it anew
        return False


def test_a_synchronous_master_says_whether_a_slave_has_it(sync_pair: Pair) -> None:
    producer = sync_pair.client("producer", group="writers")
    assert send(producer, sync_pair.topic, ["alone"]) == ["SLAVE_NOT_AVAILABLE"]
    sync_pair.follow()
    wait_until(
        lambda: send(producer, sync_pair.topic, ["together"]) == ["SEND_OK"],
        WAIT_S,
    )
    assert set(send(producer, sync_pair.topic, [f"{n}" for n in range(20)])) == {"SEND_OK"}
    assert sync_pair.slave is not None
    assert log_end(sync_pair.slave) == log_end(sync_pair.master)
