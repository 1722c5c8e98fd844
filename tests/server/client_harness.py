"""A RocketMQ broker's client handlers behind a socket, and scripted clients."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import msgspec

from coherer import _net as net
from coherer._server.core.core import Core
from coherer._server.options.rocketmq import RocketOptions
from coherer._server.rocketmq.broker.client_calls import ClientCalls
from coherer._server.rocketmq.broker.clients import ClientHandler
from coherer._server.rocketmq.broker.reply_messages import ReplyHandler
from coherer._server.rocketmq.broker.requests import client_requests
from coherer._server.rocketmq.broker.sending import SendHandler
from coherer._server.rocketmq.broker.state import RocketState
from coherer._server.rocketmq.remoting import Channel, RemotingServer
from coherer._store import Store, StoreOptions
from coherer._wire.rocketmq.command import Command, encode
from coherer._wire.rocketmq.names import Queue
from coherer.testing import ManualClock
from tests.server.rocketmq_caller import Caller

OPTIONS = StoreOptions(segment_bytes=1 << 20, queue_segment_bytes=2000, index_enabled=False)
HEARTBEAT, UNREGISTER, IDS_CHANGED = 34, 35, 40


class Harness:
    """The broker."""

    def __init__(
        self, directory: Path, clock: ManualClock, options: RocketOptions, patience_ms: int = 9_000
    ) -> None:
        self.clock = clock
        self.store = Store.open(directory, OPTIONS, now_ms=clock.wall_ms, monotonic_ms=clock.now_ms)
        self.core = Core(self.store, clock.now_ms, wall_ms=clock.wall_ms)
        self.state = RocketState(options, self.core)
        self.clients = ClientHandler(self.state)
        self.calls = ClientCalls(self.state, call_ms=patience_ms, status_ms=patience_ms)
        replies = ReplyHandler(self.state, SendHandler(self.state), call_ms=patience_ms)
        self.remoting = RemotingServer(
            client_requests(self.clients, self.calls, replies),
            closed=self._closed,
            files=self.core.files,
            now_ms=clock.now_ms,
        )
        self.lost: asyncio.Queue[Channel] = asyncio.Queue()
        self._listener: net.Listener

    def _closed(self, channel: Channel) -> None:
        self.clients.closed(channel)
        self.lost.put_nowait(channel)

    async def start(self) -> Harness:
        self._listener = await net.listen("127.0.0.1", 0, self.remoting.make)
        return self

    async def dial(self) -> Client:
        client = await Client.dial(self._listener.port)
        assert isinstance(client, Client)
        return client

    async def stop(self) -> None:
        await self._listener.close()
        await self.core.close()
        await self.core.save_positions()
        await self.core.files.close()
        self.store.close()


async def other_harness(directory: Path, **options: Any) -> Harness:
    """A second broker of a test, set up otherwise."""
    return await Harness(directory / "other", ManualClock(), RocketOptions(**options)).start()


class Client(Caller):
    """A client that sends heartbeats."""

    async def beat(self, data: dict[str, Any], **header: Any) -> Command:
        return await self.ask_as(HEARTBEAT, body=msgspec.json.encode(data), **header)

    async def consume(
        self, group: str, *topics: dict[str, Any], client_id: str = "me", **header: Any
    ) -> Command:
        return await self.beat(heartbeat(client_id, [consumer(group, *topics)]), **header)

    async def ask_as(
        self,
        code: int,
        fields: dict[str, str] | None = None,
        body: bytes = b"",
        *,
        language: str | None = "JAVA",
        version: int = 399,
    ) -> Command:
        """Asks with another header than a Java client's."""
        opaque = self.session.next_opaque()
        frame = encode(
            Command(code, opaque, 0, language or "JAVA", version, fields=fields or {}, body=body)
        )
        if language is None:
            frame = frame.replace(b'"language":"JAVA"', b'"language":"COBL"')
        self.connection.write(frame)
        async with asyncio.timeout(10):
            return await self.expect(opaque)

    def told(self) -> list[str]:
        """The groups in notifications since the last call."""
        groups: list[str] = []
        while not self.asked.empty():
            request = self.asked.get_nowait()
            assert request.code == IDS_CHANGED
            assert request.is_oneway
            assert not request.body
            groups.append(request.fields["consumerGroup"])
        return groups

    async def settle(self) -> None:
        """Returns when the server has done all that was asked before."""
        assert (await self.ask(999_999)).code == 3


def heartbeat(
    client_id: str, consumers: list[dict[str, Any]] | None = None, *producers: str
) -> dict[str, Any]:
    return {
        "clientID": client_id,
        "consumerDataSet": consumers or [],
        "producerDataSet": [{"groupName": group} for group in producers],
    }


def consumer(group: str, *topics: dict[str, Any], **changes: Any) -> dict[str, Any]:
    return {
        "consumeFromWhere": "CONSUME_FROM_LAST_OFFSET",
        "consumeType": "CONSUME_PASSIVELY",
        "groupName": group,
        "messageModel": "CLUSTERING",
        "subscriptionDataSet": list(topics),
        "unitMode": False,
        **changes,
    }


def tags(topic: str, version: int = 1, **changes: Any) -> dict[str, Any]:
    return {
        "classFilterMode": False,
        "codeSet": [],
        "expressionType": "TAG",
        "subString": "*",
        "subVersion": version,
        "tagsSet": [],
        "topic": topic,
        **changes,
    }


def sql(topic: str, expression: str, version: int = 1) -> dict[str, Any]:
    return tags(topic, version, expressionType="SQL92", subString=expression)


def queue(topic: str, number: int) -> Queue:
    return Queue(topic, "broker-a", number)
