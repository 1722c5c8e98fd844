"""Requests that change topics are answered after remote name servers know the change."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from coherer import _net as net
from coherer._client.tubemq.administration.admin import Admin
from coherer._rules.common.topics import TopicTable
from coherer._rules.rocketmq.routes import BrokerRegistration, MasterAddress, RouteTable
from coherer._server.node.node import Node
from coherer._server.options.rocketmq import RocketOptions
from coherer._server.rocketmq.broker import registration as registering
from coherer._server.rocketmq.broker.registration import (
    BrokerAnnouncement,
    LocalRegistrar,
    RemoteRegistrar,
)
from coherer._server.rocketmq.remoting import Channel, RemotingServer
from coherer._server.rocketmq.remoting_client import RemotingClient
from coherer._wire.rocketmq import bodies
from coherer._wire.rocketmq.codes import RequestCode as Code
from coherer._wire.rocketmq.command import Command
from tests.server.node_harness import options
from tests.server.rocketmq_caller import Caller
from tests.waiting import until


class Names:
    """A name server that answers a registration when it is allowed to.

    Attributes:
        topics: of the last registration that it has answered, with their permissions.
        asked: set when a registration waits for its answer.
        open: clear it and registrations wait.
    """

    def __init__(self) -> None:
        self.topics: dict[str, int] = {}
        self.asked = asyncio.Event()
        self.open = asyncio.Event()
        self.open.set()
        self.port = -1
        self.channels: dict[Channel, None] = {}

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    async def register(self, _: Channel, request: Command) -> Command:
        body = bodies.RegisterBody.read(request.body, compressed=False)
        self.asked.set()
        await self.open.wait()
        self.asked.clear()
        table = body.topic_config_serialize_wrapper.topic_config_table
        self.topics = {name: topic.perm for name, topic in table.items()}
        return Command(0)


@asynccontextmanager
async def listening() -> AsyncGenerator[Names]:
    names = Names()
    handlers = {
        Code.REGISTER_BROKER: names.register,
        Code.UNREGISTER_BROKER: lambda _channel, _request: Command(0),
    }
    remoting = RemotingServer(handlers)  # type: ignore[arg-type]
    listener = await net.listen("127.0.0.1", 0, remoting.make)
    names.port, names.channels = listener.port, remoting.channels
    try:
        yield names
    finally:
        names.open.set()
        await listener.close()


@pytest.fixture
async def names() -> AsyncIterator[Names]:
    async with listening() as names:
        yield names


@pytest.fixture
async def broker(tmp_path: Path, names: Names) -> AsyncIterator[Caller]:
    node = Node(options(tmp_path / "node", namesrv=names.address))
    async with node:
        async with asyncio.timeout(10):
            await node.ready()
        yield await Caller.dial(node.rocketmq_port)


def new_topic(name: str) -> dict[str, str]:
    return {
        "topic": name,
        "defaultTopic": "TBW102",
        "readQueueNums": "2",
        "writeQueueNums": "2",
        "perm": "6",
        "topicFilterType": "SINGLE_TAG",
    }


def send(topic: str, properties: str = "") -> dict[str, str]:
    values = ("p", topic, "TBW102", "4", "0", "0", "1", "0", properties)
    return dict(zip("abcdefghi", values, strict=True))


HEARTBEAT = (
    b'{"clientID":"c","consumerDataSet":[{"groupName":"g","subscriptionDataSet":[]}],'
    b'"producerDataSet":[]}'
)
REQUESTS = {
    "create": (Code.UPDATE_AND_CREATE_TOPIC, new_topic("fresh"), b"", "fresh"),
    "send": (Code.SEND_MESSAGE_V2, send("fresh"), b"body", "fresh"),
    "send without wait": (
        Code.SEND_MESSAGE_V2,
        send("fresh", "WAIT\x01false"),
        b"body",
        "fresh",
    ),
    "heartbeat": (Code.HEART_BEAT, {}, HEARTBEAT, "%RETRY%g"),
}


@pytest.mark.parametrize("kind", REQUESTS)
async def test_a_new_topic_is_known_when_its_request_is_answered(
    broker: Caller, names: Names, kind: str
) -> None:
    code, fields, body, topic = REQUESTS[kind]
    names.open.clear()
    answer = broker.begin(code, fields, body)
    async with asyncio.timeout(10):
        await names.asked.wait()
        # Other requests are served meanwhile, also on this connection.
        assert (await broker.ask(Code.GET_ALL_TOPIC_CONFIG)).code == 0
    assert not answer.done()
    names.open.set()
    async with asyncio.timeout(10):
        assert (await answer).code == 0
    assert topic in names.topics


async def test_a_topic_made_over_http_is_known_when_it_is_answered(
    tmp_path: Path, names: Names
) -> None:
    async with Node(options(tmp_path / "node", namesrv=names.address, admin_port=0)) as node:
        async with asyncio.timeout(10):
            await node.ready()
        names.open.clear()
        admin = Admin(f"http://127.0.0.1:{node.admin_port}")
        creating = asyncio.create_task(admin.topics.create("fresh", 2))
        async with asyncio.timeout(10):
            await names.asked.wait()
        assert not creating.done()
        names.open.set()
        async with asyncio.timeout(10):
            await creating
        assert "fresh" in names.topics


async def test_a_sent_back_message_waits_for_its_new_topics(broker: Caller, names: Names) -> None:
    sent = await broker.ask(Code.SEND_MESSAGE_V2, send("fresh"), b"body")
    offset = int(sent.fields["msgId"][16:], 16)
    answer = await broker.ask(
        Code.CONSUMER_SEND_MSG_BACK, {"group": "g", "offset": str(offset), "delayLevel": "-1"}
    )
    assert answer.code == 0
    assert {"%RETRY%g", "%DLQ%g"} <= names.topics.keys()


async def test_a_deletion_and_a_permission_are_known_when_they_are_answered(
    broker: Caller, names: Names
) -> None:
    await broker.ask(Code.UPDATE_AND_CREATE_TOPIC, new_topic("fresh"))
    assert names.topics["fresh"] == 6
    await broker.ask(Code.UPDATE_BROKER_CONFIG, {}, b"brokerPermission=4")
    assert names.topics["fresh"] == 4
    await broker.ask(Code.DELETE_TOPIC_IN_BROKER, {"topic": "fresh"})
    assert "fresh" not in names.topics


async def test_a_request_that_changes_no_topic_does_not_wait(broker: Caller, names: Names) -> None:
    await broker.ask(Code.UPDATE_AND_CREATE_TOPIC, new_topic("fresh"))
    names.open.clear()
    async with asyncio.timeout(10):
        answer = await broker.ask(Code.SEND_MESSAGE_V2, send("fresh"), b"body")
        assert answer.code == 0
        group = b'{"groupName":"g"}'
        answer = await broker.ask(Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, {}, group)
        assert answer.code == 0


async def announced_ms(registry: RemoteRegistrar, topics: TopicTable, number: int) -> float:
    topics.ensure_topic(f"again{number}", 1, 0)
    start = time.monotonic()
    await registry.announced()
    return (time.monotonic() - start) * 1000


async def test_a_broker_whose_connection_ends_registers_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The name server has forgotten it with the connection."""
    monkeypatch.setattr(registering, "LOST_S", 0.01)
    topics, outgoing = TopicTable(), RemotingClient()
    async with listening() as server:
        registration = BrokerAnnouncement(RocketOptions, topics, lambda: 1_000)
        registry = RemoteRegistrar(registration, [server.address], outgoing)
        registry.start()
        try:
            await registry.ready.wait()
            topics.ensure_topic("one", 1, 0)
            await registry.announced()
            server.topics.clear()
            for channel in list(server.channels):
                channel.close()
            await until(lambda: "one" in server.topics)
        finally:
            await registry.close()
            outgoing.close()


