"""`coherer audit`, `replay` and `export` on a topic of Java's RocketMQ broker."""

from __future__ import annotations

import asyncio
import json
import uuid
from pathlib import Path

import pytest
from typer.testing import CliRunner

from coherer.arrow import scan
from coherer.cli.main import app
from tests.interop.peers.rocket_clients import Clients
from tests.interop.peers.rocket_site import RocketSite, wait_until

pytestmark = [
    pytest.mark.interop,
    pytest.mark.spark,
    pytest.mark.slow,
    pytest.mark.usefixtures("spark"),
]

COUNT = 300


def run(*words: object) -> object:
    """The JSON that a command prints; checks that it succeeds."""
    done = CliRunner().invoke(app, [*map(str, words), "--json"])
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


async def test_jobs_on_messages_of_javas_producer(rocket: RocketSite, tmp_path: Path) -> None:
    cluster = await asyncio.to_thread(rocket.cluster, "java")
    topic = f"t{uuid.uuid4().hex[:10]}"
    numbers = [str(number) for number in range(COUNT)]
    async with Clients(rocket, cluster, f"g{topic}") as clients:
        producer = await clients.producer("java")
        await producer.send_many(topic, numbers)
    url = cluster.url

    def stored(name: str) -> list[str]:
        rows = scan(url, name, columns=["value"]).read_all()
        return sorted((row["value"].decode() for row in rows.to_pylist()), key=int)

    def check() -> None:
        wait_until(lambda: stored(topic) == numbers)
        run("export", topic, "--to", tmp_path / "exported", "--url", url)
        report = run("audit", topic, "--url", url, "--landed", tmp_path / "exported")
        assert isinstance(report, dict)
        assert report["whole"]
        assert sum(one["landed"] for one in report["partitions"]) == COUNT
        again = f"{topic}-again"
        replayed = run("replay", topic, "--to", again, "--url", url)
        assert isinstance(replayed, dict)
        assert replayed["rows"] == COUNT
        wait_until(lambda: stored(again) == numbers)
        resumed = run("replay", topic, "--to", again, "--url", url, "--resume")
        assert isinstance(resumed, dict)
        assert resumed["rows"] == 0
        assert stored(again) == numbers

    await asyncio.to_thread(check)
