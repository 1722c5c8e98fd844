"""Many messages as one half message, on brokers that have half batches and on others."""

from __future__ import annotations

import asyncio

import pytest
from msgspec import structs

import coherer
from coherer._client.engine.packed import send_packed
from coherer._client.rocketmq.client import Client
from coherer._client.rocketmq.producing.half_batches import prepare_packed
from coherer._record.batches import PackedMessages, encode_batch_item
from coherer._wire.rocketmq.codes import RequestCode
from coherer._wire.rocketmq.names import FEATURE_HALF_BATCHES, FEATURES
from coherer.errors import RefusedError, UsageError
from coherer.message import Receipt
from coherer.rocketmq import HalfMessages, StoredMessage, Verdict
from coherer.testing import SimulatedNode

QUERY = {"spark.batch": "7"}


def unknown(message: StoredMessage) -> Verdict:
    del message
    return Verdict.UNKNOWN


def packed(*bodies: bytes, topic: str = "demo") -> PackedMessages:
    """A batch of messages, each with a tag, two keys and a property."""
    items = [
        encode_batch_item(
            body, b"UNIQ_KEY\x01%b\x02TAGS\x01t\x02KEYS\x011 2\x02carrier\x01UA" % body
        )
        for body in bodies
    ]
    return PackedMessages(topic=topic, body=b"".join(items), count=len(items))


async def read(client: Client, topic: str = "demo") -> list[StoredMessage]:
    """All messages of a topic."""
    found: list[StoredMessage] = []
    for queue, (first, end) in (await client.offsets(topic)).items():
        if end > first:
            async with client.reader(queue, first, end=end) as reader:
                while (batch := await reader.read()) is not None:
                    found += batch
    return found


async def test_a_batch_is_one_half_message_that_is_committed_as_a_whole(
    coherer_simulated: SimulatedNode,
) -> None:
    coherer_simulated.create_topic("demo")
    async with (
        coherer.connect(coherer_simulated.rocketmq_url) as client,
        client.producer("demo", group="g", check=unknown) as producer,
    ):
        outcomes = await prepare_packed(producer, [packed(b"a", b"b"), packed(b"c")], QUERY)
        halves = HalfMessages.joined([one for one in outcomes if isinstance(one, HalfMessages)])
        assert (len(halves), list(halves.counts)) == (2, [2, 1])
        assert await read(client) == []
        for _ in range(2):
            assert await producer.two_phase.end(halves, Verdict.COMMIT) == []
        found = await read(client)
        assert sorted(one.body for one in found) == [b"a", b"b", b"c"]
        assert {(one.tag, one.keys, one.properties["carrier"]) for one in found} == {
            ("t", ("1", "2"), "UA")
        }
        assert {one.stored_properties["CLUSTER"] for one in found} == {"DefaultCluster"}


async def test_the_check_function_gets_the_properties_of_a_half_batch(
    coherer_simulated: SimulatedNode,
) -> None:
    asked: list[str] = []

    def check(message: StoredMessage) -> Verdict:
        asked.append(message.stored_properties["spark.batch"])
        return Verdict.ROLLBACK

    coherer_simulated.create_topic("demo")
    async with (
        coherer.connect(coherer_simulated.rocketmq_url) as client,
        client.producer("demo", check=check) as producer,
    ):
        [halves] = await prepare_packed(producer, [packed(b"a", b"b")], QUERY)
        assert isinstance(halves, HalfMessages)
        await asyncio.sleep(180)
        assert asked == ["7"]
        [(_, error)] = await producer.two_phase.end(halves, Verdict.COMMIT)
        assert "rolled back before" in str(error)
        assert await read(client) == []


