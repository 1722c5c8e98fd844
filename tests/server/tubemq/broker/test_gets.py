"""Methods 17 and 18: batches, commits, filters and flow rules; and malformed requests."""

from __future__ import annotations

import errno
import mmap
from pathlib import Path
from typing import Any

import pytest

from coherer import limits
from coherer._server.core.core import Core
from coherer._server.options.tubemq import BrokerOptions
from coherer._server.tubemq.broker.broker import Broker
from coherer._store import OsFiles, Store, StoreOptions
from coherer._wire.tubemq import messages as pb
from coherer._wire.tubemq import methods
from coherer._wire.tubemq.flow import FlowRules
from coherer._wire.tubemq.frame import encode_frame
from coherer._wire.tubemq.session import Failure
from coherer.testing import ManualClock
from tests.server.broker_harness import OPTIONS, BrokerClient, bodies, close, serve


async def test_reading_committing_and_dropping(client: BrokerClient) -> None:
    for number in range(4):
        await client.send(data=b"%d" % number)
    client.register()
    answer = client.get(lastPackConsumed=False)
    assert (answer.errCode, answer.errMsg, answer.minLimitTime) == (200, "OK!", 0)
    assert bodies(answer) == [b"0", b"1", b"2", b"3"]
    assert (answer.currOffset, answer.maxOffset, answer.escFlowCtrl) == (0, 4, False)
    assert (answer.currDataDlt, answer.requireSlow) == (0, False)
    assert bodies(client.get(lastPackConsumed=False)) == [b"0", b"1", b"2", b"3"]
    rejected = client.commit(lastPackConsumed=False)
    assert (rejected.success, rejected.currOffset, rejected.maxOffset) == (True, 0, 4)
    assert bodies(client.get()) == [b"0", b"1", b"2", b"3"]
    assert client.commit().currOffset == 4, "an absent field means true"
    await client.send(data=b"4")
    more = client.get(lastPackConsumed=True)
    assert (more.currOffset, bodies(more)) == (4, [b"4"])
    await client.send(data=b"5")
    assert bodies(client.get(lastPackConsumed=True)) == [b"5"]


async def test_batches_are_limited_and_manual_reads_continue(
    store: Store, clock: ManualClock
) -> None:
    broker = Broker(BrokerOptions(transfer_bytes=2500), Core(store, clock.now_ms))
    serve(broker)
    client = BrokerClient(broker)
    for number in range(5):
        await client.send(data=b"%d" % number * 1000)
    await client.send(data=b"x" * 9000)
    client.register()
    backlog: list[int] = []
    offsets: list[int] = []
    while len(offsets) < 3:
        answer = client.get(manualCommitOffset=True)
        offsets.append(answer.currOffset)
        backlog.append(answer.currDataDlt)
        assert answer.messages, "at least one message, of any length"
    assert offsets[0] == 0
    assert offsets == sorted(set(offsets))
    assert backlog == sorted(set(backlog), reverse=True)
    assert client.commit().currOffset > offsets[-1]
    await close(broker)


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"clientId": "", "groupName": ""}, 400),
        ({"groupName": ""}, 400),
        ({"topicName": ""}, 400),
        ({"topicName": "unknown"}, 403),
        ({"partitionId": 1}, 411),
        ({"clientId": "c2"}, 412),
        ({"topicName": "going"}, 403),
    ],
)
async def test_refused_gets(client: BrokerClient, fields: dict[str, Any], code: int) -> None:
    client.register()
    client.register(topicName="going")
    refused = client.get(**fields)
    assert (refused.success, refused.errCode) == (False, code)
    assert (refused.currOffset, refused.currDataDlt) == (-1, -1)
    assert refused.HasField("minLimitTime")


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"clientId": ""}, 400),
        ({"topicName": ""}, 400),
        ({"topicName": "unknown", "groupName": ""}, 403),
        ({"groupName": ""}, 400),
        ({"partitionId": 9}, 403),
        ({"partitionId": 1}, 401),
        ({"clientId": "c2"}, 401),
    ],
)
async def test_refused_commits(client: BrokerClient, fields: dict[str, Any], code: int) -> None:
    client.register()
    refused = client.commit(**fields)
    assert (refused.success, refused.errCode, refused.currOffset) == (False, code, -1)


async def test_filters(client: BrokerClient) -> None:
    for number in range(6):
        await client.send(data=b"%d" % number, msgType="AB"[number % 2])
    await client.send(data=b"plain")
    client.register(filterCondStr=["B", "C"])
    answer = client.get()
    assert bodies(answer) == [b"1", b"3", b"5"]
    assert answer.requireSlow
    client.register(filterCondStr=["C"])
    serial = client.post_get()
    assert client.got(serial) is None, "no message passes the filter, so the get is held"
    await client.send(data=b"A again", msgType="A")
    assert client.got(serial) is None
    assert client.commit().currOffset == 8, "filtered messages are skipped at once"
    await client.send(data=b"C at last", msgType="C")
    found = client.got(serial)
    assert found is not None
    assert bodies(found) == [b"C at last"]


