"""The files of Java's broker as a table: running, stopped and killed, its rows are the broker's."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.interop.peers.rocket_site import RocketSite
from tests.interop.peers.rocketmq import JavaRocketBroker
from tests.spark.stores import ALL, COUNT, broker_rows, file_rows, fill
from tests.waiting import wait_until

pytestmark = [pytest.mark.interop, pytest.mark.slow]

TOPIC = "orders"
SEGMENT_BYTES = 64 * 1024


@pytest.mark.parametrize("end", ["stop", "kill"])
def test_the_rows_are_those_of_javas_broker(rocket: RocketSite, tmp_path: Path, end: str) -> None:
    settings = {"mappedFileSizeCommitLog": SEGMENT_BYTES}
    namesrv = rocket.names("ours")
    store = tmp_path / "java" / "store"
    broker = JavaRocketBroker(rocket.java, tmp_path / "java", namesrv, settings=settings)
    broker.start()
    try:
        broker.wait()
        url = f"rocketmq://{namesrv}"
        fill(url, TOPIC)
        wait_until(lambda: len(broker_rows(url, TOPIC)) == COUNT)
        rows = broker_rows(url, TOPIC, columns=ALL)
        # The name of the broker comes from `topics.json`.
        assert file_rows(store, TOPIC, columns=ALL) == rows
        assert len(list((store / "commitlog").iterdir())) > 2
        assert file_rows(store, TOPIC, columns=ALL, tag="odd") == [
            row for row in rows if row["tag"] == "odd"
        ]
        middle = sorted(str(row["storeTimestamp"]) for row in rows)[COUNT // 2]
        since = {"columns": ALL, "startingTimestamp": middle.replace(" ", "T")}
        assert file_rows(store, TOPIC, **since) == broker_rows(url, TOPIC, **since)
        if end == "stop":
            broker.stop()
        else:
            broker.kill()
        assert file_rows(store, TOPIC, columns=ALL) == rows
    finally:
        broker.kill()
