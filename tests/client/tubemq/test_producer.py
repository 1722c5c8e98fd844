"""What a producer sends, to which partitions, how much at once, and what it hears of it."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime

import pytest

from coherer._client.tubemq.cluster import Cluster
from coherer._client.tubemq.producer import Producer, pack
from coherer._wire.tubemq import codes, methods
from coherer._wire.tubemq.codes import ResultCode
from coherer.errors import ClosedError, ForkedError, RefusedError, UsageError, WindowFullError
from coherer.message import Message, Receipt
from tests.client.tube_clients import message, quick


async def test_one_message(fake, producer: Producer) -> None:
    receipt = await producer.send(message(b"hello", tag="UA", properties={"a": "b"}))
    assert receipt == Receipt("77", "demo", "1", receipt.partition, 0, 1_700_000_000_000)
    [request] = fake.asked(methods.SEND_MESSAGE)
    assert (request.data, request.flag) == (b"\x00\x00\x00\x10$msgType$=UA,a=bhello", 1)
    assert request.msgType == "UA"
    assert request.checkSum == -1
    assert request.authInfo.visitAuthorizedToken == 4711
    assert request.sentAddr == 0x7F000001


async def test_what_the_master_is_told(fake, way: Cluster) -> None:
    async with Producer(way, ["demo"]):
        [register] = fake.asked(methods.PRODUCER_REGISTER)
        [beat] = fake.asked(methods.PRODUCER_HEARTBEAT)
    assert register.brokerCheckSum == -1
    assert register.hostName == "127.0.0.1"
    assert register.appdConfig.configId == -2
    assert not register.HasField("authInfo")
    assert (beat.brokerCheckSum, list(beat.topicList)) == (7, ["demo"])
    assert beat.appdConfig.configId == 3
    assert [close.clientId for close in fake.asked(methods.PRODUCER_CLOSE)] == [register.clientId]


async def test_partitions_are_taken_in_turn(fake, producer: Producer) -> None:
    receipts = [await producer.send(message()) for _ in range(6)]
    assert sorted(receipt.partition for receipt in receipts) == [0, 0, 1, 1, 2, 2]
    assert receipts[0].partition == receipts[3].partition


async def test_a_topic_is_published_at_its_first_message(fake, way: Cluster) -> None:
    fake.topics["other"] = 1
    async with Producer(way) as producer:
        assert producer.topics == frozenset()
        assert (await producer.send(message(topic="other"))).topic == "other"
        report = await producer.send_many([message(), message(topic="other")])
        assert report.sent == 2
        assert producer.topics == {"demo", "other"}


async def test_a_topic_without_partitions(fake, way: Cluster) -> None:
    way = quick(fake, timeout_ms=200)
    with pytest.raises(RefusedError) as caught:
        async with Producer(way, ["nowhere"]):
            pass
    assert caught.value.code == ResultCode.PARAMETER_MSG_TOPIC_NO_PARTITION
    assert (caught.value.topic, "exist" in caught.value.hint) == ("nowhere", True)
    assert fake.asked(methods.PRODUCER_CLOSE)
    await way.pool.close()


async def test_a_topic_that_appears_while_waiting(fake, way: Cluster) -> None:
    async with Producer(way) as producer:
        task = asyncio.ensure_future(producer.send(message(topic="late")))
        await fake.until(lambda: len(fake.asked(methods.PRODUCER_HEARTBEAT)) >= 2)
        fake.topics["late"] = 1
        assert (await task).topic == "late"


@pytest.mark.parametrize(
    ("bad", "code"),
    [
        (message(b""), ResultCode.PARAMETER_MSG_BODY_EMPTY),
        (message(b"x" * (1024 * 1024 + 1)), ResultCode.PARAMETER_MSG_OVER_MAX_LENGTH),
        (message(b"x" * 1024 * 1024, tag="t"), ResultCode.PARAMETER_MSG_OVER_MAX_LENGTH),
        (message(topic=" "), ResultCode.PARAMETER_MSG_TOPIC_BLANK),
        (message(tag="a,b"), None),
        (message(keys=("k",)), None),
        (message("text"), None),
        (message(tag=7), None),
        (message(time="now"), None),
        (message(properties={"a": 1}), None),
    ],
)
async def test_what_cannot_be_sent(
    fake, producer: Producer, bad: Message, code: int | None
) -> None:
    with pytest.raises(UsageError) as caught:
        await producer.send(bad)
    assert caught.value.code == code
    assert caught.value.topic == (bad.topic.strip() or None)
    assert "attribute '" not in str(caught.value), "Python's own words help nobody"
    assert producer.in_flight == 0
    assert not fake.asked(methods.SEND_MESSAGE)


async def test_as_much_as_the_limit(fake, producer: Producer) -> None:
    await producer.send(message(b"x" * 1024 * 1024))
    assert len(fake.asked(methods.SEND_MESSAGE)[0].data) == 1024 * 1024


def test_a_time_goes_into_field_and_attributes() -> None:
    parcel = pack(message(time=datetime(2024, 1, 2, 3, 4, tzinfo=UTC)), 1024)
    assert parcel.time == "202401020304"
    assert b"$msgTime$=202401020304" in parcel.data


async def test_submit_with_a_callback(fake, kit, producer: Producer) -> None:
    outcomes = []
    fake.script(methods.SEND_MESSAGE, kit.handlers[methods.SEND_MESSAGE], kit.refuse(403))
    assert producer.submit(message(), callback=outcomes.append) is None
    producer.submit(message(), callback=outcomes.append)
    producer.submit(message(), callback=lambda outcome: 1 / 0)
    await producer.flush()
    assert [type(outcome) for outcome in outcomes] == [Receipt, codes.ForbiddenError]


async def test_submit_of_a_topic_that_is_not_published(fake, producer: Producer) -> None:
    with pytest.raises(UsageError, match="publish") as caught:
        producer.submit(message(topic="other"))
    assert caught.value.code == ResultCode.PARAMETER_MSG_TOPIC_UNPUBLISHED


async def test_a_window(fake, kit, way: Cluster) -> None:
    late = []
    fake.always(methods.SEND_MESSAGE, late.append)
    async with Producer(way, ["demo"], window=2) as producer:
        await producer.ready()
        futures = [producer.submit(message()), producer.submit(message())]
        assert producer.in_flight == producer.window == 2
        with pytest.raises(WindowFullError):
            producer.submit(message())
        ready = asyncio.ensure_future(producer.ready())
        await fake.until(lambda: len(late) == 2)
        assert not ready.done()
        kit.handlers[methods.SEND_MESSAGE](late[0])
        await ready
        assert producer.in_flight == 1
        kit.handlers[methods.SEND_MESSAGE](late[1])
        assert len(await asyncio.gather(*futures)) == 2


async def test_a_window_of_bytes(fake, way: Cluster) -> None:
    async with Producer(way, ["demo"], window_bytes=1_500) as producer:
        producer.submit(message(b"x" * 1_000))
        producer.submit(message(b"x" * 1_000))
        with pytest.raises(WindowFullError, match="2000 bytes"):
            producer.submit(message())
        await producer.ready()
        report = await producer.send_many(message(b"x" * 1_000) for _ in range(20))
        assert report.sent == 20


async def test_many(fake, way: Cluster) -> None:
    async with Producer(way, ["demo"], window=50) as producer:
        report = await producer.send_many(message(b"%d" % n) for n in range(1_000))
        assert (report.sent, report.failed, report.receipts) == (1_000, [], [])
        report.check()
    stored = [data for log in fake.logs.values() for data, _, _ in log]
    assert sorted(map(int, stored)) == list(range(1_000))


async def test_many_with_failures(fake, kit, producer: Producer) -> None:
    fake.script(methods.SEND_MESSAGE, kit.refuse(500, "disk on fire"))
    messages = [message(b"1"), message(b""), message(b"2"), message(b"3")]
    report = await producer.send_many(messages, receipts=True)
    assert report.sent == len(report.receipts) == 2
    assert {failed.body for failed, _ in report.failed} == {b"", b"1"}
    assert "2 failed" in repr(report)
    with pytest.raises(UsageError):
        report.check()


async def test_life_and_death(fake, way: Cluster) -> None:
    producer = Producer(way, ["demo"])
    with pytest.raises(UsageError, match="async with"):
        producer.submit(message())
    await producer.start()
    with pytest.raises(UsageError, match="once"):
        await producer.start()
    assert "0 in flight" in repr(producer)
    future = producer.submit(message())
    await producer.close()
    assert future.result().topic == "demo"
    await producer.close()
    with pytest.raises(ClosedError):
        await producer.send(message())
    assert len(fake.asked(methods.PRODUCER_CLOSE)) == 1


async def test_a_fork(forked, producer: Producer) -> None:
    with forked(), pytest.raises(ForkedError):
        producer.submit(message())


def test_a_window_has_limits(way: Cluster) -> None:
    for window in (0, 300_001):
        with pytest.raises(UsageError):
            Producer(way, window=window)
    with pytest.raises(UsageError):
        Producer(way, window_bytes=0)
