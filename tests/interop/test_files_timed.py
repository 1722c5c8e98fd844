"""Timed messages in one directory: a Java 4.9 broker leaves them, and ours delivers them."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from pathlib import Path

import pytest

import coherer
from coherer import Message
from tests.interop.peers.rocket_site import Broker, OurRocket, RocketSite
from tests.interop.peers.rocketmq import JavaRocketBroker

pytestmark = [pytest.mark.interop, pytest.mark.slow]

SEGMENT_BYTES = 64 * 1024
TOPIC = "timed"
WAIT_S = 60


def broker_on(site: RocketSite, kind: str, directory: Path, namesrv: str) -> Broker:
    """A broker on a directory."""
    folder = directory.parent
    broker: Broker = (
        JavaRocketBroker(
            site.java, folder, namesrv, store=directory,
            settings={"mappedFileSizeCommitLog": SEGMENT_BYTES},
        )
        if kind == "java"
        else OurRocket(folder, namesrv=namesrv, segment_bytes=SEGMENT_BYTES)
    )  # fmt: skip
    broker.start()
    broker.wait()
    return broker


async def received(namesrv: str, group: str, *, until: str, count: int = 1) -> list[str]:
    """What a new group gets until a message has come so often."""
    bodies: list[str] = []
    async with (
        coherer.connect(f"rocketmq://{namesrv}", heartbeat_ms=1_000) as client,
        client.consumer(group, TOPIC, start="earliest") as consumer,
        asyncio.timeout(WAIT_S),
    ):
        async for message in consumer:
            bodies.append(message.body.decode())
            message.ack()
            if bodies.count(until) == count:
                break
    return bodies


async def send(namesrv: str, body: str, delay_ms: int = 0) -> None:
    async with (
        coherer.connect(f"rocketmq://{namesrv}") as client,
        client.producer(TOPIC) as producer,
    ):
        delay = timedelta(milliseconds=delay_ms) if delay_ms else None
        await producer.send(Message(TOPIC, body.encode(), tag="red"), delay=delay, order_by="one")


@pytest.mark.parametrize("end", ["stop", "kill"])
async def test_a_java_broker_keeps_them_and_ours_delivers_them_afterwards(
    rocket: RocketSite, tmp_path: Path, end: str
) -> None:
    namesrv = await asyncio.to_thread(rocket.names, "java")
    directory = tmp_path / "data"

    async def run(kind: str) -> Broker:
        return await asyncio.to_thread(broker_on, rocket, kind, directory, namesrv)

    broker = await run("ours")
    try:
        await send(namesrv, "first")
        await send(namesrv, "during", 4_000)
        await send(namesrv, "long", 120_000)
        await send(namesrv, "before", 300)
        assert await received(namesrv, "one", until="before") == ["first", "before"]
    finally:
        await asyncio.to_thread(getattr(broker, end))
    broker = await run("java")
    try:
        await send(namesrv, "plain")
        assert await received(namesrv, "two", until="plain") == ["first", "before", "plain"]
    finally:
        await asyncio.to_thread(getattr(broker, end))
    broker = await run("ours")
    try:
        found = await received(namesrv, "three", until="during")
        assert found == ["first", "before", "plain", "during"]
        await send(namesrv, "last", 500)
        found = await received(namesrv, "four", until="last")
        assert found == ["first", "before", "plain", "during", "last"]
    finally:
        await asyncio.to_thread(broker.kill)
