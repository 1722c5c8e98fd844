from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from coherer._client.rocketmq.client import Client
from coherer._client.rocketmq.faults import FaultRules
from coherer._record import properties as text
from coherer._record.batches import decode_batch
from coherer._server.node.node import Node
from coherer._wire.rocketmq.bodies import TopicRoute
from coherer._wire.rocketmq.codes import RequestCode, SystemBusyError
from coherer._wire.rocketmq.names import Queue
from coherer.errors import (
    ClosedError,
    ConnectError,
    DisconnectedError,
    RefusedError,
    RequestTimeoutError,
    UnavailableError,
    UsageError,
    WindowFullError,
)
from coherer.message import Message
from coherer.rocketmq import connect as connect_rocketmq
from tests.server.node_harness import options

SEND = RequestCode.SEND_MESSAGE_V2
BATCH = RequestCode.SEND_BATCH_MESSAGE


def properties(asked) -> dict[str, str]:
    return text.decode(asked.send.properties.encode())


async def test_a_message_and_its_receipt(cluster, client: Client) -> None:
    message = Message(
        "demo",
        b"hello",
        tag="UA",
        keys=("k1", "k2"),
        time=datetime(2013, 1, 1, 5, 15, tzinfo=UTC),
        properties={"flight": "1545"},
    )
    async with client.producer("demo", group="planes") as producer:
        receipt = await producer.send(message)
    [asked] = cluster.asked(SEND)
    assert bytes(asked.request.body) == b"hello"
    assert (asked.send.producer_group, asked.send.topic) == ("planes", "demo")
    assert properties(asked) == {
        "UNIQ_KEY": receipt.unique_id,
        "TAGS": "UA",
        "KEYS": "k1 k2",
        "$msgTime$": "201301010515",
        "flight": "1545",
    }
    assert receipt.id == "7F00000100002A9F0000000000000001"
    assert (receipt.topic, receipt.broker, receipt.offset) == ("demo", "broker-a", 0)
    assert receipt.partition == asked.send.queue_id
    assert (receipt.status, receipt.region) == ("SEND_OK", "DefaultRegion")


async def test_stored_less_safely_is_stored(cluster, client: Client) -> None:
    fields = {"msgId": "7F", "queueId": "0", "queueOffset": "5"}
    cluster.script(SEND, lambda asked: asked.answer(11, None, fields))
    async with client.producer("demo") as producer:
        receipt = await producer.send(Message("demo", b"x"))
    assert (receipt.status, receipt.offset) == ("SLAVE_NOT_AVAILABLE", 5)


async def test_queues_are_used_round_robin(cluster, client: Client) -> None:
    async with client.producer("demo") as producer:
        for _ in range(8):
            await producer.send(Message("demo", b"x"))
    ids = [asked.send.queue_id for asked in cluster.asked(SEND)]
    assert sorted(ids[:4]) == [0, 1, 2, 3]
    assert ids[:4] == ids[4:]


async def test_messages_of_a_key_go_to_one_queue(cluster, client: Client) -> None:
    async with client.producer("demo") as producer:
        receipts = [
            await producer.send(Message("demo", b"x"), order_by="order-17") for _ in range(3)
        ]
        number = await producer.send(Message("demo", b"x"), order_by=6)
        exact = await producer.send(Message("demo", b"x"), queue=Queue("demo", "broker-a", 1))
        with pytest.raises(UsageError, match="not writable"):
            await producer.send(Message("demo", b"x"), queue=Queue("demo", "broker-a", 4))
    assert len({receipt.partition for receipt in receipts}) == 1
    assert (number.partition, exact.partition) == (2, 1)


