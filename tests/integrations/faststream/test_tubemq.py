"""Subscribers and publishers of TubeMQ against a node."""

from __future__ import annotations

import asyncio
import json
import logging
from datetime import timedelta
from typing import Any
from urllib.parse import urlencode
from urllib.request import urlopen

import pytest
from faststream import AckPolicy
from faststream.exceptions import FeatureNotSupportedException, NackMessage, SetupError
from prometheus_client import CollectorRegistry

from coherer.integrations.faststream import (
    TestTubeMQBroker,
    TubeMQBroker,
    TubeMQPublisher,
    TubeMQPublishMessage,
    TubeMQResponse,
    TubeMQRoute,
    TubeMQRouter,
)
from coherer.integrations.faststream.annotations import TubeMQMessage
from coherer.integrations.faststream.prometheus import TubeMQPrometheusMiddleware
from coherer.testing import embedded_node
from tests.integrations.faststream.received import Received


@pytest.fixture
def url(coherer_url: str) -> str:
    return coherer_url


async def test_a_handler_receives_what_is_published(url: str, topic: str) -> None:
    broker, got = TubeMQBroker(url), Received()
    headers = {"a": "b", "traceparent": "x=1,y=2%", "blank": ""}

    @broker.subscriber(topic, group_id=f"{topic}-group", tags="new || paid", start="earliest")
    @broker.publisher(f"{topic}-results", tag="done")
    async def handle(body: dict[str, int], message: TubeMQMessage) -> TubeMQResponse:
        got.add((body, message))
        return TubeMQResponse(body["id"], headers={"mine": "1"})

    @broker.subscriber(f"{topic}-results", group_id=f"{topic}-group-2", start="earliest")
    async def result(number: int, message: TubeMQMessage) -> None:
        got.add((number, message))

    async with broker:
        await broker.start()
        await broker.publish({"id": 0}, topic, tag="old")
        receipt = await broker.publish({"id": 1}, topic, tag="new", headers=headers)
        [(body, message), (number, answer)] = await got.wait(2)
    assert receipt.topic == topic
    assert (body, number) == ({"id": 1}, 1)
    del headers["blank"]
    assert headers.items() <= message.headers.items()
    assert (message.raw_message.tag, answer.raw_message.tag) == ("new", "done")
    assert answer.headers["mine"] == "1"
    assert answer.correlation_id == message.correlation_id


@pytest.mark.parametrize("batch", [False, True])
@pytest.mark.parametrize("how", ["raise", "nack"])
async def test_a_delay_that_tubemq_lacks_blocks_no_partition(
    url: str, topic: str, how: str, batch: bool
) -> None:
    broker, got = TubeMQBroker(url), Received()

    @broker.subscriber(topic, group_id=f"{topic}-group", start="earliest", batch=batch)
    async def handle(body: Any, message: TubeMQMessage) -> None:
        got.add(body)
        if len(got) == 1 and how == "raise":
            raise NackMessage(later=3)
        if len(got) == 1:
            await message.nack(later=3)

    async with broker:
        await broker.start()
        await broker.publish("x", topic)
        await got.wait(2)


async def test_a_nack_without_delay_is_delivered_at_once(url: str, topic: str) -> None:
    broker, got, waits = TubeMQBroker(url), Received(), list[float]()
    loop = asyncio.get_running_loop()
    later = loop.call_later

    def call_later(delay: float, *args: Any, **kwargs: Any) -> asyncio.TimerHandle:
        waits.append(delay)
        return later(delay, *args, **kwargs)

    @broker.subscriber(topic, group_id=f"{topic}-group", start="earliest")
    async def handle(body: str, message: TubeMQMessage) -> None:
        got.add(body)
        if len(got) == 1:
            await message.nack(later=timedelta(0))

    async with broker:
        await broker.start()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(loop, "call_later", call_later)
            await broker.publish("x", topic)
            await got.wait(2)
    assert 0.0 in waits


