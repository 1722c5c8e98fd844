"""The load of `bench.connections`: many clients of a RocketMQ broker, in one process.

A client here is a connection that sends what Java's client sends, without a client behind it, so
that the processor is left to the broker. The program prints its figures as JSON.
"""

from __future__ import annotations

import asyncio
import json
import statistics
import time
from collections.abc import Sequence
from itertools import count, islice
from typing import Final, cast

from bench.usage import cpu_of, resident_mb
from coherer import _net as net
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

TOPIC: Final = "consume"
MEMBERS: Final = 10
"""Consumers of a group."""
AT_ONCE: Final = 200
"""Clients that connect, or send a heartbeat, together."""
HEARTBEAT_S: Final = 30
"""Java's `heartbeatBrokerInterval`."""
ROUNDS: Final = 5


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


class Clients:
    """All clients of one broker.

    Args:
        address: of the broker, host:port.
        connections: how many clients there are.
        groups: how many groups of `MEMBERS` consumers are among them; the others are producers.
    """

    def __init__(self, address: str, connections: int, groups: int) -> None:
        host, _, port = address.rpartition(":")
        self._place = host, int(port)
        self._beats = [_heartbeat(number, groups) for number in range(connections)]
        self.peers: list[Peer] = []

    async def connect(self) -> None:
        """Open all connections."""
        while missing := len(self._beats) - len(self.peers):
            opened = (self._opened() for _ in range(min(AT_ONCE, missing)))
            self.peers += await asyncio.gather(*opened)

    async def beat(self) -> None:
        """Send the heartbeat of each client once; the first one registers it."""
        numbers = iter(range(len(self.peers)))
        while some := list(islice(numbers, AT_ONCE)):
            await asyncio.gather(*map(self._beat, some))

    async def balance(self, group: int) -> float:
        """End a member of a group; return the seconds until the others know who is left."""
        members = range(group * MEMBERS, (group + 1) * MEMBERS)
        rest = [self.peers[one] for one in members[1:]]
        for one in rest:
            one.called.clear()
        begin = time.perf_counter()
        self.peers[members[0]].leave()
        await asyncio.gather(*(_balanced(one, group, len(rest)) for one in rest))
        took = time.perf_counter() - begin
        self.peers[members[0]] = await self._opened()
        await self._beat(members[0])
        return took

    async def _opened(self) -> Peer:
        _, peer = await asyncio.get_running_loop().create_connection(Peer, *self._place)
        return peer

    async def _beat(self, number: int) -> None:
        await self.peers[number].ask(RequestCode.HEART_BEAT, self._beats[number])


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


async def main(address: str, pid: int, connections: int, groups: int) -> None:
    """Measure, and print the figures."""
    net.raise_open_files_limit()
    clients = Clients(address, connections, groups)
    await clients.connect()
    await clients.beat()
    rounds: list[float] = []
    for _ in range(ROUNDS):
        before = cpu_of(pid)
        await clients.beat()
        rounds.append(cpu_of(pid) - before)
    before = cpu_of(pid)
    balances = [await clients.balance(group) for group in range(groups)]
    figures = {
        "heartbeat_cpu": statistics.median(rounds) / HEARTBEAT_S * 1000,
        "balance": statistics.median(balances) * 1000,
        "balance_cpu": (cpu_of(pid) - before) / groups * 1000,
        "memory": resident_mb(pid, "RssAnon"),
    }
    print(json.dumps(figures), flush=True)


def start(arguments: Sequence[str]) -> None:
    """Run the program."""
    net.run(main(arguments[0], *map(int, arguments[1:])))
