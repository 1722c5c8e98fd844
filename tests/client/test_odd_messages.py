"""Bodies, times and keys of unusual kinds: they are sent, or refused without a trace."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest

import coherer
from coherer.errors import UsageError
from coherer.message import Message
from coherer.testing import SimulatedNode

TOPIC = "orders"
protocols = pytest.mark.parametrize("protocol", ["tubemq", "rocketmq"])

BODIES: list[Any] = [
    bytearray(b"abcdef"),
    memoryview(b"abcdef"),
    memoryview(b"a-b-c-d-e-f-")[::2],
    memoryview(b"abcdefgh").cast("i"),
]


def connect(node: SimulatedNode, protocol: str) -> Any:
    return coherer.connect(node.url if protocol == "tubemq" else node.rocketmq_url)


@protocols
async def test_views_are_sent_as_their_bytes(
    coherer_simulated: SimulatedNode, protocol: str
) -> None:
    """Those with gaps and with items of several bytes, too."""
    coherer_simulated.create_topic(TOPIC, 1)
    async with connect(coherer_simulated, protocol) as client, client.producer(TOPIC) as producer:
        for body in BODIES:
            await producer.send(Message(TOPIC, body))
            await producer.send(Message(TOPIC, body, properties={"a": "b"}))
            if protocol == "rocketmq":
                await producer.send_batch([Message(TOPIC, body)])
                await producer.send_batch([Message(TOPIC, body, tag="a")])
        times = 4 if protocol == "rocketmq" else 2
        expected = [bytes(body) for body in BODIES for _ in range(times)]
        found: list[bytes] = []
        async with client.consumer("shop", TOPIC, start="earliest") as consumer:
            async with asyncio.timeout(60):
                async for message in consumer:
                    found.append(bytes(message.body))
                    if len(found) == len(expected):
                        break
    assert found == expected


def a_day_before_all_days() -> datetime:
    return datetime(1, 1, 1, tzinfo=timezone(timedelta(hours=14)))


REFUSED: list[Callable[[Any], Any]] = [
    lambda producer: producer.send(Message(TOPIC, b"1", time=a_day_before_all_days())),
    lambda producer: producer.send_batch([Message(TOPIC, b"1", time=a_day_before_all_days())]),
    lambda producer: producer.send(Message(TOPIC, b"1"), deliver_at=datetime.min),  # noqa: DTZ901
    lambda producer: producer.send(Message(TOPIC, b"1"), order_by=1.5),
    lambda producer: producer.send(Message(TOPIC, b"1"), order_by=b"1"),
]


@pytest.mark.parametrize("send", REFUSED)
async def test_what_cannot_be_sent_is_a_wrong_call(
    coherer_simulated: SimulatedNode, send: Callable[[Any], Any]
) -> None:
    coherer_simulated.create_topic(TOPIC, 1)
    async with (
        connect(coherer_simulated, "rocketmq") as client,
        client.producer(TOPIC) as producer,
    ):
        with pytest.raises(UsageError):
            await send(producer)
        assert producer.in_flight == 0


async def test_a_time_before_all_times_over_tubemq(coherer_simulated: SimulatedNode) -> None:
    coherer_simulated.create_topic(TOPIC, 1)
    async with (
        connect(coherer_simulated, "tubemq") as client,
        client.producer(TOPIC) as producer,
    ):
        with pytest.raises(UsageError, match="cannot be encoded"):
            await producer.send(Message(TOPIC, b"1", time=a_day_before_all_days()))


async def test_the_longest_delay_is_refused_by_the_broker(coherer_simulated: SimulatedNode) -> None:
    coherer_simulated.create_topic(TOPIC, 1)
    async with (
        connect(coherer_simulated, "rocketmq") as client,
        client.producer(TOPIC) as producer,
    ):
        with pytest.raises(coherer.rocketmq.MessageIllegalError, match="delay time"):
            await producer.send(Message(TOPIC, b"1"), delay=timedelta.max)


@protocols
@pytest.mark.parametrize("timeout_ms", [0, -1, 10**9])
async def test_a_timeout_that_is_out_of_range(
    coherer_simulated: SimulatedNode, protocol: str, timeout_ms: int
) -> None:
    async with connect(coherer_simulated, protocol) as client:
        with pytest.raises(UsageError, match="timeout_ms is 1 to"):
            client.producer(TOPIC, timeout_ms=timeout_ms)


@pytest.mark.parametrize("tags", [5, [None], ["a", 5]])
async def test_tags_that_are_not_text(coherer_simulated: SimulatedNode, tags: Any) -> None:
    async with connect(coherer_simulated, "rocketmq") as client:
        with pytest.raises(UsageError, match="filter by tags"):
            client.consumer("shop", {TOPIC: tags})


@protocols
async def test_positions_that_are_out_of_range(
    coherer_simulated: SimulatedNode, protocol: str
) -> None:
    """A consumer stays where it is."""
    coherer_simulated.create_topic(TOPIC, 1)
    async with (
        connect(coherer_simulated, protocol) as client,
        client.producer(TOPIC) as producer,
        client.consumer("shop", TOPIC, start="earliest") as consumer,
    ):
        assigned = await consumer.wait_assigned()
        partition = next(one for one in assigned if one.topic == TOPIC)
        for position in (-1, 2**63, datetime.min):  # noqa: DTZ901
            with pytest.raises(UsageError):
                await consumer.seek(partition, position)
        with pytest.raises(UsageError):
            await client.offsets_since(TOPIC, datetime.min)  # noqa: DTZ901
        await producer.send(Message(TOPIC, b"1"))
        batch = await consumer.receive(60_000)
        assert batch.bodies() == [b"1"]


@pytest.mark.parametrize("timeout_ms", [0, -1])
async def test_a_request_that_waits_for_no_time(
    coherer_simulated: SimulatedNode, timeout_ms: int
) -> None:
    """It is not sent."""
    coherer_simulated.create_topic(TOPIC, 1)
    async with (
        connect(coherer_simulated, "rocketmq") as client,
        client.producer(TOPIC) as producer,
    ):
        with pytest.raises(UsageError, match="timeout_ms"):
            await producer.request(Message(TOPIC, b"1"), timeout_ms=timeout_ms)
    assert coherer_simulated.requests.count("send") == 0