async def test_a_subscriber_that_was_refused_joins_again_when_it_may(topic: str) -> None:
    """It neither ends nor asks without a pause, and two tasks of it join once."""
    shown = Received()

    class Shown(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            shown.add(record.getMessage())

    handler = Shown()
    logger = logging.getLogger("coherer.integrations.faststream.subscriber")
    with embedded_node(admin_port=0) as node:

        def change(verb: str) -> None:
            query = urlencode(
                {
                    "type": "op_modify",
                    "method": f"admin_{verb}_black_consumergroup_info",
                    "groupName": f"{topic}-group",
                    "topicName": topic,
                    "createUser" if verb == "add" else "modifyUser": "test",
                    "confModAuthToken": "abc",
                }
            )
            with urlopen(f"{node.admin_url}/webapi.htm?{query}") as answer:
                changed = json.load(answer)
                assert changed["result"], changed

        broker, got = TubeMQBroker(node.url), Received()

        @broker.subscriber(topic, group_id=f"{topic}-group", start="earliest", max_workers=2)
        async def handle(body: str) -> None:
            got.add(body)

        logger.addHandler(handler)
        try:
            async with broker:
                await broker.start()
                await asyncio.to_thread(change, "add")
                await asyncio.to_thread(node.restart)
                [line] = await shown.wait(1)
                await asyncio.to_thread(change, "delete")
                await broker.publish("x", topic)
                assert await got.wait(1) == ["x"]
        finally:
            logger.removeHandler(handler)
    assert topic in line
    assert "black list" in line


@pytest.mark.parametrize("how", ["raise", "nack"])
async def test_a_failed_batch_is_delivered_again(url: str, topic: str, how: str) -> None:
    broker, got = TubeMQBroker(url), Received()

    @broker.subscriber(topic, group_id=f"{topic}-group", start="earliest")
    async def handle(number: int, message: TubeMQMessage) -> None:
        got.add(number)
        if number == 1 and got.count(1) == 1:
            if how == "raise":
                raise ValueError("once")
            await message.nack(later=timedelta(milliseconds=1))

    async with broker:
        await broker.publish_batch(*range(3), topic=topic)
        await broker.start()
        while not (got.count(1) == 2 and set(got) == {0, 1, 2}):
            await got.wait(len(got) + 1)


@pytest.mark.parametrize("batch", [False, True])
async def test_a_rejected_message_is_dropped(
    url: str, topic: str, batch: bool, caplog: pytest.LogCaptureFixture
) -> None:
    broker, got = TubeMQBroker(url), Received()

    @broker.subscriber(
        topic,
        group_id=f"{topic}-group",
        start="earliest",
        ack_policy=AckPolicy.REJECT_ON_ERROR,
        max_workers=4,
        batch=batch,
    )
    async def handle(numbers: Any) -> None:
        for number in numbers if batch else [numbers]:
            got.add(number)
        raise ValueError("always")

    async with broker:
        await broker.start()
        for number in range(4):
            await broker.publish(number, topic)
        assert sorted(await got.wait(4)) == [0, 1, 2, 3]
    assert f"A message of {topic} is dropped" in caplog.text


async def test_batches_and_no_confirmation(url: str, topic: str) -> None:
    registry = CollectorRegistry()
    broker = TubeMQBroker(url, middlewares=[TubeMQPrometheusMiddleware(registry=registry)])
    publisher, got = broker.publisher(topic, batch=True, headers={"h": "1"}), Received()

    @broker.subscriber(topic, group_id=f"{topic}-group", batch=True, start="earliest")
    async def handle(bodies: list[str], message: TubeMQMessage) -> None:
        for body, headers in zip(bodies, message.batch_headers, strict=True):
            got.add((body, headers.get("h"), headers.get("m")))
        if len(got) == len(bodies):
            raise ValueError("the first batch comes again")

    async with broker:
        await broker.start()
        receipts = await publisher.publish("a", TubeMQPublishMessage("b", headers={"m": "2"}))
        assert len(receipts) == 2
        await (await broker.publish("c", topic, no_confirm=True))
        while set(got) != {("a", "1", None), ("b", "1", "2"), ("c", None, None)} or len(got) < 4:
            await got.wait(len(got) + 1)
        with pytest.raises(FeatureNotSupportedException):
            await publisher.request("d")
    labels = {"app_name": "faststream", "broker": "tubemq", "destination": topic}
    count = registry.get_sample_value("faststream_published_messages_total", labels | SUCCESS)
    assert count == 3


SUCCESS = {"status": "success"}


async def test_get_one_and_ping(url: str, topic: str) -> None:
    broker = TubeMQBroker(url)
    subscriber = broker.subscriber(topic, group_id=f"{topic}-group", start="earliest")
    async with broker:
        await broker.start()
        assert await broker.ping(timeout=30)
        await broker.publish("x", topic)
        message = await subscriber.get_one(timeout=30)
        assert message is not None
        assert await message.decode() == "x"
        with pytest.raises(FeatureNotSupportedException, match="reply_to"):
            await broker.request("x", topic)


async def test_handlers_run_in_memory() -> None:
    async def double(number: int) -> int:
        return number * 2

    router = TubeMQRouter(
        prefix="a-",
        handlers=[
            TubeMQRoute(double, "in", group_id="g", publishers=[TubeMQPublisher("out", tag="t")])
        ],
    )
    broker = TubeMQBroker(routers=[router])
    publisher = broker.publisher("elsewhere")

    @broker.subscriber("a-out", group_id="h", tags=["t"])
    async def out(number: int) -> None:
        await publisher.publish(number)

    async with TestTubeMQBroker(broker) as tested:
        await tested.publish(2, "a-in")
        out.mock.assert_called_once_with(4)
        publisher.mock.assert_called_once_with(4)
        assert await (await tested.request(3, "a-in")).decode() == 6


@pytest.mark.parametrize(
    ("options", "text"), [({}, "Give it `group_id`"), ({"group_id": "g", "sql92": "a"}, "sql92")]
)
def test_subscribers_refuse_what_tubemq_lacks(options: dict[str, Any], text: str) -> None:
    with pytest.raises(SetupError, match=text):
        TubeMQBroker().subscriber("topic", **options)
