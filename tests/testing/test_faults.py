"""The kit as it is meant to be used: a node, a client, and a network between them that fails."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

import coherer
from coherer._server.node.node import Node
from coherer.errors import CohererError, UnavailableError
from coherer.testing import FaultProxy, async_embedded_node


class Between:
    """A node that is reached through two proxies only."""

    def __init__(self, node: Node, to_master: FaultProxy, to_broker: FaultProxy) -> None:
        self.node = node
        self.to_master = to_master
        self.to_broker = to_broker
        self.url = f"tubemq://{to_master.address}"


@pytest.fixture
async def between() -> AsyncIterator[Between]:
    async with (
        FaultProxy("127.0.0.1", 1) as to_master,
        FaultProxy("127.0.0.1", 1) as to_broker,
        async_embedded_node(advertised_broker_port=to_broker.port) as node,
    ):
        to_master.target = ("127.0.0.1", node.master_port)
        to_broker.target = ("127.0.0.1", node.broker_port)
        node.create_topic("t", 1)
        yield Between(node, to_master, to_broker)


async def test_all_traffic_goes_through(between: Between) -> None:
    async with coherer.connect(between.url) as client, client.producer("t") as producer:
        await producer.send(coherer.Message("t", b"x" * 10_000))
        assert between.to_broker.requests.passed_bytes > 10_000
        assert between.to_master.answers.passed_bytes > 0


async def test_a_cut_before_the_receipt_is_said_and_healed(between: Between) -> None:
    async with coherer.connect(between.url) as client, client.producer("t") as producer:
        await producer.send(coherer.Message("t", b"first"))
        between.to_broker.answers.black_hole = True
        lost = producer.submit(coherer.Message("t", b"lost receipt"))
        await between.to_broker.until(lambda: between.to_broker.answers.lost_bytes)
        between.to_broker.cut()
        with pytest.raises(UnavailableError):
            await lost
        await between.to_broker.heal()
        async with asyncio.timeout(10):
            receipt = await producer.send(coherer.Message("t", b"again"))
        assert receipt.offset == 2, "the second was stored; only its receipt was lost"


async def test_a_consumer_comes_back_after_the_broker_was_away(between: Between) -> None:
    async with coherer.connect(between.url) as client, client.producer("t") as producer:
        await producer.send(coherer.Message("t", b"before"))
        async with client.consumer("g", "t", start="earliest") as consumer:
            package = await consumer.receive(timeout_ms=10_000)
            assert package is not None
            await consumer.commit(package)
            await between.to_broker.refuse()
            await between.to_broker.heal()
            after = coherer.Message("t", b"after")
            async with asyncio.timeout(20):
                while True:
                    try:
                        await producer.send(after)
                    except CohererError:
                        continue
                    break
                package = await consumer.receive()
            assert package is not None
            assert package.bodies() == [b"after"]
