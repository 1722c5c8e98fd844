"""The master behind real sockets, with requests as a Java client sends them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from functools import partial

import pytest
from google.protobuf.message import Message

from coherer import _net as net
from coherer._server.core.deferred_saver import DeferredSaver
from coherer._server.options.tubemq import MasterOptions
from coherer._server.tubemq.master.master import Master, MasterConnection
from coherer._wire.tubemq import messages as pb
from coherer._wire.tubemq import methods
from coherer._wire.tubemq.frame import encode_frame
from coherer._wire.tubemq.session import ClientSession, Failure, Response
from coherer.errors import StoreError
from tests.server.master_harness import MasterHarness


class Client:
    """Sends frames and collects the answers."""

    def __init__(self, connection: net.Connection) -> None:
        self.connection = connection
        self.session = ClientSession()
        self.answers: asyncio.Queue[Response | Failure] = asyncio.Queue()

    def received(self, data: bytes) -> None:
        for answer in self.session.receive(data):
            self.answers.put_nowait(answer)

    def closed(self, error: Exception | None) -> None:
        pass

    async def ask(self, method: int, message: Message) -> Message:
        _, frame = self.session.request(method, message, 5_000)
        self.connection.write(frame)
        answer = await self.answers.get()
        assert isinstance(answer, Response)
        return methods.parse(methods.METHODS[method].response, answer.body)

    async def raw(self, service: int, method: int, body: bytes, timeout_ms: int = 5_000) -> Failure:
        self.connection.write(request(service, method, timeout_ms, body))
        answer = await self.answers.get()
        assert isinstance(answer, Failure)
        return answer


def request(service: int, method: int, timeout_ms: int, body: bytes) -> bytes:
    """A handmade frame, which may be malformed."""
    parts = (
        pb.RpcConnHeader(flag=0),
        pb.RequestHeader(serviceType=service, protocolVer=3),
        pb.RequestBody(method=method, timeout=timeout_ms, request=body),
    )
    payload = b""
    for part in parts:
        data = part.SerializeToString()
        assert len(data) < 128
        payload += bytes([len(data)]) + data
    return encode_frame(7, payload)


@pytest.fixture
def harness() -> MasterHarness:
    return MasterHarness()


@pytest.fixture
async def client(harness: MasterHarness) -> AsyncIterator[Client]:
    listener = await net.listen("127.0.0.1", 0, partial(MasterConnection, harness.master))
    client = await net.dial("127.0.0.1", listener.port, Client)
    yield client
    client.connection.close()
    await listener.close()


REGISTER = pb.RegisterRequestP2M(clientId="p", brokerCheckSum=-1, hostName="10.0.0.9")


async def test_a_producer_registers_and_sends_heartbeats(client: Client) -> None:
    answer = await client.ask(methods.PRODUCER_REGISTER, REGISTER)
    assert isinstance(answer, pb.RegisterResponseM2P)
    assert answer.errMsg == "OK!"
    beat = pb.HeartRequestP2M(clientId="p", brokerCheckSum=-1, hostName="10.0.0.9")
    answer = await client.ask(methods.PRODUCER_HEARTBEAT, beat)
    assert isinstance(answer, pb.HeartResponseM2P)
    assert answer.success


async def test_a_standby_answers_as_java_does(harness: MasterHarness, client: Client) -> None:
    harness.master.standby = True
    failure = await client.raw(1, 1, REGISTER.SerializeToString())
    assert failure.standby
    assert not failure.fatal
    assert "is not master now" in failure.text


async def test_invalid_requests_do_not_close_the_connection(
    client: Client,
) -> None:
    assert (await client.raw(1, 1, b"")).fatal
    failure = await client.raw(2, 17, pb.GetMessageRequestC2B().SerializePartialToString())
    assert failure.text == "No service 2 found on the server"
    answer = await client.ask(methods.PRODUCER_REGISTER, REGISTER)
    assert answer.IsInitialized()


async def test_an_unhandled_error_fails_one_request_only(
    harness: MasterHarness, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(harness.master.state, "producers", None)
    failure = await client.raw(1, 1, REGISTER.SerializeToString())
    assert failure.text == "The master failed; see its log."
    close = pb.CloseRequestC2M(clientId="c", groupName="g")
    answer = await client.ask(methods.CONSUMER_CLOSE, close)
    assert isinstance(answer, pb.CloseResponseM2C)
    assert answer.success


async def test_requests_without_a_timeout_get_no_answer(client: Client) -> None:
    client.connection.write(request(1, 1, 0, REGISTER.SerializeToString()))
    await client.ask(methods.PRODUCER_REGISTER, REGISTER)
    assert client.answers.empty()


@pytest.mark.parametrize("has_standbys", [False, True])
async def test_a_change_that_cannot_be_saved(has_standbys: bool) -> None:
    """A master with standbys loses it: it must not say that it was done."""

    def fail(name: str, content: bytes) -> None:
        raise StoreError("ZooKeeper does not answer.")

    files = DeferredSaver(fail, loses_unsaved=has_standbys)
    state = Master(MasterOptions(), lambda: None, lambda take: files.save("master", take))
    accept = partial(MasterConnection, state, files=files)
    listener = await net.listen("127.0.0.1", 0, accept)
    client = await net.dial("127.0.0.1", listener.port, Client)
    broker = pb.RegisterRequestB2M(
        clientId="1:10.0.0.1:8123:x",
        brokerOnline=False,
        enableTls=False,
        readStatusRpt=0,
        writeStatusRpt=0,
        curBrokerConfId=0,
        confCheckSumId=0,
        brokerDefaultConfInfo="",
    )
    _, frame = client.session.request(methods.BROKER_REGISTER, broker, 5_000)
    client.connection.write(frame)
    answer = await client.answers.get()
    if has_standbys:
        assert isinstance(answer, Failure)
        assert answer.standby
        assert "ZooKeeper does not answer" in answer.text
    else:
        assert isinstance(answer, Response)
    client.connection.close()
    await listener.close()