async def test_keys_of_an_order_topic_wait_for_their_master(cluster2) -> None:
    route = cluster2.route

    def ordered(queues: int) -> TopicRoute:
        return structs.replace(route(queues), order_topic_conf="broker-a:2;broker-b:2")

    cluster2.route = ordered
    async with (
        connect_rocketmq(cluster2.url, timeout_ms=2_000, route_ms=20) as client,
        client.producer("demo") as producer,
    ):
        receipts = [await producer.send(Message("demo", b"x"), order_by=key) for key in range(4)]
        brokers = [receipt.broker for receipt in receipts]
        assert brokers == ["broker-a", "broker-a", "broker-b", "broker-b"]
        gone = cluster2.brokers.pop("broker-a")
        await gone.listener.close()
        asked = len(cluster2.asked(RequestCode.GET_ROUTEINFO_BY_TOPIC))
        await cluster2.until(
            lambda: len(cluster2.asked(RequestCode.GET_ROUTEINFO_BY_TOPIC)) >= asked + 2
        )  # the second follows after the first was used
        with pytest.raises(UnavailableError, match=r"master of .*broker-a.* is down"):
            await producer.send(Message("demo", b"x"), order_by=1)
        receipt = await producer.send(Message("demo", b"x"), order_by=2)
        assert (receipt.broker, receipt.partition) == ("broker-b", 0)
        assert (await producer.send(Message("demo", b"x"))).broker == "broker-b"


async def test_a_topic_without_its_broker_does_not_hold_up_others(cluster, client) -> None:
    lost = cluster.route(1)
    lost.broker_datas[0].broker_addrs[0] = "127.0.0.1:1"

    def route(asked: Any) -> None:
        if asked.fields["topic"] == "lost":
            asked.answer(body=lost.encode())
        else:
            cluster.default(asked)

    cluster.always(RequestCode.GET_ROUTEINFO_BY_TOPIC, route)
    async with client.producer() as producer:
        waiting = asyncio.ensure_future(producer.publish("lost"))
        await cluster.until(lambda: cluster.asked(RequestCode.GET_ROUTEINFO_BY_TOPIC))
        await producer.publish("demo")
        assert not waiting.done()
        with pytest.raises(ConnectError):
            await waiting


async def test_a_delayed_message(cluster, client: Client) -> None:
    async with client.producer("demo") as producer:
        await producer.send(Message("demo", b"x"), delay_level=3)
        with pytest.raises(UsageError, match="delay level"):
            await producer.send(Message("demo", b"x"), delay_level=-1)
    [asked] = cluster.asked(SEND)
    assert properties(asked)["DELAY"] == "3"


async def test_large_bodies_are_compressed(cluster, client: Client) -> None:
    async with client.producer("demo") as producer:
        await producer.send(Message("demo", b"a" * 4096))
        await producer.send(Message("demo", b"a" * 4095))
    big, small = cluster.asked(SEND)
    assert big.send.sys_flag == 1
    assert len(big.request.body) < 100
    assert (small.send.sys_flag, len(small.request.body)) == (0, 4095)


async def test_a_refusal_is_retried_at_another_broker(cluster2, kit, client2) -> None:
    cluster2.script(SEND, kit.refuse(14, "disk full"))
    async with client2.producer("demo") as producer:
        await producer.send(Message("demo", b"x"))
    first, second = cluster2.asked(SEND)
    assert first.broker != second.broker
    assert properties(first)["UNIQ_KEY"] == properties(second)["UNIQ_KEY"]


@pytest.mark.parametrize(("code", "tries"), [(1, 3), (14, 3), (16, 3), (13, 1)])
async def test_which_refusals_are_retried(cluster2, kit, client2, code: int, tries: int) -> None:
    cluster2.always(SEND, kit.refuse(code, "no, really"))
    async with client2.producer("demo") as producer:
        with pytest.raises(RefusedError, match="no, really") as caught:
            await producer.send(Message("demo", b"x"))
        assert producer.in_flight == 0
    assert caught.value.code == code
    assert caught.value.topic == "demo"
    assert len(cluster2.asked(SEND)) == tries


