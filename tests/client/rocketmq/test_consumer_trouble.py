"""Consumers with a broker that says odd things or nothing, and consumers misused or broken off."""

from __future__ import annotations

import asyncio
import gc
import pickle
from typing import Any

import pytest

from coherer._client.rocketmq.received import ReceivedMessage
from coherer._client.rocketmq.start_position import Edge
from coherer._wire.rocketmq.bodies import ConsumerStatus
from coherer._wire.rocketmq.codes import RequestCode
from coherer._wire.rocketmq.messages import StoredMessage
from coherer._wire.rocketmq.names import Queue
from coherer.errors import ClosedError, UsageError
from coherer.rocketmq import connect as connect_rocketmq
from tests.client.rocket_broker import BACK, PULL, STORE, ZERO, one, reading

pytestmark = pytest.mark.usefixtures("quick")


@pytest.mark.parametrize("code", [24, 25, 27, 28])
async def test_a_broker_that_does_not_know_the_group_gets_a_heartbeat(
    cluster, shelf, client, kit, code
) -> None:
    cluster.script(PULL, kit.refuse(code), kit.refuse(code))
    shelf.put(b"a")
    async with reading(client) as consumer:
        before = len(cluster.asked(RequestCode.HEART_BEAT))
        assert (await one(consumer)).bodies() == [b"a"]
        assert len(cluster.asked(RequestCode.HEART_BEAT)) > before


async def test_refusals_and_broken_connections_are_retried(cluster, shelf, client, kit) -> None:
    cluster.script(PULL, kit.refuse(1), kit.refuse(16), kit.hang_up)
    shelf.put(b"a")
    async with reading(client) as consumer:
        assert (await one(consumer)).bodies() == [b"a"]


async def test_incomplete_answers_are_retried(cluster, shelf, client) -> None:
    cluster.script(PULL, lambda asked: asked.answer(0, "FOUND"), lambda asked: asked.answer(20))
    shelf.put(b"a")
    async with reading(client) as consumer:
        assert (await one(consumer)).bodies() == [b"a"]


async def test_requests_about_unknown_groups(cluster, shelf, client) -> None:
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


async def test_messages_are_decoded_lazily(cluster, shelf, client) -> None:
    shelf.put(b"a", TAGS="UA", KEYS="k1 k2", note="x")
    async with reading(client) as consumer:
        [received] = await one(consumer)
        message = received.detach()
        assert type(received) is ReceivedMessage
        assert type(message) is StoredMessage
        assert (received, message) == (message, received)
        assert repr(received) == repr(message)
        assert pickle.loads(pickle.dumps(received)) == message
        assert (received.tag, received.keys) == ("UA", ("k1", "k2"))
        assert {name: getattr(received, name) for name in message.__struct_fields__} == {
            name: getattr(message, name) for name in message.__struct_fields__
        }
        shelf.put(b"b")
        [other] = await one(consumer)
        assert other != received


async def test_a_message_of_a_dropped_iterator_can_be_a_dead_letter(cluster, shelf, client) -> None:
    """Garbage collection of an iterator gives nothing back."""
    shelf.put(b"a", b"b")
    async with reading(client) as consumer:
        message = await anext(aiter(consumer))
        gc.collect()
        await message.dead_letter()
        [asked] = cluster.asked(BACK)
        assert asked.fields["delayLevel"] == "-1"
        assert (await anext(aiter(consumer))).body == b"b"


async def test_a_batch_is_retried_and_acknowledged(cluster, shelf, client) -> None:
    shelf.package = 1
    shelf.put(b"a", b"b", b"c")
    async with reading(client) as consumer:
        await (await one(consumer)).retry(later=2)
        await (await one(consumer)).dead_letter()
        (await one(consumer)).ack()
        assert (await consumer.commit())[ZERO] == 3
        assert [asked.fields["delayLevel"] for asked in cluster.asked(BACK)] == ["2", "-1"]


async def test_a_consumer_seeks(cluster, shelf, client) -> None:
    shelf.package = 1
    shelf.put(b"a", b"b", b"c")
    async with reading(client) as consumer:
        before = await one(consumer)
        await consumer.seek(ZERO, 2)
        assert (await one(consumer)).bodies() == [b"c"]
        with pytest.raises(UsageError, match="another offset"):
            await consumer.commit(before)
        await consumer.seek(ZERO, Edge.OLDEST)
        assert (await one(consumer)).bodies() == [b"a"]
        with pytest.raises(UsageError, match="An offset is 0 to"):
            await consumer.seek(ZERO, -1)
        with pytest.raises(UsageError, match="not assigned"):
            await consumer.seek(Queue("demo", "broker-a", 9), 0)


async def test_misuse(cluster, shelf, client) -> None:
    with pytest.raises(UsageError, match="one topic"):
        client.consumer("readers", [])
    with pytest.raises(UsageError, match="model"):
        reading(client, model="all")
    with pytest.raises(UsageError, match="poll_ms is 1 or more, not 0"):
        reading(client, poll_ms=0)
    with pytest.raises(UsageError, match=r"`start` is 'latest' or 'earliest' .*, not 'soon'"):
        reading(client, start="soon")
    with pytest.raises(UsageError, match="orderly"):
        client.pull_consumer("readers", "demo", orderly=True)
    consumer = reading(client)
    assert repr(consumer) == "<Consumer of demo in readers: new>"
    assert (consumer.assignment, consumer.progress, consumer.paused) == (frozenset(), {}, set())
    with pytest.raises(UsageError, match="not started"):
        await consumer.receive(0)
    async with consumer:
        await consumer.wait_assigned(5_000)
        assert repr(consumer).startswith("<Consumer of demo in readers: ")
        with pytest.raises(UsageError, match="started only once"):
            await consumer.start()
        with pytest.raises(UsageError, match="worker"):
            await consumer.run(print, workers=0)
        with pytest.raises(UsageError, match="consumer of group readers already"):
            await reading(client).start()
    await consumer.close()
    with pytest.raises(ClosedError):
        await consumer.receive(0)


async def test_close_during_start(cluster, shelf, client) -> None:
    held: list[Any] = []
    cluster.script(RequestCode.GET_ROUTEINFO_BY_TOPIC, held.append)
    consumer = reading(client)
    starting = asyncio.ensure_future(consumer.start())
    await cluster.until(lambda: held)
    await consumer.close()
    cluster.default(held[0])
    with pytest.raises(ClosedError):
        await starting
    async with reading(client):  # the client may have a new consumer of the group
        pass


async def test_cancelled_close(cluster, shelf, client, kit) -> None:
    cluster.always(STORE, kit.silence)
    shelf.put(b"a")
    async with reading(client) as consumer:
        batch = await one(consumer)
        shelf.held.clear()
        batch.ack()
        closing = asyncio.ensure_future(consumer.close())
        await cluster.until(lambda: cluster.asked(STORE))
        closing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await closing
    async with reading(client):  # the client may have a new consumer of the group
        pass
    assert cluster.asked(RequestCode.UNREGISTER_CLIENT)


async def test_signed_pulls(cluster, shelf) -> None:
    shelf.put(b"a")
    async with (
        connect_rocketmq(cluster.url, user="key", password="secret-secret") as client,
        client.reader(ZERO, 0) as reader,
    ):
        assert await reader.read() is not None
    fields = shelf.pulls()[0].fields
    assert fields["AccessKey"] == "key"
    assert fields["Signature"]