async def test_a_get_scans_a_limited_number_of_messages(
    client: BrokerClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(4):
        await client.send(msgType="A")
    monkeypatch.setattr(limits, "SCANS_PER_GET", 1)
    client.register(filterCondStr=["B"])
    answer = client.get()
    assert (bodies(answer), answer.currOffset) == ([], 4)
    assert client.got(client.post_get()) is None


async def test_a_position_outside_the_partition(client: BrokerClient, broker: Broker) -> None:
    client.register()
    [reader] = broker.state.leases.held_by("c1")
    reader.position.offset = 99
    serial = client.post_get()
    assert client.got(serial) is None
    assert reader.position.offset == 0
    await client.send()
    assert client.got(serial) is not None


async def test_flow_rules(client: BrokerClient, broker: Broker, clock: ManualClock) -> None:
    broker.state.flow = FlowRules.parse(
        '[{"type":0,"rule":[{"start":"00:00","end":"24:00","dltInM":21,"limitInM":12,'
        '"freqInMs":700}]}]'
    )
    client.register()
    for _ in range(6):
        await client.send(data=b"x" * 600_000)
    assert len(bodies(client.get())) == 1, "not at the first read"
    assert len(bodies(client.get())) == 1
    assert len(bodies(client.get())) == 1
    limited = client.get()
    assert (limited.errCode, limited.minLimitTime) == (452, 700)
    assert len(bodies(client.get(escFlowCtrl=True))) == 1
    clock.advance(5_000)
    assert len(bodies(client.get())) == 1
    client.heartbeat("7:h:8123#demo:0")
    clock.advance(25_000)
    assert len(bodies(client.get())) == 1


# -- malformed requests


async def test_only_malformed_messages_are_fatal(client: BrokerClient) -> None:
    payloads = {13: b"\xff", 15: b"\x08", 16: b"", 17: b"\x0a", 18: b"x"}
    for method, body in payloads.items():
        serial, frame = client.connection.session.request(
            method, pb.CloseRequestB2M(brokerId="1"), 1000
        )
        del frame
        receiver = 3 if method == 13 else 2
        inner = pb.RequestBody(method=method, timeout=1000, request=body).SerializeToString()
        header = pb.RequestHeader(serviceType=receiver, protocolVer=3).SerializeToString()
        payload = b"\x02\x08\x00" + bytes([len(header)]) + header + bytes([len(inner)]) + inner
        client.receiver.received(encode_frame(serial, payload))
        answer = client.connection.answers[serial]
        assert isinstance(answer, Failure)
        assert answer.fatal
    assert (await client.send()).success


async def test_the_masters_methods_are_not_served_here(client: BrokerClient) -> None:
    serial = client.post(methods.BROKER_CLOSE, pb.CloseRequestB2M(brokerId="1"))
    answer = client.connection.answers[serial]
    assert isinstance(answer, Failure)
    assert not answer.fatal
    assert answer.text == "No service 1 found on the server"


class Unreadable(OsFiles):
    """The log cannot be mapped for a while, for example because too many files are open."""

    number = 0

    def map(self, handle: int, size: int) -> mmap.mmap:
        if self.number:
            raise OSError(self.number, "no")
        return super().map(handle, size)


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (errno.EIO, "Could not read queue 0 of topic demo: no."),
        (errno.EMFILE, "Too many open files: could not read queue 0 of topic demo."),
    ],
)
async def test_a_read_that_fails_ends_no_connection(
    tmp_path: Path, clock: ManualClock, number: int, text: str
) -> None:
    """Sends and other gets on the connection go on, and the text says what has failed."""
    files, options = Unreadable(), StoreOptions(segment_bytes=1 << 24, index_enabled=False)
    with Store.open(tmp_path, options, now_ms=clock.now_ms, files=files) as store:
        broker = Broker(OPTIONS, Core(store, clock.now_ms))
        serve(broker)
        client = BrokerClient(broker)
        client.register()
        held = client.post_get()
        files.number = number
        assert (await client.send(data=b"0")).success
        for answer in (client.got(held), client.get()):
            assert answer is not None
            assert (answer.success, answer.errCode) == (False, 500)
            assert text in answer.errMsg
        assert broker.gets.held_count == 0
        serial = client.post(
            methods.PARTITION_REGISTER,
            pb.RegisterRequestC2B(
                clientId="c2",
                groupName="h",
                topicName="demo",
                partitionId=0,
                opType=31,
                readStatus=0,
                sinceTime=1,
            ),
        )
        failure = client.connection.answers[serial]
        assert isinstance(failure, Failure)
        assert text in failure.text
        assert client.register(clientId="c3", groupName="h").success, "it is still free"
        assert (await client.send(data=b"1")).success
        files.number = 0
        assert bodies(client.get()) == [b"0", b"1"]
        await close(broker)