async def test_other_refusals_can_be_retried(cluster2, kit, client2) -> None:
    cluster2.script(SEND, kit.refuse(2), kit.refuse(2))
    async with client2.producer("demo", retries=5, retry_codes={2}) as producer:
        await producer.send(Message("demo", b"x"))
        cluster2.script(SEND, kit.refuse(14))
        with pytest.raises(RefusedError):
            await producer.send(Message("demo", b"x"))
    assert len(cluster2.asked(SEND)) == 4


@pytest.fixture
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("coherer._client.engine.sender.BUSY_PAUSES_S", (0, 0))


@pytest.mark.usefixtures("no_pauses")
async def test_a_busy_broker_gets_its_messages_later(cluster, kit, client) -> None:
    cluster.script(SEND, *(kit.refuse(2, "[TIMEOUT_CLEAN_QUEUE]broker busy") for _ in range(7)))
    async with client.producer("demo") as producer:
        report = await producer.send_many(Message("demo", b"%d" % n) for n in range(5))
        assert (report.sent, report.failed) == (5, [])
    assert len(cluster.asked(SEND)) == 12
    assert len({properties(asked)["UNIQ_KEY"] for asked in cluster.asked(SEND)}) == 5


@pytest.mark.parametrize("order", [None, "a"], ids=["late", "in order"])
async def test_a_busy_broker_is_not_asked_again(cluster, kit, client, order: str | None) -> None:
    cluster.always(SEND, kit.refuse(2, "busy"))
    async with client.producer("demo", timeout_ms=10_000 if order else 50) as producer:
        with pytest.raises(SystemBusyError):
            await producer.send(Message("demo", b"x"), order_by=order)
        assert producer.in_flight == 0
    assert len(cluster.asked(SEND)) == 1


async def test_a_chosen_queue_is_tried_once(cluster2, kit, client2) -> None:
    cluster2.always(SEND, kit.refuse(14))
    async with client2.producer("demo") as producer:
        with pytest.raises(RefusedError):
            await producer.send(Message("demo", b"x"), order_by="a")
    assert len(cluster2.asked(SEND)) == 1


@pytest.mark.parametrize("code", [SEND, BATCH])
async def test_a_lost_answer_is_an_error(cluster2, kit, client2, code: RequestCode) -> None:
    """The message may be stored: nothing is sent twice by itself."""
    cluster2.script(code, kit.hang_up)
    message = Message("demo", b"x")
    async with client2.producer("demo") as producer:
        with pytest.raises(DisconnectedError, match="may or may not be stored; it is not sent ag"):
            await (producer.send(message) if code == SEND else producer.send_batch([message] * 2))
        assert producer.in_flight == 0
        await producer.send(message)
    assert len(cluster2.asked(code)) == (2 if code == SEND else 1)


async def test_a_lost_answer_can_be_retried(cluster2, kit, client2) -> None:
    cluster2.script(SEND, kit.hang_up)
    async with client2.producer("demo", retry_lost=True) as producer:
        receipt = await producer.send(Message("demo", b"x"))
    first, second = cluster2.asked(SEND)
    assert receipt.status == "SEND_OK"
    assert first.broker != second.broker
    assert receipt.unique_id == properties(first)["UNIQ_KEY"] == properties(second)["UNIQ_KEY"]


async def test_a_retried_batch_keeps_its_ids(cluster2, kit, client2) -> None:
    cluster2.script(BATCH, kit.hang_up)
    async with client2.producer("demo", retry_lost=True) as producer:
        await producer.send_batch([Message("demo", b"%d" % i) for i in range(3)])
    first, second = (decode_batch(asked.request.body) for asked in cluster2.asked(BATCH))
    assert first.properties == second.properties


