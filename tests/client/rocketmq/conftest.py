"""A scripted RocketMQ cluster: a name server and brokers in a few lines, which do as they are told.

    cluster.script(RequestCode.SEND_MESSAGE_V2, refuse(14))   # the next send is refused
    cluster.script(RequestCode.SEND_MESSAGE_V2, silence)      # the next send is never answered
    cluster.always(RequestCode.HEART_BEAT, refuse(1))

What it stores, it only counts.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict, deque
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Any

import pytest

from coherer._client.rocketmq.client import Client
from coherer._client.rocketmq.consuming import assigned_queue, membership
from coherer._net import Listener, listen
from coherer._server.rocketmq.remoting import Channel, RemotingServer
from coherer._wire.rocketmq.bodies import BrokerData, HeartbeatData, QueueData, TopicRoute
from coherer._wire.rocketmq.codes import RequestCode
from coherer._wire.rocketmq.command import Command
from coherer._wire.rocketmq.headers import read_send
from coherer._wire.rocketmq.headers.broker_name import BROKER_NAME_FIELDS
from coherer.rocketmq import connect as connect_rocketmq
from tests.client.rocket_broker import FakeQueues

SENDS = (
    RequestCode.SEND_MESSAGE_V2,
    RequestCode.SEND_BATCH_MESSAGE,
    RequestCode.SEND_REPLY_MESSAGE_V2,
)
_FROM_CHECK = "fromTransactionCheck"


@dataclass
class Asked:
    """A request that has come."""

    broker: str
    channel: Channel
    request: Command

    @property
    def fields(self) -> dict[str, str]:
        return self.request.fields

    @property
    def send(self):
        return read_send(self.request.code, self.request.fields)

    def answer(
        self, code: int = 0, remark: str | None = None, fields: Any = None, body=b""
    ) -> None:
        self.channel.respond(self.request, code, remark, fields, body)


Script = Callable[[Asked], Any]


def refuse(code: int, remark: str = "no") -> Script:
    return lambda asked: asked.answer(code, remark)


def silence(asked: Asked) -> None:
    del asked


def hang_up(asked: Asked) -> None:
    asked.channel.close()


@dataclass
class FakeBroker:
    name: str
    listener: Listener
    stored: int = 0

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.listener.port}"


class FakeCluster:
    """A name server and brokers."""

    def __init__(self) -> None:
        self.log: list[Asked] = []
        self.scripts: dict[int, deque[Script]] = defaultdict(deque)
        self.constants: dict[int, Script] = {}
        self.brokers: dict[str, FakeBroker] = {}
        self.topics: dict[str, int] = {}
        self.masters: dict[str, str] = {}  # the broker whose slave one is
        self.writable = True
        self.names: Listener
        self._news = asyncio.Event()

    async def start(self, brokers: int = 1) -> None:
        self.names = await self._listen("names")
        for number in range(brokers):
            await self.add(f"broker-{'abc'[number]}")

    async def add(self, name: str) -> None:
        self.brokers[name] = FakeBroker(name, await self._listen(name))

    async def reopen(self, name: str) -> None:
        """A broker that was closed listens on its port again."""
        known = self.brokers[name]
        known.listener = await self._listen(name, known.listener.port)

    async def _listen(self, name: str, port: int = 0) -> Listener:
        handlers = {code: lambda c, r: self.receive(name, c, r) for code in RequestCode}
        remoting = RemotingServer(handlers)
        return await listen("127.0.0.1", port, remoting.make)

    async def stop(self) -> None:
        self._check_broker_names()
        for listener in [self.names, *(one.listener for one in self.brokers.values())]:
            await listener.close()

    def _check_broker_names(self) -> None:
        """All requests that RocketMQ 5's Proxy would forward have said to which broker."""
        for asked in self.log:
            name = BROKER_NAME_FIELDS.get(asked.request.code)
            # Tests of connections send no fields. After a check the broker is the one that asked.
            if name is None or not asked.fields or asked.fields.get(_FROM_CHECK) == "true":
                continue
            expected = self.masters.get(asked.broker, asked.broker)
            assert asked.fields.get(name) == expected, asked.request

    @property
    def url(self) -> str:
        return f"rocketmq://127.0.0.1:{self.names.port}"

    def script(self, code: int, *scripts: Script) -> None:
        self.scripts[code].extend(scripts)

    def always(self, code: int, script: Script) -> None:
        self.constants[code] = script

    def asked(self, *codes: int) -> list[Asked]:
        return [one for one in self.log if one.request.code in codes]

    async def until(self, condition: Callable[[], Any], timeout_s: float = 5) -> None:
        async with asyncio.timeout(timeout_s):
            while not condition():
                self._news.clear()
                await self._news.wait()

    def channel(self, broker: str = "broker-a") -> Channel:
        """The last connection to a broker."""
        return [one for one in self.log if one.broker == broker][-1].channel

    def heartbeat(self, broker: str = "broker-a") -> HeartbeatData:
        beats = [one for one in self.asked(RequestCode.HEART_BEAT) if one.broker == broker]
        return HeartbeatData.decode(beats[-1].request.body)

    def route(self, queues: int) -> TopicRoute:
        perm = 6 if self.writable else 4
        return TopicRoute(
            queue_datas=[
                QueueData(
                    broker_name=name, read_queue_nums=queues, write_queue_nums=queues, perm=perm
                )
                for name in self.brokers
            ],
            broker_datas=[
                BrokerData(
                    cluster="DefaultCluster", broker_name=name, broker_addrs={0: one.address}
                )
                for name, one in self.brokers.items()
            ],
        )

    def receive(self, broker: str, channel: Channel, request: Command) -> None:
        asked = Asked(broker, channel, request)
        self.log.append(asked)
        scripts = self.scripts[request.code]
        action = scripts.popleft() if scripts else self.constants.get(request.code, self.default)
        action(asked)
        self._news.set()

    def default(self, asked: Asked) -> None:
        code = asked.request.code
        if code == RequestCode.GET_ROUTEINFO_BY_TOPIC:
            queues = self.topics.get(asked.fields["topic"])
            if queues is None:
                asked.answer(17, "No topic route info in name server for the topic")
            else:
                asked.answer(body=self.route(queues).encode())
        elif code in SENDS:
            broker = self.brokers[asked.broker]
            broker.stored += 1
            fields = {
                "msgId": f"7F00000100002A9F{broker.stored:016X}",
                "queueId": str(asked.send.queue_id),
                "queueOffset": str(broker.stored - 1),
                "MSG_REGION": "DefaultRegion",
                "TRACE_ON": "true",
            }
            asked.answer(fields=fields)
        else:
            asked.answer()


