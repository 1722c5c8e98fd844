"""`embedded_node(clock=...)`: a test moves the time of messages, and clients stay connected."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from datetime import timedelta
from pathlib import Path

import pytest

import coherer
from coherer.errors import RefusedError, UsageError
from coherer.message import Message
from coherer.rocketmq import ReceivedBatch, StoredMessage, Verdict
from coherer.testing import EmbeddedNode, ManualClock, async_embedded_node, embedded_node


@pytest.fixture
def node() -> Iterator[EmbeddedNode]:
    with embedded_node(clock=ManualClock(), admin_port=None) as made:
        yield made


async def advance_until(node: EmbeddedNode, done: asyncio.Event, hours: float) -> int:
    """Advance until it is done; returns how often."""
    for times in range(1000):
        if done.is_set():
            return times
        node.clock.advance(hours=hours)
        await asyncio.sleep(0.002)  # the sockets are real
    raise AssertionError(f"not done after 1,000 times {hours} h")


async def stored(client: coherer.rocketmq.Client, topic: str) -> int:
    """How many messages a topic has."""
    with suppress(RefusedError):  # it does not exist yet
        return sum(end for _, end in (await client.offsets(topic)).values())
    return 0


async def until_stored(client: coherer.rocketmq.Client, topic: str) -> int:
    """Wait until a topic has messages; returns how many."""
    for _ in range(1000):
        if found := await stored(client, topic):
            return found
        await asyncio.sleep(0.002)
    raise AssertionError(f"{topic} is empty")


async def retry_to_the_dead_letter(node: EmbeddedNode) -> None:
    attempts: list[int] = []
    last = asyncio.Event()

    async def fails(batch: ReceivedBatch) -> None:
        await asyncio.sleep(0)
        attempts.extend(message.attempt for message in batch)
        if len(attempts) == 17:
            last.set()
        raise LookupError("no such order")

    async with (
        coherer.rocketmq.connect(node.rocketmq_url) as client,
        client.producer("orders") as producer,
        client.consumer("shop", "orders", start="earliest") as consumer,
    ):
        await producer.send(Message("orders", b"42"))
        working = asyncio.create_task(consumer.run(fails))
        await advance_until(node, last, hours=2)
        await until_stored(client, "%DLQ%shop")
        node.clock.advance(days=1)
        assert await until_stored(client, "%DLQ%shop") == 1
        working.cancel()
    assert attempts == list(range(17)), "the first delivery and 16 retries"


async def check_a_transaction(node: EmbeddedNode) -> None:
    checks: list[str] = []

    async def unknown(message: StoredMessage) -> Verdict:
        checks.append(message.unique_id)
        return Verdict.UNKNOWN

    async with (
        coherer.rocketmq.connect(node.rocketmq_url) as client,
        client.producer("payments", group="banks", check=unknown) as producer,
    ):
        with pytest.raises(LookupError):
            async with producer.transaction(Message("payments", b"7")):
                raise LookupError
        for _ in range(1000):
            node.clock.advance(minutes=1)
            before = len(checks)
            for _ in range(25):  # a check that the clock has overtaken does not come
                await asyncio.sleep(0.002)
                if len(checks) > before:
                    break
            if await stored(client, "TRANS_CHECK_MAX_TIME_TOPIC"):
                break
        assert await stored(client, "TRANS_CHECK_MAX_TIME_TOPIC") == 1, "it was given up"
    assert len(set(checks)) == 1
    assert len(checks) <= 15


async def time_a_message(node: EmbeddedNode) -> None:
    arrived = asyncio.Event()

    async def handle(_: ReceivedBatch) -> None:
        arrived.set()

    async with (
        coherer.rocketmq.connect(node.rocketmq_url) as client,
        client.producer("timed") as producer,
        client.consumer("later", "timed", start="earliest") as consumer,
    ):
        await producer.send(Message("timed", b"later"), delay=timedelta(days=3))
        working = asyncio.create_task(consumer.run(handle))
        node.clock.advance(days=2, hours=23)
        node.call(node.node.rocketmq.tick)
        assert await stored(client, "timed") == 0, "it is not due"
        node.clock.advance(hours=1)
        await arrived.wait()
        working.cancel()


@pytest.mark.parametrize("passes", [retry_to_the_dead_letter, check_a_transaction, time_a_message])
async def test_sixteen_retries_fifteen_checks_and_three_days(
    node: EmbeddedNode, passes: Callable[[EmbeddedNode], Awaitable[None]]
) -> None:
    """Each with a node of its own: clients keep the machine's clock, and a transaction that is
    72 h old is given up at once."""
    for topic in ("orders", "payments", "timed"):
        node.create_topic(topic)
    await passes(node)


@pytest.mark.parametrize("protocol", ["tubemq", "rocketmq"])
async def test_clients_keep_their_leases_when_the_clock_moves(
    node: EmbeddedNode, protocol: str
) -> None:
    topic = f"kept_{protocol}"
    node.create_topic(topic)
    url = node.url if protocol == "tubemq" else node.rocketmq_url
    async with (
        coherer.connect(url) as client,
        client.producer(topic) as producer,
        client.consumer("kept", topic, start="earliest") as consumer,
    ):
        for body in (b"before", b"after a day"):
            await producer.send(Message(topic, body))
            batch = await consumer.receive()
            assert batch is not None
            assert [bytes(message.body) for message in batch] == [body]
            batch.ack()
            node.clock.advance(days=1)
            for tick in (node.node.rocketmq.tick, node.node.tubemq.tick):  # leases expire in them
                node.call(tick)


@pytest.mark.parametrize("in_thread", [False, True])
async def test_a_node_in_the_loop_has_a_clock_too(tmp_path: Path, *, in_thread: bool) -> None:
    clock = ManualClock()
    async with async_embedded_node(tmp_path, clock=clock, admin_port=None) as node:
        node.create_topic("timed")
        async with (
            coherer.rocketmq.connect(node.rocketmq_url) as client,
            client.producer("timed") as producer,
            client.consumer("later", "timed", start="earliest") as consumer,
        ):
            await producer.send(Message("timed", b"later"), delay=timedelta(days=1))
            if in_thread:
                asyncio.get_running_loop().set_debug(True)  # refuses what is not thread-safe
                await asyncio.to_thread(clock.advance, days=1)
            else:
                clock.advance(days=1)
            batch = await consumer.receive()
            assert batch is not None
            batch.ack()


def test_a_node_without_a_clock_says_how_to_get_one() -> None:
    with embedded_node() as node, pytest.raises(UsageError, match="machine's clock"):
        _ = node.clock
