"""`coherer backup`, `verify` and `restore`, while a node serves."""

from __future__ import annotations

import asyncio
import json
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from coherer.blocking import connect
from coherer.cli.main import app
from coherer.message import Message
from tests.served import FREE, Served
from tests.waiting import until


def run(*words: str | Path) -> Result:
    return CliRunner().invoke(app, [str(word) for word in words], catch_exceptions=False)


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    served = Served("--directory", str(tmp_path / "data"), "--segment-bytes", str(8 << 20), *FREE)
    yield served
    if served.process.poll() is None:
        served.process.kill()
    served.process.communicate()


def test_a_node_starts_on_a_restored_backup_with_its_offsets(
    tmp_path: Path, served: Served
) -> None:
    ready, backup = served.ready(), tmp_path / "backup"
    stop, sent = threading.Event(), [0]
    most = [2_000]  # the sender goes on during a backup, but not without end

    def send() -> None:
        with connect(ready.url) as client, client.producer() as producer:
            while not stop.is_set():
                if sent[0] >= most[0]:
                    stop.wait(0.01)
                    continue
                chunk = range(sent[0], sent[0] + 50)
                producer.send_many([Message("work", b"%d" % n) for n in chunk]).check()
                sent[0] += 50

    sender = threading.Thread(target=send)
    sender.start()
    try:
        with (
            connect(ready.url) as client,
            client.consumer("g", "work", start="earliest") as consumer,
        ):
            taken: set[int] = set()
            while len(taken) < 200:
                batch = consumer.receive(30_000)
                assert batch
                taken |= {int(one.body) for one in batch}
                consumer.commit(batch)
        offsets = tmp_path / "data/config/consumerOffset.json"
        committed = re.compile(rb'@g":\{0:[1-9]')  # it is 0 when the group begins
        asyncio.run(
            until(lambda: offsets.is_file() and committed.search(offsets.read_bytes()) is not None)
        )
        before = sent[0]
        most[0] += 2_000
        first = json.loads(run("backup", backup, "-d", tmp_path / "data", "--json").stdout)
        again = json.loads(run("backup", backup, "-d", tmp_path / "data", "--json").stdout)
    finally:
        stop.set()
        sender.join()
    assert again["log_end"] >= first["log_end"] > 0
    assert "a backup" in run("verify", backup).stdout
    report = json.loads(run("restore", backup, tmp_path / "new", "--json").stdout)
    assert report["log_end"] == again["log_end"]
    assert served.end(signal.SIGTERM)[0] == 0
    new = Served("--directory", str(tmp_path / "new"), *FREE)
    try:
        url = new.ready().url
        with connect(url) as client:
            with client.consumer("new", "work", start="earliest") as consumer:
                bodies: set[int] = set()
                while not bodies >= set(range(before)):
                    batch = consumer.receive(30_000)
                    assert batch, f"{before - len(bodies)} messages are missing"
                    bodies |= {int(one.body) for one in batch}
                    consumer.commit(batch)
            with client.consumer("g", "work", start="earliest") as consumer:
                batch = consumer.receive(30_000)
                assert batch
                assert not taken & {int(one.body) for one in batch}, "the group goes on"
            with client.producer() as producer:
                producer.send(Message("work", b"0"))
        assert new.end(signal.SIGTERM)[0] == 0
    finally:
        if new.process.poll() is None:
            new.process.kill()
            new.process.communicate()
    verified = run("verify", tmp_path / "new", "--json")
    assert verified.exit_code == 0, verified.output


def test_a_killed_backup_leaves_the_previous_one(tmp_path: Path, served: Served) -> None:
    ready, backup = served.ready(), tmp_path / "backup"
    with connect(ready.url) as client, client.producer() as producer:
        producer.send_many([Message("work", bytes(1000)) for _ in range(2000)]).check()
        first = json.loads(run("backup", backup, "-d", tmp_path / "data", "--json").stdout)
        for delay_s in (0.0, 0.3, 0.5, 0.7):
            producer.send_many([Message("work", bytes(1000)) for _ in range(2000)]).check()
            words = ["backup", str(backup), "-d", str(tmp_path / "data")]
            process = subprocess.Popen(
                [sys.executable, "-m", "coherer", *words], stdout=subprocess.DEVNULL
            )
            try:
                process.wait(delay_s)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            found = run("verify", backup, "--json")
            assert found.exit_code == 0, found.output
            assert json.loads(found.stdout)["verified"]["log_end"] >= first["log_end"]
    last = json.loads(run("backup", backup, "-d", tmp_path / "data", "--json").stdout)
    assert last["log_end"] > first["log_end"]
    named = json.loads((backup / "backup.json").read_bytes())
    names = {one["name"] for one in [*named["files"], *named["log"]["pieces"]]}
    stored = {str(path.relative_to(backup / "data")) for path in (backup / "data").rglob("*")
              if path.is_file()}  # fmt: skip
    assert stored == names, "what a killed backup left is gone"


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["backup", "b", "-d", "nowhere"], "There is no node in nowhere"),
        (["restore", "nowhere", "to"], "There is no backup in nowhere"),
        (["verify", "b", "--repair"], "is a backup, which cannot be repaired"),
        (["serve", "-d", "b"], "b is a backup, and a node would damage it. Run `coherer restore b"),
    ],
)
def test_what_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: list[str], text: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "node" / "config").mkdir(parents=True)
    if words[0] in {"verify", "serve"}:
        assert run("backup", "b", "-d", "node").exit_code == 0
    result = run(*words)
    assert result.exit_code == 2
    assert text in " ".join(result.stderr.split())


def test_other_brokers_of_a_node_are_named(tmp_path: Path) -> None:
    node = tmp_path / "node"
    for directory in (node, node / "brokers" / "10", node / "brokers" / "2"):
        (directory / "config").mkdir(parents=True)
    done = run("backup", tmp_path / "first", "-d", node)
    assert done.exit_code == 0
    assert [line.split("--directory ")[1] for line in done.stderr.splitlines()] == [
        f"{node}/brokers/{number}." for number in (2, 10)
    ]
    assert run("backup", tmp_path / "second", "-d", node / "brokers" / "2").stderr == ""
