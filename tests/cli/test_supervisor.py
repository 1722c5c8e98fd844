"""`coherer serve --brokers N`: several broker processes under one master and name server."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import pytest
from typer.testing import CliRunner, Result

import coherer
from coherer import rocketmq, tubemq
from coherer._server.options.siblings import SiblingState
from coherer.cli import main
from coherer.cli.serve.broker_messages import Begin
from coherer.cli.serve.log_output import LogOutput
from coherer.cli.serve.node_config import LogOptions, node_options
from coherer.cli.serve.options import values_of
from coherer.cli.serve.running import Ready
from coherer.cli.serve.supervisor import Process, Supervisor, announce
from coherer.errors import CohererError
from coherer.message import Message
from tests.waiting import until

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform == "win32", reason="the tests send signals"),
]

FREE = (
    *("--master-port", "0", "--broker-port", "0", "--admin-port", "0"),
    *("--namesrv-port", "0", "--rocketmq-port", "0"),
)


class Cluster:
    """A `coherer serve --brokers --json` as a process, with its log in a file."""

    def __init__(self, directory: Path, *words: str, brokers: int = 2) -> None:
        self.log = directory.with_suffix(".log")
        command = ["serve", "--json", "--brokers", str(brokers), "-d", str(directory), *words]
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "coherer", *command], stdout=subprocess.PIPE, stderr=log
            )

    def ready(self) -> Ready:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, self.log.read_text()
        return msgspec.json.decode(line, type=Ready)

    def stop(self, number: signal.Signals = signal.SIGTERM) -> int:
        self.process.send_signal(number)
        return self.process.wait(60)


@pytest.fixture
def clusters() -> Iterator[list[Cluster]]:
    started: list[Cluster] = []
    yield started
    for one in started:
        if one.process.poll() is None:
            one.process.send_signal(signal.SIGTERM)
            with suppress(subprocess.TimeoutExpired):
                one.process.wait(60)
            one.process.kill()
        one.process.communicate()


@pytest.fixture
def cluster(tmp_path: Path, clusters: list[Cluster]) -> Cluster:
    clusters.append(Cluster(tmp_path / "data", *FREE))
    return clusters[0]


def runs(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def get(url: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(url, timeout=30) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


async def send(url: str, topic: str, bodies: list[bytes]) -> None:
    async with coherer.connect(url) as client, client.producer(topic) as producer:
        receipts = await producer.send_many(Message(topic, body) for body in bodies)
        receipts.check()


async def receive(url: str, topic: str, count: int, group: str = "readers") -> list[bytes]:
    found: list[bytes] = []
    async with (
        asyncio.timeout(60),
        coherer.connect(url) as client,
        client.consumer(group, topic, start="earliest") as consumer,
    ):
        async for batch in consumer.batches():
            found += [bytes(message.body) for message in batch]
            batch.ack()
            if len(found) >= count:
                await consumer.commit()
                return found
    return found


async def on_both(ready: Ready, topic: str) -> None:
    """Wait until both protocols have the topic on both brokers."""
    async with tubemq.connect(ready.url) as client:
        await until(lambda: _brokers(client, topic, {1, 2}), 60)
    assert ready.rocketmq_url is not None
    async with rocketmq.connect(ready.rocketmq_url) as client:
        await until(lambda: _names(client, topic, {"broker-a", "broker-b"}), 60)


async def _brokers(client: tubemq.Client, topic: str, wanted: set[int]) -> bool:
    try:
        return {one.broker.id for one in await client.partitions(topic)} == wanted
    except CohererError:
        return False


async def _names(client: rocketmq.Client, topic: str, wanted: set[str]) -> bool:
    try:
        return {one.broker for one in await client.partitions(topic)} == wanted
    except CohererError:
        return not wanted


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_both_protocols_use_both_brokers(
    tmp_path: Path, cluster: Cluster, number: signal.Signals
) -> None:
    ready = cluster.ready()
    assert [one.name for one in ready.brokers] == ["broker-a", "broker-b"]
    assert [one.directory for one in ready.brokers] == [
        str(tmp_path / "data"),
        str(tmp_path / "data" / "brokers" / "2"),
    ]
    assert ready.rocketmq_url is not None

    async def use(url: str, other: str, topic: str) -> None:
        async with coherer.connect(url) as client:
            await client.admin().topics.create(topic, 2)
        await on_both(ready, topic)
        bodies = [b"%d" % one for one in range(400)]
        await send(url, topic, bodies)
        async with coherer.connect(url) as client:
            ends = await client.offsets(topic)
        assert len([key for key, (_, end) in ends.items() if end]) == 4, ends
        for group, reader in (("same", url), ("other", other)):
            assert sorted(await receive(reader, topic, 400, group)) == sorted(bodies)

    asyncio.run(use(ready.url, ready.rocketmq_url, "tube"))
    asyncio.run(use(ready.rocketmq_url, ready.url, "rocket"))
    assert get(f"{ready.admin_url}/health/ready") == (200, "ready\n")
    pids = [one.pid for one in ready.brokers]
    assert cluster.stop(number) == 0, cluster.log.read_text()
    assert not any(map(runs, pids)), "no process is left"
    for one in ready.brokers:
        assert not (Path(one.directory) / "abort").exists(), "each store was closed in order"


def test_a_topic_that_a_send_creates_is_on_both_brokers(cluster: Cluster) -> None:
    ready = cluster.ready()
    assert ready.rocketmq_url is not None

    async def use(url: str, topic: str) -> None:
        await send(url, topic, [b"1"])
        await on_both(ready, topic)

    asyncio.run(use(ready.rocketmq_url, "by-rocketmq"))
    asyncio.run(use(ready.url, "by-tubemq"))

    async def delete(url: str, topic: str) -> None:
        async with coherer.connect(url) as client:
            await client.admin().topics.delete(topic)
        async with tubemq.connect(ready.url) as tube:
            await until(lambda: _brokers_or_none(tube, topic), 60)
        async with rocketmq.connect(ready.rocketmq_url or "") as rocket:
            await until(lambda: _names(rocket, topic, set()), 60)

    asyncio.run(delete(ready.url, "by-rocketmq"))
    asyncio.run(delete(ready.rocketmq_url, "by-tubemq"))


async def _brokers_or_none(client: tubemq.Client, topic: str) -> bool:
    return not any(one.name == topic for one in await client.admin().topics.list())


@pytest.mark.parametrize("victim", [0, 1])
def test_a_killed_broker_is_started_again_with_its_messages(cluster: Cluster, victim: int) -> None:
    ready = cluster.ready()
    assert ready.rocketmq_url is not None
    url = ready.rocketmq_url
    bodies = [b"%d" % one for one in range(1000)]

    async def use() -> None:
        async with coherer.connect(url) as client:
            await client.admin().topics.create("jobs", 2)
        await on_both(ready, "jobs")
        await send(url, "jobs", bodies)
        os.kill(ready.brokers[victim].pid, signal.SIGKILL)
        await until(lambda: "is ready again" in cluster.log.read_text(), 60)
        for one in ready.brokers:
            page = f"http://127.0.0.1:{one.admin_port}/health/ready"
            await until(lambda page=page: get(page)[0] == 200, 60)
        await on_both(ready, "jobs")
        assert sorted(await receive(url, "jobs", 1000)) == sorted(bodies)
        await send(ready.url, "jobs", [b"after"])

    asyncio.run(use())
    assert f"Broker {victim + 1} ended: It was ended by SIGKILL." in cluster.log.read_text()
    metrics = get(f"{ready.admin_url}/metrics")[1]
    name = ready.brokers[victim].name
    lines = [line for line in metrics.splitlines() if f'broker="{name}"' in line]
    found = {line.partition("{")[0]: line.rpartition(" ")[2] for line in lines}
    assert found == {"coherer_broker_up": "1", "coherer_broker_restarts_total": "1"}
    assert cluster.stop() == 0


@pytest.mark.parametrize("victim", [0, 1])
def test_a_broker_that_hangs_is_killed_and_started_again(
    tmp_path: Path, clusters: list[Cluster], victim: int
) -> None:
    one = Cluster(tmp_path / "data", *FREE, "--set", "hang_timeout_ms=3000")
    clusters.append(one)
    ready = one.ready()
    asyncio.run(send(ready.url, "jobs", [b"before"]))
    os.kill(ready.brokers[victim].pid, signal.SIGSTOP)
    hangs = f"Broker {victim + 1} has not responded for 3 s, so it is killed"
    asyncio.run(until(lambda: hangs in one.log.read_text(), 60))
    asyncio.run(until(lambda: f"Broker {victim + 1} is ready again" in one.log.read_text(), 60))
    assert asyncio.run(receive(ready.url, "jobs", 1)) == [b"before"]
    assert one.stop() == 0


def test_brokers_that_answer_are_left_alone_and_the_watch_can_be_switched_off(
    tmp_path: Path, clusters: list[Cluster]
) -> None:
    one = Cluster(tmp_path / "data", *FREE, "--set", "hang_timeout_ms=0")
    clusters.append(one)
    second = one.ready().brokers[1].pid
    os.kill(second, signal.SIGSTOP)
    os.kill(second, signal.SIGCONT)
    assert one.stop() == 0
    assert "has not responded" not in one.log.read_text()


def test_sigusr1_drains_all_brokers_and_stops(cluster: Cluster) -> None:
    ready = cluster.ready()
    assert cluster.stop(signal.SIGUSR1) == 0, cluster.log.read_text()
    log = cluster.log.read_text()
    assert 0 < log.index("Broker 2 is drained") < log.index("Broker 1 is drained")
    assert not any(runs(one.pid) for one in ready.brokers)


@pytest.mark.skipif(sys.platform != "linux", reason="a stopped process holds its port")
def test_a_broker_that_cannot_start_makes_the_node_unready(cluster: Cluster) -> None:
    ready = cluster.ready()
    second = ready.brokers[1]
    identity = Path(second.directory) / "config" / "identity.json"
    identity.write_text('{"brokerId": 9}')
    os.kill(second.pid, signal.SIGKILL)
    page = f"{ready.admin_url}/health/ready"

    async def unready(words: str) -> None:
        await until(lambda: get(page)[0] == 503 and words in get(page)[1], 60)

    asyncio.run(unready("belongs to broker 9"))
    assert "coherer_broker_up{" in get(f"{ready.admin_url}/metrics")[1]
    assert get(f"{ready.admin_url}/health/live")[0] == 200, "broker 1 goes on"
    identity.write_text('{"brokerId": 2}')
    asyncio.run(until(lambda: get(page)[0] == 200, 60))
    assert cluster.stop() == 0


@pytest.mark.parametrize("as_json", [True, False])
async def test_the_supervisor_in_this_process(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], as_json: bool
) -> None:
    given: dict[str, object] = {
        "directory": tmp_path / "data",
        "brokers": 2,
        **dict.fromkeys(("master_port", "broker_port", "namesrv_port", "rocketmq_port"), 0),
        "admin_port": 0,
    }
    options = node_options(values_of(given, {}))
    log = LogOutput(LogOptions(level="error"))
    supervisor, stopped = Supervisor(options, given, log), asyncio.Event()
    served = asyncio.Event()
    pids: list[int] = []

    async def ready(processes: list[Process]) -> None:
        announce(options, processes, as_json=as_json)
        pids.extend(one.pid for one in processes)
        served.set()

    running = asyncio.create_task(supervisor.run(stopped, ready))
    try:
        await asyncio.wait_for(served.wait(), 60)
        printed = capsys.readouterr().out
        assert "broker-a" in printed
        assert "broker-b" in printed
        supervisor.reload()
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
        await until(lambda: capsys.readouterr().err.count("ended by SIGKILL") >= 1, 60)
        supervisor.kill()
    finally:
        stopped.set()
        with suppress(CohererError):  # it was killed, and did not stop cleanly
            await asyncio.wait_for(running, 60)
        log.close()
    assert not any(map(runs, pids))


@pytest.mark.parametrize("turns", range(3))
async def test_a_process_that_is_stopped_while_it_is_created(tmp_path: Path, turns: int) -> None:
    """The signal arrives in the middle of a restart."""
    lines: list[str] = []
    one = Process(0, SiblingState(1, "broker-a"))
    given = {"directory": str(tmp_path), "admin_port": 0}
    running = asyncio.create_task(one.run(Begin(0, given), lines.append, lambda message: None))
    for _ in range(turns):
        await asyncio.sleep(0)
    one.stop()
    assert await running == 0, lines


async def test_a_broker_whose_process_cannot_be_started_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Memory was short when it was to be restarted: all brokers were stopped.

    A line that something in its process prints has no other effect than to be in the log.
    """
    (tmp_path / "sitecustomize.py").write_text('print("a library says hello")')
    paths = (str(tmp_path), os.environ.get("PYTHONPATH", ""))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, paths)))
    given: dict[str, object] = {
        "directory": tmp_path / "data",
        "brokers": 2,
        **dict.fromkeys(("master_port", "broker_port", "namesrv_port", "rocketmq_port"), 0),
        "admin_port": 0,
    }
    options, log = node_options(values_of(given, {})), LogOutput(LogOptions(level="warning"))
    supervisor, stopped = Supervisor(options, given, log), asyncio.Event()
    started: list[Process] = []
    served = asyncio.Event()

    async def ready(processes: list[Process]) -> None:
        started.extend(processes)
        served.set()

    failures = [OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))] * 2
    start = asyncio.create_subprocess_exec

    async def failing(*words: str, **options: Any) -> asyncio.subprocess.Process:
        if failures:
            raise failures.pop()
        return await start(*words, **options)

    running = asyncio.create_task(supervisor.run(stopped, ready))
    printed = ""
    try:
        await asyncio.wait_for(served.wait(), 60)
        monkeypatch.setattr(asyncio, "create_subprocess_exec", failing)
        os.kill(started[1].pid, signal.SIGKILL)

        def again() -> bool:
            assert not running.done(), running
            return started[1].state.ready and started[1].state.restarts == 3

        await until(again, 60)
        printed = capsys.readouterr().err
    finally:
        stopped.set()
        await asyncio.wait_for(running, 60)
        log.close()
    assert "could not be started: Cannot allocate memory." in printed
    assert printed.count("a library says hello") == 3


