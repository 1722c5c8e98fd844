"""A master and slaves with only their stores, and a raw peer of their connections."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

from coherer import _net as net
from coherer._record.layout import decode
from coherer._rules.common.origins import Origin
from coherer._server.core.core import Core
from coherer._server.rocketmq.ha.master import HaMaster
from coherer._server.rocketmq.ha.slave import HaSlave
from coherer._store import Draft, Store, StoreOptions
from coherer.testing import ManualClock

OPTIONS = StoreOptions(segment_bytes=1 << 16, queue_segment_bytes=2000, index_enabled=False)


class Side:
    """A store and the core of a node."""

    def __init__(self, directory: Path, clock: ManualClock) -> None:
        self.store = Store.open(directory, OPTIONS, now_ms=clock.now_ms)
        self.core = Core(self.store, clock.now_ms)

    async def send(self, *bodies: str) -> int:
        end: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        drafts = [Draft("t", 0, body.encode(), b"") for body in bodies]
        self.core.appender.submit(
            drafts,
            lambda _, end_offset: end.set_result(end_offset),
            origin=Origin.ROCKETMQ_CLIENT,
        )
        return await end

    async def extent(self) -> tuple[int, int]:
        """Where its log begins and ends."""
        return self.store.min_offset, self.store.end_offset

    def bodies(self) -> list[str]:
        found: list[str] = []
        at, end = self.store.queue_range("t", 0)
        while at < end:
            slices = self.store.read("t", 0, at, max_bytes=1 << 20, max_count=1000)
            found += [bytes(decode(record).body).decode() for record in slices.records]
            at = slices.next_offset
        return found

    async def close(self) -> None:
        await self.core.close()
        self.store.close()


class Peer:
    """The other end of a replication connection, which is a bare socket."""

    def __init__(self, connection: net.Connection) -> None:
        self.connection = connection
        self.heard = bytearray()
        self.news = asyncio.Event()
        self.lost = asyncio.Event()

    def received(self, data: bytes) -> None:
        self.heard += data
        self.news.set()

    def closed(self, error: Exception | None) -> None:
        self.lost.set()

    async def hears(self, count: int) -> bytes:
        async with asyncio.timeout(10):
            while len(self.heard) < count:
                self.news.clear()
                await self.news.wait()
        taken = bytes(self.heard[:count])
        del self.heard[:count]
        return taken


class Harness:
    """A master with its port."""

    def __init__(self, directory: Path, clock: ManualClock) -> None:
        self.clock = clock
        self.directory = directory
        self.side = Side(directory / "master", clock)
        self.master = HaMaster(self.side.core)
        self.listener: net.Listener
        self._sides: list[Side] = []
        self._slaves: list[HaSlave] = []

    async def start(self) -> Harness:
        self.listener = await net.listen("127.0.0.1", 0, self.master.make)
        return self

    async def peer(self) -> Peer:
        return await net.dial("127.0.0.1", self.listener.port, Peer)

    def slave(self, name: str = "slave") -> tuple[Side, HaSlave]:
        side = Side(self.directory / name, self.clock)
        slave = HaSlave(side.core, log_of_master=self.side.extent, retry_s=0.01)
        self._sides.append(side)
        self._slaves.append(slave)
        slave.found(f"127.0.0.1:{self.listener.port}")
        slave.start()
        return side, slave

    async def close(self) -> None:
        for slave in self._slaves:
            await slave.close()
        self.master.close()
        await self.listener.close()
        for side in [*self._sides, self.side]:
            await side.close()


@asynccontextmanager
async def running(directory: Path, clock: ManualClock) -> AsyncGenerator[Harness]:
    """A master for a while."""
    made = await Harness(directory, clock).start()
    try:
        yield made
    finally:
        await made.close()
