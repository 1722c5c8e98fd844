"""Method 13: what is stored, what is refused, and when it is promised."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from coherer._rules.common.topics import Topic
from coherer._server.core.core import Core
from coherer._server.tubemq.broker.broker import Broker
from coherer._store import AppendResult, Draft, Store
from coherer._wire.tubemq import messages as pb
from coherer._wire.tubemq import methods
from coherer._wire.tubemq.payload import checksum
from coherer.errors import StoreError, StoreFullError
from coherer.testing import ManualClock
from tests.server.broker_stage import CONSUMER, OPTIONS, Peer, close, send_request, serve


async def test_a_send_is_stored_and_answered(peer: Peer, clock: ManualClock) -> None:
    first = await peer.send(partitionId=10_001, checkSum=checksum(b"hello"))
    second = await peer.send(partitionId=10_001)
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
        ({"topicName": "__offset_history__"}, 403, "own"),
        ({"topicName": "unknown"}, 403, "not on this broker"),
        ({"topicName": "closed"}, 403, "closed"),
        ({"partitionId": 3}, 403, "no partition 3"),
        ({"partitionId": -1}, 403, "no partition -1"),
        ({"partitionId": 20_000}, 403, "no partition 20000"),
        ({"partitionId": 3, "data": b""}, 403, "no partition"),
        ({"data": b""}, 400, "no data"),
        ({"data": b"x" * (1024 * 1024 + 10241)}, 400, "1058816 at most"),
        ({"topicName": "small", "data": b"x" * 11241, "checkSum": 1}, 400, "11240 at most"),
        ({"checkSum": 1}, 403, "check sum"),
    ],
)
async def test_refused_sends(peer: Peer, fields: dict[str, Any], code: int, text: str) -> None:
    await peer.send()  # so that there is something to remember
    await peer.send(topicName="small")
    refused = await peer.send(**fields)
    assert (refused.success, refused.errCode) == (False, code)
    assert text in refused.errMsg
    assert not refused.HasField("requireAuth")
    assert not refused.HasField("messageId")


async def test_the_longest_message_passes(peer: Peer) -> None:
    assert (await peer.send(data=b"x" * (1024 * 1024 + 10240))).success
    assert (await peer.send(topicName="small", data=b"x" * 11240)).success
    assert (await peer.send(topicName="small", data=b"x" * 11240)).success


async def test_sends_of_one_read_are_one_append_and_one_write(
    peer: Peer, broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    appends: list[int] = []
    append = broker.state.store.append

    def counted(drafts: list[Draft]) -> list[AppendResult]:
        appends.append(len(drafts))
        return append(drafts)

    monkeypatch.setattr(broker.state.store, "append", counted)
    other = Peer(broker)
    for who in (peer, other):
        frames = [
            who.wire.session.request(methods.SEND_MESSAGE, send_request(partitionId=number), 1000)
            for number in (0, 1, 0, 99)
        ]
        who.service.received(b"".join(frame for _, frame in frames))
    await asyncio.sleep(0)
    assert appends == [6]
    for who in (peer, other):
        assert [who.wire.answers[serial].serial for serial in (1, 2, 3, 4)] == [1, 2, 3, 4]
        assert who.wire.writes == 2, "one for what was refused, one for what was stored"


async def test_a_full_disk_is_refused_and_heals(
    peer: Peer, broker: Broker, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(drafts: list[Draft]) -> list[AppendResult]:
        raise StoreFullError("No space left on device.")

    with monkeypatch.context() as patch:
        patch.setattr(broker.state.store, "append", full)
        refused = await peer.send()
        assert (refused.errCode, refused.success) == (419, False)
        assert "No space left" in refused.errMsg
        assert "No space left" in caplog.text
    assert (await peer.send()).success


async def test_an_error_of_ours_is_answered(
    peer: Peer, broker: Broker, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(drafts: list[Draft]) -> list[AppendResult]:
        raise ZeroDivisionError

    monkeypatch.setattr(broker.state.store, "append", fail)
    refused = await peer.send()
    assert (refused.errCode, "ZeroDivisionError" in refused.errMsg) == (500, True)
    assert "Traceback" in caplog.text


async def test_a_send_without_a_timeout_is_stored_but_not_answered(
    peer: Peer, broker: Broker
) -> None:
    peer.post(methods.SEND_MESSAGE, send_request(), timeout_ms=0)
    peer.post(methods.SEND_MESSAGE, send_request(clientId=""), timeout_ms=0)
    peer.post(
        methods.PARTITION_REGISTER, pb.RegisterRequestC2B(**CONSUMER, opType=31, readStatus=0), 0
    )
    peer.post_get(timeout_ms=0)
    await asyncio.sleep(0)
    assert peer.wire.answers == {}
    assert broker.state.store.queue_range("demo", 0) == (0, 1)


async def test_nothing_is_served_before_a_master_has_spoken(peer: Peer, broker: Broker) -> None:
    peer.register()
    broker.state.serving = False
    broker.state.changed()
    assert (await peer.send(clientId="")).errCode == 503
    assert peer.register(clientId="").errCode == 503
    assert peer.get(clientId="").errCode == 503
    assert peer.commit(clientId="").errCode == 503
    assert peer.beat(clientId="").errCode == 503


async def test_the_master_can_stop_reads_and_writes(peer: Peer, broker: Broker) -> None:
    peer.register()
    broker.state.stop_write = True
    broker.state.changed()
    assert (await peer.send()).errCode == 503
    broker.state.stop_write, broker.state.stop_read = False, True
    broker.state.changed()
    assert (await peer.send()).success
    assert peer.get().errCode == 503


async def test_sync_answers_wait_for_the_disk_which_is_asked_once(
    store: Store, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = Broker(OPTIONS, Core(store, clock.now_ms, sync_flush=True))
    serve(broker)
    flushes: list[asyncio.Future[None]] = []

    async def flush() -> int:
        flushes.append(asyncio.get_running_loop().create_future())
        await flushes[-1]
        return store.flush()

    monkeypatch.setattr(broker.core.flusher, "flush", flush)
    peer = Peer(broker)
    first = peer.post(methods.SEND_MESSAGE, send_request())
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    later = [peer.post(methods.SEND_MESSAGE, send_request()) for _ in range(3)]
    await asyncio.sleep(0)
    assert len(flushes) == 1
    assert peer.wire.answers == {}
    flushes[0].set_result(None)
    for _ in range(3):
        await asyncio.sleep(0)
    assert set(peer.wire.answers) == {first, *later}, "all were written before the flush began"
    more = peer.post(methods.SEND_MESSAGE, send_request())
    for _ in range(3):
        await asyncio.sleep(0)
    assert len(flushes) == 2
    assert more not in peer.wire.answers
    flushes[1].set_result(None)
    await broker.core.appender.close()
    answer = peer.answer(more, pb.SendMessageResponseB2P)
    assert answer is not None
    assert answer.appendOffset == 4
    await close(broker)


async def test_after_a_failed_fsync_nothing_is_promised(
    store: Store,
    clock: ManualClock,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    broker = Broker(OPTIONS, Core(store, clock.now_ms, sync_flush=True))
    serve(broker)

    def fail() -> int:
        raise StoreError("Input/output error.")

    peer = Peer(broker)
    with monkeypatch.context() as patch:
        patch.setattr(store, "flush", fail)
        serial = peer.post(methods.SEND_MESSAGE, send_request())
        await asyncio.sleep(0)
        await broker.core.appender.close()
    answer = peer.answer(serial, pb.SendMessageResponseB2P)
    assert answer is not None
    assert (answer.errCode, "Input/output" in answer.errMsg) == (500, True)
    assert (await peer.send()).errCode == 503
    assert "until a restart" in caplog.text
    assert broker.configuration.heartbeat().writeStatusRpt == -1
    await close(broker)


async def test_a_topic_that_is_closed_meanwhile_is_noticed(peer: Peer, broker: Broker) -> None:
    assert (await peer.send()).success
    assert (await peer.send()).success
    broker.state.topics.replace([Topic.of_master("demo", 3, status=1)])
    broker.state.changed()
    assert (await peer.send()).errCode == 403
