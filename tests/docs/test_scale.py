"""The commands of docs/how-to/scale.md run as they are printed, apart from addresses and ports."""

from __future__ import annotations

import asyncio
import re
import shlex
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import msgspec
import pytest

import coherer
from coherer.cli.serve.running import Ready
from coherer.message import Message
from tests.docs.test_snippets import blocks

PAGE = "how-to/scale.md"
FREE = ("--master-port", "0", "--broker-port", "0", "--namesrv-port", "0", "--rocketmq-port", "0")

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform == "win32", reason="SIGTERM does not exist there"),
]


def commands(words: str) -> list[str]:
    """The `coherer serve` commands that contain these words."""
    lines = [line for block in blocks(PAGE, "bash") for line in block.splitlines()]
    found = [line for line in lines if line.startswith("coherer serve") and words in line]
    assert found
    return found


class Servers:
    """The servers of a test, each started in a directory of its own."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._processes: list[subprocess.Popen[bytes]] = []

    def start(self, command: str, **instead: str) -> Ready:
        """Start a command on this machine, with other values for some of its words."""
        for old, new in instead.items():
            command = command.replace(old, new)
        command = re.sub(r"10\.0\.0\.\d", "127.0.0.1", command).replace("0.0.0.0", "127.0.0.1")
        words = shlex.split(command)[1:]
        place = Path(tempfile.mkdtemp(dir=self._directory))
        process = subprocess.Popen(
            [sys.executable, "-m", "coherer", *words, *FREE, "--admin-port", "0", "--json"],
            cwd=place,
            stdout=subprocess.PIPE,
        )
        self._processes.append(process)
        assert process.stdout is not None
        return msgspec.json.decode(process.stdout.readline(), type=Ready)

    def kill(self) -> None:
        """Kill the last but one."""
        process = self._processes.pop(-2)
        process.kill()
        process.communicate()

    def stop_last(self) -> None:
        """Stop the last one in order."""
        others, self._processes = self._processes[:-1], self._processes[-1:]
        self.stop()
        self._processes = others

    def stop(self) -> None:
        """Stop them in the opposite order."""
        for process in reversed(self._processes):
            process.terminate()
            with suppress(subprocess.TimeoutExpired):
                process.wait(60)
            process.kill()
            process.communicate()
            assert process.returncode == 0
        self._processes.clear()


@pytest.fixture
def servers(tmp_path: Path) -> Iterator[Servers]:
    started = Servers(tmp_path)
    yield started
    started.stop()


async def use(url: str, partitions: int) -> None:
    """Send to all partitions of a new topic, and receive it all."""
    async with coherer.connect(url) as client, asyncio.timeout(60):
        async with client.producer() as producer:
            await producer.publish("orders")
            while len(await client.partitions("orders")) < partitions:
                pass  # each turn asks the servers
            (await producer.send_many(Message("orders", b"%d" % n) for n in range(400))).check()
        ends = await client.offsets("orders")
        assert sum(end for _, end in ends.values()) == 400
        assert len(ends) == partitions


def test_a_test(capsys: pytest.CaptureFixture[str]) -> None:
    (block,) = blocks(PAGE)
    exec(compile(block, PAGE, "exec"), {"__name__": "snippet"})
    assert "stored in partition" in capsys.readouterr().out


def test_a_node_that_gets_a_second_broker(tmp_path: Path, servers: Servers) -> None:
    one, two = (line for line in commands("--directory data") if "--role" not in line)
    assert one == "coherer serve --directory data"
    ready = servers.start(f"{one} --default-partitions 4")
    asyncio.run(use(ready.url, 4))
    servers.stop()
    (data,) = tmp_path.glob("*/data")
    ready = servers.start(two, data=str(data))
    assert [broker.directory for broker in ready.brokers] == [
        str(data),
        str(data / "brokers" / "2"),
    ]
    asyncio.run(use_again(ready.url))
    (check,) = (block for block in blocks(PAGE, "bash") if block.startswith("curl"))
    pages = check.split()[2:]
    assert len(pages) == 2
    for page, broker in zip(pages, ready.brokers, strict=True):
        url = re.sub(r":\d+/", f":{broker.admin_port}/", page)
        with urllib.request.urlopen(url, timeout=30) as answer:
            assert answer.status == 200


async def use_again(url: str) -> None:
    async with coherer.connect(url) as client, asyncio.timeout(60):
        while len(await client.partitions("orders")) < 8:
            pass  # until the new broker serves the topic
        ends = await client.offsets("orders")
        assert sum(end for _, end in ends.values()) == 400


def test_several_machines(servers: Servers) -> None:
    (master,) = (line for line in commands("--role master") if "--zookeeper" not in line)
    first, second = (line for line in commands("--role broker") if "--broker-role" not in line)
    ready = servers.start(f"{master} --default-partitions 2")
    ports = {":8715": f":{ready.master_port}", ":9876": f":{ready.namesrv_port}"}
    for line, ids in ((first, [1, 2]), (second, [3, 4])):
        brokers = servers.start(line, **ports).brokers
        assert [broker.id for broker in brokers] == ids
    asyncio.run(use(ready.url, 8))


async def send_safely(url: str, first: str) -> dict[str, int]:
    """Send until a slave has 100 messages; returns their offsets."""
    sent: dict[str, int] = {}
    number = 0
    async with coherer.connect(url) as client, client.producer() as producer:
        while len(sent) < 100:
            body, number = f"{first}{number}", number + 1
            receipt = await producer.send(Message("orders", body.encode()))
            assert receipt.offset is not None
            if receipt.status == "SEND_OK":  # the slave has connected
                sent[body] = receipt.offset
    return sent


async def stored(url: str) -> dict[str, int]:
    """The offsets of all messages."""
    found: dict[str, int] = {}
    async with coherer.connect(url) as client:
        for queue, (begin, end) in (await client.offsets("orders")).items():
            async with client.reader(queue, begin, end=end) as reader:
                while (batch := await reader.read()) is not None:
                    offsets = zip(batch.bodies(), batch.offsets(), strict=True)
                    found |= {body.decode(): offset for body, offset in offsets}
    return found


def test_a_broker_that_is_lost(tmp_path: Path, servers: Servers) -> None:
    (names,) = (line for line in commands("--role master") if "--zookeeper" not in line)
    master, slave, heir = commands("--broker-role")
    ready = servers.start(names)
    places = {":9876": f":{ready.namesrv_port}", "10912": "0"}
    url = f"rocketmq://127.0.0.1:{ready.namesrv_port}"
    servers.start(master, **places)
    old, new = tmp_path / "copy", tmp_path / "second copy"
    servers.start(slave, **places, data=shlex.quote(str(old)))
    sent = asyncio.run(send_safely(url, "a"))
    servers.kill()
    servers.stop_last()
    servers.start(heir, **places, data=shlex.quote(str(old)))
    servers.start(slave, **places, data=shlex.quote(str(new)))
    later = asyncio.run(send_safely(url, "b"))
    assert sent.items() | later.items() <= asyncio.run(stored(url)).items()
    servers.kill()
    servers.stop_last()
    servers.start(heir, **places, data=shlex.quote(str(new)))
    assert sent.items() | later.items() <= asyncio.run(stored(url)).items()


def test_the_ports_and_names_are_the_documented_ones() -> None:
    from coherer._server.options.node import NodeOptions
    from coherer._server.options.siblings import sibling

    second = sibling(
        NodeOptions(directory=Path("data"), brokers=2), 1, servers={"master": "127.0.0.1:8715"}
    )
    text = " ".join((Path(__file__).parents[2] / "docs" / PAGE).read_text("utf-8").split())
    assert f"TubeMQ are at 8123 and {second.broker_port}" in text
    assert f"RocketMQ at 10911 and {second.rocketmq_port}" in text
    assert f"10909, {second.fast_port}" in text
    assert f"8080 and {second.admin_port}" in text
    assert f"`broker-a`, `{second.broker_name}`" in text
