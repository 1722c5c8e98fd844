"""Backups of a running broker, Java's or ours, on which the other one goes on."""

from __future__ import annotations

from base64 import b64decode
from pathlib import Path

import pytest

from coherer._store.backup import back_up
from coherer._store.restore import restore, verify_backup
from tests.interop.peers.rocket_site import Cluster, RocketSite
from tests.interop.test_files import WAIT_S, broker_on

pytestmark = pytest.mark.interop

QUEUES = 4


@pytest.mark.parametrize(("writer", "reader"), [("java", "ours"), ("ours", "java")])
def test_the_other_broker_goes_on_from_a_backup(
    rocket: RocketSite, tmp_path: Path, writer: str, reader: str
) -> None:
    backup, namesrv = tmp_path / "backup", rocket.names(writer)
    broker = broker_on(rocket, writer, tmp_path / "1" / "data", namesrv, 600_000)
    sent: list[str] = []
    try:
        producer = rocket.client(Cluster(writer, namesrv, broker), "producer", group="writers")
        for _ in range(3):
            for _ in range(60):
                sent.append(f"message {len(sent)}")
                result = producer.send(
                    "kept", sent[-1] + " " * 300, broker="broker-a", queue=len(sent) % QUEUES
                )
                assert result["status"] == "SEND_OK"
            report = back_up(tmp_path / "1" / "data", backup)
        assert report.log_end
        producer.send("kept", "after the backup", broker="broker-a", queue=0)
        producer.close()
    finally:
        broker.kill()
    found = verify_backup(backup)
    assert found.problems == []
    assert found.records >= len(sent)
    restore(backup, tmp_path / "2" / "data")
    namesrv = rocket.names(reader)
    broker = broker_on(rocket, reader, tmp_path / "2" / "data", namesrv, 600_000)
    try:
        cluster = Cluster(reader, namesrv, broker)
        consumer = rocket.client(cluster, "push", group="readers", topics={"kept": "*"})
        found_again = consumer.wait_for(len(sent), "messages", WAIT_S)
        bodies = [b64decode(one["body"]).decode().strip() for one in found_again]
        consumer.close()
    finally:
        broker.kill()
    assert sorted(bodies) == sorted(sent)
