"""Messages that are given back: to their broker, to the group, or to this consumer itself."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from coherer._client.rocketmq.consuming import broker_requests, consumer
from coherer._record.properties import decode
from coherer._wire.rocketmq.bodies import ConsumeDirectlyResult
from coherer._wire.rocketmq.codes import RequestCode
from coherer._wire.rocketmq.command import Command, encode
from coherer._wire.rocketmq.headers import SendHeader, read_send
from coherer.errors import UsageError
from coherer.message import Message
from tests.client.rocket_broker import BACK, ZERO, one, reading
from tests.client.rocket_scenario import Scenario, scenario_at, until

pytestmark = pytest.mark.usefixtures("quick")


@pytest.fixture
async def scenario(coherer_rocketmq_url: str) -> AsyncIterator[Scenario]:
    async with scenario_at(coherer_rocketmq_url) as made:
        yield made


async def test_a_message_goes_back_to_its_broker(cluster, shelf, client) -> None:
    shelf.put(b"a", b"b")
    async with reading(client, max_attempts=5) as consumer:
        first, second = await one(consumer)
        await first.retry(later=4)
        second.ack()
        second.ack()
        assert consumer.progress[ZERO].offset == 2
    [asked] = cluster.asked(BACK)
    assert asked.fields == {
        "offset": "1000",
        "group": "readers",
        "delayLevel": "4",
        "originMsgId": "a",
        "originTopic": "demo",
        "unitMode": "false",
        "maxReconsumeTimes": "4",
        "bname": "broker-a",
    }


async def test_a_message_that_is_retried_twice_at_once_goes_back_once(
    cluster, shelf, client
) -> None:
    shelf.put(b"a", b"b")
    async with reading(client) as consumer:
        batch = await one(consumer)
        first, second = batch
        await asyncio.gather(first.retry(later=4), first.dead_letter(), batch.retry())
        await second.dead_letter()
        assert consumer.progress[ZERO].offset == 2
    backs = [(asked.fields["offset"], asked.fields["delayLevel"]) for asked in cluster.asked(BACK)]
    assert backs == [("1000", "4"), ("1001", "0")]


async def test_what_is_acknowledged_while_it_goes_back_is_lost_to_nobody(
    cluster, shelf, client, kit
) -> None:
    """The broker is asked already; if it refuses, this consumer delivers the message again."""
    shelf.package = 3
    shelf.put(b"a", b"b", b"c")
    held: list[Any] = []
    cluster.script(BACK, held.append)
    cluster.always(RequestCode.SEND_MESSAGE_V2, kit.refuse(14))
    async with reading(client) as consumer:
        batch = await one(consumer)
        first, *_ = batch
        retrying = asyncio.create_task(first.retry())
        await cluster.until(lambda: held)
        first.ack()
        batch.ack()
        assert consumer.progress[ZERO].offset == 0
        held[0].answer(1, "no")
        await retrying
        assert consumer.progress[ZERO].offset == 0
        [again] = await one(consumer)
        assert (again.body, again.attempt) == (b"a", 1)
        again.ack()
        assert consumer.progress[ZERO].offset == 3


async def test_a_loop_does_not_acknowledge_what_goes_back(cluster, shelf, client) -> None:
    shelf.package = 3
    shelf.put(b"a", b"b", b"c")
    held: list[Any] = []
    cluster.script(BACK, held.append)
    async with reading(client) as consumer:
        async for message in consumer:
            if message.body == b"a":
                retrying = asyncio.create_task(message.retry())
                await cluster.until(lambda: held)
            elif message.body == b"c":
                message.ack()
                assert consumer.progress[ZERO].offset == 0
                held[0].answer()
                await retrying
                assert consumer.progress[ZERO].offset == 3
                break


async def test_a_cancelled_retry_leaves_no_message_that_nobody_settles(
    cluster, shelf, client, kit
) -> None:
    shelf.put(b"a", b"b")
    cluster.script(BACK, kit.silence)
    async with reading(client) as consumer:
        batch = await one(consumer)
        first, _ = batch
        retrying = asyncio.create_task(first.retry())
        await cluster.until(lambda: cluster.asked(BACK))
        batch.ack()
        retrying.cancel()
        with pytest.raises(asyncio.CancelledError):
            await retrying
        [again] = await one(consumer)
        assert (again.body, again.attempt) == (b"a", 1)


async def test_a_refused_send_back_goes_to_the_retry_topic(cluster, shelf, client, kit) -> None:
    shelf.put(b"a", TAGS="UA", DELAY="2", WAIT="false")
    cluster.script(BACK, kit.refuse(1))
    async with reading(client) as consumer:
        [message] = await one(consumer)
        await message.retry()
        assert consumer.progress[ZERO].offset == 1
    [asked] = cluster.asked(RequestCode.SEND_MESSAGE_V2)
    header = read_send(asked.request.code, asked.fields)
    assert isinstance(header, SendHeader)
    assert (header.topic, header.reconsume_times, header.max_reconsume_times) == (
        "%RETRY%readers",
        1,
        17,  # the broker counts before it compares
    )
    properties = decode((header.properties or "").encode())
    assert properties["RETRY_TOPIC"] == "demo"
    assert properties["ORIGIN_MESSAGE_ID"] == message.id
    assert (properties["DELAY"], properties["UNIQ_KEY"], properties["TAGS"]) == ("3", "a", "UA")
    assert properties["WAIT"] == "true", "the answer waits for the disk"
    assert bytes(asked.request.body) == b"a"


async def test_a_send_back_whose_answer_is_lost_may_happen_twice(
    cluster, shelf, client, kit
) -> None:
    """The broker may have it already; both have the id of the message that was delivered."""
    shelf.put(b"a")
    cluster.script(BACK, kit.hang_up)
    async with reading(client) as consumer:
        [message] = await one(consumer)
        await message.retry()
    [back] = cluster.asked(BACK)
    [copy] = cluster.asked(RequestCode.SEND_MESSAGE_V2)
    header = read_send(copy.request.code, copy.fields)
    assert isinstance(header, SendHeader)
    assert header.topic == "%RETRY%readers"
    origin = decode((header.properties or "").encode())["ORIGIN_MESSAGE_ID"]
    assert (origin, back.fields["offset"]) == (message.id, "1000")


async def test_a_message_that_no_broker_accepts_is_redelivered_locally(
    cluster, shelf, client, kit
) -> None:
    shelf.put(b"a", b"b", b"c", b"d")
    cluster.script(BACK, kit.refuse(1))
    cluster.always(RequestCode.SEND_MESSAGE_V2, kit.refuse(14))
    async with reading(client) as consumer:
        seen: list[tuple[bytes, int]] = []
        async with asyncio.timeout(5):
            async for message in consumer:
                seen.append((message.body, message.attempt))
                if message.body == b"a" and message.attempt == 0:
                    await message.retry()
                if message.body == b"d":
                    assert consumer.progress[ZERO].offset == 0
                if len(seen) == 5:
                    break
        assert seen == [(b"a", 0), (b"b", 0), (b"c", 0), (b"d", 0), (b"a", 1)]
        assert consumer.progress[ZERO].offset == 0


async def test_overdue_batches_are_sent_back(cluster, shelf, client, monkeypatch) -> None:
    monkeypatch.setattr(consumer, "OVERDUE_CHECK_MS", 10)
    shelf.put(b"a", b"b")
    async with reading(client, consume_ms=1) as reader:
        batch = await one(reader)
        await cluster.until(lambda: len(cluster.asked(BACK)) == 2)
        assert {asked.fields["delayLevel"] for asked in cluster.asked(BACK)} == {"3"}
        await until(lambda: reader.progress[ZERO].offset == 2)
        with pytest.raises(UsageError, match="before"):
            await reader.commit(batch)


async def test_the_batch_of_a_cancelled_worker_is_received_again(cluster, shelf, client) -> None:
    shelf.put(b"a", b"b")
    begun = asyncio.Event()

    async def handler(batch: Any) -> None:
        assert next(iter(batch)).topic  # decoded
        begun.set()
        await asyncio.Event().wait()

    async with reading(client) as consumer:
        running = asyncio.create_task(consumer.run(handler))
        await begun.wait()
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        assert (await one(consumer)).bodies() == [b"a", b"b"]


async def test_a_new_loop_gets_the_rest_of_the_loop_before(cluster, shelf, client) -> None:
    shelf.package = 4
    shelf.put(b"a", b"b", b"c", b"d")
    async with reading(client) as consumer:
        async for message in consumer:
            if message.body == b"c":
                break
        assert (await anext(consumer.batches())).bodies() == [b"c", b"d"]


async def test_consume_directly_times_out(cluster, shelf, client, monkeypatch) -> None:
    monkeypatch.setattr(broker_requests, "DIRECTLY_MS", 20)
    shelf.put(b"a")
    async with reading(client) as consumer:
        await cluster.until(shelf.pulls)
        consumer.pause()
        record = shelf.records[0][0]
        fields = {"consumerGroup": "readers", "clientId": "c", "brokerName": "broker-a"}
        answer = await cluster.channel().call(309, fields, record, 2_000)
        result = ConsumeDirectlyResult.decode(answer.body)
        assert (answer.code, result.consume_result) == (0, "CR_THROW_EXCEPTION")
        assert await consumer.receive(0) is None


@pytest.mark.parametrize(("version", "limit"), [(355, "16"), (393, "16"), (395, None), (399, None)])
async def test_brokers_before_4_9_1_need_the_maximum_of_attempts(
    cluster, shelf, client, version: int, limit: str | None
) -> None:
    def beat(asked: Any) -> None:
        answer = Command(0, asked.request.opaque, flag=1, version=version)
        asked.channel.connection.write(encode(answer))

    cluster.always(RequestCode.HEART_BEAT, beat)
    shelf.put(b"a")
    async with reading(client) as consumer:
        [message] = await one(consumer)
        await message.retry()
    [asked] = cluster.asked(BACK)
    assert asked.fields.get("maxReconsumeTimes") == limit


async def test_a_wrong_retry_does_not_count_as_a_failure(scenario: Scenario) -> None:
    """The message was acknowledged afterwards; traces and metrics said that it had failed."""
    client = scenario.client()
    await scenario.make(client, 1)
    async with client.producer(scenario.topic) as producer:
        await producer.send(Message(scenario.topic, b"a"))
    async with client.consumer(scenario.group, scenario.topic, start="earliest") as consumer:
        [message] = await one(consumer)
        with pytest.raises(UsageError):
            await message.retry(later=-5)
        message.ack()
        [member] = (await client.admin().groups.consumers(scenario.group)).members
        running = await client.admin().groups.running(scenario.group, member.id)
    rates = running.rates[scenario.topic]
    assert (rates.failed, rates.processed_per_s > 0) == (0, True)
