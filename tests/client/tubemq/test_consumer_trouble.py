"""Consumers, and brokers and masters that are silent, refuse, or have forgotten them."""

from __future__ import annotations

import asyncio
import logging
from datetime import timedelta
from typing import Any

import pytest

from coherer._client.tubemq.cluster import ClientOptions, Cluster
from coherer._client.tubemq.consumer import Consumer
from coherer._client.tubemq.membership import QUICK_HEARTBEATS, Membership, Subscription
from coherer._wire.tubemq import codes, methods
from coherer._wire.tubemq import messages as pb
from coherer._wire.tubemq.payload import checksum
from coherer.errors import ConnectError, RefusedError
from tests.client.tube_clients import GROUP, consumer_of, one
from tests.waiting import until


async def test_heartbeats_to_brokers(fake, way: Cluster) -> None:
    way = Cluster(ClientOptions(addresses=way.options.addresses, heartbeat_ms=20))
    async with consumer_of(way) as consumer:
        await consumer.wait_assigned(2_000)
        await fake.until(
            lambda: any(len(r.partitionInfo) == 3 for r in fake.asked(methods.PARTITION_HEARTBEAT))
        )
        del fake.holders[GROUP, "demo", 1]
        await fake.until(lambda: (GROUP, "demo", 1) in fake.holders)
    await way.pool.close()


async def test_a_broker_that_does_not_answer_heartbeats_is_dialled_again(
    fake, kit, way: Cluster
) -> None:
    way = Cluster(ClientOptions(addresses=way.options.addresses, heartbeat_ms=20, timeout_ms=50))
    async with consumer_of(way) as consumer:
        await consumer.wait_assigned(2_000)
        fake.script(methods.PARTITION_HEARTBEAT, kit.silence)
        before = way.pool.find("127.0.0.1", fake.broker.port)
        await fake.until(lambda: not before.open)
        fake.put("demo", 0, b"a")
        assert (await one(consumer)).bodies() == [b"a"]
    await way.pool.close()


async def test_a_broker_that_refuses_our_credentials(fake, kit, way: Cluster) -> None:
    way = Cluster(ClientOptions(addresses=way.options.addresses, heartbeat_ms=20))
    went = []
    async with consumer_of(way, on_revoked=went.append) as consumer:
        await consumer.wait_assigned(2_000)
        fake.balances = False
        fake.script(methods.PARTITION_HEARTBEAT, kit.refuse(500), kit.refuse(415))
        await fake.until(
            lambda: any(
                beat.reportSubscribeInfo and not beat.subscribeInfo
                for beat in fake.asked(methods.CONSUMER_HEARTBEAT)[2:]
            )
        )
        assert not consumer.assignment
        assert frozenset().union(*went) == set(fake.partitions("demo"))
    await way.pool.close()


