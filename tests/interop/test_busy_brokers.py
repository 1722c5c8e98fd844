"""Our producers at Java's brokers that refuse what they cannot take at once."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

import coherer
import coherer.arrow
from coherer import Message
from tests.interop.peers.cache import UnavailableError, prepare
from tests.interop.peers.java import JavaBroker, wait_writable
from tests.interop.peers.ours import OurMaster
from tests.interop.peers.rocket_site import RocketSite

pytestmark = [pytest.mark.interop, pytest.mark.slow]

ROUNDS = 60
DONE_S = 60
TOPIC = "busy"


async def send_until_busy(
    url: str, topic: str, count: int, size: int, caplog: pytest.LogCaptureFixture
) -> list[bytes]:
    """Sends `count` messages at a time until the broker has refused some; returns all bodies."""
    bodies: list[bytes] = []
    async with coherer.connect(url) as client, client.producer(topic) as producer:
        for _ in range(ROUNDS):
            some = [b"%0*d" % (size, number) for number in range(len(bodies), len(bodies) + count)]
            report = await producer.send_many(Message(topic, body) for body in some)
            assert (report.sent, report.failed) == (count, [])
            bodies += some
            if "is busy; refused messages are sent again" in caplog.text:
                return bodies
    raise AssertionError("Java's broker was never busy.")


def stored(url: str, topic: str, count: int) -> Counter[bytes]:
    """The bodies in a topic; Java's brokers may show them later than they acknowledge them."""
    end = time.monotonic() + DONE_S
    while True:
        table = coherer.arrow.scan(url, topic, columns=["value"]).read_all()
        if table.num_rows >= count or time.monotonic() >= end:
            return Counter(table.column("value").to_pylist())


@pytest.fixture
def full_cache(tmp_path: Path) -> Iterator[str]:
    """A topic of Java's TubeMQ broker that flushes after 1,024 messages."""
    try:
        tube = prepare("tubemq").short_lived()
    except UnavailableError as error:
        pytest.skip(str(error))
    master = OurMaster(tmp_path / "master")
    broker = JavaBroker(tube, tmp_path / "broker", 7, master.address, heap_mb=384)
    try:
        master.wait()
        broker.add_to(master.web)
        master.web.add_topic(TOPIC, [7], 4, memCacheMsgCntInK=1)
        broker.start()
        broker.wait()
        wait_writable(master.web, [TOPIC])
        yield f"tubemq://{master.address}"
    finally:
        broker.stop()
        master.stop()


async def test_a_full_write_cache_of_tubemq(
    full_cache: str, caplog: pytest.LogCaptureFixture
) -> None:
    bodies = await send_until_busy(full_cache, TOPIC, 300, 200_000, caplog)
    found = await asyncio.to_thread(stored, full_cache, TOPIC, len(bodies))
    assert found == Counter(bodies)


async def test_a_send_queue_of_rocketmq(
    rocket: RocketSite, caplog: pytest.LogCaptureFixture
) -> None:
    """With a patience of 0 ms the broker clears its queue every 10 ms."""
    names = rocket.names("java")
    broker = rocket.broker("java", names, waitTimeMillsInSendQueue=0)
    url, topic = f"rocketmq://{names}", f"t{uuid.uuid4().hex[:10]}"
    try:
        async with coherer.connect(url) as client:
            await client.admin().topics.create(topic, 4, wait_ms=10_000)
        bodies = await send_until_busy(url, topic, 10_000, 250, caplog)
        found = await asyncio.to_thread(stored, url, topic, len(bodies))
        assert found == Counter(bodies)
    finally:
        broker.stop()
