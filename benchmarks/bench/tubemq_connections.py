"""Many clients of a TubeMQ cluster for `bench.connections_main`.

Each client has a connection to the master, and sends it what Java's client sends every 13 s. The
consumers divide their topic as the master tells them, and keep their partitions at the broker over
a connection of their own.
"""

from __future__ import annotations

import asyncio
import time
from abc import ABC, abstractmethod
from contextlib import suppress
from itertools import count
from typing import Any, Final, cast

from google.protobuf.message import Message

from bench.connecting import MEMBERS, TOPIC, Clients
from coherer._client.tubemq.membership import Instruction, ReportedAssignment
from coherer._wire.tubemq import messages as pb
from coherer._wire.tubemq import methods
from coherer._wire.tubemq.codes import ResultCode
from coherer._wire.tubemq.envelope import read_response, request_head
from coherer._wire.tubemq.frame import FrameDecoder, encode_frame
from coherer._wire.tubemq.names import BrokerInfo, FailureInfo, Partition, SubscribeInfo

PARTITIONS: Final = 20
TIMEOUT_MS: Final = 10_000
LISTENING: Final = 1
"""`readStatus` of a partition that is registered anew."""
PAUSE_S: Final = 1.0
"""A consumer whose group is being divided sends its heartbeat after so long."""


class RefusedError(Exception):
    """A server refused a request with this code."""

    def __init__(self, text: str, code: int) -> None:
        super().__init__(f"{text} ({code})")
        self.code = code


class Link(asyncio.Protocol):
    """One connection."""

    def __init__(self) -> None:
        self._frames = FrameDecoder()
        self._waiting: dict[int, asyncio.Future[bytes]] = {}
        self._serial = count(1)
        self._transport: asyncio.Transport | None = None

    @classmethod
    async def open(cls, host: str, port: int) -> Link:
        """Connect to a server."""
        _, link = await asyncio.get_running_loop().create_connection(cls, host, port)
        return link

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the connection."""
        self._transport = cast("asyncio.Transport", transport)  # uvloop has its own class

    def data_received(self, data: bytes) -> None:
        """Take answers."""
        for serial, payload in self._frames.feed(data):
            self._waiting.pop(serial).set_result(payload)

    async def ask(self, number: int, request: Message) -> Any:
        """Send a request; return the answer, an instance of the method's class."""
        assert self._transport is not None
        method, data, serial = (
            methods.METHODS[number],
            request.SerializeToString(),
            next(self._serial),
        )
        waiting: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self._waiting[serial] = waiting
        head = request_head(method.service, number, TIMEOUT_MS, methods.VERSION, len(data))
        self._transport.write(encode_frame(serial, head + data))
        body = read_response(await waiting)
        assert not isinstance(body, tuple), f"{method.name}: {body}"
        answer = method.response.FromString(body.data)
        if not answer.success:
            raise RefusedError(f"{method.name}: {answer.errMsg}", answer.errCode)
        return answer

    def close(self) -> None:
        """End the connection."""
        assert self._transport is not None
        self._transport.close()


class Client(ABC):
    """A producer or a consumer."""

    _master: Link

    async def join(self, host: str, port: int) -> None:
        """Connect and register."""
        self._master = await Link.open(host, port)
        await self._register()

    @abstractmethod
    async def beat(self) -> None:
        """Send the heartbeats."""

    @abstractmethod
    async def _register(self) -> None: ...

    async def _again(self, error: RefusedError) -> None:
        if error.code != ResultCode.HB_NO_NODE:
            raise error
        await self._register()


class Producer(Client):
    """A producer that has published `TOPIC`, and sends nothing."""

    def __init__(self, number: int) -> None:
        self._name = f"127.0.0.1-{number}-1"
        self._brokers: int = methods.UNDEFINED

    async def _register(self) -> None:
        request = pb.RegisterRequestP2M(
            clientId=self._name, topicList=[TOPIC], brokerCheckSum=-1, hostName="127.0.0.1"
        )
        answer = await self._master.ask(methods.PRODUCER_REGISTER, request)
        self._brokers = answer.brokerCheckSum

    async def beat(self) -> None:
        """Send a heartbeat."""
        request = pb.HeartRequestP2M(
            clientId=self._name,
            topicList=[TOPIC],
            brokerCheckSum=self._brokers,
            hostName="127.0.0.1",
        )
        try:
            answer = await self._master.ask(methods.PRODUCER_HEARTBEAT, request)
        except RefusedError as error:
            await self._again(error)
            return
        if answer.brokerInfos:
            self._brokers = answer.brokerCheckSum


