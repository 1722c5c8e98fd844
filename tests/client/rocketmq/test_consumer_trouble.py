"""Consumers with a broker that says odd things or nothing, and consumers misused or broken off."""

from __future__ import annotations

import asyncio
import pickle
from typing import Any

import pytest

from coherer._client.rocketmq import fetcher
from coherer._wire.rocketmq.bodies import ConsumerStatus
from coherer._wire.rocketmq.codes import RequestCode
from coherer._wire.rocketmq.messages import StoredMessage
from coherer.errors import ClosedError, UsageError
from coherer.message import Message
from coherer.rocketmq import connect as connect_rocketmq
from tests.client.rocket_shelf import PULL, STORE, ZERO, one, reading

pytestmark = pytest.mark.usefixtures("quick")


@pytest.mark.parametrize("code", [24, 25, 27, 28])
async def test_a_broker_that_does_not_know_us_is_greeted(cluster, shelf, client, kit, code) -> None:
    cluster.script(PULL, kit.refuse(code), kit.refuse(code))
    shelf.put(b"a")
    async with reading(client) as consumer:
        before = len(cluster.asked(RequestCode.HEART_BEAT))
        assert (await one(consumer)).bodies() == [b"a"]
        assert len(cluster.asked(RequestCode.HEART_BEAT)) > before


async def test_refusals_and_broken_connections_pass(cluster, shelf, client, kit) -> None:
    cluster.script(PULL, kit.refuse(1), kit.refuse(16), kit.hang_up)
    shelf.put(b"a")
    async with reading(client) as consumer:
        assert (await one(consumer)).bodies() == [b"a"]


async def test_answers_without_numbers_pass(cluster, shelf, client) -> None:
    cluster.script(PULL, lambda asked: asked.answer(0, "FOUND"), lambda asked: asked.answer(20))
    shelf.put(b"a")
    async with reading(client) as consumer:
        assert (await one(consumer)).bodies() == [b"a"]


async def test_unknown_groups_are_answered_as_java_does(cluster, shelf, client) -> None:
    shelf.put(b"a")
    async with reading(client):
        await cluster.until(shelf.pulls)
        channel = cluster.channel()
        for code in (307, 309):
            answer = await channel.call(code, {"consumerGroup": "x", "clientId": "c"}, b"", 2_000)
            assert (answer.code, answer.remark) == (
                1,
                "The Consumer Group <x> not exist in this consumer",
            )
        answer = await channel.call(221, {"topic": "demo", "group": "x"}, b"", 2_000)
        assert (answer.code, answer.remark) == (0, "not set any response code")
        assert ConsumerStatus.decode(answer.body).message_queue_table == {}


async def test_loops_end_with_their_consumer(cluster, shelf, client) -> None:
    shelf.put(b"a")
    got = asyncio.Event()
    async with reading(client) as consumer:

        async def loop() -> list[bytes]:
            found: list[bytes] = []
            async for message in consumer:
                found.append(message.body)
                got.set()
            return found

        looping = asyncio.create_task(loop())
        await got.wait()
        batches = asyncio.create_task(anext(consumer.batches(), None))
        await consumer.close()
        assert (await looping, await batches) == ([b"a"], None)


async def test_views_are_messages(cluster, shelf, client) -> None:
    shelf.put(b"a", TAGS="UA", KEYS="k1 k2", note="x")
    async with reading(client) as consumer:
        [view] = await one(consumer)
        message = view.detached()
        assert isinstance(view, StoredMessage)
        assert not isinstance(view, Message)
        assert type(message) is StoredMessage
        match view:
            case StoredMessage(topic="demo", body=body):
                assert body == b"a"
            case _:
                pytest.fail("a view is a message")
        assert (view, message) == (message, view)
        assert repr(view) == repr(message)
        assert pickle.loads(pickle.dumps(view)) == message
        assert (view.tag, view.keys, dict(view.properties)) == ("UA", ("k1", "k2"), {"note": "x"})
        assert (view.offset, view.partition, view.broker, view.unique_id) == (0, 0, "broker-a", "a")
        assert view.physical_offset == 1000
        with pytest.raises(AttributeError):
            _ = view.nonsense
        shelf.put(b"b")
        [other] = await one(consumer)
        assert other != view


async def test_misuse(cluster, shelf, client) -> None:
    with pytest.raises(UsageError, match="one topic"):
        client.consumer("readers", [])
    with pytest.raises(UsageError, match="no model"):
        reading(client, model="all")
    with pytest.raises(UsageError, match="poll_ms is 1 or more, not 0"):
        reading(client, poll_ms=0)
    with pytest.raises(UsageError, match="no start position"):
        reading(client, start="soon")
    with pytest.raises(UsageError, match="in order by itself"):
        client.pull_consumer("readers", "demo", orderly=True)
    consumer = reading(client)
    assert repr(consumer) == "<Consumer of demo in readers: new>"
    assert (consumer.assignment, consumer.progress, consumer.paused) == (frozenset(), {}, set())
    with pytest.raises(UsageError, match="not started"):
        await consumer.receive(0)
    async with consumer:
        await consumer.wait_assigned(5_000)
        assert repr(consumer).startswith("<Consumer of demo in readers: ")
        with pytest.raises(UsageError, match="started once"):
            await consumer.start()
        with pytest.raises(UsageError, match="worker"):
            await consumer.run(print, workers=0)
        with pytest.raises(UsageError, match="consumer of group readers already"):
            await reading(client).start()
    await consumer.close()
    with pytest.raises(ClosedError):
        await consumer.receive(0)


async def test_who_is_closed_while_it_starts_does_not_stay(cluster, shelf, client) -> None:
    held: list[Any] = []
    cluster.script(RequestCode.GET_ROUTEINFO_BY_TOPIC, held.append)
    consumer = reading(client)
    starting = asyncio.ensure_future(consumer.start())
    await cluster.until(lambda: held)
    await consumer.close()
    cluster._default(held[0])
    with pytest.raises(ClosedError):
        await starting
    assert client._instance.consumers == []


async def test_who_is_cancelled_while_it_leaves_has_left(cluster, shelf, client, kit) -> None:
    cluster.always(STORE, kit.silence)
    shelf.put(b"a")
    async with reading(client) as consumer:
        batch = await one(consumer)
        shelf.held.clear()
        consumer.done(batch)
        closing = asyncio.ensure_future(consumer.close())
        await cluster.until(lambda: cluster.asked(STORE))
        closing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await closing
    assert client._instance.consumers == []
    assert cluster.asked(RequestCode.UNREGISTER_CLIENT)


async def test_pulls_are_signed_where_they_have_to_be(cluster, shelf) -> None:
    shelf.put(b"a")
    async with (
        connect_rocketmq(cluster.url, user="key", password="secret-secret") as client,
        client.reader(ZERO, 0) as reader,
    ):
        assert await reader.read() is not None
    fields = shelf.pulls()[0].fields
    assert fields["AccessKey"] == "key"
    assert fields["Signature"]
    assert fetcher.SLACK_MS > 0
