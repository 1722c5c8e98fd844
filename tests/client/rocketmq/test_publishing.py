"""Producers whose topics change, or that are closed, while they publish a topic."""

from __future__ import annotations

import asyncio
import os
from typing import Any

import pytest
from msgspec import structs

from coherer._client.rocketmq.producing import sender as module
from coherer._client.rocketmq.producing.queue_selection import QueueSelector
from coherer._client.rocketmq.producing.sender import Sender
from coherer._wire.rocketmq.codes import RequestCode
from coherer.errors import ClosedError, UsageError
from coherer.message import Message
from coherer.rocketmq import connect

ROUTE = RequestCode.GET_ROUTEINFO_BY_TOPIC


async def test_a_broker_that_moves_while_a_topic_is_published(cluster) -> None:
    """The new address came while the first connection was awaited, and was never used."""
    lost = cluster.route(4)
    lost.broker_datas[0].broker_addrs[0] = "127.0.0.1:1"
    cluster.script(ROUTE, lambda asked: asked.answer(body=lost.encode()))
    async with (
        connect(cluster.url, timeout_ms=5_000, route_ms=20) as client,
        client.producer() as producer,
    ):
        await producer.publish("demo")
        assert (await producer.send(Message("demo", b"x"))).broker == "broker-a"


async def test_a_topic_that_is_published_while_another_changes(cluster2) -> None:
    """The change of the other one ended the attempts to reach the broker of this one."""
    gone = cluster2.brokers["broker-b"]
    await gone.listener.close()

    def route(asked: Any) -> None:
        name = "broker-b" if asked.fields["topic"] == "lost" else "broker-a"
        every = cluster2.route(cluster2.topics[asked.fields["topic"]])
        queues = [one for one in every.queue_datas if one.broker_name == name]
        brokers = [one for one in every.broker_datas if one.broker_name == name]
        asked.answer(body=structs.replace(every, queue_datas=queues, broker_datas=brokers).encode())

    cluster2.topics["lost"] = 1
    cluster2.always(ROUTE, route)
    async with (
        connect(cluster2.url, timeout_ms=10_000, route_ms=20) as client,
        client.producer("demo") as producer,
    ):
        publishing = asyncio.create_task(producer.publish("lost"))
        await cluster2.until(lambda: cluster2.asked(ROUTE)[-1].fields["topic"] == "lost")
        cluster2.topics["demo"] = 3
        asked = len(cluster2.asked(ROUTE))
        await cluster2.until(lambda: len(cluster2.asked(ROUTE)) >= asked + 30)
        assert not publishing.done()
        await cluster2.reopen("broker-b")
        await publishing
        assert (await producer.send(Message("lost", b"x"))).broker == "broker-b"


async def test_a_route_costs_the_same_with_many_topics(
    cluster2, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With 5,000, each change held up the loop for 9 ms, and publishing them took 7 s."""
    count, steps, gone = 40, 0, False

    class Selector(QueueSelector):
        __slots__ = ()

        def __getattribute__(self, name: str) -> Any:
            nonlocal steps
            steps += name == "targets"
            return super().__getattribute__(name)

    full_name = Sender.full_name

    def counted(sender: Sender, topic: str) -> str:
        nonlocal steps
        steps += 1
        return full_name(sender, topic)

    def route(asked: Any) -> None:
        every = cluster2.route(cluster2.topics[asked.fields["topic"]])
        if gone:
            queues = [one for one in every.queue_datas if one.broker_name == "broker-a"]
            brokers = [one for one in every.broker_datas if one.broker_name == "broker-a"]
            every = structs.replace(every, queue_datas=queues, broker_datas=brokers)
        asked.answer(body=every.encode())

    monkeypatch.setattr(module, "QueueSelector", Selector)
    monkeypatch.setattr(Sender, "full_name", counted)
    topics = [f"topic-{number}" for number in range(count)]
    cluster2.topics |= dict.fromkeys(topics, 1)
    cluster2.always(ROUTE, route)
    async with (
        connect(cluster2.url, timeout_ms=10_000, route_ms=20) as client,
        client.producer(*topics) as producer,
    ):
        assert steps < 15 * count
        steps, gone = 0, True
        asked = len(cluster2.asked(ROUTE))
        await cluster2.until(lambda: len(cluster2.asked(ROUTE)) >= asked + 2 * count)
        assert steps < 15 * count
        for topic in topics:
            assert (await producer.send(Message(topic, b"x"))).broker == "broker-a"


async def test_a_producer_that_is_closed_while_it_publishes(cluster, client) -> None:
    """It connected to the brokers of the topic, and nobody closed that."""
    asked: list[Any] = []
    cluster.script(ROUTE, asked.append)
    producer = client.producer()
    await producer.start()
    publishing = asyncio.create_task(producer.publish("demo"))
    await cluster.until(lambda: asked)
    await producer.close()
    cluster.default(asked[0])
    with pytest.raises(ClosedError):
        await publishing
    assert not [one for one in asyncio.all_tasks() if "connect to" in one.get_name()]


async def test_a_message_that_fits_into_no_request(cluster) -> None:
    """It kept its place in the window for ever, so that `close` never returned."""
    async with (
        connect(cluster.url, timeout_ms=5_000) as client,
        client.producer("demo", max_bytes=64 << 20) as producer,
    ):
        large = Message("demo", os.urandom(17 << 20))
        with pytest.raises(UsageError, match="16 MiB"):
            await producer.send(large)
        report = await producer.send_many([large, Message("demo", b"x")])
        assert (report.sent, [message for message, _ in report.failed]) == (1, [large])
        assert producer.in_flight == 0