@pytest.mark.parametrize("chosen", [{}, {"order_by": "a"}])
async def test_a_lost_answer_without_retries_left(
    cluster2, kit, client2, chosen: dict[str, str]
) -> None:
    cluster2.always(SEND, kit.hang_up)
    async with client2.producer("demo", retry_lost=True) as producer:
        with pytest.raises(DisconnectedError, match="zero, one or several times"):
            await producer.send(Message("demo", b"x"), **chosen)
        assert producer.in_flight == 0
    assert len(cluster2.asked(SEND)) == (1 if chosen else 3)


async def test_no_answer_in_time(cluster, kit, client: Client) -> None:
    async with client.producer("demo") as producer:  # dialling has its time, too
        await producer.send(Message("demo", b"x"))
    cluster.script(SEND, kit.silence)
    async with client.producer("demo", timeout_ms=50) as producer:
        with pytest.raises(RequestTimeoutError, match="may or may not"):
            await producer.send(Message("demo", b"x"))


async def test_an_answer_without_its_fields(cluster, client: Client) -> None:
    cluster.script(SEND, lambda asked: asked.answer(0))
    async with client.producer("demo") as producer:
        with pytest.raises(Exception, match="offset of the message"):
            await producer.send(Message("demo", b"x"))
        assert producer.in_flight == 0


async def test_slow_brokers_are_avoided(cluster2, kit, client2) -> None:
    cluster2.script(SEND, kit.refuse(14))
    async with client2.producer("demo", rules=FaultRules()) as producer:
        for _ in range(6):
            await producer.send(Message("demo", b"x"))
    first, *others = cluster2.asked(SEND)
    assert {asked.broker for asked in others} == {"broker-a", "broker-b"} - {first.broker}


async def test_a_batch(cluster, client: Client) -> None:
    messages = [Message("demo", b"%d" % i, tag="T") for i in range(3)]
    async with client.producer("demo", wait=False) as producer:
        [receipt] = await producer.send_batch(messages)
    [asked] = cluster.asked(BATCH)
    assert asked.send.batch
    assert properties(asked) == {"WAIT": "false"}
    items = decode_batch(asked.request.body)
    assert items.bodies == [b"0", b"1", b"2"]
    ids = [text.decode(properties)["UNIQ_KEY"] for properties in items.properties]
    assert receipt.unique_id == ",".join(ids)
    assert len(set(ids)) == 3


async def test_a_batch_is_cut_by_size(cluster, client: Client) -> None:
    async with client.producer("demo", max_bytes=1_200) as producer:
        receipts = await producer.send_batch([Message("demo", b"x" * 300)] * 5, order_by=1)
    sizes = [len(decode_batch(asked.request.body).bodies) for asked in cluster.asked(BATCH)]
    assert sizes == [2, 2, 1]
    assert {receipt.partition for receipt in receipts} == {1}


async def test_all_requests_of_a_batch_go_to_one_queue(cluster, client: Client) -> None:
    async with client.producer("demo", max_bytes=1_000) as producer:
        for _ in range(3):
            receipts = await producer.send_batch([Message("demo", b"x" * 300)] * 5)
            assert len({(receipt.broker, receipt.partition) for receipt in receipts}) == 1
            assert len(receipts) > 1


async def test_a_batch_of_many_small_messages(tmp_path: Path) -> None:
    """The answer to 40,000 messages was too long for the client, and 80,000 for the broker."""
    async with (
        Node(options(tmp_path)) as node,
        connect_rocketmq(node.rocketmq_url) as client,
        client.producer("small") as producer,
    ):
        receipts = await producer.send_batch([Message("small", b"1")] * 40_000)
    assert sum(receipt.id.count(",") + 1 for receipt in receipts) == 40_000
    assert receipts[0].offset == 0
    assert len({receipt.partition for receipt in receipts}) == 1


