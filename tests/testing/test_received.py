"""What was received: records and assertions."""

from __future__ import annotations

import asyncio

import pytest

import coherer
from coherer.message import Message, ReceivedMessage
from coherer.testing import Received, SimulatedNode


async def send(node: SimulatedNode, *bodies: bytes) -> None:
    async with coherer.connect(node.url) as client, client.producer() as producer:
        for body in bodies:
            await producer.send(Message("orders", body))


@pytest.mark.parametrize("protocol", ["tubemq", "rocketmq"])
async def test_exactly_these_messages(coherer_simulated: SimulatedNode, protocol: str) -> None:
    node = coherer_simulated
    node.create_topic("orders")
    handled: list[bytes] = []

    async def handle(batch: coherer.Batch) -> None:
        handled.extend(batch.bodies())

    url = node.url if protocol == "tubemq" else node.rocketmq_url
    async with coherer.connect(url) as client:
        for group in ("shop", "books"):
            consumer = client.consumer(group, "orders", start="earliest")
            await consumer.start()
            handler = node.received.by(group, handle if group == "shop" else None)
            asyncio.create_task(consumer.run(handler))  # noqa: RUF006 - the client ends it
        await send(node, b"1", b"2", b"3")
        await node.received.wait(6)
    for group in ("shop", "books"):
        node.received.assert_exactly([b"1", b"2", b"3"], group=group)
        node.received.assert_exactly([b"3", b"2", b"1"], group=group, in_order=False)
        with pytest.raises(AssertionError):
            node.received.assert_exactly([b"3", b"2", b"1"], group=group)
    node.received.assert_exactly([], topic="other")
    node.received.assert_once()
    assert handled == [b"1", b"2", b"3"]


def received(*bodies: bytes) -> Received:
    found = Received()
    for offset, body in enumerate(bodies):
        found.add("shop", ReceivedMessage("orders", body, broker="1", offset=offset))
    return found


def test_a_difference_is_readable() -> None:
    places = "broker 1 partition 0 offset 1 and broker 1 partition 0 offset 2"
    found = received(b"1", b"3", b"3", b"4", b"5", b"6", b"7", b"8")
    with pytest.raises(AssertionError) as caught:
        found.assert_exactly([b"%d" % n for n in range(1, 9)], group="shop")
    assert str(caught.value).splitlines() == [
        "Group shop received 8 messages, expected 8 in this order (- missing, + unexpected):",
        "    b'1'",
        "  - b'2'",
        "  + b'3'  broker 1 partition 0 offset 1",
        "    b'3'",
        "    ... 4 more as expected",
        "    b'8'",
        f"Message b'3' was delivered twice to group shop ({places}).",
    ]


def test_a_difference_of_long_messages_is_shown() -> None:
    """They begin alike, and have the same size."""
    head = b'{"order": "' + b"0" * 200
    found = received(head + b'1", "state": "paid"}', b"2")
    with pytest.raises(AssertionError) as caught:
        found.assert_exactly([head + b'1", "state": "sent"}', b"2"], group="shop")
    _, missing, unexpected, same = str(caught.value).splitlines()
    assert missing.startswith("  - ")
    assert missing.endswith("231 bytes, from 225: b'sent\"}'")
    assert unexpected.startswith("  + ")
    assert unexpected.endswith("231 bytes, from 225: b'paid\"}'  broker 1 partition 0 offset 0")
    assert same == "    b'2'"


def test_a_message_that_came_twice() -> None:
    found = received(b"1", b"x" * 100, b"x" * 100, b"x" * 100)
    with pytest.raises(AssertionError, match=r"100 bytes was delivered 3 times to group shop"):
        found.assert_once()
    found.clear()
    found.assert_once()
    assert len(found) == 0


async def test_handlers_in_threads_are_recorded_too() -> None:
    found, seen = Received(), list[bytes]()

    def handle(batch: list[coherer.AnyMessage]) -> None:
        seen.extend(message.body for message in batch)

    message = ReceivedMessage("orders", b"1")
    waiting = asyncio.create_task(found.wait(1))
    await asyncio.sleep(0)
    await asyncio.to_thread(found.by("shop", handle), [message])
    await waiting
    found.assert_exactly([b"1"])
    assert seen == [b"1"]