def test_a_second_signal_kills_all(cluster: Cluster) -> None:
    ready = cluster.ready()
    for one in ready.brokers:
        os.kill(one.pid, signal.SIGSTOP)  # so that they cannot stop cleanly
    cluster.process.send_signal(signal.SIGTERM)

    def again() -> bool:
        cluster.process.send_signal(signal.SIGTERM)
        return cluster.process.poll() is not None

    asyncio.run(until(again, 60))
    assert cluster.process.returncode == -signal.SIGTERM
    asyncio.run(until(lambda: not any(runs(one.pid) for one in ready.brokers), 60))


def test_brokers_stop_when_their_supervisor_is_killed(cluster: Cluster) -> None:
    ready = cluster.ready()
    cluster.process.kill()
    asyncio.run(until(lambda: not any(runs(one.pid) for one in ready.brokers), 60))
    for one in ready.brokers:
        assert not (Path(one.directory) / "abort").exists(), "in order"


def test_a_directory_of_one_broker_becomes_broker_0(
    tmp_path: Path, clusters: list[Cluster]
) -> None:
    alone = Cluster(tmp_path / "data", *FREE, brokers=1)
    clusters.append(alone)
    asyncio.run(send(alone.ready().url, "old", [b"%d" % one for one in range(100)]))
    assert alone.stop() == 0
    two = Cluster(tmp_path / "data", *FREE)
    clusters.append(two)
    ready = two.ready()
    asyncio.run(on_both(ready, "old"))
    assert sorted(asyncio.run(receive(ready.url, "old", 100))) == sorted(
        b"%d" % one for one in range(100)
    )
    assert two.stop() == 0
    refused = CliRunner().invoke(main.app, ["serve", "-d", str(tmp_path / "data"), *FREE])
    assert refused.exit_code == 2
    assert "has messages of broker 2" in " ".join(refused.stderr.split())
    assert "--brokers 2" in refused.stderr


