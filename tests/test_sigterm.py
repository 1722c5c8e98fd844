"""SIGTERM in `consumer.run()`: it finishes and acknowledges the current batch, then returns."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest

import coherer.blocking
from coherer.message import Message
from coherer.testing import EmbeddedNode, embedded_node

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="SIGTERM does not exist there")

GUARD_S = 60
"""A test that hangs fails after this time."""

WORKER = """
import asyncio, logging, os, signal, sys, coherer, coherer.blocking

logging.basicConfig(level="INFO", stream=sys.stdout, format="%(message)s")
logging.getLogger("coherer").setLevel("WARNING")
logging.getLogger("coherer._client.engine.consumer").setLevel("INFO")

def handle(batch):
    for message in batch:
        print(f"current {message.body.decode()}\\n", end="", flush=True)  # one write
    sys.stdin.readline()

async def in_asyncio(url):
    async with coherer.connect(url) as client:
        async with client.consumer("workers", "jobs", start="earliest") as consumer:
            await consumer.run(handle)
    print("left", flush=True)

async def several(url):
    async with coherer.connect(url) as client:
        async with (
            client.consumer("workers", "jobs", start="earliest") as consumer,
            client.consumer("others", "jobs", start="earliest") as other,
        ):
            await asyncio.gather(consumer.run(handle), other.run(handle))
    print("left", flush=True)

class Returned:
    shown = 0
    def __repr__(self):
        self.shown += 1
        if self.shown == 2:  # while the log holds its lock
            os.kill(os.getpid(), signal.SIGTERM)
        return "something"

async def logging_then(url):
    async def handle(batch):
        return Returned()
    async with coherer.connect(url) as client:
        async with client.consumer("workers", "jobs", start="earliest") as consumer:
            await consumer.run(handle)
    print("left", flush=True)

def blocking(url):
    with coherer.blocking.connect(url) as client:
        with client.consumer("workers", "jobs", start="earliest") as consumer:
            consumer.run(handle)
    print("left", flush=True)

kind, url = sys.argv[1:]
if kind == "blocking":
    blocking(url)
elif kind == "uvloop":
    import uvloop
    uvloop.run(in_asyncio(url))
else:
    asyncio.run({"several": several, "logging": logging_then}.get(kind, in_asyncio)(url))
"""


@pytest.fixture
def node() -> Iterator[EmbeddedNode]:
    with embedded_node(default_partitions=1) as node:
        yield node


def send(url: str, body: bytes) -> None:
    with coherer.blocking.connect(url) as client, client.producer("jobs") as producer:
        producer.send(Message("jobs", body))


@pytest.mark.parametrize("kind", ["asyncio", "uvloop", "blocking"])
@pytest.mark.parametrize("protocol", ["tubemq", "rocketmq"])
def test_the_current_batch_is_finished_and_acknowledged(
    node: EmbeddedNode, protocol: str, kind: str
) -> None:
    if kind == "uvloop":
        pytest.importorskip("uvloop")
    url = node.url if protocol == "tubemq" else node.rocketmq_url
    send(url, b"first")
    command = [sys.executable, "-c", WORKER, kind, url]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) as worker:
        assert worker.stdin is not None
        assert worker.stdout is not None
        assert worker.stdout.readline() == "current first\n"
        send(url, b"second")
        worker.send_signal(signal.SIGTERM)
        assert worker.stdout.readline().startswith("SIGTERM")
        worker.stdin.write("\n")
        worker.stdin.flush()
        assert worker.stdout.readline() == "left\n"
        assert worker.wait(10) == 0
    with (
        coherer.blocking.connect(url) as client,
        client.consumer("workers", "jobs", start="earliest") as consumer,
    ):
        batch = consumer.receive(10_000)
        assert batch is not None
        assert batch.bodies() == [b"second"]
        consumer.commit(batch)


def test_a_second_sigterm_ends_the_process(node: EmbeddedNode) -> None:
    send(node.url, b"first")
    command = [sys.executable, "-c", WORKER, "asyncio", node.url]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True) as worker:
        assert worker.stdout is not None
        assert worker.stdout.readline() == "current first\n"
        worker.send_signal(signal.SIGTERM)
        while worker.poll() is None:
            worker.send_signal(signal.SIGTERM)
        assert worker.wait(10) == -signal.SIGTERM


def test_several_consumers_stop(node: EmbeddedNode) -> None:
    send(node.url, b"first")
    command = [sys.executable, "-c", WORKER, "several", node.url]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) as worker:
        assert worker.stdout is not None
        try:
            for _ in range(2):
                assert worker.stdout.readline() == "current first\n"
            worker.send_signal(signal.SIGTERM)
            assert worker.stdout.readline().startswith("SIGTERM")
            output, _ = worker.communicate(timeout=GUARD_S)  # ends its input, and so its handlers
        finally:
            worker.kill()
    assert (output, worker.returncode) == ("left\n", 0)


def test_sigterm_during_a_log_call(node: EmbeddedNode) -> None:
    send(node.url, b"first")
    command = [sys.executable, "-c", WORKER, "logging", node.url]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as worker:
        try:
            output, _ = worker.communicate(timeout=GUARD_S)
        finally:
            worker.kill()
    assert output.splitlines()[-1] == "left"
    assert worker.returncode == 0