@pytest.fixture
async def cluster() -> AsyncIterator[FakeCluster]:
    """One broker with the topic `demo` of four queues."""
    fake = FakeCluster()
    fake.topics["demo"] = 4
    await fake.start()
    yield fake
    await fake.stop()


@pytest.fixture
async def cluster2() -> AsyncIterator[FakeCluster]:
    """Two brokers with the topic `demo` of two queues each."""
    fake = FakeCluster()
    fake.topics["demo"] = 2
    await fake.start(2)
    yield fake
    await fake.stop()


@pytest.fixture
def shelf(cluster: FakeCluster) -> FakeQueues:
    """The cluster's broker has messages of `demo`, in one queue."""
    return FakeQueues(cluster)


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Consumers that try again within milliseconds."""
    monkeypatch.setattr(assigned_queue, "PAUSE_MS", 10)
    monkeypatch.setattr(assigned_queue, "UNKNOWN_MS", 1)
    monkeypatch.setattr(assigned_queue, "AGAIN_MS", 20)
    monkeypatch.setattr(membership, "ROUND_MS_MIN", 20)


@pytest.fixture
async def client(cluster: FakeCluster) -> AsyncIterator[Client]:
    async with connect_rocketmq(cluster.url, timeout_ms=5_000) as one:
        yield one


@pytest.fixture
async def client2(cluster2: FakeCluster) -> AsyncIterator[Client]:
    async with connect_rocketmq(cluster2.url, timeout_ms=5_000) as one:
        yield one


class Kit:
    refuse = staticmethod(refuse)
    silence = staticmethod(silence)
    hang_up = staticmethod(hang_up)


@pytest.fixture
def kit() -> Kit:
    return Kit()
