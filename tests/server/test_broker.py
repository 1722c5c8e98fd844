"""The broker's methods without sockets: checks, codes, offsets, leases, held gets."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from pathlib import Path
from typing import Any, TypeVar, cast

import pytest
from google.protobuf.message import Message
from hypothesis import given
from hypothesis import strategies as st

from coherer import limits
from coherer.broker.topics import Topic
from coherer.errors import ProtocolError, StoreError, StoreFullError
from coherer.net import Connection
from coherer.server.core import Core
from coherer.server.tubemq.broker.broker import Broker, BrokerService
from coherer.server.tubemq.broker.mapping import Mapper
from coherer.server.tubemq.broker.sends import SendMemory, SendReader
from coherer.server.tubemq.broker.state import BrokerOptions, BrokerState
from coherer.server.tubemq.refusal import Refusal
from coherer.store import Appended, Draft, Store, StoreOptions
from coherer.testing import ManualClock
from coherer.tubemq import messages as pb
from coherer.tubemq import methods
from coherer.tubemq.flow import FlowRules
from coherer.tubemq.frame import encode_frame
from coherer.tubemq.payload import checksum
from coherer.tubemq.session import ClientSession, Failure, Response
from coherer.tubemq.wire import field

M = TypeVar("M", bound=Message)

TOPICS = [
    Topic.of_master("demo", 3, stores=2),
    Topic.of_master("small", 1, message_bytes_max=1000),
    Topic.of_master("closed", 1, status=1),
    Topic.of_master("going", 1, status=2),
    Topic.of_master("__offset_history__", 10),
]
OPTIONS = BrokerOptions(broker_id=7, hold_ms=4_000)


class Wire:
    """A connection's place: keeps what is written."""

    peer = "10.0.0.9:40000"
    peer_host = "10.0.0.9"
    local_host = "10.0.0.1"
    closed = False

    def __init__(self) -> None:
        self.session = ClientSession()
        self.answers: dict[int, Response | Failure] = {}
        self.writes = 0
        self.full = False
        self.reading = True
        self.room = asyncio.Event()

    @property
    def unsent_bytes(self) -> int:
        return limits.OUTBOX_HIGH_BYTES + 1 if self.full else 0

    def write(self, data: bytes) -> None:
        self.write_many([data])

    def write_many(self, parts: Iterable[bytes | memoryview]) -> None:
        data = b"".join(parts)
        self.writes += bool(data)
        for answer in self.session.receive(data):
            assert answer.serial not in self.answers, "answered twice"
            self.answers[answer.serial] = answer

    def flush(self) -> None:
        pass

    async def drain(self) -> None:
        await self.room.wait()

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True

    def close(self) -> None:
        self.closed = True