async def test_invalid_batches(cluster, client: Client) -> None:
    async with client.producer("demo") as producer:
        with pytest.raises(UsageError, match="not of 0"):
            await producer.send_batch([])
        with pytest.raises(UsageError, match="not of 2"):
            await producer.send_batch([Message("demo", b"x"), Message("other", b"x")])
        with pytest.raises(UsageError, match="retry topic"):
            await producer.send_batch([Message("%RETRY%g", b"x")])
    assert not cluster.asked(BATCH)


async def test_one_way(cluster, client: Client) -> None:
    async with client.producer("demo") as producer:
        await producer.send_oneway(Message("demo", b"x"))
        await cluster.until(lambda: cluster.asked(SEND))
    [asked] = cluster.asked(SEND)
    assert asked.request.is_oneway


async def test_many(cluster, kit, client: Client) -> None:
    cluster.script(SEND, kit.refuse(13, "illegal"))
    async with client.producer("demo", window=10) as producer:
        report = await producer.send_many(
            (Message("demo", b"%d" % i) for i in range(100)), receipts=True
        )
        assert (report.sent, len(report.failed), len(report.receipts)) == (99, 1, 99)
        assert report.failed[0][1].code == 13


async def test_the_window(cluster, kit, client: Client) -> None:
    waiting = []
    cluster.always(SEND, waiting.append)
    async with client.producer("demo", window=2) as producer:
        futures = [producer.submit(Message("demo", b"x")) for _ in range(2)]
        with pytest.raises(WindowFullError):
            producer.submit(Message("demo", b"x"))
        await cluster.until(lambda: len(waiting) == 2)
        for asked in waiting:
            cluster.default(asked)
        await asyncio.gather(*futures)
        await producer.ready()
        outcomes = []
        producer.submit(Message("demo", b"x"), callback=outcomes.append)
        await cluster.until(lambda: len(waiting) == 3)
        cluster.default(waiting[2])
        await producer.flush()
    assert [outcome.offset for outcome in outcomes] == [2]


async def test_invalid_messages(cluster, client: Client) -> None:
    async with client.producer("demo", max_bytes=10) as producer:
        for message in (
            Message("demo", b""),
            Message("demo", b"x" * 11),
            Message("demo", b"x", properties={"TAGS": "UA"}),
            Message("SCHEDULE_TOPIC_XXXX", b"x"),
            Message("no topic", b"x"),
        ):
            with pytest.raises(UsageError):
                await producer.send(message)
        with pytest.raises(UsageError, match="not published"):
            producer.submit(Message("other", b"x"))
        assert producer.in_flight == 0
    assert not cluster.asked(SEND)


@pytest.mark.parametrize(
    ("message", "says"),
    [
        (Message("demo", "text"), "A body is bytes, not str"),  # it used to hang
        (Message("demo", 7), "not int"),
        (Message("demo", b"x", tag=7), "The tag of a message is text, not int"),
        (Message("demo", b"x", keys="42"), r"Write \('42',\) for one"),
        (Message("demo", b"x", keys=["42"]), "tuple"),
        (Message("demo", b"x", keys=(42,)), "A key of a message is text, not int"),
        (Message("demo", b"x", properties={"a": 1}), "Property 'a' of a message is text, not int"),
        (Message("demo", b"x", properties={1: "a"}), "The name of a property .* is text, not int"),
    ],
)
async def test_messages_of_wrong_types(client: Client, message: Message, says: str) -> None:
    async with client.producer("demo") as producer:
        with pytest.raises(UsageError, match=says):
            await producer.send(message)
        with pytest.raises(UsageError, match=says):
            await producer.send_batch([message])
        report = await producer.send_many([message, Message("demo", b"good")])
        assert (report.sent, len(report.failed)) == (1, 1)


