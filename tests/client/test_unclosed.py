"""What was never closed is told when nobody holds it any more; what was closed is not."""

from __future__ import annotations

import asyncio
import gc
import subprocess
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

import coherer
import coherer.blocking
from coherer.message import Message
from coherer.testing import EmbeddedNode
from tests.threads import loop_threads
from tests.waiting import wait_until

# The plugin names what these tests leave open, as it should.
pytestmark = pytest.mark.filterwarnings("ignore::coherer.testing.LeftBehindWarning")

TOPIC = "unclosed"


@pytest.fixture(params=["tubemq", "rocketmq"])
def url(coherer_node: EmbeddedNode, request: pytest.FixtureRequest) -> str:
    coherer_node.create_topic(TOPIC, 1)
    return coherer_node.url if request.param == "tubemq" else coherer_node.rocketmq_url


def collect() -> None:
    for _ in range(5):  # what a finalizer lets go is found the next time
        gc.collect()


@contextmanager
def told() -> Iterator[list[str]]:
    """Our warnings inside; those of asyncio, which loses its transports, are not counted."""
    texts: list[str] = []

    def show(message: Warning | str, *_: object, **__: object) -> None:
        if "never closed" in str(message):  # kept as text: the warning holds what it is about
            texts.append(str(message))

    collect()
    with warnings.catch_warnings():
        warnings.simplefilter("always", ResourceWarning)
        warnings.showwarning = show
        yield texts
        collect()


def test_what_a_loop_leaves_open_is_named(url: str) -> None:
    async def main() -> None:
        client = coherer.connect(url)
        producer = client.producer(TOPIC)
        await producer.start()
        await producer.send(Message(TOPIC, b"hello"))
        consumer = client.consumer("readers", TOPIC)
        await consumer.start()

    with told() as texts:
        asyncio.run(main())
    assert sum("<Producer of unclosed" in text for text in texts) == 1
    assert sum("<Consumer" in text for text in texts) == 1
    assert sum("Client of" in text for text in texts) == 1
    assert all("use `async with`, or call close()" in text for text in texts)
    assert len(texts) == 3


def test_what_is_closed_or_never_begun_is_not(url: str) -> None:
    async def main() -> None:
        client = coherer.connect(url)
        async with client.producer(TOPIC) as producer:
            await producer.send(Message(TOPIC, b"hello"))
        client.producer(TOPIC)
        left = client.consumer("readers", TOPIC)
        await left.start()
        await client.close()
        coherer.connect(url)

    with told() as texts:
        asyncio.run(main())
        with coherer.blocking.connect(url) as client:
            producer = client.producer(TOPIC)
            producer.start()
    assert texts == []


def test_blocking_ones_are_named(url: str) -> None:
    with told() as texts, coherer.blocking.connect(url) as client:
        client.producer(TOPIC).start()
    [text] = texts
    assert text.startswith("<Producer of unclosed: open")
    assert text.endswith("use `with`, or call close().")
    with told() as texts:
        coherer.blocking.connect(url)
    [text] = texts
    assert "Client of" in text
    assert "use `with`, or call close()." in text


@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_blocking_clients_that_nobody_holds_end_their_threads(url: str) -> None:
    before, open_ones = loop_threads(), sockets()

    def use() -> None:
        producer = coherer.blocking.connect(url).producer(TOPIC)
        gc.collect()  # the producer keeps its client
        producer.start()
        producer.send(Message(TOPIC, b"hello"))
        client = coherer.blocking.connect(url)
        consumer = client.consumer("readers", TOPIC, start="earliest")
        consumer.start()

    use()
    left = loop_threads() - before
    assert left
    while left:  # the consumer's end lets go of its client
        gc.collect()
        left = {one for one in left if one.is_alive()}
        for one in left:
            one.join(0.05)
    # Two clients were made. The node is in this process, and closes its sockets a moment later.
    wait_until(lambda: sockets() < open_ones + 2 * SOCKETS)


SOCKETS = 3
"""A client has at least so many: the two that wake its loop, and a connection."""


def sockets() -> int:
    """The open sockets of this process. The node's are among them, but none of its other files,
    which it opens when it needs them."""
    found = 0
    folder = Path("/proc/self/fd")
    for one in folder.iterdir() if folder.is_dir() else ():
        with suppress(OSError):  # it was just closed
            found += str(one.readlink()).startswith("socket:")
    return found


def test_the_end_of_the_program_says_nothing(url: str) -> None:
    program = f"""
import coherer.blocking
from coherer.message import Message
client = coherer.blocking.connect({url!r})
producer = client.producer({TOPIC!r})
producer.start()
producer.send(Message({TOPIC!r}, b"hello"))
"""
    command = [sys.executable, "-W", "error::ResourceWarning", "-c", program]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