async def test_other_brokers_get_the_messages_one_by_one(cluster, client: Client) -> None:
    async with client.producer("demo", group="g", check=unknown) as producer:
        [halves] = await prepare_packed(producer, [packed(b"a", b"b", b"c")], QUERY)
        assert isinstance(halves, HalfMessages)
        assert await producer.two_phase.end(halves, Verdict.COMMIT) == []
    assert (len(halves), halves.counts) == (3, ())
    sent = cluster.asked(RequestCode.SEND_MESSAGE_V2)
    assert [bytes(one.request.body) for one in sent] == [b"a", b"b", b"c"]
    for one in sent:
        text = one.send.properties
        assert "TAGS\x01t" in text
        assert "KEYS\x011 2" in text
        assert "carrier\x01UA" in text
        assert "PGROUP\x01g" in text
    assert len(cluster.asked(RequestCode.END_TRANSACTION)) == 3
    assert cluster.asked(RequestCode.SEND_HALF_BATCH) == []


async def test_a_half_batch_is_ended_by_a_code_that_others_refuse(
    cluster, kit, client: Client
) -> None:
    """Java's broker would publish a half batch as one message, if it had the files."""
    fields = {FEATURES: FEATURE_HALF_BATCHES}
    cluster.always(RequestCode.HEART_BEAT, lambda asked: asked.answer(fields=fields))
    stored = {"msgId": "7F00000100002A9F" + "0" * 16, "queueId": "0", "queueOffset": "5"}
    cluster.always(RequestCode.SEND_HALF_BATCH, lambda asked: asked.answer(fields=stored))
    cluster.always(RequestCode.END_HALF_BATCH, kit.refuse(3, "not supported"))
    async with client.producer("demo", check=unknown) as producer:
        [halves] = await prepare_packed(producer, [packed(b"a", b"b")], QUERY)
        assert isinstance(halves, HalfMessages)
        [(number, error)] = await producer.two_phase.end(halves, Verdict.COMMIT)
    assert (number, error.code) == (0, 3)
    assert cluster.asked(RequestCode.END_TRANSACTION) == []


@pytest.mark.parametrize("code", [10, 12, 13])
async def test_a_half_batch_that_is_not_safely_stored_is_an_error(
    cluster, client: Client, code: int
) -> None:
    fields = {FEATURES: FEATURE_HALF_BATCHES}
    cluster.always(RequestCode.HEART_BEAT, lambda asked: asked.answer(fields=fields))
    stored = {"msgId": "7F00000100002A9F" + "0" * 16, "queueId": "0", "queueOffset": "5"}
    cluster.always(RequestCode.SEND_HALF_BATCH, lambda asked: asked.answer(code, "no", stored))
    async with client.producer("demo", check=unknown) as producer:
        [error] = await prepare_packed(producer, [packed(b"a", b"b")], QUERY)
    assert isinstance(error, RefusedError)


async def test_a_producer_without_a_check_function_prepares_nothing(
    cluster, client: Client
) -> None:
    async with client.producer("demo") as producer:
        [error] = await prepare_packed(producer, [packed(b"a")], QUERY)
    assert isinstance(error, UsageError)
    assert cluster.asked(RequestCode.SEND_MESSAGE_V2) == []


async def test_a_large_message_is_sent_as_a_message(cluster, client: Client) -> None:
    """Alone and in its turn, as half message and otherwise."""
    fields = {FEATURES: FEATURE_HALF_BATCHES}
    cluster.always(RequestCode.HEART_BEAT, lambda asked: asked.answer(fields=fields))
    large = structs.replace(packed(b"a" * 5_000), alone=True)
    async with client.producer("demo", check=unknown) as producer:
        [halves] = await prepare_packed(producer, [large], QUERY)
        assert isinstance(halves, HalfMessages)
        placed = structs.replace(large, broker=halves.queues[0].broker, partition=1)
        [receipt] = await send_packed(producer, [placed])
        assert isinstance(receipt, Receipt)
    half, sent = cluster.asked(RequestCode.SEND_MESSAGE_V2)
    for one in (half, sent):
        assert "KEYS\x011 2" in one.send.properties
        assert len(one.request.body) < 5_000, "compressed"
    assert "PGROUP\x01" in half.send.properties
    assert (sent.send.queue_id, receipt.partition) == (1, 1)
    assert cluster.asked(RequestCode.SEND_HALF_BATCH) == []
