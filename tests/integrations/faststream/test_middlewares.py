"""Telemetry, metrics, AsyncAPI, the test broker and FastAPI: what needs no server."""

from __future__ import annotations

import json
from typing import Annotated, Any

import pytest
from fastapi import Depends, FastAPI
from fastapi.testclient import TestClient
from faststream import FastStream
from faststream.exceptions import SubscriberNotFound
from faststream.specification import AsyncAPI
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from prometheus_client import CollectorRegistry

from coherer.integrations.faststream import (
    RocketMQBroker,
    RocketMQPublisher,
    RocketMQRoute,
    RocketMQRouter,
    TestRocketMQBroker,
)
from coherer.integrations.faststream.annotations import RocketMQMessage
from coherer.integrations.faststream.fastapi import RocketMQRouter as FastAPIRouter
from coherer.integrations.faststream.opentelemetry import RocketMQTelemetryMiddleware
from coherer.integrations.faststream.prometheus import RocketMQPrometheusMiddleware
from tests.integrations.faststream.received import Received, until


async def test_spans_link_publishing_and_handling(url: str, topic: str) -> None:
    spans = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(spans))
    broker = RocketMQBroker(
        url, middlewares=[RocketMQTelemetryMiddleware(tracer_provider=provider)]
    )
    got = Received()

    @broker.subscriber(topic, group_id=f"{topic}-group")
    @broker.publisher(f"{topic}-results")
    async def handle(number: int) -> int:
        return number

    @broker.subscriber(f"{topic}-results")
    async def results(number: int) -> None:
        got.add(number)

    async with broker:
        await broker.start()
        await broker.publish(1, topic, tag="t", key="k")
        await got.wait(1)
    found = {span.name: span for span in spans.get_finished_spans()}
    assert set(found) >= {f"{topic} create", f"{topic} publish", f"{topic} process"}
    assert f"{topic}-results process" in found
    assert len({span.context.trace_id for span in found.values()}) == 1  # type: ignore[union-attr]
    handled = found[f"{topic} process"].attributes
    assert handled is not None
    assert handled["messaging.system"] == "rocketmq"
    assert handled["messaging.rocketmq.message.tag"] == "t"
    assert handled["messaging.rocketmq.message.keys"] == ("k",)


async def test_metrics_count_messages(url: str, topic: str) -> None:
    registry, got = CollectorRegistry(), Received()
    middleware = RocketMQPrometheusMiddleware(registry=registry, custom_labels={"team": "a"})
    broker = RocketMQBroker(url, middlewares=[middleware])

    @broker.subscriber(topic, group_id=f"{topic}-group", batch=True)
    async def handle(bodies: list[str]) -> None:
        got.add(bodies)

    async with broker:
        await broker.start()
        await broker.publish_batch("a", "b", topic=topic)
        await got.wait(1)
    labels = {"app_name": "faststream", "broker": "rocketmq", "team": "a"}
    received = {**labels, "handler": topic}
    published = {**labels, "destination": topic, "status": "success"}
    count = registry.get_sample_value
    assert count("faststream_received_messages_total", received) == 2
    assert count("faststream_received_messages_size_bytes_sum", received) == 2
    assert count("faststream_published_messages_total", published) == 2


def test_the_schema_shows_topics_and_no_password() -> None:
    router = RocketMQRouter(prefix="team-")
    broker = RocketMQBroker(
        "rocketmq://127.0.0.1:9876", user="ann", password="secret", tags=[{"name": "x"}]
    )

    @router.subscriber("orders", "returns", group_id="shop", title="Orders")
    @router.publisher("invoices", schema=int, description="money")
    async def handle(number: int) -> int:
        """Book."""
        return number

    broker.include_router(router)
    schema = AsyncAPI(broker).to_specification().to_json()
    found = json.loads(schema)
    assert found["servers"]["development"]["protocol"] == "rocketmq"
    assert "127.0.0.1:9876" in found["servers"]["development"]["host"]
    addresses = {channel["address"] for channel in found["channels"].values()}
    assert addresses == {"team-orders", "team-returns", "team-invoices"}
    assert "secret" not in schema


# -- the test broker


