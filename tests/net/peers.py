"""Receivers and servers for tests of connections."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

from coherer import _net as net

PEM = Path(__file__).with_name("localhost.pem")
"""A certificate for localhost and its private key. Both are public: for tests only."""


class Peer:
    """A receiver that keeps what it receives, and acts on it as the test wishes."""

    def __init__(
        self, connection: net.Connection, act: Callable[[Peer, bytes], None] | None = None
    ) -> None:
        self.connection = connection
        self.data = bytearray()
        self.reads = 0
        self.ends: list[Exception | None] = []
        self._changed = asyncio.Event()
        self._act = act

    def received(self, data: bytes) -> None:
        self.data += data
        self.reads += 1
        self._changed.set()
        if self._act:
            self._act(self, data)

    def closed(self, error: Exception | None) -> None:
        self.ends.append(error)
        self._changed.set()

    async def until(self, condition: Callable[[Peer], object]) -> None:
        async with asyncio.timeout(10):
            while not condition(self):
                self._changed.clear()
                await self._changed.wait()

    async def until_data(self, data: bytes) -> None:
        await self.until(lambda peer: len(peer.data) >= len(data))
        assert bytes(self.data) == data

    async def until_closed(self) -> None:
        await self.until(lambda peer: peer.ends)


def echo(peer: Peer, data: bytes) -> None:
    peer.connection.write(data)


def echoing(connection: net.Connection) -> Peer:
    return Peer(connection, echo)


class Server:
    """A listener that remembers its side of the connections."""

    def __init__(self, act: Callable[[Peer, bytes], None]) -> None:
        self.peers: list[Peer] = []
        self.act = act
        self.accepted = asyncio.Event()
        self.listener: net.Listener

    def make(self, connection: net.Connection) -> Peer:
        self.peers.append(Peer(connection, self.act))
        self.accepted.set()
        return self.peers[-1]

    async def dial(self) -> Peer:
        return await net.dial(self.listener.host, self.listener.port, Peer)


@asynccontextmanager
async def serving(
    act: Callable[[Peer, bytes], None],
    limits: net.ConnectionLimits | None = None,
    *,
    host: str = "127.0.0.1",
    connections_max: int | None = None,
) -> AsyncIterator[Server]:
    server = Server(act)
    server.listener = await net.listen(
        host,
        0,
        server.make,
        connections_max=connections_max,
        budget=net.ConnectionBudget(limits) if limits else None,
    )
    yield server
    await server.listener.close()
