"""A master of one kind and a slave of the other: the log, the tables, waiting, and taking over."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.interop.peers.rocket_clients import Clients
from tests.interop.peers.rocket_pair import PAIRS, Pair, directory_of, log_end
from tests.interop.peers.rocket_site import Client, Cluster, RocketSite, wait_until
from tests.power import tear

pytestmark = [pytest.mark.interop, pytest.mark.slow]

WAIT_S = 40.0


def send(producer: Client, topic: str, bodies: list[str]) -> list[str]:
    """Send messages; gives their statuses."""
    return [producer.send(topic, body)["status"] for body in bodies]


@pytest.fixture(params=PAIRS, ids="-".join)
def pair(rocket: RocketSite, request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Pair]:
    with Pair(rocket, request.param, tmp_path) as made:
        yield made


@pytest.fixture(params=PAIRS, ids="-".join)
def sync_pair(rocket: RocketSite, request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Pair]:
    with Pair(rocket, request.param, tmp_path, sync=True) as made:
        yield made


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
    path = directory_of(pair.slave) / "config" / "consumerOffset.json"
    try:
        return f"{pair.topic}@{group}" in path.read_text()
    except FileNotFoundError:  # also for a moment while Java writes it anew
        return False


def test_java_copies_around_damage(rocket: RocketSite, tmp_path: Path) -> None:
    bodies = [f"message {number:02}" for number in range(50)]
    with Pair(rocket, ("ours", "java"), tmp_path) as pair:
        producer = pair.client("producer", group="writers")
        assert set(send(producer, pair.topic, bodies)) == {"SEND_OK"}
        pair.master.kill()
        tear(directory_of(pair.master), b"message 25")
        pair.master.start()
        pair.master.wait()
        pair.follow()
        wait_until(lambda: pair.slave_has(log_end(pair.master)), WAIT_S)
        pair.master.kill()
        reader = pair.client("push", group="readers", topics={pair.topic: "*"})
        reader.wait_for(len(bodies) - 1, timeout_s=WAIT_S)
        assert Counter(reader.bodies()) == Counter(bodies) - Counter(["message 25"])


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