async def test_handlers_run_in_memory() -> None:
    broker = RocketMQBroker()

    @broker.subscriber("orders", group_id="a", tags="new")
    @broker.publisher("invoices")
    async def handle(number: int) -> int:
        return number * 2

    @broker.subscriber("orders", group_id="b", tags="old")
    async def second(number: int) -> None: ...

    @broker.subscriber("orders", sql92="TAGS IS NOT NULL AND n > 1", batch=True)
    async def batches(numbers: list[int]) -> None: ...

    @broker.subscriber("invoices")
    async def invoice(number: int) -> None: ...

    async with TestRocketMQBroker(broker) as tested:
        await tested.publish(1, "orders", tag="new", headers={"n": "1"})
        handle.mock.assert_called_once_with(1)
        invoice.mock.assert_called_once_with(2)
        assert not second.mock.called
        assert not batches.mock.called
        await tested.publish_batch(2, 3, topic="orders", tag="old", headers={"n": "2"})
        batches.mock.assert_called_once_with([2, 3])
        assert second.mock.call_count == 2
        assert await (await tested.request(4, "orders", tag="new")).decode() == 8
        with pytest.raises(SubscriberNotFound):
            await tested.request(1, "nowhere")


async def test_messages_in_memory_have_keys_and_times() -> None:
    broker = RocketMQBroker()

    @broker.subscriber("orders", sql92="KEYS = 'one two' AND TAGS IS NULL")
    async def handle(body: str, message: RocketMQMessage) -> str:
        raw = message.raw_message
        assert raw.time is not None
        assert raw.born_ms == raw.stored_ms == int(raw.time.timestamp() * 1000)
        return body

    async with TestRocketMQBroker(broker) as tested:
        await tested.publish("other", "orders", key="one")
        await tested.publish("x", "orders", key="one", keys=["two"])
        handle.mock.assert_called_once_with("x")


async def test_errors_of_handlers_reach_the_test() -> None:
    broker = RocketMQBroker()

    @broker.subscriber("orders")
    async def handle(number: int) -> None:
        raise ValueError(number)

    async with TestRocketMQBroker(broker) as tested:
        with pytest.raises(ValueError, match="7"):
            await tested.publish(7, "orders")


async def test_a_real_broker_can_be_recorded(url: str, topic: str) -> None:
    broker = RocketMQBroker(url)
    publisher = broker.publisher(f"{topic}-results")

    @broker.subscriber(topic, group_id=f"{topic}-group")
    @publisher
    async def handle(number: int) -> int:
        return number + 1

    async with TestRocketMQBroker(broker, with_real=True) as tested:
        await tested.publish(1, topic)
        await handle.wait_call(30)
        handle.mock.assert_called_once_with(1)
        await until(lambda: publisher.mock.called)
        publisher.mock.assert_called_once_with(2)


async def test_a_router_has_handlers_and_publishers() -> None:
    async def double(number: int) -> int:
        return number * 2

    router = RocketMQRouter(
        prefix="a-",
        handlers=[RocketMQRoute(double, "in", publishers=[RocketMQPublisher("out")])],
    )
    broker = RocketMQBroker(routers=[router])

    @broker.subscriber("a-out")
    async def out(number: int) -> None: ...

    app = FastStream(broker)
    async with TestRocketMQBroker(broker) as tested:
        await tested.publish(2, "a-in")
        out.mock.assert_called_once_with(4)
    assert app.broker is broker


# -- FastAPI


def factor() -> int:
    return 3


def test_a_fastapi_application_runs_the_broker(url: str, topic: str) -> None:
    router = FastAPIRouter(url, prefix="/api")
    publisher = router.publisher(f"{topic}-out")
    app, got = FastAPI(), []

    @router.subscriber(topic, group_id=f"{topic}-group")
    async def handle(number: int, by: Annotated[int, Depends(factor)]) -> int:
        got.append(number * by)
        return number * by

    @router.post("/send/{number}")
    async def send(number: int) -> Any:
        answer = await router.broker.request(number, topic, timeout=20)
        await publisher.publish(number)
        return await answer.decode()

    app.include_router(router)
    with TestClient(app) as client:
        assert client.post("/api/send/2").json() == 6
        assert topic in client.get("/api/asyncapi.json").text
    assert got == [6]
