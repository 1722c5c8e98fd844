"""`coherer drain`: consumers finish, producers go elsewhere, and the node stops."""

from __future__ import annotations

import asyncio
import io
import json
import signal
import subprocess
import sys
import threading
from email.message import Message as Headers
from pathlib import Path
from urllib.error import HTTPError, URLError
from urllib.request import OpenerDirector, Request, urlopen

import pytest
from typer.testing import CliRunner, Result

from coherer.blocking import connect
from coherer.cli.main import app
from coherer.cli.serve.running import Ready
from coherer.errors import CohererError
from coherer.message import Message
from tests.served import FREE, Served
from tests.waiting import until

pytestmark = pytest.mark.slow

COUNT = 200


def drain(ready: Ready, *words: str) -> Result:
    given = ["drain", "--admin", str(ready.admin_url), *words]
    return CliRunner().invoke(app, given, catch_exceptions=False)


def background(ready: Ready, *words: str) -> subprocess.Popen[str]:
    """`coherer drain` as a process."""
    return subprocess.Popen(
        [sys.executable, "-m", "coherer", "drain", "--admin", str(ready.admin_url), *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def url_of(ready: Ready, protocol: str) -> str:
    return ready.url if protocol == "tubemq" else str(ready.rocketmq_url)


def fill(url: str, count: int = COUNT) -> None:
    with connect(url) as client, client.producer() as producer:
        for number in range(count):
            producer.send(Message("work", b"%d" % number))


@pytest.mark.parametrize("protocol", ["tubemq", "rocketmq"])
def test_a_node_stops_when_its_consumers_have_finished(
    tmp_path: Path, servers: list[Served], protocol: str
) -> None:
    served = Served("--directory", str(tmp_path), *FREE)
    servers.append(served)
    ready = served.ready()
    url = url_of(ready, protocol)
    fill(url)
    with connect(url) as client, client.consumer("g", "work", start="earliest") as consumer:
        first = consumer.receive(30_000)
        assert first
        draining = background(ready, "--json", "--grace", "0")
        with connect(url) as other, other.producer() as producer:

            def refused() -> bool:
                try:
                    producer.send(Message("work", b"late"))
                except CohererError:
                    return True
                return False

            asyncio.run(until(refused))
        seen = len(first)
        consumer.commit(first)
        while draining.poll() is None or seen < COUNT:
            batch = consumer.receive(500) if served.process.poll() is None else None
            if batch:
                seen += len(batch)
                consumer.commit(batch)
            elif served.process.poll() is not None:
                break
    out, err = draining.communicate(timeout=60)
    assert draining.returncode == 0, err
    assert json.loads(out)["state"] == "drained"
    assert served.process.wait(30) == 0
    assert not (tmp_path / "abort").exists(), "the store was closed in order"


def test_after_the_timeout_the_node_stops_and_keeps_what_is_unread(
    tmp_path: Path, servers: list[Served]
) -> None:
    served = Served("--directory", str(tmp_path), *FREE)
    servers.append(served)
    ready = served.ready()
    fill(ready.url)
    with connect(ready.url) as client, client.consumer("g", "work", start="earliest") as consumer:
        batch = consumer.receive(30_000)
        assert batch
        consumer.commit(batch)
        asyncio.run(until(lambda: "g" in lags(ready)))
        result = drain(ready, "--timeout", "0")
    assert result.exit_code == 3, result.output
    assert "unread, but stored" in result.stdout
    assert served.process.wait(30) == 0
    again = Served("--directory", str(tmp_path), *FREE)
    servers.append(again)
    url = again.ready().url
    with connect(url) as client, client.consumer("g", "work", start="earliest") as consumer:
        seen = 0
        while seen < COUNT - len(batch):
            found = consumer.receive(30_000)
            assert found
            seen += len(found)
    fill(url, 1)


def partitions(url: str) -> int:
    """The number of partitions, of all brokers, that a new client finds for the topic."""
    with connect(url) as client:
        return len(client.offsets("work"))


def lags(ready: Ready) -> str:
    """The metrics that tell that the broker knows the group's progress."""
    with urlopen(f"{ready.admin_url}/metrics", timeout=30) as answer:
        text: str = answer.read().decode()
    return "".join(line for line in text.splitlines() if 'group="g"' in line)


def has_messages(ready: Ready) -> bool:
    """Whether a broker has stored a message of the topic."""
    with urlopen(f"{ready.admin_url}/metrics", timeout=30) as answer:
        lines: list[str] = answer.read().decode().splitlines()
    return any(
        line.startswith("rocketmq_messages_in_total{") and 'topic="work"' in line for line in lines
    )


def test_a_drain_can_be_cancelled(tmp_path: Path, servers: list[Served]) -> None:
    served = Served("--directory", str(tmp_path), *FREE)
    servers.append(served)
    ready = served.ready()
    for url in (ready.url, str(ready.rocketmq_url)):
        fill(url)
    with connect(ready.url) as client, client.consumer("g", "work", start="earliest") as consumer:
        assert consumer.receive(30_000)
        draining = background(ready)
        asyncio.run(until(lambda: not_ready(ready)))
        assert "accepts sends again" in drain(ready, "--cancel").stdout
        for url in (ready.url, str(ready.rocketmq_url)):
            fill(url)
        assert not not_ready(ready)
        out, _ = draining.communicate(timeout=60)
        assert draining.returncode == 1
        assert "accepts sends again" in out
        assert served.end(signal.SIGTERM)[0] == 0


def status(state: str, lag: int = 0, *groups: dict[str, object]) -> bytes:
    """What a node answers."""
    found = {"state": state, "lag": lag, "groups": groups, "senders": False}
    return json.dumps({**found, "elapsed_s": 1.0, "timeout_s": 300.0}).encode()


def scripted(monkeypatch: pytest.MonkeyPatch, *answers: bytes | Exception) -> Result:
    """`coherer drain` with a node that gives these answers, and then has stopped."""
    left = list(answers)

    def answer(*_: object, **__: object) -> io.BytesIO:
        if not left:
            raise URLError(ConnectionRefusedError(111, "Connection refused"))
        following = left.pop(0)
        if isinstance(following, Exception):
            raise following
        return io.BytesIO(following)

    monkeypatch.setattr(OpenerDirector, "open", answer)
    return CliRunner().invoke(app, ["drain"], catch_exceptions=False)


def test_a_busy_node_has_not_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    busy = [TimeoutError(), URLError(TimeoutError())]
    result = scripted(monkeypatch, status("leaving"), *busy, status("drained"))
    assert result.exit_code == 0, result.output
    assert "Drained and stopped" in result.stdout


def test_a_node_that_has_started_again_was_drained(monkeypatch: pytest.MonkeyPatch) -> None:
    result = scripted(monkeypatch, status("draining"), status("drained"), status("serving"))
    assert result.exit_code == 0, result.output


def test_unknown_lag_is_not_reported_as_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    group = {"group": "new", "topic": "work", "lag": None}
    result = scripted(monkeypatch, status("draining"), status("timed out", 0, group))
    assert result.exit_code == 3
    assert "groups that have not committed yet" in result.stdout


def test_too_many_wrong_passwords_are_no_mistake_of_the_command_line(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    body = io.BytesIO(b"There were too many wrong passwords; wait.")
    error = HTTPError("http://127.0.0.1:8080/node/drain", 429, "", Headers(), body)
    result = scripted(monkeypatch, error)
    assert result.exit_code == 1
    assert "wait." in result.stderr


def test_every_command_that_waits_gets_the_result(tmp_path: Path, servers: list[Served]) -> None:
    """An operator, and the hook of Kubernetes."""
    served = Served("--directory", str(tmp_path), *FREE)
    servers.append(served)
    ready = served.ready()
    with connect(ready.url) as client, client.consumer("g", "work", start="earliest") as consumer:
        fill(ready.url)
        batch = consumer.receive(30_000)
        assert batch
        commands: list[subprocess.Popen[str]] = []
        for timeout_s in (1_000, 2_000, 3_000):
            commands.append(background(ready, "--json", "--timeout", str(timeout_s)))
            asyncio.run(until(lambda wanted=timeout_s: timeout_of(ready) >= wanted))
        while batch:
            consumer.commit(batch)
            batch = consumer.receive(500) if served.process.poll() is None else None
        for one in commands:
            out, err = one.communicate(timeout=60)
            assert one.returncode == 0, err
            assert json.loads(out)["state"] == "drained"


def timeout_of(ready: Ready) -> float:
    """The timeout of the drain, which the last command has set."""
    page = Request(f"{ready.admin_url}/node/drain", headers={"Authorization": "Bearer abc"})
    with urlopen(page, timeout=30) as answer:
        found: float = json.loads(answer.read())["timeout_s"]
    return found


def not_ready(ready: Ready) -> bool:
    try:
        with urlopen(f"{ready.admin_url}/health/ready", timeout=30):
            return False
    except HTTPError as error:
        with error:
            return b"draining" in error.read()


@pytest.mark.skipif(sys.platform == "win32", reason="there is no SIGUSR1")
def test_a_signal_drains(tmp_path: Path, servers: list[Served]) -> None:
    served = Served("--directory", str(tmp_path), "--no-admin", *FREE)
    servers.append(served)
    served.ready()
    served.process.send_signal(signal.SIGUSR1)
    _, err = served.process.communicate(timeout=60)
    assert served.process.returncode == 0
    assert "drained after" in err


def test_it_needs_a_token_or_an_account(tmp_path: Path, servers: list[Served]) -> None:
    served = Served("--directory", str(tmp_path), "--user", "ann=secret", *FREE)
    servers.append(served)
    ready = served.ready()
    for words in (["--token", "wrong"], ["--user", "ann", "--password", "wrong"], []):
        refused = drain(ready, *words)
        assert refused.exit_code == 1
        assert "An account is required" in refused.stderr or "account" in refused.stderr
    assert drain(ready, "--user", "ann", "--password", "secret").exit_code == 0
    assert served.process.wait(30) == 0


def test_a_node_that_does_not_answer() -> None:
    result = CliRunner().invoke(app, ["drain", "--admin", "http://127.0.0.1:1"])
    assert result.exit_code == 1
    assert "does not answer" in result.stderr
    assert CliRunner().invoke(app, ["drain", "--admin", "here"]).exit_code == 2
    wrong = CliRunner().invoke(app, ["drain", "--admin", "http://127.0.0.1:1", "--token", "\u0661"])
    assert (wrong.exit_code, "--token" in wrong.stderr) == (2, True)


@pytest.mark.parametrize("protocol", ["tubemq", "rocketmq"])
def test_producers_go_to_another_broker(
    tmp_path: Path, servers: list[Served], protocol: str
) -> None:
    first = Served("--directory", str(tmp_path / "1"), *FREE)
    servers.append(first)
    ready = first.ready()
    second = Served(
        "--directory", str(tmp_path / "2"), "--role", "broker", "--broker-id", "2",
        "--broker-name", "broker-b", "--master", f"127.0.0.1:{ready.master_port}",
        "--namesrv", f"127.0.0.1:{ready.namesrv_port}",
        "--broker-port", "0", "--rocketmq-port", "0", "--admin-port", "0",
    )  # fmt: skip
    servers.append(second)
    other = second.ready()
    url = url_of(ready, protocol)
    created = CliRunner().invoke(
        app, ["topics", "create", "work", "--partitions", "2", "--url", url]
    )
    assert created.exit_code == 0, created.output
    # A producer that starts earlier sees the second broker after half a minute.
    asyncio.run(until(lambda: partitions(url) == 4))
    more = {} if protocol == "tubemq" else {"route_ms": 100}
    with connect(url, **more) as client, client.producer() as producer:
        stop = threading.Event()
        failed: list[CohererError] = []
        sent = [0]

        def send() -> None:
            while not stop.is_set():
                try:
                    producer.send(Message("work", b"x"))
                    sent[0] += 1
                except CohererError as error:
                    failed.append(error)

        sender = threading.Thread(target=send)
        sender.start()
        asyncio.run(until(lambda: sent[0] > 50 and has_messages(other)))
        result = drain(other, "--json")
        before = sent[0]
        asyncio.run(until(lambda: sent[0] > before + 50))
        stop.set()
        sender.join()
    assert result.exit_code == 0, result.output
    assert failed == []
    assert second.process.wait(30) == 0