class Peer:
    """A client of the broker under test: asks, and looks at the answers."""

    def __init__(self, broker: Broker) -> None:
        self.wire = Wire()
        self.service: BrokerService = broker.make(cast("Connection", self.wire))

    def post(self, method: int, message: Message, timeout_ms: int = 10_000) -> int:
        serial, frame = self.wire.session.request(method, message, timeout_ms)
        self.service.received(frame)
        return serial

    def answer(self, serial: int, kind: type[M]) -> M | None:
        found = self.wire.answers.get(serial)
        if found is None:
            return None
        assert isinstance(found, Response), found
        return methods.parse(kind, found.body)

    def ask(self, method: int, message: Message, kind: type[M]) -> M:
        answer = self.answer(self.post(method, message), kind)
        assert answer is not None, "not answered at once"
        return answer

    async def send(self, **fields: Any) -> pb.SendMessageResponseB2P:
        serial = self.post(methods.SEND_MESSAGE, send_request(**fields))
        await asyncio.sleep(0)
        answer = self.answer(serial, pb.SendMessageResponseB2P)
        assert answer is not None
        return answer

    def register(self, **fields: Any) -> pb.RegisterResponseB2C:
        request = pb.RegisterRequestC2B(**{**CONSUMER, "opType": 31, "readStatus": 0, **fields})
        return self.ask(methods.PARTITION_REGISTER, request, pb.RegisterResponseB2C)

    def unregister(self, **fields: Any) -> pb.RegisterResponseB2C:
        return self.register(**{"opType": 32, **fields})

    def get(self, **fields: Any) -> pb.GetMessageResponseB2C:
        answer = self.answer(self.post_get(**fields), pb.GetMessageResponseB2C)
        assert answer is not None, "held"
        return answer

    def post_get(self, timeout_ms: int = 10_000, **fields: Any) -> int:
        request = pb.GetMessageRequestC2B(**{**CONSUMER, "lastPackConsumed": True, **fields})
        return self.post(methods.GET_MESSAGES, request, timeout_ms)

    def got(self, serial: int) -> pb.GetMessageResponseB2C | None:
        return self.answer(serial, pb.GetMessageResponseB2C)

    def commit(self, **fields: Any) -> pb.CommitOffsetResponseB2C:
        request = pb.CommitOffsetRequestC2B(**{**CONSUMER, **fields})
        return self.ask(methods.COMMIT_OFFSET, request, pb.CommitOffsetResponseB2C)

    def beat(self, *partitions: str, **fields: Any) -> pb.HeartBeatResponseB2C:
        request = pb.HeartBeatRequestC2B(
            **{"clientId": "c1", "groupName": "g", "readStatus": 0, **fields},
            partitionInfo=partitions,
        )
        return self.ask(methods.PARTITION_HEARTBEAT, request, pb.HeartBeatResponseB2C)


CONSUMER: dict[str, Any] = {
    "clientId": "c1",
    "groupName": "g",
    "topicName": "demo",
    "partitionId": 0,
}


def send_request(**fields: Any) -> pb.SendMessageRequestP2B:
    usual: dict[str, Any] = {
        "clientId": "p1",
        "topicName": "demo",
        "partitionId": 0,
        "data": b"hello",
        "flag": 0,
        "checkSum": -1,
        "sentAddr": 0x0A000009,
    }
    return pb.SendMessageRequestP2B(**{**usual, **fields})


def bodies(answer: pb.GetMessageResponseB2C) -> list[bytes]:
    assert answer.success, answer
    return [message.payLoadData for message in answer.messages]


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def store(tmp_path: Path, clock: ManualClock) -> Iterable[Store]:
    options = StoreOptions(segment_bytes=1 << 24, index_enabled=False)
    with Store.open(tmp_path, options, now_ms=clock.now_ms) as store:
        yield store


@pytest.fixture
async def broker(store: Store, clock: ManualClock) -> AsyncIterator[Broker]:
    broker = Broker(OPTIONS, Core(store, clock.now_ms))
    serve(broker)
    yield broker
    await close(broker)


@pytest.fixture
def peer(broker: Broker) -> Peer:
    return Peer(broker)


async def close(broker: Broker) -> None:
    broker.close()
    await broker.core.close()


def serve(broker: Broker) -> None:
    broker.state.topics.replace(TOPICS)
    broker.state.serving = True
    broker.state.changed()


# -- method 13


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

    def counted(drafts: list[Draft]) -> list[Appended]:
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
    def full(drafts: list[Draft]) -> list[Appended]:
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
    def fail(drafts: list[Draft]) -> list[Appended]:
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


@pytest.fixture(scope="module")
def sending_state(tmp_path_factory: pytest.TempPathFactory) -> Iterable[BrokerState]:
    directory = tmp_path_factory.mktemp("sending")
    clock = ManualClock()
    options = StoreOptions(segment_bytes=1 << 20, index_enabled=False)
    with Store.open(directory, options, now_ms=clock.now_ms) as store:
        state = BrokerState(OPTIONS, Core(store, clock.now_ms))
        state.topics.replace(TOPICS)
        state.serving = True
        state.changed()
        yield state