async def test_a_broker_that_is_silent_for_too_long(
    fake, way: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("coherer._client.tubemq.fetching.LOST_MS", 30)
    async with consumer_of(way) as consumer:
        await consumer.wait_assigned(2_000)
        await fake.until(lambda: fake.asked(methods.CONSUMER_HEARTBEAT)[-1].reportSubscribeInfo)
        fake.balances = False
        await fake.broker.close(timeout_ms=0)
        count = len(fake.asked(methods.CONSUMER_HEARTBEAT))
        await fake.until(
            lambda: any(
                beat.reportSubscribeInfo and not beat.subscribeInfo
                for beat in fake.asked(methods.CONSUMER_HEARTBEAT)[count:]
            )
        )
        assert not consumer.assignment
        assert [type(error) for error in consumer.errors] == [ConnectError]
        await fake.master.close(timeout_ms=0)
        await until(lambda: len(consumer.errors) == 2)


async def test_the_master_has_forgotten_us(fake, consumer: Consumer) -> None:
    await fake.until(lambda: fake.asked(methods.CONSUMER_HEARTBEAT)[-1].reportSubscribeInfo)
    fake.groups.clear()
    await fake.until(lambda: len(fake.asked(methods.CONSUMER_REGISTER)) == 2)
    again = fake.asked(methods.CONSUMER_REGISTER)[-1]
    assert len(again.subscribeInfo) == 3
    fake.put("demo", 0, b"a")
    assert (await one(consumer)).bodies() == [b"a"]


@pytest.mark.parametrize("code", [424, 425, 426, 450, 455, 415, 400])
async def test_a_refusal_for_good(fake, kit, way: Cluster, code: int) -> None:
    fake.script(methods.CONSUMER_REGISTER, kit.refuse(code))
    with pytest.raises(RefusedError) as caught:
        await consumer_of(way).start()
    assert (type(caught.value), len(fake.asked(methods.CONSUMER_REGISTER))) == (
        codes.ERRORS[code],
        1,
    )


async def test_a_refusal_that_passes(fake, way: Cluster) -> None:
    start = asyncio.ensure_future(consumer_of(way, "late").__aenter__())
    await fake.until(lambda: fake.asked(methods.CONSUMER_REGISTER))
    fake.topics["late"] = 1
    consumer = await start
    await consumer.wait_assigned(2_000)
    await consumer.close()


async def test_a_refusal_later_reaches_who_waits(fake, kit, consumer: Consumer) -> None:
    waiting = asyncio.ensure_future(consumer.receive())
    fake.groups.clear()
    fake.script(methods.CONSUMER_REGISTER, kit.refuse(425, "other topics"))
    with pytest.raises(codes.TopicSetError, match="other topics"):
        await waiting


async def test_credentials_may_be_refused_for_a_while(fake, kit, way: Cluster) -> None:
    fake.extra = {"heartbeatMs": 10}
    async with consumer_of(way) as consumer:
        await consumer.wait_assigned(2_000)
        fake.script(methods.CONSUMER_HEARTBEAT, *[kit.refuse(415)] * 5)
        await fake.until(lambda: not fake.scripted(methods.CONSUMER_HEARTBEAT))
        fake.put("demo", 0, b"a")
        assert await one(consumer)
        fake.always(methods.CONSUMER_HEARTBEAT, kit.refuse(415))
        with pytest.raises(codes.CertificateError):
            await consumer.receive()


async def test_a_start_that_is_broken_off_leaves_the_group(fake, kit, way: Cluster) -> None:
    registered = kit.handlers[methods.CONSUMER_REGISTER]
    fake.script(methods.CONSUMER_REGISTER, kit.refuse(431), registered)
    await way.pool.get("127.0.0.1", fake.master.port)
    task = asyncio.ensure_future(consumer_of(way).start())
    await fake.until(lambda: fake.groups[GROUP])
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    if task.cancelled():
        await fake.until(lambda: not fake.groups[GROUP])


async def test_nobody_there() -> None:
    way = Cluster(ClientOptions(addresses=(("127.0.0.1", 1),), timeout_ms=100))
    with pytest.raises(ConnectError):
        await consumer_of(way).start()
    await way.pool.close()


async def test_empty_packages_and_other_answers(fake, kit, way: Cluster) -> None:
    fake.topics["demo"] = 1
    fake.put("demo", 0, b"a")
    fake.script(
        methods.GET_MESSAGES,
        lambda asked: asked.answer(currOffset=0, maxOffset=1, currDataDlt=1),
        kit.refuse(404),
        kit.refuse(301),
        kit.refuse(452, minLimitTime=1),
        lambda asked: asked.fail("java.lang.Exception", "oops"),
    )
    async with consumer_of(way) as consumer:
        assert (await one(consumer)).bodies() == [b"a"]
    assert len(fake.asked(methods.GET_MESSAGES)) >= 6


def answered(*bodies: bytes, **fields: Any):
    """An answer with messages; those that say `bad` are damaged."""

    def step(asked: Any) -> None:
        transfers = [
            pb.TransferedMessage(
                messageId=number,
                checkSum=checksum(body) ^ (body == b"bad"),
                payLoadData=body,
                flag=0,
            )
            for number, body in enumerate(bodies)
        ]
        asked.answer(messages=transfers, maxOffset=9, currDataDlt=1, **fields)

    return step


@pytest.mark.parametrize("ours", [True, False])
async def test_what_cannot_be_delivered_is_passed_and_told_once(
    fake, way: Cluster, caplog: pytest.LogCaptureFixture, ours: bool
) -> None:
    fake.topics["demo"] = 1
    fake.ours = ours
    fake.script(
        methods.GET_MESSAGES,
        answered(b"bad", b"bad", currOffset=0),
        answered(b"bad", b"good", currOffset=2),
        answered(currOffset=4),
        answered(b"more", currOffset=4),
    )
    with caplog.at_level(logging.WARNING):
        async with consumer_of(way) as consumer:
            batch = await one(consumer)
            assert batch.bodies() == [b"good"]
            assert [message.offset for message in batch] == [3 if ours else None]
            [progress] = consumer.progress.values()
            assert progress.left_out == 3
            await batch.retry(later=timedelta(0))
            (await one(consumer)).ack()
            await fake.until(lambda: len(fake.asked(methods.GET_MESSAGES)) >= 4)
    gets = [get.lastPackConsumed for get in fake.asked(methods.GET_MESSAGES)[:4]]
    # Of an empty package, a broker of ours wants to hear that it is confirmed.
    assert gets == [False, True, True, ours]
    told = [text for text in caplog.messages if "cannot be delivered" in text]
    assert len(told) == 2
    if ours:
        assert "2 messages (offsets 0 to 1)" in told[0]
        assert "1 message (offset 2)" in told[1]


async def test_flow_rules_of_the_master(fake, way: Cluster) -> None:
    rule = '[{"type":3,"rule":[{"normFreqInMs":7,"filterFreqInMs":8,"minDataFilterFreqInMs":9}]}]'
    fake.extra = {
        "groupFlowCheckId": 5,
        "groupFlowControlInfo": rule,
        "defFlowCheckId": -2,
        "defFlowControlInfo": " ",
    }
    subscription = Subscription(group=GROUP, topics={"demo": frozenset()})
    membership = Membership(way, subscription, lambda instruction: None, lambda: None)
    await membership.start()
    low = membership.group_rules.low_fetch
    assert (low.pause_ms, low.filter_pause_ms, low.end_pause_ms) == (7, 8, 9)
    membership.begin()
    await fake.until(lambda: fake.asked(methods.CONSUMER_HEARTBEAT))
    assert fake.asked(methods.CONSUMER_HEARTBEAT)[0].groupFlowCheckId == 5
    await membership.stop()


async def test_how_often_the_master_wants_to_hear_from_us(fake, way: Cluster) -> None:
    fake.extra = {"heartbeatMs": 5}
    async with consumer_of(way) as consumer:
        await consumer.wait_assigned(2_000)
        count = len(fake.asked(methods.CONSUMER_HEARTBEAT))
        enough = count + QUICK_HEARTBEATS + 8  # the quick ones do not depend on the master
        await fake.until(lambda: len(fake.asked(methods.CONSUMER_HEARTBEAT)) >= enough)
        reports = [beat.reportSubscribeInfo for beat in fake.asked(methods.CONSUMER_HEARTBEAT)]
        assert any(reports[count:])
        assert not all(reports[count:])
