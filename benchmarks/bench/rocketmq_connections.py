"""Many clients of a RocketMQ broker for `bench.connections_main`: each has one connection."""

from __future__ import annotations

import asyncio
import json
import time
from itertools import count
from typing import cast

from bench.connecting import AT_ONCE, MEMBERS, TOPIC, Clients
from coherer._record.system_topics import RETRY_PREFIX
from coherer._wire.rocketmq.bodies.heartbeat import (
    ConsumerData,
    HeartbeatData,
    ProducerData,
    SubscriptionData,
)
from coherer._wire.rocketmq.codes import RequestCode
from coherer._wire.rocketmq.command import Command, decode, encode
from coherer._wire.rocketmq.frame import FrameDecoder


class Peer(asyncio.Protocol):
    """One connection. It answers no call, and notes when its group has to be balanced."""

    def __init__(self) -> None:
        self._frames = FrameDecoder()
        self._waiting: dict[int, asyncio.Future[Command]] = {}
        self._opaque = count(1)
        self.called = asyncio.Event()
        self.transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the connection."""
        self.transport = cast("asyncio.Transport", transport)  # uvloop has its own class

    def data_received(self, data: bytes) -> None:
        """Take answers, and calls of the broker."""
        for kind, header, body in self._frames.feed(data):
            command = decode(kind, header, body)
            if command.is_response:
                self._waiting.pop(command.opaque).set_result(command)
            elif command.code == RequestCode.NOTIFY_CONSUMER_IDS_CHANGED:
                self.called.set()

    async def ask(self, code: int, body: bytes = b"", **fields: str) -> Command:
        """Send a request; return the answer."""
        assert self.transport is not None
        opaque = next(self._opaque)
        answer: asyncio.Future[Command] = asyncio.get_running_loop().create_future()
        self._waiting[opaque] = answer
        self.transport.write(encode(Command(code, opaque, fields=fields, body=body)))
        found = await answer
        if found.code != 0:
            raise RuntimeError(f"request {code}: {found.code} {found.remark}")
        return found

    def leave(self) -> None:
        """Close the connection, as a client that is killed does."""
        assert self.transport is not None
        self.transport.close()


class RocketMQClients(Clients):
    """All clients of one broker; see `Clients`."""

    heartbeat_s = 30

    def __init__(self, address: str, clients: int, groups: int) -> None:
        super().__init__(address, clients, groups)
        self._beats = [_heartbeat(number, groups) for number in range(clients)]
        self._peers: list[Peer] = []

    async def connect(self) -> None:
        """Open all connections; the first heartbeat registers the clients."""
        while missing := self.clients - len(self._peers):
            opened = (self._opened() for _ in range(min(AT_ONCE, missing)))
            self._peers += await asyncio.gather(*opened)
        await self.beat()

    async def beat(self) -> None:
        """Send the heartbeat of each client once."""
        await self.in_parts(range(self.clients), self._beat)

    async def lose_members(self) -> list[float]:
        """In each group in turn a consumer is lost; the broker calls the others."""
        return [await self._lose_member(group) for group in range(self.groups)]

    async def _lose_member(self, group: int) -> float:
        members = range(group * MEMBERS, (group + 1) * MEMBERS)
        rest = [self._peers[one] for one in members[1:]]
        for one in rest:
            one.called.clear()
        begin = time.perf_counter()
        self._peers[members[0]].leave()
        await asyncio.gather(*(_balanced(one, group, len(rest)) for one in rest))
        took = time.perf_counter() - begin
        self._peers[members[0]] = await self._opened()
        await self._beat(members[0])
        return took

    async def _opened(self) -> Peer:
        _, peer = await asyncio.get_running_loop().create_connection(Peer, *self.place)
        return peer

    async def _beat(self, number: int) -> None:
        await self._peers[number].ask(RequestCode.HEART_BEAT, self._beats[number])


async def _balanced(peer: Peer, group: int, members: int) -> None:
    """Wait for the broker's call, and ask for the members, as a consumer does before it divides."""
    while True:
        await peer.called.wait()
        peer.called.clear()
        answer = await peer.ask(RequestCode.GET_CONSUMER_LIST_BY_GROUP, consumerGroup=_group(group))
        if len(json.loads(bytes(answer.body))["consumerIdList"]) == members:
            return


def _group(number: int) -> str:
    return f"group-{number}"


def _heartbeat(number: int, groups: int) -> bytes:
    names = ["CLIENT_INNER_PRODUCER"]
    consumers: list[ConsumerData] = []
    if number < groups * MEMBERS:
        group = _group(number // MEMBERS)
        topics = (TOPIC, f"{RETRY_PREFIX}{group}")
        consumers.append(
            ConsumerData(
                group_name=group,
                consume_type="CONSUME_PASSIVELY",
                message_model="CLUSTERING",
                consume_from_where="CONSUME_FROM_LAST_OFFSET",
                subscription_data_set=[
                    SubscriptionData(topic=one, sub_string="*", sub_version=1) for one in topics
                ],
            )
        )
    else:
        names.append(f"producers-{number % 100}")
    return HeartbeatData(
        client_id=f"10.0.{number // 256}.{number % 256}@{number}",
        producer_data_set=[ProducerData(group_name=name) for name in names],
        consumer_data_set=consumers,
    ).encode()