async def test_all_name_servers_are_waited_for_but_not_for_ever(
    caplog: pytest.LogCaptureFixture,
) -> None:
    topics, outgoing = TopicTable(), RemotingClient()
    async with listening() as quick, listening() as slow:
        registration = BrokerAnnouncement(RocketOptions, topics, lambda: 1_000)
        addresses = [quick.address, slow.address, "127.0.0.1:1"]
        registry = RemoteRegistrar(registration, addresses, outgoing, announce_timeout_ms=200)
        registry.start()
        try:
            topics.ensure_topic("one", 1, 0)
            await registry.announced()
            assert "one" in quick.topics
            assert "one" in slow.topics
            slow.open.clear()
            topics.ensure_topic("two", 1, 0)
            await registry.announced()
            assert "two" in quick.topics
            assert "two" not in slow.topics
            assert f"{slow.address} did not accept the changed topics" in caplog.text
            # If it were waited for again, each round would take 200 ms, on a quick machine too.
            assert any([await announced_ms(registry, topics, n) < 200 for n in range(20)])
            assert "again0" in quick.topics
            slow.open.set()
            await until(lambda: "again0" in slow.topics)
            topics.ensure_topic("four", 1, 0)
            await registry.announced()
            assert "four" in slow.topics
        finally:
            await registry.close()
            outgoing.close()
    await registry.announced()  # returns at once: no name server is left


class CountedRoutes(RouteTable):
    """Counts registrations."""

    registrations = 0

    def register(self, registration: BrokerRegistration, now_ms: int) -> MasterAddress:
        self.registrations += 1
        return super().register(registration, now_ms)


async def test_changes_of_one_turn_are_registered_together_in_the_same_process() -> None:
    routes, topics = CountedRoutes(), TopicTable()
    announcement = BrokerAnnouncement(RocketOptions, topics, lambda: 0)
    registrar = LocalRegistrar(announcement, routes, lambda: None)
    registrar.sync()
    for number in range(1_000):
        topics.ensure_topic(f"t{number}", 4, 0)
    topics.remove("t7", 0)
    await asyncio.sleep(0)
    assert routes.registrations == 2
    assert len(routes.topics()) == 999
    assert routes.route("t7") is None
    topics.ensure_topic("asked-for", 4, 0)
    assert routes.route("asked-for") is not None, "who asks at once finds it, too"
    topics.ensure_topic("late", 4, 0)
    registrar.close()
    await asyncio.sleep(0)
    assert routes.topics() == []


def test_a_change_without_an_event_loop_is_registered_at_once() -> None:
    routes, topics = RouteTable(), TopicTable()
    LocalRegistrar(BrokerAnnouncement(RocketOptions, topics, lambda: 0), routes, lambda: None)
    topics.ensure_topic("flights", 4, 0)
    assert routes.topics() == ["flights"]
