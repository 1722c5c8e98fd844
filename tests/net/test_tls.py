"""TLS: who trusts whom. `localhost.pem` is a key and a certificate that anybody has: for tests."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from coherer import _net as net
from coherer.errors import ConnectError, UsageError

PEM = Path(__file__).with_name("localhost.pem")
SERVER = net.TlsOptions(certificate=PEM)
TRUSTING = net.TlsOptions(trust=PEM)


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


def answering(connection: net.Connection) -> Echo:
    return Echo(connection, answer=True)


@pytest.fixture
async def listener() -> AsyncIterator[net.Listener]:
    listener = await net.listen("127.0.0.1", 0, answering, tls=SERVER)
    yield listener
    await listener.close()


@pytest.mark.parametrize(
    ("host", "options"),
    [
        ("127.0.0.1", TRUSTING),
        ("localhost", TRUSTING),
        ("127.0.0.1", net.TlsOptions(verify=False)),
    ],
)
async def test_there_and_back(listener: net.Listener, host: str, options: net.TlsOptions) -> None:
    peer = await net.dial(host, listener.port, Echo, tls=options)
    assert peer.connection.secure
    data = bytes(range(256)) * 5000
    peer.connection.write(data)
    async with asyncio.timeout(10):
        while len(peer.data) < len(data):
            peer.changed.clear()
            await peer.changed.wait()
    assert bytes(peer.data) == data
    peer.connection.close()


async def test_an_unknown_server_is_not_trusted(listener: net.Listener) -> None:
    with pytest.raises(ConnectError, match=str(listener.port)) as caught:
        await net.dial("127.0.0.1", listener.port, Echo, tls=net.TlsOptions())
    assert "self-signed certificate" in caught.value.text
    assert "TlsOptions(trust=" in caught.value.hint


async def test_a_server_without_tls() -> None:
    def hang_up(connection: net.Connection) -> Echo:
        connection.close()
        return Echo(connection)

    for make, says in ((hang_up, "handshake failed"), (answering, "handshake failed")):
        async with asyncio.timeout(10):
            listener = await net.listen("127.0.0.1", 0, make)
            with pytest.raises(ConnectError, match=says) as caught:
                await net.dial("127.0.0.1", listener.port, Echo, tls=TRUSTING)
            assert caught.value.hint == "Is that a port for TLS?"
            await listener.close()


async def test_plain_bytes_end_only_their_connection(listener: net.Listener) -> None:
    plain = await net.dial("127.0.0.1", listener.port, Echo)
    plain.connection.write(b"no TLS at all, and long enough to be read as something else")
    async with asyncio.timeout(10):
        while not plain.connection.closed:
            plain.changed.clear()
            await plain.changed.wait()
    assert listener.connections == 0
    await test_there_and_back(listener, "127.0.0.1", TRUSTING)


async def test_a_server_may_ask_for_a_certificate() -> None:
    both = net.TlsOptions(certificate=PEM, trust=PEM)
    listener = await net.listen("127.0.0.1", 0, answering, tls=both)
    peer = await net.dial("127.0.0.1", listener.port, Echo, tls=both)
    peer.connection.write(b"hello")
    async with asyncio.timeout(10):
        await peer.changed.wait()
    assert bytes(peer.data) == b"hello"
    await listener.close()


async def test_files_that_cannot_be_used(tmp_path: Path) -> None:
    bad = tmp_path / "bad.pem"
    bad.write_text("nothing")
    with pytest.raises(UsageError, match="certificate"):
        await net.listen("127.0.0.1", 0, answering, tls=net.TlsOptions())
    for options, expected in (
        (net.TlsOptions(certificate=bad), r"`certificate` of TLS, .*bad\.pem.* PEM"),
        (net.TlsOptions(certificate=PEM, key=bad), r"`key` of TLS, .*bad\.pem.* PEM"),
        (net.TlsOptions(certificate=PEM, trust=tmp_path / "missing.pem"), r"missing\.pem"),
    ):
        with pytest.raises(UsageError, match=expected):
            await net.listen("127.0.0.1", 0, answering, tls=options)
    with pytest.raises(UsageError, match="PEM"):
        await net.dial("127.0.0.1", 1, Echo, tls=net.TlsOptions(trust=bad))