async def test_a_topic_that_the_send_creates(cluster, client: Client) -> None:
    with pytest.raises(RefusedError) as caught:
        async with client.producer("young"):
            pass
    assert caught.value.code == 17
    cluster.topics["TBW102"] = 8
    async with client.producer("young") as producer:
        receipts = [await producer.send(Message("young", b"x")) for _ in range(8)]
        assert {receipt.partition for receipt in receipts} == {0, 1, 2, 3}
        await client._instance.heartbeat_now()  # does not forget the broker
        cluster.topics["young"] = 8  # by now it exists
        await client._instance.routes.refresh()
        receipts = [await producer.send(Message("young", b"x")) for _ in range(8)]
        assert {receipt.partition for receipt in receipts} == set(range(8))


async def test_a_read_only_topic(cluster, client: Client) -> None:
    cluster.writable = False
    with pytest.raises(Exception, match="no writable queue"):
        async with client.producer("demo"):
            pass


async def test_a_namespace(cluster) -> None:
    cluster.topics["team%demo"] = 1
    async with (
        connect_rocketmq(cluster.url, namespace="team") as client,
        client.producer("demo", group="planes") as producer,
    ):
        receipt = await producer.send(Message("demo", b"x"))
        assert receipt.topic == "demo"
        assert producer.topics == {"demo"}
        [asked] = cluster.asked(SEND)
        assert (asked.send.topic, asked.send.producer_group) == ("team%demo", "team%planes")
        assert properties(asked)["INSTANCE_ID"] == "team"
        names = {one.group_name for one in cluster.heartbeat().producer_data_set}
        assert names == {"CLIENT_INNER_PRODUCER", "team%planes"}


async def test_signatures(cluster) -> None:
    async with (
        connect_rocketmq(cluster.url, user="who", password="secret", token="t") as client,
        client.producer("demo") as producer,
    ):
        await producer.send(Message("demo", b"x"))
    for asked in (cluster.asked(SEND)[0], cluster.asked(RequestCode.HEART_BEAT)[0]):
        fields = dict(asked.fields)
        signature = fields.pop("Signature")
        assert (fields["AccessKey"], fields["SecurityToken"]) == ("who", "t")
        content = "".join(fields[key] for key in sorted(fields)).encode() + asked.request.body
        digest = hmac.new(b"secret", content, hashlib.sha1).digest()
        assert signature == base64.b64encode(digest).decode()


async def test_close(cluster, client: Client) -> None:
    producer = client.producer("demo", group="planes")
    await producer.start()
    await producer.close()
    await producer.close()
    [asked] = cluster.asked(RequestCode.UNREGISTER_CLIENT)
    assert asked.fields["producerGroup"] == "planes"
    with pytest.raises(ClosedError):
        producer.submit(Message("demo", b"x"))
    await client.close()
    with pytest.raises(ClosedError):
        client.producer("demo")


async def test_an_unreachable_broker(cluster, client: Client) -> None:
    await cluster.brokers["broker-a"].listener.close()
    with pytest.raises(ConnectError):
        async with client.producer("demo", timeout_ms=100):
            pass


@pytest.mark.parametrize(
    "options",
    [
        {"window": 0},
        {"window_bytes": 0},
        {"retries": -1},
        {"compress_level": 10},
        {"group": ""},
        {"group": "DEFAULT_PRODUCER"},
    ],
)
async def test_invalid_options(client: Client, options) -> None:
    with pytest.raises(UsageError):
        client.producer("demo", **options)


async def test_a_producer_that_is_cancelled_while_it_waits_leaves(cluster, client, kit) -> None:
    """The broker would go on asking it about transactions."""
    cluster.script(SEND, kit.silence)
    producer = client.producer("demo", group="senders")
    await producer.start()
    sending = asyncio.create_task(producer.send(Message("demo", b"x")))
    await cluster.until(lambda: cluster.asked(SEND))
    closing = asyncio.create_task(producer.close())
    await asyncio.sleep(0)
    closing.cancel()
    await asyncio.wait([closing])
    left = [one.fields for one in cluster.asked(RequestCode.UNREGISTER_CLIENT)]
    assert [one["producerGroup"] for one in left] == ["senders"]
    sending.cancel()