def test_the_log_names_the_broker_and_a_hangup_reaches_all(
    tmp_path: Path, clusters: list[Cluster]
) -> None:
    config, log = tmp_path / "node.toml", tmp_path / "node.log"
    text = f'brokers = 2\nauto_create_topics = false\n[log]\nfile = "{log}"\nformat = "json"\n'
    config.write_text(text + 'level = "info"\n')
    one = Cluster(tmp_path / "data", *FREE, "--config", str(config))
    clusters.append(one)
    ready = one.ready()

    def brokers(words: str) -> set[int]:
        lines = [json.loads(line) for line in log.read_text().splitlines()]
        return {line["broker"] for line in lines if words in line["message"]}

    assert brokers("Store in") == {1, 2}
    log.rename(tmp_path / "rotated.log")
    config.write_text(text.replace("false", "true"))
    one.process.send_signal(signal.SIGHUP)
    asyncio.run(
        until(lambda: log.exists() and brokers("Read the configuration again") == {1, 2}, 60)
    )
    assert ready.rocketmq_url is not None
    asyncio.run(send(ready.rocketmq_url, "new", [b"1"]))
    assert one.stop() == 0


def test_accounts_of_a_file_hold_for_all_brokers(tmp_path: Path, clusters: list[Cluster]) -> None:
    conf = tmp_path / "data" / "conf"
    conf.mkdir(parents=True)
    (conf / "plain_acl.yml").write_text(
        "accounts:\n- accessKey: operator\n  secretKey: secret123\n  admin: true\n"
    )
    (conf / "plain_acl.yml").chmod(0o600)
    one = Cluster(tmp_path / "data", *FREE, "--rocketmq-access", "--unprotected", "admin")
    clusters.append(one)
    ready = one.ready()

    async def use(url: str) -> None:
        async with coherer.connect(url, user="operator", password="secret123") as client:
            await client.admin().topics.create("a" + url[:4], 1)
            async with client.producer() as producer:
                topic = "a" + url[:4]
                receipts = await producer.send_many(Message(topic, b"x") for _ in range(10))
                receipts.check()

    for url in (ready.url, ready.rocketmq_url):
        assert url is not None
        asyncio.run(use(url))
    assert one.stop() == 0


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--role", "master"], "--brokers is not possible"),
        (["--broker-port", "65530"], "--broker-port of broker 2 would be 65540"),
        (["--brokers", "65"], "must be 1 to 64"),
        (
            ["--broker-role", "SLAVE", "--rocketmq-broker-id", "1", "--namesrv", "a"],
            "A slave copies one broker",
        ),
    ],
)
def test_contradictory_options_are_refused(tmp_path: Path, words: list[str], expected: str) -> None:
    command = ["serve", "-d", str(tmp_path), "--brokers", "2", *words]
    result = CliRunner().invoke(main.app, command, catch_exceptions=False)
    assert result.exit_code == 2
    assert expected in " ".join(result.stderr.split())


