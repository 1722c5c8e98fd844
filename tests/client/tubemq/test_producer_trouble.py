"""Producers, and masters and brokers that are away, busy, refuse, or lose what was sent."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from coherer._client.engine.sender import FutureSink
from coherer._client.tubemq.cluster import ClientOptions, Cluster
from coherer._client.tubemq.producer import Producer, pack
from coherer._client.tubemq.sender import PendingSend
from coherer._wire.tubemq import codes, methods
from coherer._wire.tubemq import messages as pb
from coherer._wire.tubemq.codes import ResultCode
from coherer._wire.tubemq.names import BrokerInfo, TopicInfo
from coherer.errors import (
    ClosedError,
    ConnectError,
    DisconnectedError,
    ProtocolError,
    RequestTimeoutError,
    UnavailableError,
    UsageError,
)
from coherer.message import Receipt
from tests.client.tube_clients import message, quick


async def test_nobody_there() -> None:
    way = Cluster(ClientOptions(addresses=(("127.0.0.1", 1),), timeout_ms=100))
    producer = Producer(way, ["demo"])
    with pytest.raises(ConnectError):
        await producer.start()
    await way.pool.close()


async def test_the_broker_cannot_be_reached(fake, kit) -> None:
    way = quick(fake, timeout_ms=1_000)
    fake.brokers = [BrokerInfo(1, "127.0.0.1", 1)]
    with pytest.raises(ConnectError) as caught:
        await Producer(way, ["demo"]).start()
    assert caught.value.server == "127.0.0.1:1"
    await way.pool.close()


async def test_refusals_are_errors_with_a_place(fake, kit, producer: Producer) -> None:
    fake.script(methods.SEND_MESSAGE, kit.refuse(403, "closed topic"))
    with pytest.raises(codes.ForbiddenError) as caught:
        await producer.send(message())
    error = caught.value
    assert (error.topic, error.server) == ("demo", f"127.0.0.1:{fake.broker.port}")
    assert (error.text, error.partition in {0, 1, 2}, bool(error.hint)) == (
        "closed topic",
        True,
        True,
    )
    assert producer.in_flight == 0


async def test_a_full_cache_gets_its_messages_later(
    fake, kit, producer: Producer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("coherer._client.engine.sender.BUSY_PAUSES_S", (0, 0))
    fake.script(methods.SEND_MESSAGE, *(kit.refuse(419, "overflow") for _ in range(7)))
    report = await producer.send_many(message(b"%d" % n) for n in range(5))
    assert (report.sent, report.failed) == (5, [])
    asked = fake.asked(methods.SEND_MESSAGE)
    assert (len(asked), len({request.data for request in asked})) == (12, 5)


@pytest.mark.parametrize(
    ("text", "timeout_ms"),
    [("overflow", 50), ("The store of the broker is full. 0 bytes are free.", 10_000)],
    ids=["late", "disk full"],
)
async def test_a_full_broker_is_not_asked_again(fake, kit, text: str, timeout_ms: int) -> None:
    fake.always(methods.SEND_MESSAGE, kit.refuse(419, text))
    async with Producer(quick(fake), ["demo"], timeout_ms=timeout_ms) as producer:
        with pytest.raises(codes.ServerOverflowError):
            await producer.send(message())
        assert producer.in_flight == 0
    assert len(fake.asked(methods.SEND_MESSAGE)) == 1


@pytest.mark.parametrize("body", [b"", b"\x08\x01\x10\xc8\x01", b"\x08\x01\x10\xc8\x01\xff"])
async def test_an_answer_that_makes_no_sense(fake, kit, producer: Producer, body: bytes) -> None:
    fake.script(
        methods.SEND_MESSAGE,
        lambda asked: asked.connection.write(asked.session.reply_raw(asked.request, body)),
    )
    with pytest.raises(ProtocolError, match="may or may not"):
        await producer.send(message())
    assert producer.in_flight == 0
    assert await producer.send(message())


async def test_a_busy_broker_is_left_out(fake, kit, way: Cluster) -> None:
    second = await fake.listen()
    fake.brokers.append(BrokerInfo(2, "127.0.0.1", second.port))
    async with Producer(way, ["demo"]) as producer:
        await producer.publish("demo")
        first = await producer.send(message())
        fake.script(methods.SEND_MESSAGE, kit.refuse(503))
        with pytest.raises(codes.ServiceUnavailableError) as caught:
            await producer.send(message())
        busy = "1" if caught.value.server.endswith(str(fake.broker.port)) else "2"
        receipts = [await producer.send(message()) for _ in range(12)]
        assert first.broker in {"1", "2"}
        assert {receipt.broker for receipt in receipts} == {"2" if busy == "1" else "1"}


async def test_the_only_broker_is_not_left_out(fake, kit, producer: Producer) -> None:
    fake.script(methods.SEND_MESSAGE, kit.refuse(503))
    with pytest.raises(codes.ServiceUnavailableError):
        await producer.send(message())
    assert (await producer.send(message())).broker == "1"


async def test_no_receipt_in_time(
    fake, kit, producer: Producer, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(producer, "_timeout_ms", 50)  # the start has had its time
        fake.script(methods.SEND_MESSAGE, kit.silence)
        with pytest.raises(RequestTimeoutError, match="may or may not be stored") as caught:
            await producer.send(message())
    assert caught.value.topic == "demo"
    await producer.send(message())


async def test_a_lost_connection_fails_what_is_under_way_and_is_made_again(
    fake, kit, producer: Producer
) -> None:
    fake.script(methods.SEND_MESSAGE, kit.silence, kit.silence, kit.hang_up)
    futures = [producer.submit(message()) for _ in range(3)]
    results = await asyncio.gather(*futures, return_exceptions=True)
    assert [type(result) for result in results] == [DisconnectedError] * 3
    assert "not sent again" in str(results[0])
    assert (await producer.send(message())).offset == 0
    assert len(fake.asked(methods.SEND_MESSAGE)) == 4


async def test_messages_wait_for_a_broker_that_restarts(
    fake, way: Cluster, producer: Producer
) -> None:
    port = fake.broker.port
    gone = asyncio.Event()
    way.pool.find("127.0.0.1", port).when_closed(gone.set)
    await fake.broker.close(timeout_ms=0)
    await gone.wait()
    sends = [asyncio.ensure_future(producer.send(message())) for _ in range(5)]
    await asyncio.sleep(0)
    fake.broker = await fake.listen(port)
    assert len({(await send).partition for send in sends}) == 3


async def test_idle_connections_come_back_when_there_is_something_to_send(
    fake, way: Cluster
) -> None:
    second = await fake.listen()
    fake.brokers.append(BrokerInfo(2, "127.0.0.1", second.port))
    async with Producer(way, ["demo"]) as producer:
        await producer.send_many(message() for _ in range(6))
        for broker in fake.brokers:
            link = way.pool.find("127.0.0.1", broker.port)
            link.retired = True
            await link.close()
        assert not any(way.pool.find("127.0.0.1", broker.port) for broker in fake.brokers)
        used = set()
        while used != {"1", "2"}:
            used.add((await producer.send(message())).broker)


async def test_messages_do_not_wait_for_ever(fake) -> None:
    way = quick(fake)
    async with Producer(way, ["demo"]) as producer:
        await fake.broker.close(timeout_ms=0)
        with pytest.raises(UnavailableError, match="not sent") as caught:
            await producer.send(message())
        assert caught.value.partition in {0, 1, 2}
    await way.pool.close()


async def test_a_second_broker_takes_what_the_first_cannot(fake, way: Cluster) -> None:
    second = await fake.listen()
    fake.brokers.append(BrokerInfo(2, "127.0.0.1", second.port))
    async with Producer(way, ["demo"]) as producer:
        await asyncio.gather(*(producer.send(message()) for _ in range(6)))
        await second.close(timeout_ms=0)
        report = await producer.send_many([message() for _ in range(20)], receipts=True)
        assert {receipt.broker for receipt in report.receipts} <= {"1", "2"}
        assert report.sent + len(report.failed) == 20
        report = await producer.send_many([message() for _ in range(20)], receipts=True)
        assert {receipt.broker for receipt in report.receipts} == {"1"}


async def test_the_master_has_forgotten_us(fake, way: Cluster) -> None:
    async with Producer(way, ["demo"]) as producer:
        fake.producers.clear()
        fake.topics["other"] = 1
        await producer.publish("other")
        first, second = fake.asked(methods.PRODUCER_REGISTER)
        assert first.clientId == second.clientId
        assert list(second.topicList) == ["demo", "other"]


@pytest.mark.parametrize("forgotten", [True, False])
async def test_a_producer_that_is_closed_while_it_publishes(fake, kit, forgotten: bool) -> None:
    """It registered again, or connected to brokers, and nobody undid that."""
    way = quick(fake, timeout_ms=5_000)
    fake.topics["later"] = 1
    producer = Producer(way, ["demo"])
    await producer.start()
    held: list[Any] = []
    fake.always(methods.PRODUCER_HEARTBEAT, held.append)
    publishing = asyncio.create_task(producer.publish("later"))
    await fake.until(lambda: held)
    await producer.close()
    fake.always(methods.PRODUCER_HEARTBEAT, None)
    if forgotten:
        held[0].refuse(ResultCode.HB_NO_NODE)
    else:
        kit.handlers[methods.PRODUCER_HEARTBEAT](held[0])
    with pytest.raises(ClosedError):
        await publishing
    assert len(fake.asked(methods.PRODUCER_REGISTER)) == 1
    assert not [one for one in asyncio.all_tasks() if "connect to" in one.get_name()]
    await way.pool.close()


async def test_the_next_master_takes_over(fake, kit) -> None:
    second = await fake.listen()
    ports = sorted([fake.master.port, second.port])
    way = Cluster(
        ClientOptions(addresses=tuple(("127.0.0.1", port) for port in ports), timeout_ms=2_000)
    )
    fake.script(methods.PRODUCER_REGISTER, kit.standby)
    async with Producer(way, ["demo"]):
        assert way.masters.server == f"127.0.0.1:{ports[1]}"
        fake.script(methods.PRODUCER_HEARTBEAT, kit.standby)
        fake.topics["other"] = 1
        producer = Producer(way, ["other"])
        await producer.start()
        assert way.masters.server == f"127.0.0.1:{ports[0]}"
        await producer.close()
    await way.pool.close()


async def test_all_masters_sleep(fake, kit) -> None:
    way = quick(fake, timeout_ms=100)
    fake.always(methods.PRODUCER_REGISTER, kit.standby)
    with pytest.raises(UnavailableError, match="sleeps"):
        await Producer(way, ["demo"]).start()
    await way.pool.close()


async def test_the_list_of_brokers_changes(fake, way: Cluster) -> None:
    fake.topics["other"] = 1
    async with Producer(way, ["demo"]) as producer:
        second = await fake.listen()
        fake.brokers = [BrokerInfo(2, "127.0.0.1", second.port)]
        fake.check_sum = 8
        await producer.publish("other")
        assert {(await producer.send(message())).broker for _ in range(4)} == {"2"}


async def test_a_topic_that_goes_away(fake, way: Cluster) -> None:
    fake.topics["other"] = 1
    async with Producer(way, ["demo"]) as producer:
        del fake.topics["demo"]
        await producer.publish("other")
        with pytest.raises(UnavailableError) as caught:
            await producer.send(message())
        assert caught.value.code == ResultCode.PARAMETER_MSG_TOPIC_NO_PARTITION


async def test_credentials(fake) -> None:
    way = quick(fake, user="ann", password="secret")
    async with Producer(way, ["demo"]) as producer:
        await producer.send(message())
    [register] = fake.asked(methods.PRODUCER_REGISTER)
    assert register.authInfo.authInfo.userName == "ann"
    assert register.authInfo.authInfo.signature
    [send] = fake.asked(methods.SEND_MESSAGE)
    assert send.authInfo.authAuthorizedToken.split()[0] == "ann"
    [close] = fake.asked(methods.PRODUCER_CLOSE)
    assert close.authInfo.authInfo.userName == "ann"
    assert "secret" not in repr(way.options)
    await way.pool.close()


async def test_heartbeats_keep_the_registration_alive(fake, kit) -> None:
    way = quick(fake, heartbeat_ms=10)
    async with Producer(way, ["demo"]) as producer:
        fake.script(methods.PRODUCER_HEARTBEAT, kit.hang_up, kit.refuse(500), kit.standby)
        await fake.until(lambda: not fake.scripted(methods.PRODUCER_HEARTBEAT))
        fake.producers.clear()
        await fake.until(lambda: fake.producers)
        fake.topics["demo"] = 1
        count = len(fake.asked(methods.PRODUCER_HEARTBEAT))
        await fake.until(lambda: len(fake.asked(methods.PRODUCER_HEARTBEAT)) > count + 1)
        assert {(await producer.send(message())).partition for _ in range(4)} == {0}
    await way.pool.close()


async def test_heartbeats_without_news_cost_nothing_per_topic(
    fake, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[str] = []
    parse = TopicInfo.parse
    monkeypatch.setattr(TopicInfo, "parse", lambda text: read.append(text) or parse(text))
    way = quick(fake, heartbeat_ms=5)

    async def beats() -> None:
        count = len(fake.asked(methods.PRODUCER_HEARTBEAT))
        await fake.until(lambda: len(fake.asked(methods.PRODUCER_HEARTBEAT)) > count + 3)

    async with Producer(way, ["demo"]) as producer:
        await beats()
        assert len(read) == 1
        fake.topics["demo"] = 1
        await beats()
        assert len(read) == 2
        assert {(await producer.send(message())).partition for _ in range(4)} == {0}
    await way.pool.close()


async def test_a_master_that_refuses_our_credentials_is_asked_less_often(
    fake, kit, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("coherer._client.tubemq.publisher.REFUSED_PAUSE_MS", 3_600_000)
    way = quick(fake, heartbeat_ms=5)
    async with Producer(way, ["demo"]) as producer:
        before = len(fake.asked(methods.PRODUCER_HEARTBEAT))
        fake.always(methods.PRODUCER_HEARTBEAT, kit.refuse(415))
        await fake.until(lambda: len(fake.asked(methods.PRODUCER_HEARTBEAT)) == before + 6)
        await asyncio.sleep(0.02)
        assert len(fake.asked(methods.PRODUCER_HEARTBEAT)) == before + 6
        assert await producer.send(message())
    await way.pool.close()


async def test_what_the_master_says_about_sizes_and_readiness(fake, kit, way: Cluster) -> None:
    handler = kit.handlers[methods.PRODUCER_HEARTBEAT]

    def limited(asked) -> None:
        asked.answer(
            brokerCheckSum=7,
            topicInfos=["demo#1:3:1#2000", "large#1:3:1#"],
            appdConfig=pb.ApprovedClientConfig(configId=4, maxMsgSize=5),
        )

    def not_ready(asked) -> None:
        asked.answer(errCode=201, brokerCheckSum=9, topicInfos=[], brokerInfos=["3:h:1"])

    fake.script(methods.PRODUCER_HEARTBEAT, not_ready, limited, handler)
    async with Producer(way, ["demo", "large"]) as producer:
        assert (await producer.send(message(b"x" * 1024 * 1024, "large"))).broker == "1"
        with pytest.raises(UsageError, match="limit is 1048576"):  # never below
            await producer.send(message(b"x" * (1024 * 1024 + 1), "large"))
        assert await producer.send(message(b"x" * 2000))
        with pytest.raises(UsageError, match="2001 bytes"):
            await producer.send(message(b"x" * 2001))


async def test_messages_that_cannot_leave_go_elsewhere(fake, kit, way: Cluster) -> None:
    second = await fake.listen()
    fake.brokers.append(BrokerInfo(2, "127.0.0.1", second.port))
    async with Producer(way, ["demo"]) as producer:
        await asyncio.gather(*(producer.send(message()) for _ in range(6)))
        senders = {sender.broker.id: sender for sender in producer._senders.values()}
        await second.close(timeout_ms=0)
        await asyncio.sleep(0)
        target = next(one for one in producer._targets.values() if one.sender is senders[2])
        parcel = pack(message(), 100)
        future: asyncio.Future[Receipt] = asyncio.get_running_loop().create_future()
        senders[2]._link = None  # the sender does not know yet that it is gone
        producer._window.take(1)
        deadline = asyncio.get_running_loop().time() + 10
        senders[2].post(PendingSend(target, message(), FutureSink(future), deadline, 1, parcel))
        assert (await future).broker == "1"
    assert producer.in_flight == 0


async def test_signatures_are_renewed(fake, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("coherer._client.tubemq.producer.TICK_MS", 5)
    way = quick(fake, user="ann", password="secret")
    async with Producer(way, ["demo"]) as producer:
        seen: set[str] = set()
        while len(seen) < 3:
            await producer.send(message())
            request = fake.asked(methods.SEND_MESSAGE)[-1]
            seen.add(request.authInfo.authAuthorizedToken)
    await way.pool.close()
