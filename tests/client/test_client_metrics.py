"""OpenTelemetry metrics of clients, against a node."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader

import coherer
from coherer._server.node.node import Node
from coherer.errors import CohererError
from coherer.message import Message
from tests.server.node_harness import options

Figures = dict[str, list[tuple[dict[str, Any], Any]]]


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[Node]:
    async with Node(options(tmp_path, auto_create_topics=False)) as node:
        node.create_topic("flights", 2)
        yield node


def figures(reader: InMemoryMetricReader) -> Figures:
    """The points of each metric: attributes and value, or count of values."""
    found: Figures = {}
    data = reader.get_metrics_data()
    assert data is not None
    for resource in data.resource_metrics:
        for scope in resource.scope_metrics:
            assert scope.scope.name == "coherer"
            for metric in scope.metrics:
                for point in metric.data.data_points:
                    value = getattr(point, "value", None)
                    value = getattr(point, "count", None) if value is None else value
                    found.setdefault(metric.name, []).append((dict(point.attributes or {}), value))
    return found


@pytest.mark.parametrize("protocol", ["tubemq", "rocketmq"])
async def test_sends_and_receives_are_measured_by_batch(node: Node, protocol: str) -> None:
    url = node.url if protocol == "tubemq" else node.rocketmq_url
    reader = InMemoryMetricReader()
    metrics = coherer.ClientMetrics(MeterProvider([reader]))
    async with coherer.connect(url, metrics=metrics) as client:
        async with client.producer("flights") as producer:
            await producer.send(Message("flights", b"one"))
            await producer.send_many(Message("flights", b"x") for _ in range(50))
        async with client.consumer("readers", ["flights"], start="earliest") as consumer:
            read = 0
            while read < 51:
                batch = await consumer.receive(10_000)
                assert batch is not None
                read += len(batch)
                if read == 51:
                    waiting = figures(reader)
                batch.ack()
    found = figures(reader)
    sent = {"messaging.system": protocol, "messaging.destination.name": "flights"}
    assert found["messaging.client.sent.messages"] == [
        ({**sent, "messaging.operation.name": "send"}, 51)
    ]
    of_group = {**sent, "messaging.consumer.group.name": "readers"}
    assert found["messaging.client.consumed.messages"] == [
        ({**of_group, "messaging.operation.name": "receive"}, 51)
    ]
    durations = {
        attributes["messaging.operation.name"]: count
        for attributes, count in found["messaging.client.operation.duration"]
    }
    assert durations["send"] == 2, "one for the message, one for send_many"
    ((attributes, processed),) = found["messaging.process.duration"]
    assert processed == durations["receive"], "one for each batch"
    assert "error.type" not in attributes
    theirs = {name for name in found if name.startswith("rocketmq_")}
    if protocol == "tubemq":
        assert theirs == set()
        return
    ((labels, count),) = found["rocketmq_send_cost_time"]
    assert (labels["topic"], labels["invocation_status"], count) == ("flights", "success", 2)
    ((labels, cached),) = waiting["rocketmq_consumer_cached_messages"]
    assert (labels["consumer_group"], cached > 0) == ("readers", True)
    assert waiting["rocketmq_consumer_cached_bytes"][0][1] > 0
    assert found["rocketmq_process_time"][0][1] == processed


async def test_failures_have_the_type_of_their_error(node: Node) -> None:
    reader = InMemoryMetricReader()
    metrics = coherer.ClientMetrics(MeterProvider([reader]))
    async with coherer.connect(node.rocketmq_url, metrics=metrics) as client:
        async with client.producer("flights") as producer:
            assert node.core is not None
            node.core.write_failed = True
            node.core.changed()
            report = await producer.send_many([Message("flights", b"x")] * 3)
            assert len(report.failed) == 3
            with pytest.raises(CohererError):
                await producer.send(Message("flights", b"x"))
        node.core.write_failed = False
    ((attributes, count),) = figures(reader)["messaging.client.sent.messages"]
    assert (attributes["error.type"], count) == ("ServiceNotAvailableError", 4)


async def test_a_failed_handler_is_measured(node: Node) -> None:
    reader = InMemoryMetricReader()
    metrics = coherer.ClientMetrics(MeterProvider([reader]))
    async with coherer.connect(node.rocketmq_url, metrics=metrics) as client:
        async with client.producer("flights") as producer:
            await producer.send(Message("flights", b"x"))
        async with client.consumer("readers", ["flights"], start="earliest") as consumer:
            batch = await consumer.receive(10_000)
            assert batch is not None
            await batch.retry()
    ((attributes, count),) = figures(reader)["messaging.process.duration"]
    assert (attributes["error.type"], count) == ("retry", 1)
    ((labels, _),) = figures(reader)["rocketmq_process_time"]
    assert labels["invocation_status"] == "failure"


def test_blocking_clients_are_measured() -> None:
    from coherer.testing import embedded_node

    reader = InMemoryMetricReader()
    metrics = coherer.ClientMetrics(MeterProvider([reader]))
    with embedded_node() as node:
        node.create_topic("flights", 1)
        with (
            coherer.blocking.connect(node.rocketmq_url, metrics=metrics) as client,
            client.producer("flights") as producer,
        ):
            producer.send(Message("flights", b"x"))
            producer.send_many([Message("flights", b"x")] * 4)
    ((_, count),) = figures(reader)["messaging.client.sent.messages"]
    assert count == 5


def test_clients_work_without_opentelemetry() -> None:
    program = """
import sys
sys.modules["opentelemetry"] = None
import coherer
import coherer.rocketmq, coherer.tubemq
try:
    coherer.ClientMetrics()
except coherer.CohererError as error:
    print(error)
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout == 'OpenTelemetry is not installed. pip install "coherer[otel]"\n'