def test_a_taken_port_stops_the_start(tmp_path: Path, clusters: list[Cluster]) -> None:
    first = Cluster(tmp_path / "first", *FREE)
    clusters.append(first)
    taken = str(first.ready().broker_port)
    second = Cluster(tmp_path / "second", *FREE, "--broker-port", taken)
    clusters.append(second)
    assert second.process.wait(60) == 2
    assert f"Cannot listen on 127.0.0.1:{taken}" in second.log.read_text()
    assert first.stop() == 0


async def test_brokers_are_drained_one_by_one(cluster: Cluster) -> None:
    ready = await asyncio.to_thread(cluster.ready)
    first, second = ready.brokers

    def drain(port: int) -> Result:
        words = ["drain", "--admin", f"http://127.0.0.1:{port}", "--grace", "0"]
        return CliRunner().invoke(main.app, words)

    refused = await asyncio.to_thread(drain, first.admin_port)
    assert refused.exit_code == 2
    assert f"The brokers {second.id} need this one" in " ".join(refused.output.split())
    assert (await asyncio.to_thread(drain, second.admin_port)).exit_code == 0
    await until(lambda: "is drained" in cluster.log.read_text())
    assert not runs(second.pid)
    status, _ = await asyncio.to_thread(get, f"http://127.0.0.1:{first.admin_port}/health/ready")
    assert status == 200
    await send(ready.url, "kept", [b"a"])
    assert "It restarts in" not in cluster.log.read_text()
    assert (await asyncio.to_thread(drain, first.admin_port)).exit_code == 0
    assert await asyncio.to_thread(cluster.process.wait, 60) == 0