requests = st.builds(
    send_request,
    clientId=st.sampled_from(["p1", "p2", "", "x" * 130]),
    topicName=st.sampled_from(["demo", "small", "closed", "unknown"]),
    partitionId=st.sampled_from([0, 1, 2, 3, 127, 128, 10_000, 10_002, 16_384, 20_000, -1]),
    data=st.sampled_from([b"", b"x", b"y" * 127, b"z" * 128, b"z" * 16_383, b"z" * 16_384])
    | st.binary(max_size=30),
    flag=st.sampled_from([0, 1, 2, -1]),
    checkSum=st.sampled_from([-1, -1, 0, checksum(b"x")]),
    sentAddr=st.integers(-(2**31), 2**31 - 1),
    msgType=st.sampled_from(["", "A", " B "]),
    msgTime=st.sampled_from(["", "202401010000"]),
)
wholes = requests.map(lambda request: request.SerializeToString())
odd = st.one_of(
    st.binary(max_size=40),
    # fields said again behind the others, which overrule those before
    st.builds(
        lambda whole, name, number: whole + name + number,
        wholes,
        st.sampled_from([field(1, b"p2"), field(2, b"small"), field(4, b"other"), b""]),
        st.sampled_from([b"\x18\x01", b"\x18\x63", b"\x30\x00", b""]),
    ),
    st.builds(lambda whole, at: whole[:at], wholes, st.integers(0, 200)),
    st.builds(
        lambda whole, at, byte: whole[:at] + bytes([byte]) + whole[at + 1 :],
        wholes,
        st.integers(0, 60),
        st.integers(0, 255),
    ),
)


def outcome(reader: SendReader, body: bytes) -> object:
    try:
        return reader.read(body, 5)
    except Refusal as refusal:
        return refusal.code, refusal.text
    except ProtocolError:
        return ProtocolError


@given(bodies=st.lists(wholes | odd, min_size=1, max_size=12))
def test_the_short_way_is_the_long_way(sending_state: BrokerState, bodies: list[bytes]) -> None:
    mapper = Mapper()
    learned = SendReader(SendMemory(sending_state, mapper))
    for body in bodies * 2:
        fresh = SendReader(SendMemory(sending_state, mapper))
        assert outcome(learned, body) == outcome(fresh, body)


async def test_a_topic_that_is_closed_meanwhile_is_noticed(peer: Peer, broker: Broker) -> None:
    assert (await peer.send()).success
    assert (await peer.send()).success
    broker.state.topics.replace([Topic.of_master("demo", 3, status=1)])
    broker.state.changed()
    assert (await peer.send()).errCode == 403


# -- authorization


def authorized(token: int, text: str = "") -> pb.AuthorizedInfo:
    return pb.AuthorizedInfo(visitAuthorizedToken=token, authAuthorizedToken=text)


async def test_the_visit_token(peer: Peer, broker: Broker, clock: ManualClock) -> None:
    access = broker.state.access
    access.in_contact, access.registered_ms = True, clock.now_ms()
    access.switch(pb.EnableBrokerFunInfo(enableVisitTokenCheck=True))
    access.learn("1,2")
    broker.state.changed()
    assert (await peer.send()).success, "just registered"
    clock.advance(120_000)
    assert (await peer.send()).errCode == 415
    assert (await peer.send(clientId="")).errCode == 415
    assert peer.register(clientId="").errCode == 415
    assert peer.beat(clientId="").errCode == 415
    for token in (1, 2):
        for _ in range(3):
            assert (await peer.send(authInfo=authorized(token))).success
        assert (await peer.send()).errCode == 415
        assert peer.register(authInfo=authorized(token)).success
        assert peer.beat(authInfo=authorized(token)).success
    for token in range(3, 8):
        assert access.learn(f"{token},{token + 1}")
        broker.state.changed()
    assert (await peer.send(authInfo=authorized(2))).errCode == 415, "the last six are kept"
    assert (await peer.send(authInfo=authorized(3))).success
    access.learn("nonsense, ")
    access.in_contact = False
    assert (await peer.send()).success, "the broker may have missed a token"


