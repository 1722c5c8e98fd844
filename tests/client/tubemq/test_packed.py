"""Batches that are encoded already: to brokers that accept them, and to others one by one."""

from __future__ import annotations

import asyncio

import pytest

from coherer._client.engine.packed import send_packed
from coherer._client.tubemq.cluster import Cluster
from coherer._client.tubemq.producer import Producer
from coherer._record.batches import PackedMessages, encode_batch_item
from coherer._wire.tubemq import methods
from coherer._wire.tubemq.names import BrokerInfo
from coherer.errors import DisconnectedError, RefusedError, UnavailableError, UsageError
from coherer.message import Receipt
from tests.client.scripted_cluster import refuse
from tests.client.tube_clients import message

TEXTS = {
    b"one": b"TAGS\x01UA\x02$msgTime$\x01202401020304\x02a\x01b",
    b"two": b"",
    b"three": b"a\x01c",
}


def packed(**place: object) -> PackedMessages:
    items = [encode_batch_item(body, text) for body, text in TEXTS.items()]
    return PackedMessages(topic="demo", body=b"".join(items), count=3, **place)  # type: ignore[arg-type]


async def test_a_batch_is_one_request(fake, producer: Producer) -> None:
    batch = packed()
    (receipt,) = await send_packed(producer, [batch])
    assert isinstance(receipt, Receipt)
    (request,) = fake.asked(methods.SEND_MESSAGE)
    assert (request.data, request.batch) == (b"", batch.body)
    assert (request.topicName, request.checkSum) == ("demo", -1)
    assert request.authInfo.visitAuthorizedToken == 4711
    assert producer.in_flight == 0


async def test_other_brokers_get_the_messages_one_by_one(fake, producer: Producer) -> None:
    """They refuse the empty payload of the first batch, and are not asked again."""
    fake.script(methods.SEND_MESSAGE, refuse(400, "data length is zero!"))
    for _ in range(2):
        (receipt,) = await send_packed(producer, [packed()])
        assert isinstance(receipt, Receipt)
    first, *singles = fake.asked(methods.SEND_MESSAGE)
    assert first.batch
    assert len(singles) == 6
    assert not any(one.batch for one in singles)
    found = {one.data: (one.flag, one.msgType, one.msgTime) for one in singles}
    assert found == {
        b"\x00\x00\x00\x27$msgType$=UA,$msgTime$=202401020304,a=bone": (1, "UA", "202401020304"),
        b"two": (0, "", ""),
        b"\x00\x00\x00\x03a=cthree": (1, "", ""),
    }
    assert producer.in_flight == 0


async def test_a_broker_that_accepts_batches_may_refuse_one(fake, producer: Producer) -> None:
    await send_packed(producer, [packed()])
    fake.script(methods.SEND_MESSAGE, refuse(400, "too large"))
    (error,) = await send_packed(producer, [packed()])
    assert isinstance(error, RefusedError)
    assert "too large" in error.text
    assert len(fake.asked(methods.SEND_MESSAGE)) == 2


async def test_a_single_message_that_is_refused_fails_its_batch(fake, producer: Producer) -> None:
    fake.script(methods.SEND_MESSAGE, refuse(400), refuse(403, "closed"))
    (error,) = await send_packed(producer, [packed()])
    assert isinstance(error, RefusedError)
    assert "closed" in error.text
    producer.check_reports()


async def test_batches_for_a_partition(fake, producer: Producer) -> None:
    outcomes = await send_packed(producer, [packed(broker="1", partition=2) for _ in range(3)])
    assert [one.partition for one in outcomes if isinstance(one, Receipt)] == [2, 2, 2]
    (error,) = await send_packed(producer, [packed(broker="1", partition=9)])
    assert isinstance(error, UsageError)
    assert "1:9" in error.text


async def test_nothing_follows_a_failed_batch_for_a_partition(fake, producer: Producer) -> None:
    await send_packed(producer, [packed()])
    fake.script(methods.SEND_MESSAGE, refuse(403, "closed"))
    batches = [packed(broker="1", partition=0), packed(broker="1", partition=0), packed()]
    first, second, other = await send_packed(producer, batches)
    assert isinstance(first, RefusedError)
    assert second is first
    assert isinstance(other, Receipt)


@pytest.mark.parametrize("protocol", ["tubemq", "rocketmq"])
def test_the_node_stores_what_single_messages_store(coherer_node, coherer_topic, protocol) -> None:
    from coherer import Message
    from coherer.blocking import connect
    from coherer.blocking._packed import send_packed as send_packed_and_wait

    url = coherer_node.url if protocol == "tubemq" else coherer_node.rocketmq_url
    coherer_node.create_topic(coherer_topic, 1)
    body = b"".join(encode_batch_item(body, text) for body, text in TEXTS.items())
    batch = PackedMessages(topic=coherer_topic, body=body, count=3)
    with connect(coherer_node.url) as client, client.producer() as producer:
        producer.send(Message(coherer_topic, b"x", tag="UA", properties={"a": "b"}))
    with connect(url) as client, client.producer() as producer:
        (receipt,) = send_packed_and_wait(producer, [batch])
        assert receipt.offset == 1
    with connect(coherer_node.url) as client:
        (partition,) = client.partitions(coherer_topic)
        with client.reader(partition, 0, end=4) as reader:
            found = [one for messages in reader for one in messages]
    assert [one.body for one in found] == [b"x", *TEXTS]
    assert (found[1].tag, found[1].time, found[1].properties) == (
        found[0].tag, found[1].time, found[0].properties,
    )  # fmt: skip
    assert [one.properties for one in found[2:]] == [{}, {"a": "c"}]


async def test_batches_for_a_partition_wait_for_its_broker(fake, way: Cluster) -> None:
    second = await fake.listen()
    fake.brokers.append(BrokerInfo(2, "127.0.0.1", second.port))
    async with Producer(way, ["demo"], timeout_ms=300) as producer:
        await asyncio.gather(*(producer.send(message()) for _ in range(6)))
        before = len(fake.asked(methods.SEND_MESSAGE))
        await second.close(timeout_ms=0)
        await asyncio.sleep(0)
        (error,) = await send_packed(producer, [packed(broker="2", partition=0)])
        assert isinstance(error, UnavailableError | DisconnectedError)
        (error,) = await send_packed(producer, [packed(broker="2", partition=0)])
        assert isinstance(error, UnavailableError | DisconnectedError)
        assert len(fake.asked(methods.SEND_MESSAGE)) == before


async def test_a_large_message_is_sent_as_a_message(fake, producer: Producer) -> None:
    item = encode_batch_item(b"one", b"a\x01b")
    one = PackedMessages(
        topic="demo", body=item, count=1, broker="1", partition=2, alone=True
    )  # fmt: skip
    (receipt,) = await send_packed(producer, [one])
    assert isinstance(receipt, Receipt)
    assert receipt.partition == 2
    (request,) = fake.asked(methods.SEND_MESSAGE)
    assert (request.data, request.batch) == (b"\x00\x00\x00\x03a=bone", b"")
    limit = 1024 * 1024
    large = PackedMessages(
        topic="demo", body=encode_batch_item(b"x" * limit * 2, b""), count=1, alone=True
    )  # fmt: skip
    (error,) = await send_packed(producer, [large])
    assert isinstance(error, UsageError)
    assert f"the limit is {limit}" in error.text
    assert producer.in_flight == 0
