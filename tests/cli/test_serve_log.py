"""The log of a running node: events, folded repeats, no secrets, and a file that rotates."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

import coherer
from coherer.errors import CohererError
from coherer.message import Message
from tests.waiting import until

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="SIGHUP does not exist there")

SECRETS = ("right-password", "wrong-password", "admin-token")


class Serving:
    """A node in a process of its own, which logs everything."""

    def __init__(self, directory: Path) -> None:
        self.log = directory / "node.log"
        ports = ("master", "broker", "admin", "namesrv", "rocketmq")
        words = [
            str(Path(sys.executable).parent / "coherer"), "serve", "--json",
            "-d", str(directory / "data"), "--user", "me=right-password",
            "--admin-token", "admin-token", "--log", "debug", "--log-format", "json",
            "--log-file", str(self.log),
            *(word for port in ports for word in (f"--{port}-port", "0")),
        ]  # fmt: skip
        self.process = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        self.urls = msgspec.json.decode(self.process.stdout.readline())

    def events(self) -> list[dict[str, Any]]:
        return [msgspec.json.decode(line) for line in self.log.read_text().splitlines()]

    def stop(self) -> None:
        self.process.terminate()
        assert self.process.wait(60) == 0

    def close(self) -> None:
        self.process.kill()
        self.process.wait(60)
        assert self.process.stdout is not None
        self.process.stdout.close()


@pytest.fixture
def serving(tmp_path: Path) -> Iterator[Serving]:
    node = Serving(tmp_path)
    yield node
    node.close()


def send(url: str, password: str) -> None:
    with (
        coherer.blocking.connect(url, user="me", password=password, timeout_ms=5_000) as client,
        client.producer("flights") as producer,
    ):
        producer.send(Message("flights", b"x"))


def test_the_log_has_events_without_secrets_and_repeats(serving: Serving) -> None:
    for name in ("url", "rocketmq_url"):
        send(serving.urls[name], "right-password")
        for _ in range(5):
            with pytest.raises(CohererError):
                send(serving.urls[name], "wrong-password")
    for _ in range(30):
        with socket.create_connection(("127.0.0.1", serving.urls["master_port"])) as stranger:
            stranger.sendall(b"GET / HTTP/1.1\r\n\r\n")
            while stranger.recv(4096):
                pass
    serving.stop()
    events = serving.events()
    assert len(events) > 3
    for event in events:
        assert {"time", "level", "logger", "event", "message"} <= event.keys()
    text = serving.log.read_text()
    assert [secret for secret in SECRETS if secret in text] == []
    lines = [(event["logger"], event["message"]) for event in events]
    repeated = {line for line in lines if lines.count(line) > 1}
    assert repeated == set(), "a line that repeats is written once, with a count"
    strangers = [event for event in events if "HTTP" in event["message"]]
    assert len(strangers) == 1, strangers


async def test_sighup_opens_the_log_file_anew(serving: Serving) -> None:
    moved = serving.log.with_suffix(".1")
    serving.log.rename(moved)
    serving.process.send_signal(signal.SIGHUP)
    await until(lambda: serving.log.exists() and serving.log.stat().st_size, 60)
    assert "Read the configuration again" in serving.log.read_text()
    before = moved.read_text()
    serving.stop()
    assert moved.read_text() == before