async def test_authentication(peer: Peer, broker: Broker) -> None:
    access = broker.state.access
    access.switch(pb.EnableBrokerFunInfo(enableProduceAuthenticate=True))
    broker.state.changed()
    assert (await peer.send(authInfo=authorized(-2, " "))).errCode == 415
    assert (await peer.send(authInfo=authorized(-2, "token"))).success
    assert peer.register().success
    access.switch(pb.EnableBrokerFunInfo(enableConsumeAuthenticate=True))
    broker.state.changed()
    assert (await peer.send()).success
    assert peer.register().errCode == 415
    assert peer.unregister().errCode == 415
    assert peer.beat().errCode == 415
    assert peer.get(partitionId=1).errCode == 411, "relies on the registration"
    assert peer.register(authInfo=authorized(-2, "user 1 2 signature")).success


# -- method 15


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"clientId": "", "topicName": ""}, 400),
        ({"topicName": "", "groupName": ""}, 400),
        ({"topicName": "unknown", "groupName": ""}, 403),
        ({"groupName": "", "opType": 33}, 400),
        ({"groupName": "g" * 1025}, 400),
        ({"opType": 33}, 400),
        ({"partitionId": 3}, 403),
        ({"filterCondStr": ["f" * 257]}, 400),
        ({"filterCondStr": ["f"] * 501}, 400),
    ],
)
async def test_refused_registrations(peer: Peer, fields: dict[str, Any], code: int) -> None:
    refused = peer.register(**fields)
    assert (refused.success, refused.errCode, refused.currOffset) == (False, code, -1)


async def test_where_reading_starts(peer: Peer, broker: Broker) -> None:
    for _ in range(5):
        await peer.send()
    first = peer.register(groupName="first")
    assert (first.currOffset, first.maxOffset, first.offsetStep) == (0, 5, 1)
    assert peer.register(groupName="latest", readStatus=1).currOffset == 5
    assert peer.register(groupName="named", readStatus=1, currOffset=3).currOffset == 3
    assert peer.register(groupName="beyond", currOffset=99).currOffset == 5
    assert peer.register(groupName="always", readStatus=2, currOffset=3).currOffset == 5
    assert peer.register(groupName="odd", readStatus=9).currOffset == 5
    assert peer.unregister(groupName="first", readStatus=1).success
    assert peer.register(groupName="first", readStatus=1).currOffset == 0, "it has a position"
    assert len(broker.state.leases) == 6


async def test_one_consumer_of_a_group_at_a_time(
    peer: Peer, broker: Broker, clock: ManualClock
) -> None:
    other = Peer(broker)
    await peer.send()
    assert peer.register().success
    assert len(bodies(peer.get())) == 1
    refused = other.register(clientId="c2")
    assert (refused.errCode, "c1" in refused.errMsg) == (410, True)
    assert other.register(clientId="c2", groupName="h").success
    clock.advance(29_999)
    assert other.register(clientId="c2").errCode == 410
    clock.advance(1)
    assert other.register(clientId="c2").success, "better than Java: at the first try"
    assert bodies(other.get(clientId="c2")) == [b"hello"], "what was not confirmed comes again"
    assert peer.get().errCode == 412
    assert peer.commit().errCode == 401


async def test_registering_anew_drops_the_uncommitted_read(peer: Peer) -> None:
    await peer.send()
    peer.register()
    assert len(bodies(peer.get())) == 1
    assert peer.register().currOffset == 0
    assert peer.commit().currOffset == 0
    assert len(bodies(peer.get())) == 1


