"""What waits when its client or consumer is closed ends at once, with `ClosedError`."""

from __future__ import annotations

import asyncio
import gc
import warnings
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

import coherer
from coherer import rocketmq
from coherer.errors import ClosedError, RefusedError
from coherer.message import Message
from coherer.testing import SimulatedNode

TOPIC, HOUR_MS = "orders", 3_600_000


def url(node: SimulatedNode, protocol: str) -> str:
    return node.url if protocol == "tubemq" else node.rocketmq_url


async def outcome(waiting: Awaitable[Any], close: Callable[[], Awaitable[None]]) -> object:
    """What a call raises that waits when something is closed; None if it waits on."""
    task = asyncio.ensure_future(waiting)
    await asyncio.sleep(1)
    assert not task.done()
    await close()
    await asyncio.wait([task], timeout=1)
    if not task.done():
        task.cancel()
        return None
    return "cancelled" if task.cancelled() else task.exception()


@pytest.mark.parametrize("closed", ["consumer", "client"])
@pytest.mark.parametrize("kind", ["tubemq", "rocketmq", "pull"])
async def test_who_waits_for_partitions(
    coherer_simulated: SimulatedNode, kind: str, closed: str
) -> None:
    coherer_simulated.create_topic(TOPIC, 1)
    where = url(coherer_simulated, kind)
    async with (
        coherer.connect(where) as other,
        coherer.connect(where) as client,
        other.consumer("readers", TOPIC) as owner,
    ):
        await owner.wait_assigned()
        late: Any
        if kind == "tubemq":
            late = client.consumer("readers", TOPIC)
        elif kind == "rocketmq":
            late = client.consumer("late", "no-such-topic")
        else:
            assert isinstance(client, rocketmq.Client)
            late = client.pull_consumer("pullers", "no-such-topic")
        await late.start()
        close = late.close if closed == "consumer" else client.close
        assert isinstance(await outcome(late.wait_assigned(), close), ClosedError)


async def test_who_waits_for_a_reply(coherer_simulated: SimulatedNode) -> None:
    coherer_simulated.create_topic(TOPIC, 1)
    async with (
        rocketmq.connect(coherer_simulated.rocketmq_url) as client,
        client.producer() as producer,
    ):
        request = producer.request(Message(TOPIC, b"who?"), timeout_ms=HOUR_MS)
        assert isinstance(await outcome(request, client.close), ClosedError)


async def test_who_looks_a_topic_up(coherer_simulated: SimulatedNode) -> None:
    coherer_simulated.create_topic(TOPIC, 1)
    async with (
        rocketmq.connect(coherer_simulated.rocketmq_url) as client,
        client.producer() as producer,
    ):
        with coherer_simulated.faults.lose("route"):
            send = producer.send(Message(TOPIC, b"lost"))
            assert isinstance(await outcome(send, client.close), ClosedError)


async def test_who_starts(coherer_simulated: SimulatedNode) -> None:
    coherer_simulated.create_topic(TOPIC, 1)
    async with rocketmq.connect(coherer_simulated.rocketmq_url) as client:
        with coherer_simulated.faults.black_hole():
            start = client.consumer("readers", TOPIC).start()
            assert isinstance(await outcome(start, client.close), ClosedError)


async def test_an_order_to_cancel_stays_one(coherer_simulated: SimulatedNode) -> None:
    coherer_simulated.create_topic(TOPIC, 1)
    async with (
        rocketmq.connect(coherer_simulated.rocketmq_url) as client,
        client.producer() as producer,
    ):
        with coherer_simulated.faults.lose("route"):
            sending = asyncio.create_task(producer.send(Message(TOPIC, b"lost")))
            await asyncio.sleep(1)
            sending.cancel()
            await client.close()
            await asyncio.wait([sending])
            assert sending.cancelled()


async def test_a_member_that_is_refused_waits_no_longer(coherer_simulated: SimulatedNode) -> None:
    coherer_simulated.create_topic(TOPIC, 1)
    async with (
        coherer.tubemq.connect(coherer_simulated.url) as client,
        client.consumer("readers", TOPIC) as owner,
    ):
        await owner.wait_assigned()
        late = client.consumer("readers", TOPIC)
        await late.start()

        async def refuse() -> None:
            with coherer_simulated.faults.refuse("heartbeat", code=455, times=None):
                await asyncio.sleep(60)

        assert isinstance(await outcome(late.wait_assigned(), refuse), RefusedError)


async def cancelled_close(node: SimulatedNode, protocol: str, steps: int, often: bool) -> list[str]:
    """Cancel a client's close after so many steps, or from then on; returns what it leaves open."""
    client: Any = coherer.connect(url(node, protocol))
    producer, consumer = client.producer(TOPIC), client.consumer("readers", TOPIC)
    reader = client.reader((await client.partitions(TOPIC))[0], 0)
    pulling = [client.pull_consumer("pullers", TOPIC)] if protocol == "rocketmq" else []
    for one in (producer, consumer, reader, *pulling):
        await one.start()
    sent = producer.submit(Message(TOPIC, b"in flight"))
    closing = asyncio.create_task(client.close())
    for _ in range(steps):
        await asyncio.sleep(0)
    closing.cancel()
    while often and not closing.done():
        await asyncio.sleep(0)
        closing.cancel()
    await asyncio.wait([closing, sent])
    sent.exception()
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always", ResourceWarning)
        del client, producer, consumer, reader, pulling, one
        gc.collect()
    return [str(warning.message) for warning in seen]


@pytest.mark.parametrize("often", [False, True], ids=["once", "often"])
@pytest.mark.parametrize("protocol", ["tubemq", "rocketmq"])
async def test_a_client_that_is_cancelled_while_it_closes(
    coherer_simulated: SimulatedNode, protocol: str, often: bool
) -> None:
    """At each step: no connection and no task is left, and a message in flight has an outcome."""
    coherer_simulated.create_topic(TOPIC, 2)
    await cancelled_close(coherer_simulated, protocol, 1_000, often=False)
    await asyncio.sleep(60)
    before = asyncio.all_tasks()
    for steps in (*range(1, 6), 9, 14, 20):
        left = await cancelled_close(coherer_simulated, protocol, steps, often)
        await asyncio.sleep(60)
        assert (steps, left, asyncio.all_tasks() - before) == (steps, [], set())


@pytest.mark.parametrize("protocol", ["tubemq", "rocketmq"])
async def test_a_second_close_cuts_nothing_off(
    coherer_simulated: SimulatedNode, protocol: str
) -> None:
    """While the first one waits for the messages in flight, it does nothing."""
    coherer_simulated.create_topic(TOPIC, 1)
    client: Any = coherer.connect(url(coherer_simulated, protocol))
    producer = client.producer(TOPIC)
    await producer.start()
    with coherer_simulated.faults.delay_answer("send", 2):
        sent = producer.submit(Message(TOPIC, b"in flight"))
        closing = asyncio.create_task(client.close())
        await asyncio.sleep(1)
        await client.close()
        assert not sent.done()
        await closing
    assert (await sent).topic == TOPIC
