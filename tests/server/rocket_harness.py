"""A whole RocketMQ broker behind a socket, with a manual clock."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from coherer import _net as net
from coherer._record.layout import Record, decode
from coherer._server.core.core import Core
from coherer._server.options.rocketmq import RocketOptions
from coherer._server.rocketmq.acl import Access
from coherer._server.rocketmq.broker.broker import RocketBroker
from coherer._store import Files, OsFiles, Store, StoreOptions
from coherer._wire.rocketmq.command import Command
from coherer.testing import ManualClock
from tests.server.rocketmq_caller import Caller

STORE = StoreOptions(
    segment_bytes=1 << 22,
    queue_segment_bytes=2_000_000,
    index_slots=100,
    index_entries=1_000,
)
SEND, SEND_V2, PULL, SEND_BACK = 10, 310, 11, 36
COMMIT, SUSPEND, SUBSCRIPTION = 1, 2, 4


class BrokerHarness:
    """The broker.

    Attributes:
        core: the node's.
        broker: with all that it is made of.
        port: where it listens; -1 while it does not.
    """

    def __init__(
        self,
        directory: Path,
        clock: ManualClock,
        *,
        sync_flush: bool = False,
        store_options: StoreOptions = STORE,
        files: Files | None = None,
        access: Access | None = None,
        **options: Any,
    ) -> None:
        self.clock = clock
        self.store = Store.open(
            directory,
            msgspec.structs.replace(store_options, flush="sync" if sync_flush else "async"),
            now_ms=clock.wall_ms,
            monotonic_ms=clock.now_ms,
            files=files or OsFiles(),
        )
        self.core = Core(self.store, clock.now_ms, wall_ms=clock.wall_ms)
        self.broker = RocketBroker(RocketOptions(**options), self.core, access=access)
        self.state = self.broker.state
        self.port = self.fast_port = -1
        self._listeners: list[net.Listener] = []

    async def start(self) -> BrokerHarness:
        for remoting in (self.broker.remoting, self.broker.fast_remoting):
            self._listeners.append(await net.listen("127.0.0.1", 0, remoting.make))
        self.port, self.fast_port = (listener.port for listener in self._listeners)
        return self

    async def dial(self) -> Client:
        client = await Client.dial(self.port)
        assert isinstance(client, Client)
        return client

    async def stored(self) -> None:
        """Wait until all that was sent is stored; the first messages of a new topic wait for it."""
        await self.core.appender.close()

    async def stop(self) -> None:
        for listener in self._listeners:
            await listener.close()
        self.broker.close()
        await self.core.close()
        self.broker.closed()
        await self.core.save_positions()
        await self.core.files.close()
        self.store.close()

    def hold_flush(self, patch: pytest.MonkeyPatch) -> asyncio.Event:
        """Let the disk wait; returns the event that lets it go on."""
        may_flush = asyncio.Event()
        flush = self.core.flusher.flush

        async def held() -> int:
            await may_flush.wait()
            return await flush()

        patch.setattr(self.core.flusher, "flush", held)
        return may_flush

    def change(self, **options: Any) -> None:
        """Behave differently from now on."""
        self.state.change(msgspec.structs.replace(self.state.options, **options))

    def records(self, topic: str, queue: int = 0) -> list[Record]:
        """The messages of a queue."""
        found = self.store.read(topic, queue, 0, max_bytes=1 << 22, max_count=10_000)
        return [decode(bytes(record)) for record in found.records]


@asynccontextmanager
async def running(
    directory: Path, clock: ManualClock, **options: Any
) -> AsyncGenerator[BrokerHarness]:
    """A broker for a while."""
    harness = await BrokerHarness(directory, clock, **options).start()
    try:
        yield harness
    finally:
        await harness.stop()


class Client(Caller):
    """A client made of bytes."""

    async def send(self, body: bytes = b"hello", /, **changes: object) -> Command:
        """A send of code 310."""
        return await self.ask(SEND_V2, send_fields(**changes), body)

    def begin_pull(self, **changes: object) -> asyncio.Future[Command]:
        """A pull whose answer may come later."""
        return self.begin(PULL, pull_fields(**changes))

    async def pull(self, **changes: object) -> Command:
        """A pull."""
        return await self.ask(PULL, pull_fields(**changes))

    async def settle(self) -> None:
        """Returns when the server has done all that was asked before."""
        assert (await self.ask(999_999)).code == 3


def send_fields(**changes: object) -> dict[str, str]:
    """The header of a send; a change to None leaves a letter out."""
    fields = {
        "a": "producers",
        "b": "demo",
        "c": "TBW102",
        "d": "4",
        "e": "0",
        "f": "0",
        "g": "1650000000000",
        "h": "7",
        "i": "TAGS\x01TagA\x02UNIQ_KEY\x010F\x02WAIT\x01true",
        "j": "0",
        "k": "false",
        "m": "false",
        **changes,
    }
    return {name: str(value) for name, value in fields.items() if value is not None}


LETTERS = {
    "a": "producerGroup",
    "b": "topic",
    "c": "defaultTopic",
    "d": "defaultTopicQueueNums",
    "e": "queueId",
    "f": "sysFlag",
    "g": "bornTimestamp",
    "h": "flag",
    "i": "properties",
    "j": "reconsumeTimes",
    "k": "unitMode",
    "l": "maxReconsumeTimes",
    "m": "batch",
}


def long_fields(**changes: object) -> dict[str, str]:
    """The same with the names of code 10."""
    return {LETTERS[name]: value for name, value in send_fields(**changes).items()}


def pull_fields(**changes: object) -> dict[str, str]:
    """The header of a pull, by default with its subscription in it."""
    fields = {
        "consumerGroup": "g",
        "topic": "demo",
        "queueId": "0",
        "queueOffset": "0",
        "maxMsgNums": "32",
        "sysFlag": SUBSCRIPTION,
        "commitOffset": "0",
        "suspendTimeoutMillis": "15000",
        "subscription": "*",
        "subVersion": "1",
        "expressionType": "TAG",
        **changes,
    }
    return {name: str(value) for name, value in fields.items() if value is not None}


def bodies_of(answer: Command) -> list[bytes]:
    """The bodies of the messages in an answer."""
    return [bytes(record.body) for record in records_of(answer)]


def records_of(answer: Command) -> list[Record]:
    """The messages in an answer."""
    data, records = bytes(answer.body), list[Record]()
    while data:
        size = int.from_bytes(data[:4], "big")
        records.append(decode(data[:size]))
        data = data[size:]
    return records