class Consumer(Client):
    """A member of a group."""

    def __init__(self, number: int, group: str) -> None:
        self._group = group
        self._name = f"{group}_127.0.0.1-{number}-1-Pull"
        self._brokers: dict[BrokerInfo, Link] = {}
        self._assignment = ReportedAssignment()

    @property
    def partitions(self) -> tuple[Partition, ...]:
        """What the consumer has registered at the broker."""
        return self._assignment.partitions

    async def _register(self) -> None:
        request = pb.RegisterRequestC2M(
            clientId=self._name,
            groupName=self._group,
            hostName="127.0.0.1",
            topicList=[TOPIC],
            subscribeInfo=self._infos(self.partitions),
            sessionTime=time.time_ns() // 1_000_000,
        )
        await self._master.ask(methods.CONSUMER_REGISTER, request)
        self._assignment.registered()

    async def leave(self) -> None:
        """Give up the partitions, tell the master, and go."""
        request = pb.CloseRequestC2M(clientId=self._name, groupName=self._group)
        with suppress(RefusedError):
            for partition in self.partitions:
                await self._at_broker(methods.UNREGISTER, partition)
            await self._master.ask(methods.CONSUMER_CLOSE, request)
        for link in (self._master, *self._brokers.values()):
            link.close()
        self._brokers.clear()
        self._assignment = ReportedAssignment()

    async def beat(self) -> None:
        """Send the heartbeats, and do what the master says."""
        report = self._assignment.next_report()
        request = pb.HeartRequestC2M(
            clientId=self._name,
            groupName=self._group,
            subscribeInfo=self._infos(report.partitions or ()),
            reportSubscribeInfo=report.partitions is not None,
        )
        if report.done is not None:
            request.event.CopyFrom(
                pb.EventProto(
                    rebalanceId=report.done.id,
                    opType=report.done.kind,
                    status=2,
                    subscribeInfo=self._infos(report.done.partitions),
                )
            )
        try:
            answer = await self._master.ask(methods.CONSUMER_HEARTBEAT, request)
        except RefusedError as error:
            await self._again(error)
            return
        self._assignment.accepted(report)
        event = answer.event
        if event.rebalanceId > 0:
            infos = [SubscribeInfo.parse(text).partition for text in event.subscribeInfo]
            await self._follow(Instruction(event.rebalanceId, event.opType, tuple(infos)))
        for broker, link in self._brokers.items():
            held = [one.text() for one in self.partitions if one.broker == broker]
            beat = pb.HeartBeatRequestC2B(
                clientId=self._name, groupName=self._group, readStatus=0, partitionInfo=held
            )
            answer = await link.ask(methods.PARTITION_HEARTBEAT, beat)
            for text in answer.failureInfo:
                self._assignment.remove(FailureInfo.parse(text).partition.key)

    async def _follow(self, instruction: Instruction) -> None:
        for partition in instruction.partitions:
            if instruction.takes and partition.key not in self._assignment:
                with suppress(RefusedError):  # another one has it still
                    await self._at_broker(methods.REGISTER, partition)
                    self._assignment.add(partition)
            elif instruction.gives_up and partition.key in self._assignment:
                with suppress(RefusedError):
                    await self._at_broker(methods.UNREGISTER, partition)
                self._assignment.remove(partition.key)
        self._assignment.finished(instruction)

    async def _at_broker(self, operation: int, partition: Partition) -> None:
        broker = partition.broker
        if broker not in self._brokers:
            self._brokers[broker] = await Link.open(broker.host, broker.port)
        request = pb.RegisterRequestC2B(
            opType=operation,
            clientId=self._name,
            groupName=self._group,
            topicName=partition.topic,
            partitionId=partition.id,
            readStatus=LISTENING,
        )
        await self._brokers[broker].ask(methods.PARTITION_REGISTER, request)

    def _infos(self, partitions: tuple[Partition, ...]) -> list[str]:
        return [SubscribeInfo(self._name, self._group, one).text() for one in partitions]


class TubeMQClients(Clients):
    """All clients of one master; see `Clients`."""

    heartbeat_s = 13

    def __init__(self, address: str, clients: int, groups: int) -> None:
        super().__init__(address, clients, groups)
        members = groups * MEMBERS
        self._consumers = [Consumer(one, f"group-{one // MEMBERS}") for one in range(members)]
        self._producers = [Producer(one) for one in range(members, clients)]

    async def connect(self) -> None:
        """Register all clients, and divide the topic in each group."""
        await self.in_parts(self._consumers, self._join)
        registering = asyncio.create_task(self.in_parts(self._producers, self._join))
        while not registering.done():  # the consumers must not be forgotten meanwhile
            await self.in_parts(self._consumers, Consumer.beat)
            await asyncio.sleep(PAUSE_S)
        await registering
        await asyncio.gather(*(_divided(self._members(group)) for group in range(self.groups)))

    async def beat(self) -> None:
        """Send the heartbeats of each client once."""
        await self.in_parts([*self._consumers, *self._producers], lambda one: one.beat())

    async def lose_members(self) -> list[float]:
        """In all groups at once a consumer leaves: the master divides groups at intervals."""
        return await asyncio.gather(*(self._lose_member(group) for group in range(self.groups)))

    async def _join(self, client: Client) -> None:
        await client.join(*self.place)

    def _members(self, group: int) -> list[Consumer]:
        return self._consumers[group * MEMBERS : (group + 1) * MEMBERS]

    async def _lose_member(self, group: int) -> float:
        first, *rest = self._members(group)
        begin = time.perf_counter()
        await first.leave()
        await _divided(rest)
        return time.perf_counter() - begin


async def _divided(members: list[Consumer]) -> None:
    """Send heartbeats until the members have all partitions."""
    while sum(len(one.partitions) for one in members) < PARTITIONS:
        await asyncio.gather(*(one.beat() for one in members))
        await asyncio.sleep(PAUSE_S)