async def test_giving_up(peer: Peer, broker: Broker) -> None:
    await peer.send()
    await peer.send()
    assert peer.unregister().errCode == 411
    peer.register()
    assert Peer(broker).unregister(clientId="c2").errCode == 412
    assert len(bodies(peer.get())) == 2
    assert peer.unregister(readStatus=1).currOffset == 0
    peer.register()
    assert len(bodies(peer.get())) == 2
    gone = peer.unregister(readStatus=0)
    assert (gone.success, gone.currOffset, gone.maxOffset) == (True, 2, 2)
    assert peer.get().errCode == 411
    assert len(broker.state.leases) == 0
    assert not broker.reads.readers


async def test_leases_are_limited(peer: Peer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "LEASES_MAX", 2)
    assert peer.register(groupName="a").success
    assert peer.register(groupName="b").success
    assert peer.register(groupName="c").errCode == 503
    assert peer.register(groupName="b").success


# -- method 16


async def test_heartbeats_renew_and_report(peer: Peer, broker: Broker, clock: ManualClock) -> None:
    peer.register()
    Peer(broker).register(clientId="c2", partitionId=1)
    clock.advance(20_000)
    texts = [f"7:h:8123#demo:{number}" for number in (0, 1, 2)]
    answer = peer.beat(*texts, "nonsense", qryPriorityId=303)
    assert (answer.success, answer.errCode, answer.hasPartFailure) == (True, 200, True)
    assert list(answer.failureInfo) == [f"412:{texts[1]}", f"411:{texts[2]}"]
    assert not answer.requireAuth
    [reader] = broker.state.leases.held_by("c1")
    assert reader.priority == 303
    clock.advance(20_000)
    broker.tick()
    assert [reader.holder for reader in broker.state.leases] == ["c1"]
    assert not peer.beat(texts[0]).hasPartFailure
    clock.advance(30_000)
    assert list(peer.beat(texts[0]).failureInfo) == [f"411:{texts[0]}"]
    assert peer.beat(groupName="").errCode == 400


# -- methods 17 and 18


async def test_reading_confirming_rejecting(peer: Peer) -> None:
    for number in range(4):
        await peer.send(data=b"%d" % number)
    peer.register()
    answer = peer.get(lastPackConsumed=False)
    assert (answer.errCode, answer.errMsg, answer.minLimitTime) == (200, "OK!", 0)
    assert bodies(answer) == [b"0", b"1", b"2", b"3"]
    assert (answer.currOffset, answer.maxOffset, answer.escFlowCtrl) == (0, 4, False)
    assert (answer.currDataDlt, answer.requireSlow) == (0, False)
    assert bodies(peer.get(lastPackConsumed=False)) == [b"0", b"1", b"2", b"3"]
    rejected = peer.commit(lastPackConsumed=False)
    assert (rejected.success, rejected.currOffset, rejected.maxOffset) == (True, 0, 4)
    assert bodies(peer.get()) == [b"0", b"1", b"2", b"3"]
    assert peer.commit().currOffset == 4, "absent means true"
    await peer.send(data=b"4")
    more = peer.get(lastPackConsumed=True)
    assert (more.currOffset, bodies(more)) == (4, [b"4"])
    await peer.send(data=b"5")
    assert bodies(peer.get(lastPackConsumed=True)) == [b"5"]


async def test_packages_are_limited_and_manual_reads_go_on(
    store: Store, clock: ManualClock
) -> None:
    broker = Broker(BrokerOptions(transfer_bytes=2500), Core(store, clock.now_ms))
    serve(broker)
    peer = Peer(broker)
    for number in range(5):
        await peer.send(data=b"%d" % number * 1000)
    await peer.send(data=b"x" * 9000)
    peer.register()
    backlog: list[int] = []
    offsets: list[int] = []
    while len(offsets) < 3:
        answer = peer.get(manualCommitOffset=True)
        offsets.append(answer.currOffset)
        backlog.append(answer.currDataDlt)
        assert answer.messages, "at least one, however long"
    assert offsets[0] == 0
    assert offsets == sorted(set(offsets))
    assert backlog == sorted(set(backlog), reverse=True)
    assert peer.commit().currOffset > offsets[-1]
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
async def test_refused_gets(peer: Peer, fields: dict[str, Any], code: int) -> None:
    peer.register()
    peer.register(topicName="going")
    refused = peer.get(**fields)
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
async def test_refused_commits(peer: Peer, fields: dict[str, Any], code: int) -> None:
    peer.register()
    refused = peer.commit(**fields)
    assert (refused.success, refused.errCode, refused.currOffset) == (False, code, -1)


