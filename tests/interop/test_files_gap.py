"""A Java broker on a directory whose queues have the gap that a power cut left."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from coherer._store import Draft, Store, StoreOptions
from tests.copies import copy_tree
from tests.interop.peers.rocket_site import Cluster, RocketSite, wait_until
from tests.interop.peers.rocketmq import JavaRocketBroker
from tests.power import Unknown

pytestmark = [pytest.mark.interop, pytest.mark.slow]

SEGMENT_BYTES = 16 * 1024
WAIT_S = 60.0
BEFORE = [f"before {number}" for number in range(10)]
AFTER = [f"after {number}" for number in range(5)]


def drafts(bodies: list[str]) -> list[Draft]:
    return [Draft("gaps", 0, body.encode(), b"") for body in bodies]


def now_ms() -> int:
    return time.time_ns() // 10**6


def with_gap(tmp_path: Path, first_file_bytes: int) -> Path:
    """A directory with messages on both sides of a gap; so many bytes come before all of them."""
    options = StoreOptions(segment_bytes=SEGMENT_BYTES)
    with Store.open(tmp_path / "first", options, files=Unknown(), now_ms=now_ms) as store:
        while store.end_offset < first_file_bytes:
            store.append([Draft("padding", 0, bytes(1_000), b"")])
        store.append(drafts(BEFORE))
        copy_tree(store.directory, tmp_path / "data")
    with Store.open(tmp_path / "data", options, files=Unknown(), now_ms=now_ms) as store:
        store.append(drafts(AFTER))
        assert store.queue_range("gaps", 0)[1] > 100
    return tmp_path / "data"


@pytest.mark.parametrize("is_first_file", [True, False], ids=["first file", "later file"])
def test_java_reads_on_over_the_gap(
    rocket: RocketSite, tmp_path: Path, is_first_file: bool
) -> None:
    """In the first file of the log it passes over what is behind the gap, and reads on then."""
    directory = with_gap(tmp_path, 0 if is_first_file else SEGMENT_BYTES)
    namesrv = rocket.names("ours")
    broker = JavaRocketBroker(
        rocket.java, tmp_path, namesrv, store=directory,
        settings={"mappedFileSizeCommitLog": SEGMENT_BYTES},
    )  # fmt: skip
    broker.start()
    try:
        broker.wait()
        cluster = Cluster("x", namesrv, broker)
        tools = rocket.client(cluster, "admin")
        where = ["-b", broker.address, "-t", "gaps", "-r", "1", "-w", "1"]
        tools("run", arguments=["updateTopic", *where])
        reader = rocket.client(cluster, "push", group="fresh", topics={"gaps": "*"})
        wanted = BEFORE if is_first_file else [*BEFORE, *AFTER]
        reader.wait_for(len(wanted), timeout_s=WAIT_S)
        producer = rocket.client(cluster, "producer", group="writers")

        def goes_on() -> bool:
            producer.send("gaps", "later", broker="broker-a", queue=0)
            return "later" in reader.bodies()

        wait_until(goes_on, WAIT_S)
        assert [body for body in sorted(reader.bodies()) if body != "later"] == sorted(wanted)
        for client in (reader, producer, tools):
            client.close()
    finally:
        broker.kill()
