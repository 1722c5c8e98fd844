"""A node drains, and Java's clients notice nothing: producers go on at another broker."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import pytest
from typer.testing import CliRunner

from coherer.cli.main import app
from tests.cli.test_drain import background, has_messages
from tests.interop.peers.driver import DriverError
from tests.interop.peers.rocket_site import Client, RocketSite, wait_until
from tests.served import FREE, Served

pytestmark = pytest.mark.interop

WAIT_S = 60.0


@pytest.mark.parametrize("grace", ["0", "15"])
def test_javas_producer_sends_elsewhere(
    rocket: RocketSite, tmp_path: Path, servers: list[Served], grace: str
) -> None:
    first = Served("--directory", str(tmp_path / "1"), *FREE)
    servers.append(first)
    ready = first.ready()
    namesrv = f"127.0.0.1:{ready.namesrv_port}"
    second = Served(
        "--directory", str(tmp_path / "2"), "--role", "broker", "--broker-id", "2",
        "--broker-name", "broker-b", "--master", f"127.0.0.1:{ready.master_port}",
        "--namesrv", namesrv, "--broker-port", "0", "--rocketmq-port", "0", "--admin-port", "0",
    )  # fmt: skip
    servers.append(second)
    other = second.ready()
    made = CliRunner().invoke(app, ["topics", "create", "work", "--url", f"rocketmq://{namesrv}"])
    assert made.exit_code == 0, made.output
    parameters = {"namesrv": namesrv, "group": "writers"}
    producer = Client(rocket.driver("java"), "producer", parameters)
    stop, sent, failed = threading.Event(), [0], list[str]()

    def send() -> None:
        while not stop.is_set():
            try:
                producer.send("work", f"message {sent[0]}")
                sent[0] += 1
            except DriverError as error:
                failed.append(str(error))

    sender = threading.Thread(target=send)
    sender.start()
    try:
        wait_until(lambda: sent[0] > 50 and has_messages(other), WAIT_S)
        draining = background(other, "--json", "--grace", grace)
        out, err = draining.communicate(timeout=120)
        before = sent[0]
        wait_until(lambda: sent[0] > before + 50, WAIT_S)
    finally:
        stop.set()
        sender.join()
        producer.close()
    assert draining.returncode == 0, err
    assert json.loads(out)["state"] == "drained"
    assert failed == []
    assert second.process.wait(30) == 0
