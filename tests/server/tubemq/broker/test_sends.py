"""Method 13: stored sends, refused sends, and when they are confirmed."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from coherer import limits
from coherer._record.batches import encode_batch_item
from coherer._rules.common.topics import Topic
from coherer._server.core.core import Core
from coherer._server.tubemq.broker.broker import Broker
from coherer._store import AppendResult, Draft, Store
from coherer._wire.tubemq import messages as pb
from coherer._wire.tubemq import methods
from coherer._wire.tubemq.payload import checksum
from coherer.errors import StoreError, StoreFullError
from coherer.testing import ManualClock
from tests.server.broker_harness import (
    CONSUMER,
    OPTIONS,
    BrokerClient,
    close,
    send_request,
    serve,
)
from tests.waiting import until


async def test_a_send_is_stored_and_answered(client: BrokerClient, clock: ManualClock) -> None:
    first = await client.send(partitionId=10_001, checkSum=checksum(b"hello"))
    second = await client.send(partitionId=10_001)
    assert (first.success, first.errCode, first.requireAuth) == (True, 200, False)
    assert first.HasField("requireAuth")
    assert first.messageId >> 48 == 7
    assert first.errMsg == str(first.messageId)
    assert first.appendTime == clock.now_ms()
    assert (first.appendOffset, second.appendOffset) == (0, 1)
    assert second.messageId > first.messageId


@pytest.mark.parametrize(
    ("fields", "code", "text"),
    [
        ({"clientId": " "}, 400, "clientId is blank"),
        ({"clientId": "x" * 1025}, 400, "1025 characters"),
        ({"clientId": "", "topicName": "unknown"}, 400, "clientId"),
        ({"topicName": ""}, 400, "topicName is blank"),
        ({"topicName": "x" * 65}, 400, "65 characters"),
        ({"topicName": "__offset_history__"}, 403, "a TubeMQ client cannot write to it"),
        ({"topicName": "RMQ_SYS_TRANS_OP_HALF_TOPIC"}, 403, "a TubeMQ client cannot write to it"),
        ({"topicName": "unknown"}, 403, "not on this broker"),
        ({"topicName": "closed"}, 403, "closed"),
        ({"partitionId": 3}, 403, "no partition 3"),
        ({"partitionId": -1}, 403, "no partition -1"),
        ({"partitionId": 20_000}, 403, "no partition 20000"),
        ({"partitionId": 3, "data": b""}, 403, "no partition"),
        ({"data": b""}, 400, "no data"),
        ({"data": b"x" * (1024 * 1024 + 10241)}, 400, "at most 1058816"),
        ({"topicName": "small", "data": b"x" * 11241, "checkSum": 1}, 400, "at most 11240"),
        ({"checkSum": 1}, 403, "check sum"),
    ],
)
async def test_refused_sends(
    client: BrokerClient, fields: dict[str, Any], code: int, text: str
) -> None:
    await client.send()  # fills the cache
    await client.send(topicName="small")
    refused = await client.send(**fields)
    assert (refused.success, refused.errCode) == (False, code)
    assert text in refused.errMsg
    assert not refused.HasField("requireAuth")
    assert not refused.HasField("messageId")


async def test_the_longest_message_is_accepted(client: BrokerClient) -> None:
    assert (await client.send(data=b"x" * (1024 * 1024 + 10240))).success
    assert (await client.send(topicName="small", data=b"x" * 11240)).success
    assert (await client.send(topicName="small", data=b"x" * 11240)).success


async def test_sends_of_one_read_are_one_append_and_one_write(
    client: BrokerClient, broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    appends: list[int] = []
    append = broker.state.store.append

    def counted(drafts: list[Draft]) -> list[AppendResult]:
        appends.append(len(drafts))
        return append(drafts)

    monkeypatch.setattr(broker.state.store, "append", counted)
    other = BrokerClient(broker)
    for who in (client, other):
        frames = [
            who.connection.session.request(
                methods.SEND_MESSAGE, send_request(partitionId=number), 1000
            )
            for number in (0, 1, 0, 99)
        ]
        who.receiver.received(b"".join(frame for _, frame in frames))
    await other.wait_answer(3, pb.SendMessageResponseB2P)
    assert appends == [6]
    for who in (client, other):
        assert [who.connection.answers[serial].serial for serial in (1, 2, 3, 4)] == [1, 2, 3, 4]
        assert who.connection.writes == 2, "one for refused sends, one for stored ones"


async def test_a_full_disk_refuses_sends_until_there_is_space(
    client: BrokerClient,
    broker: Broker,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def full(drafts: list[Draft]) -> list[AppendResult]:
        raise StoreFullError("No space left on device.")

    with monkeypatch.context() as patch:
        patch.setattr(broker.state.store, "append", full)
        refused = await client.send()
        assert (refused.errCode, refused.success) == (419, False)
        assert "No space left" in refused.errMsg
        assert "No space left" in caplog.text
    assert (await client.send()).success


async def test_an_unhandled_error_is_answered(
    client: BrokerClient,
    broker: Broker,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def fail(drafts: list[Draft]) -> list[AppendResult]:
        raise ZeroDivisionError

    monkeypatch.setattr(broker.state.store, "append", fail)
    refused = await client.send()
    assert (refused.errCode, "ZeroDivisionError" in refused.errMsg) == (500, True)
    assert "Traceback" in caplog.text


async def test_a_send_without_a_timeout_is_stored_but_not_answered(
    client: BrokerClient, broker: Broker
) -> None:
    client.post(methods.SEND_MESSAGE, send_request(), timeout_ms=0)
    client.post(methods.SEND_MESSAGE, send_request(clientId=""), timeout_ms=0)
    client.post(
        methods.PARTITION_REGISTER, pb.RegisterRequestC2B(**CONSUMER, opType=31, readStatus=0), 0
    )
    client.post_get(timeout_ms=0)
    await broker.core.appender.close()
    assert client.connection.answers == {}
    assert broker.state.store.queue_range("demo", 0) == (0, 1)


async def test_no_request_is_served_before_registration(
    client: BrokerClient, broker: Broker
) -> None:
    client.register()
    broker.state.serving = False
    broker.state.changed()
    assert (await client.send(clientId="")).errCode == 503
    assert client.register(clientId="").errCode == 503
    assert client.get(clientId="").errCode == 503
    assert client.commit(clientId="").errCode == 503
    assert client.heartbeat(clientId="").errCode == 503


async def test_the_master_can_stop_reads_and_writes(client: BrokerClient, broker: Broker) -> None:
    client.register()
    broker.state.stop_write = True
    broker.state.changed()
    assert (await client.send()).errCode == 503
    broker.state.stop_write, broker.state.stop_read = False, True
    broker.state.changed()
    assert (await client.send()).success
    assert client.get().errCode == 503


@pytest.mark.parametrize("flush", ["sync"])
async def test_sync_answers_wait_for_the_disk_which_is_asked_once(
    store: Store, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = Broker(OPTIONS, Core(store, clock.now_ms))
    serve(broker)
    flushes: list[asyncio.Future[None]] = []

    async def flush() -> int:
        flushes.append(asyncio.get_running_loop().create_future())
        await flushes[-1]
        return store.flush()

    monkeypatch.setattr(broker.core.flusher, "flush", flush)
    client = BrokerClient(broker)
    first = client.post(methods.SEND_MESSAGE, send_request())
    await until(lambda: len(flushes) == 1)
    later = [client.post(methods.SEND_MESSAGE, send_request()) for _ in range(3)]
    await until(lambda: store.written_offset > 0 and broker.core.appender.waiting >= 4)
    assert len(flushes) == 1
    assert store.queue_range("demo", 0) == (0, 0)
    assert client.connection.answers == {}
    flushes[0].set_result(None)
    await client.wait_answer(later[-1], pb.SendMessageResponseB2P)
    assert set(client.connection.answers) == {first, *later}, (
        "all were written before the flush began"
    )
    more = client.post(methods.SEND_MESSAGE, send_request())
    await until(lambda: len(flushes) == 2)
    assert more not in client.connection.answers
    flushes[1].set_result(None)
    await broker.core.appender.close()
    assert (await client.wait_answer(more, pb.SendMessageResponseB2P)).appendOffset == 4
    await close(broker)


@pytest.mark.parametrize("flush", ["sync"])
async def test_after_a_failed_fsync_no_send_is_confirmed(
    store: Store,
    clock: ManualClock,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    broker = Broker(OPTIONS, Core(store, clock.now_ms))
    serve(broker)

    def fail() -> int:
        raise StoreError("Input/output error.")

    client = BrokerClient(broker)
    with monkeypatch.context() as patch:
        patch.setattr(store, "flush", fail)
        serial = client.post(methods.SEND_MESSAGE, send_request())
        await broker.core.appender.close()
    answer = client.answer(serial, pb.SendMessageResponseB2P)
    assert answer is not None
    assert (answer.errCode, "Input/output" in answer.errMsg) == (500, True)
    assert (await client.send()).errCode == 503
    assert "until a restart" in caplog.text
    assert broker.configuration.heartbeat_request().writeStatusRpt == -1
    await close(broker)


async def test_a_topic_that_is_closed_after_caching_is_refused(
    client: BrokerClient, broker: Broker
) -> None:
    assert (await client.send()).success
    assert (await client.send()).success
    broker.state.topics.replace([Topic.of_master("demo", 3, status=1)])
    broker.state.changed()
    assert (await client.send()).errCode == 403


async def test_a_batch_of_too_many_messages(client: BrokerClient) -> None:
    """A frame has room for a million, which would take seconds of the event loop."""
    item = encode_batch_item(b"x", b"")
    refused = await client.send(batch=item * (limits.BATCH_ENTRIES_MAX + 1))
    assert (refused.success, refused.errCode) == (False, 400)
    assert "are allowed" in refused.errMsg
    assert (await client.send(batch=item * 2)).success
