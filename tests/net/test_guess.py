"""One port for TLS and plain connections (rocketmq 10.6)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from coherer import _net as net
from coherer._net.listener import Guesser
from coherer.errors import UsageError

SERVER = net.TlsOptions(certificate=Path(__file__).with_name("localhost.pem"))
ANYBODY = net.TlsOptions(verify=False)
DATA = bytes(range(256)) * 3000


class Echo:
    """Says the same; or keeps what it hears."""

    def __init__(self, connection: net.Connection, *, answer: bool = False) -> None:
        self.connection = connection
        self.answer = answer
        self.data = bytearray()
        self.changed = asyncio.Event()

    def received(self, data: bytes) -> None:
        self.data += data
        self.changed.set()
        if self.answer:
            self.connection.write(data)

    def closed(self, error: Exception | None) -> None:
        self.changed.set()

    async def until_closed(self) -> None:
        async with asyncio.timeout(10):
            while not self.connection.closed:
                self.changed.clear()
                await self.changed.wait()

    async def until(self, size: int) -> bytes:
        async with asyncio.timeout(10):
            while len(self.data) < size:
                self.changed.clear()
                await self.changed.wait()
        return bytes(self.data)


def answering(connection: net.Connection) -> Echo:
    return Echo(connection, answer=True)


@pytest.fixture
async def listener() -> AsyncIterator[net.Listener]:
    listener = await net.listen("127.0.0.1", 0, answering, tls=SERVER, plain=True)
    yield listener
    await listener.close()


@pytest.mark.parametrize("tls", [None, ANYBODY])
async def test_both_are_served(listener: net.Listener, tls: net.TlsOptions | None) -> None:
    peer = await net.dial("127.0.0.1", listener.port, Echo, tls=tls)
    assert peer.connection.secure == (tls is not None)
    peer.connection.write(DATA)
    assert await peer.until(len(DATA)) == DATA
    assert listener.connections == 1
    peer.connection.close()
    await peer.until_closed()


async def test_a_broken_handshake_ends_only_its_connection(listener: net.Listener) -> None:
    broken = await net.dial("127.0.0.1", listener.port, Echo)
    broken.connection.write(b"\x16 is how TLS begins, but this is none")
    await broken.until_closed()
    plain = await net.dial("127.0.0.1", listener.port, Echo)
    plain.connection.write(b"a")
    assert await plain.until(1) == b"a"


async def test_who_leaves_before_the_first_byte_is_forgotten(listener: net.Listener) -> None:
    silent = await net.dial("127.0.0.1", listener.port, Echo)
    silent.connection.close()
    await silent.until_closed()
    plain = await net.dial("127.0.0.1", listener.port, Echo)
    plain.connection.write(b"a")
    assert await plain.until(1) == b"a"
    assert listener.connections == 1


async def test_closing_closes_silent_connections(listener: net.Listener) -> None:
    silent = await net.dial("127.0.0.1", listener.port, Echo)
    spoken = await net.dial("127.0.0.1", listener.port, Echo)
    spoken.connection.write(b"a")
    await spoken.until(1)  # so the listener has taken the connection before it, too
    await listener.close()
    await silent.until_closed()
    await spoken.until_closed()


async def test_silence_is_not_for_ever() -> None:
    guesser = Guesser(SERVER.server_context(), asyncio.Protocol, silent_s=0.02)
    _, port = guesser.open("127.0.0.1", 0, 10)
    silent = await net.dial("127.0.0.1", port, Echo)
    await silent.until_closed()
    guesser.close()


async def test_a_port_in_use_is_said(listener: net.Listener) -> None:
    with pytest.raises(UsageError, match="in use"):
        await net.listen("127.0.0.1", listener.port, answering, tls=SERVER, plain=True)
