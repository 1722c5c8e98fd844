"""Sends that are to be delivered at a time: exactly by brokers of 5.x, by level by older ones."""

from __future__ import annotations

import asyncio
import time
from datetime import UTC, datetime, timedelta, timezone
from itertools import islice

import pytest

import coherer.blocking
from coherer._client.rocketmq.client import Client
from coherer._record import properties as text
from coherer._wire.rocketmq.codes import RequestCode
from coherer.errors import UnavailableError, UsageError
from coherer.message import Message
from coherer.rocketmq import connect as connect_rocketmq
from coherer.testing import SimulatedNode, async_embedded_node, embedded_node

SEND, BEAT = RequestCode.SEND_MESSAGE_V2, RequestCode.HEART_BEAT
FAR = datetime(2030, 1, 2, 3, 4, 5, 678_900, tzinfo=UTC)
FAR_MS = "1893553445679"


def wishes(cluster) -> list[dict[str, str]]:
    found = [text.decode(asked.send.properties.encode()) for asked in cluster.asked(SEND)]
    return [{n: v for n, v in one.items() if n.startswith(("TIMER", "DELAY"))} for one in found]


def newer(cluster) -> None:
    """The brokers keep messages until any time."""
    cluster.always(BEAT, lambda asked: asked.answer(fields={"cohererFeatures": "x,timers"}))


async def test_arbitrary_delivery_times(cluster, client: Client) -> None:
    newer(cluster)
    message = Message("demo", b"x")
    async with client.producer("demo") as producer:
        await producer.send(message, delay=timedelta(seconds=1, microseconds=1))
        await producer.send(message, deliver_at=FAR)
        await producer.send(message, deliver_at=FAR.astimezone(timezone(timedelta(hours=8))))
        await producer.submit(message, delay=timedelta(days=3), order_by="k")
        await producer.send(message, delay=timedelta(0))
        await producer.send(message, delay_level=3)
    assert wishes(cluster) == [
        {"TIMER_DELAY_MS": "1001"},
        {"TIMER_DELIVER_MS": FAR_MS},
        {"TIMER_DELIVER_MS": FAR_MS},
        {"TIMER_DELAY_MS": "259200000"},
        {},
        {"DELAY": "3"},
    ]


async def test_levels_at_an_older_broker(cluster, client: Client) -> None:
    message = Message("demo", b"x")
    async with client.producer("demo") as producer:
        await producer.send(message, delay=timedelta(minutes=1))
        await producer.send(message, delay=timedelta(hours=2))
        await producer.send(message, deliver_at=datetime(2020, 1, 1, tzinfo=UTC))
        for wish in ({"delay": timedelta(seconds=7)}, {"deliver_at": FAR}):
            with pytest.raises(UsageError, match=r"Broker broker-a is older than 5\.0") as error:
                await producer.send(message, **wish)
            assert "2h, or delay_level" in str(error.value.hint)
        assert producer.in_flight == 0
    assert wishes(cluster) == [{"DELAY": "5"}, {"DELAY": "18"}, {}]


async def test_a_first_send_waits_for_the_brokers_features(cluster, client: Client) -> None:
    cluster.script(BEAT, lambda _: None)  # the first heartbeat gets no answer
    cluster.always(BEAT, lambda asked: asked.answer(fields={"cohererFeatures": "timers"}))
    async with client.producer("demo") as producer:
        future = producer.submit(Message("demo", b"x"), delay=timedelta(seconds=7))
        assert producer.in_flight == 1
        await future
    assert wishes(cluster) == [{"TIMER_DELAY_MS": "7000"}]


async def test_a_broker_that_does_not_answer_about_its_features(
    cluster, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("coherer._client.rocketmq.instance.HEARTBEAT_TIMEOUT_MS", 50)
    cluster.always(BEAT, lambda _: None)
    async with client.producer("demo") as producer:
        with pytest.raises(UnavailableError):
            await producer.send(Message("demo", b"x"), delay=timedelta(seconds=7))
        assert producer.in_flight == 0
    assert wishes(cluster) == []


@pytest.mark.parametrize(
    "wish",
    [
        {"delay_level": 1, "delay": timedelta(seconds=1)},
        {"deliver_at": FAR, "delay": timedelta(seconds=1)},
        {"delay_level": -1},
        {"delay": timedelta(seconds=-1)},
    ],
)
async def test_invalid_delivery_times(client: Client, wish: dict[str, object]) -> None:
    async with client.producer("demo") as producer:
        with pytest.raises(UsageError):
            await producer.send(Message("demo", b"x"), **wish)


async def test_coherers_broker_delivers_on_time() -> None:
    async with (
        async_embedded_node() as node,
        connect_rocketmq(node.rocketmq_url) as client,
        client.producer("timed") as producer,
        client.consumer("readers", "timed", start="earliest") as consumer,
    ):
        for number in range(10):
            at = datetime.now(UTC) + timedelta(milliseconds=300)
            await producer.send(Message("timed", b"%f" % at.timestamp()), deliver_at=at)
            if number % 2:
                after = datetime.now(UTC) + timedelta(milliseconds=250)
                wait = timedelta(milliseconds=250)
                await producer.send(Message("timed", b"%f" % after.timestamp()), delay=wait)
        late_s: list[float] = []
        async for message in consumer:
            late_s.append(message.stored_ms / 1000 - float(message.body))
            message.ack()
            if len(late_s) == 15:
                break
    assert min(late_s) > -0.002, "none is early; times are in whole milliseconds"
    assert min(late_s) < 0.1, "most are on time, unless the machine is busy"


async def test_consumers_of_tubemq_do_not_see_it_before(coherer_simulated: SimulatedNode) -> None:
    node, loop = coherer_simulated, asyncio.get_running_loop()
    node.create_topic("timed", 1)
    async with (
        connect_rocketmq(node.rocketmq_url) as client,
        coherer.connect(node.url) as tube,
        client.producer("timed") as producer,
        tube.consumer("readers", "timed", start="earliest") as consumer,
    ):
        began_s = loop.time()
        await producer.send(Message("timed", b"later"), delay=timedelta(hours=2))
        await producer.send(Message("timed", b"now"))
        received_s: dict[bytes, float] = {}
        async for message in consumer:
            received_s[message.body] = loop.time() - began_s
            if len(received_s) == 2:
                break
    assert received_s[b"now"] < 1
    assert received_s[b"later"] == pytest.approx(7200, abs=0.5)


def test_without_asyncio() -> None:
    with (
        embedded_node() as node,
        coherer.blocking.rocketmq.connect(node.rocketmq_url) as client,
        client.producer("timed") as producer,
        client.consumer("readers", "timed", start="earliest") as consumer,
    ):
        began = time.monotonic()
        producer.send(Message("timed", b"later"), delay=timedelta(milliseconds=200))
        producer.submit(Message("timed", b"now")).result(5)
        found = [message.body for message in islice(consumer, 2)]
        assert sorted(found) == [b"later", b"now"]
        assert time.monotonic() - began >= 0.2
        with pytest.raises(UsageError):
            producer.send(Message("timed", b"x"), delay=timedelta(-1))