async def test_filters(peer: Peer) -> None:
    for number in range(6):
        await peer.send(data=b"%d" % number, msgType="AB"[number % 2])
    await peer.send(data=b"plain")
    peer.register(filterCondStr=["B", "C"])
    answer = peer.get()
    assert bodies(answer) == [b"1", b"3", b"5"]
    assert answer.requireSlow
    peer.register(filterCondStr=["C"])
    serial = peer.post_get()
    assert peer.got(serial) is None, "nothing passes, so it waits"
    await peer.send(data=b"A again", msgType="A")
    assert peer.got(serial) is None
    assert peer.commit().currOffset == 8, "what does not pass is passed over at once"
    await peer.send(data=b"C at last", msgType="C")
    found = peer.got(serial)
    assert found is not None
    assert bodies(found) == [b"C at last"]


async def test_a_long_way_without_a_match_is_cut(
    peer: Peer, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(4):
        await peer.send(msgType="A")
    monkeypatch.setattr(limits, "SCANS_PER_GET", 1)
    peer.register(filterCondStr=["B"])
    answer = peer.get()
    assert (bodies(answer), answer.currOffset) == ([], 4)
    assert peer.got(peer.post_get()) is None


async def test_a_position_outside_the_partition(peer: Peer, broker: Broker) -> None:
    peer.register()
    [reader] = broker.state.leases.held_by("c1")
    reader.position.offset = 99
    serial = peer.post_get()
    assert peer.got(serial) is None
    assert reader.position.offset == 0
    await peer.send()
    assert peer.got(serial) is not None


async def test_a_get_waits_for_its_partition(
    peer: Peer, broker: Broker, clock: ManualClock
) -> None:
    peer.register()
    serial = peer.post_get()
    clock.advance(3_999)
    broker.tick()
    assert peer.got(serial) is None
    assert broker.reads.held == 1
    await peer.send(partitionId=1)
    assert peer.got(serial) is None
    await peer.send(data=b"now")
    answer = peer.got(serial)
    assert answer is not None
    assert bodies(answer) == [b"now"]
    assert broker.reads.held == 0


async def test_a_get_waits_no_longer_than_half_its_time(
    peer: Peer, broker: Broker, clock: ManualClock
) -> None:
    peer.register()
    short, long = peer.post_get(timeout_ms=3_000), None
    clock.advance(1_500)
    broker.tick()
    answer = peer.got(short)
    assert answer is not None
    assert (answer.success, answer.errCode) == (False, 404)
    assert answer.errMsg == "The request offset reached maxOffset!"
    long = peer.post_get(timeout_ms=600_000)
    clock.advance(4_000)
    broker.tick()
    assert peer.got(long) is not None


async def test_what_ends_a_waiting_get(peer: Peer, broker: Broker, clock: ManualClock) -> None:
    def code(serial: int) -> int:
        answer = peer.got(serial)
        return answer.errCode if answer is not None else 0

    peer.register()
    first = peer.post_get()
    second = peer.post_get()
    assert (code(first), code(second)) == (404, 0), "one for each reader"
    peer.register()
    assert code(second) == 411
    third = peer.post_get()
    peer.unregister()
    assert code(third) == 411
    peer.register()
    fourth = peer.post_get(timeout_ms=600_000)
    [reader] = broker.state.leases.held_by("c1")
    reader.deadline_ms = clock.now_ms()
    broker.tick()
    assert code(fourth) == 411
    peer.register()
    fifth = peer.post_get()
    broker.core.remove_topic("demo")
    assert code(fifth) == 411
    peer.register()
    sixth = peer.post_get()
    await close(broker)
    assert code(sixth) == 503


async def test_a_closed_connection_leaves_nothing_behind(peer: Peer, broker: Broker) -> None:
    other = Peer(broker)
    peer.register()
    other.register(groupName="h")
    serial, kept = peer.post_get(), other.post_get(groupName="h")
    peer.service.closed(None)
    assert broker.reads.held == 1
    await peer.send()
    assert peer.got(serial) is None
    assert other.got(kept) is not None
    assert len(broker.state.leases) == 2, "leases end by time"


async def test_a_consumer_with_one_thread_finds_the_partition_with_messages(
    peer: Peer, broker: Broker
) -> None:
    for number in range(3):
        peer.register(partitionId=number)
    held = peer.post_get(partitionId=0)
    await peer.send(partitionId=2, data=b"there")
    released = peer.got(held)
    assert released is not None
    assert bodies(released) == [], "ask again at once"
    assert bodies(peer.get(partitionId=1)) == []
    assert peer.got(peer.post_get(partitionId=1)) is None, "told once"
    assert bodies(peer.get(partitionId=2)) == [b"there"]
    assert peer.got(peer.post_get(partitionId=0)) is None, "nothing more to find"
    assert broker.reads.held == 2


async def test_a_backlog_is_not_waited_beside(store: Store, clock: ManualClock) -> None:
    broker = Broker(BrokerOptions(transfer_bytes=1), Core(store, clock.now_ms))
    serve(broker)
    peer = Peer(broker)
    for _ in range(3):
        await peer.send(partitionId=1)
    peer.register(partitionId=0)
    held = peer.post_get(partitionId=0)
    peer.register(partitionId=1)
    assert peer.got(held) is not None, "the new partition has messages"
    assert len(bodies(peer.get(partitionId=1))) == 1
    assert bodies(peer.get(partitionId=0)) == [], "there are more"
    assert len(bodies(peer.get(partitionId=1))) == 1
    assert len(bodies(peer.get(partitionId=1))) == 1
    assert peer.got(peer.post_get(partitionId=0)) is None, "that was all"
    await close(broker)


async def test_a_consumer_that_never_asks_does_not_make_the_others_spin(peer: Peer) -> None:
    peer.register(partitionId=0)
    peer.register(partitionId=1)
    answered = 0
    for _ in range(20):
        serial = peer.post_get(partitionId=0)
        await peer.send(partitionId=1)
        answered += peer.got(serial) is not None
    assert answered == 1, "the first; each later one waits until the next one takes its place"
    codes = [
        methods.parse(pb.GetMessageResponseB2C, answer.body).errCode
        for answer in peer.wire.answers.values()
        if isinstance(answer, Response) and answer.method == methods.GET_MESSAGES
    ]
    assert codes.count(200) == 1


async def test_flow_rules(peer: Peer, broker: Broker, clock: ManualClock) -> None:
    broker.state.flow = FlowRules.parse(
        '[{"type":0,"rule":[{"start":"00:00","end":"24:00","dltInM":21,"limitInM":12,'
        '"freqInMs":700}]}]'
    )
    peer.register()
    for _ in range(6):
        await peer.send(data=b"x" * 600_000)
    assert len(bodies(peer.get())) == 1, "not at the first read"
    assert len(bodies(peer.get())) == 1
    assert len(bodies(peer.get())) == 1
    limited = peer.get()
    assert (limited.errCode, limited.minLimitTime) == (452, 700)
    assert len(bodies(peer.get(escFlowCtrl=True))) == 1
    clock.advance(5_000)
    assert len(bodies(peer.get())) == 1
    peer.beat("7:h:8123#demo:0")
    clock.advance(25_000)
    assert len(bodies(peer.get())) == 1


async def test_a_consumer_that_does_not_read_is_not_served(peer: Peer) -> None:
    await peer.send(data=b"x" * 1000)
    peer.register()
    peer.wire.full = True
    serials = [peer.post_get(lastPackConsumed=False) for _ in range(3)]
    assert not peer.wire.reading
    await asyncio.sleep(0)
    assert all(peer.got(serial) is None for serial in serials)
    peer.wire.full = False
    peer.wire.room.set()
    for _ in range(10):
        await asyncio.sleep(0)
    assert all(peer.got(serial) is not None for serial in serials)
    assert peer.wire.reading
    assert peer.got(peer.post_get(lastPackConsumed=False)) is not None


async def test_a_connection_that_ends_while_its_gets_are_put_off(
    peer: Peer, broker: Broker
) -> None:
    peer.register()
    peer.wire.full = True
    peer.post_get()
    await asyncio.sleep(0)
    peer.service.closed(None)
    peer.wire.room.set()
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert broker.reads.held == 0


# -- what is no request


async def test_messages_that_cannot_be_read_are_fatal_and_only_they(peer: Peer) -> None:
    payloads = {13: b"\xff", 15: b"\x08", 16: b"", 17: b"\x0a", 18: b"x"}
    for method, body in payloads.items():
        serial, frame = peer.wire.session.request(method, pb.CloseRequestB2M(brokerId="1"), 1000)
        del frame
        service = 3 if method == 13 else 2
        inner = pb.RequestBody(method=method, timeout=1000, request=body).SerializeToString()
        header = pb.RequestHeader(serviceType=service, protocolVer=3).SerializeToString()
        payload = b"\x02\x08\x00" + bytes([len(header)]) + header + bytes([len(inner)]) + inner
        peer.service.received(encode_frame(serial, payload))
        answer = peer.wire.answers[serial]
        assert isinstance(answer, Failure)
        assert answer.fatal
    assert (await peer.send()).success


async def test_the_masters_methods_are_not_served_here(peer: Peer) -> None:
    serial = peer.post(methods.BROKER_CLOSE, pb.CloseRequestB2M(brokerId="1"))
    answer = peer.wire.answers[serial]
    assert isinstance(answer, Failure)
    assert not answer.fatal
    assert answer.text == "No service 1 found on the server"


# -- files


async def test_positions_outlive_the_broker(
    peer: Peer, broker: Broker, store: Store, clock: ManualClock
) -> None:
    for _ in range(3):
        await peer.send()
    peer.register()
    peer.get()
    peer.commit()
    peer.register(groupName="passing", currOffset=1)
    peer.register(groupName="latest", readStatus=1)
    await broker.core.save_positions()
    assert store.load_config("consumerOffset.json") == (
        b'{"offsetTable":{"demo@g":{0:3},"demo@latest":{0:3}}}'
    )
    again = Broker(OPTIONS, Core(store, clock.now_ms))
    assert "g" in again.core.groups
    assert "passing" not in again.core.groups
    serve(again)
    assert Peer(again).register().currOffset == 3
    await close(again)


async def test_old_groups_and_old_files_go(
    store: Store,
    clock: ManualClock,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO")
    broker = Broker(OPTIONS, Core(store, clock.now_ms, group_idle_ms=1000))
    serve(broker)
    peer = Peer(broker)
    peer.register()
    peer.register(groupName="h")
    peer.unregister(groupName="h")
    broker.core.clean()
    clock.advance(1000)
    monkeypatch.setattr(store, "clean", lambda now_ms: 2)
    broker.core.clean()
    assert broker.state.offsets.groups() == {"g"}
    assert "2 old files" in caplog.text
    await close(broker)


async def test_a_removed_topic_is_empty(peer: Peer, broker: Broker, store: Store) -> None:
    await peer.send()
    peer.register()
    broker.core.remove_topic("demo")
    assert store.queue_range("demo", 0) == (0, 0)
    assert broker.state.offsets.groups() == set()
    assert len(broker.state.leases) == 0
