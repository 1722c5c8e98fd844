"""A TubeMQ broker without sockets, and a client that sends requests and decodes the answers."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any, TypeVar, cast

from google.protobuf.message import Message

from coherer._net import Connection
from coherer._rules.common.topics import Topic
from coherer._server.options.tubemq import BrokerOptions
from coherer._server.tubemq.broker.broker import Broker, BrokerConnection
from coherer._wire.tubemq import messages as pb
from coherer._wire.tubemq import methods
from coherer._wire.tubemq.session import ClientSession, Failure, Response

M = TypeVar("M", bound=Message)

TOPICS = [
    Topic.of_master("demo", 3, stores=2),
    Topic.of_master("small", 1, message_bytes_max=1000),
    Topic.of_master("closed", 1, status=1),
    Topic.of_master("going", 1, status=2),
    Topic.of_master("__offset_history__", 10),
]

OPTIONS = BrokerOptions(broker_id=7, hold_ms=4_000)


class FakeConnection:
    """A connection that collects what is written."""

    client = "10.0.0.9:40000"
    peer_host = "10.0.0.9"
    local_host = "10.0.0.1"
    closed = False

    def __init__(self) -> None:
        self.session = ClientSession()
        self.answers: dict[int, Response | Failure] = {}
        self.writes = 0
        self.full = False
        self.reading = True
        self.answered = asyncio.Event()
        self.draining = asyncio.Event()
        self.drained = asyncio.Event()

    @property
    def overloaded(self) -> bool:
        return self.full

    def write(self, data: bytes) -> None:
        self.write_many([data])

    def write_many(self, parts: Iterable[bytes | memoryview]) -> None:
        data = b"".join(parts)
        self.writes += bool(data)
        for answer in self.session.receive(data):
            assert answer.serial not in self.answers, "answered twice"
            self.answers[answer.serial] = answer
        self.answered.set()

    def flush(self) -> None:
        pass

    async def drain(self) -> None:
        self.draining.set()
        await self.drained.wait()

    def report_unfinished(self, unfinished: tuple[int, int]) -> None:
        """Whole requests come here."""

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True

    def close(self) -> None:
        self.closed = True


class BrokerClient:
    """A client of the broker under test."""

    def __init__(self, broker: Broker) -> None:
        self.connection = FakeConnection()
        self.receiver: BrokerConnection = BrokerConnection(
            broker, cast("Connection", self.connection)
        )

    def post(self, method: int, message: Message, timeout_ms: int = 10_000) -> int:
        serial, frame = self.connection.session.request(method, message, timeout_ms)
        self.receiver.received(frame)
        return serial

    def answer(self, serial: int, kind: type[M]) -> M | None:
        found = self.connection.answers.get(serial)
        if found is None:
            return None
        assert isinstance(found, Response), found
        return methods.parse(kind, found.body)

    async def wait_answer(self, serial: int, kind: type[M]) -> M:
        async with asyncio.timeout(10):
            while (answer := self.answer(serial, kind)) is None:
                self.connection.answered.clear()
                await self.connection.answered.wait()
        return answer

    def ask(self, method: int, message: Message, kind: type[M]) -> M:
        answer = self.answer(self.post(method, message), kind)
        assert answer is not None, "not answered at once"
        return answer

    async def send(self, **fields: Any) -> pb.SendMessageResponseB2P:
        serial = self.post(methods.SEND_MESSAGE, send_request(**fields))
        return await self.wait_answer(serial, pb.SendMessageResponseB2P)

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

    def heartbeat(self, *partitions: str, **fields: Any) -> pb.HeartBeatResponseB2C:
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


async def close(broker: Broker) -> None:
    broker.close()
    await broker.core.close()


def serve(broker: Broker) -> None:
    broker.state.topics.replace(TOPICS)
    broker.state.serving = True
    broker.state.changed()
