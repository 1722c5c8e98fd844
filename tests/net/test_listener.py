"""Listeners: limits, ports in use, closing, and ports for both TLS and plain connections."""

from __future__ import annotations

import asyncio
import errno
import socket
import struct
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress

import pytest

from coherer import _net as net
from coherer._net import process
from coherer.errors import UsageError
from tests.net.peers import PEM, Peer, Server, echo, echoing, serving

SERVER_TLS = net.TlsOptions(certificate=PEM)
UNVERIFIED = net.TlsOptions(verify=False)
DATA = bytes(range(256)) * 3000


@pytest.fixture
async def both() -> AsyncIterator[net.Listener]:
    """A port for TLS and plain connections."""
    listener = await net.listen("127.0.0.1", 0, echoing, tls=SERVER_TLS, plain=True)
    yield listener
    await listener.close()


async def test_connections_beyond_the_limit_are_refused() -> None:
    async with serving(echo, connections_max=1) as server:
        first = await server.dial()
        first.connection.write(b"a")
        await first.until_data(b"a")
        second = await server.dial()
        await second.until_closed()
        first.connection.write(b"b")
        await first.until_data(b"ab")
    await first.until_closed()


async def test_connections_leave_files_to_the_store(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(process, "open_files_max", lambda: 2)
    async with serving(echo) as server:
        first = await server.dial()
        first.connection.write(b"a")
        await first.until_data(b"a")
        for _ in range(3):
            refused = await server.dial()
            await refused.until_closed()
        assert caplog.text.count("too many connections") == 1
        first.connection.close()
        await server.peers[0].until_closed()
        again = await server.dial()
        again.connection.write(b"b")
        await again.until_data(b"b")


async def test_a_receiver_that_cannot_be_made_closes_the_connection(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def make(connection: net.Connection) -> Peer:
        raise ZeroDivisionError

    listener = await net.listen("127.0.0.1", 0, make)
    peer = await net.dial("127.0.0.1", listener.port, Peer)
    peer.connection.write(b"?")
    await peer.until_closed()
    await listener.close()
    assert caplog.text.count("unhandled error in the server") == 1


async def test_a_port_in_use_is_refused() -> None:
    listener = await net.listen("127.0.0.1", 0, Peer)
    with pytest.raises(UsageError, match="another port"):
        await net.listen("127.0.0.1", listener.port, Peer)
    with pytest.raises(UsageError, match="123456 is not a valid port"):
        await net.listen("127.0.0.1", 123_456, Peer)
    with pytest.raises(UsageError, match="an address of this machine"):
        await net.listen("203.0.113.1", 0, Peer)
    await listener.close()


async def test_closing_aborts_connections_that_do_not_read() -> None:
    size = net.ConnectionLimits().write_buffer_high_bytes * 2
    async with serving(lambda peer, data: peer.connection.write(b"x" * size)) as server:
        peer = await server.dial()
        peer.connection.pause_reading()
        peer.connection.write(b"?")
        await server.accepted.wait()
        await server.peers[0].until(lambda p: p.data)
        async with asyncio.timeout(5):
            await server.listener.close(timeout_ms=10)
        assert len(server.peers[0].ends) == 1
        peer.connection.abort()
        await peer.until_closed()


class Accepted(asyncio.Transport):
    """A connection that the system accepted before the port was closed."""

    aborted = False

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        del high, low

    def abort(self) -> None:
        self.aborted = True


async def test_a_connection_accepted_just_before_the_port_closes_is_aborted() -> None:
    listener = await net.listen("127.0.0.1", 0, echoing)
    connection, transport = listener.new_connection(), Accepted()
    await listener.close()
    connection.connection_made(transport)
    assert transport.aborted
    assert listener.connections == 0
    connection.connection_lost(None)


async def test_a_cancelled_listen_leaves_the_port_free() -> None:
    listener = await net.listen("127.0.0.1", 0, echoing)
    await listener.close()
    for turns in range(8):
        listening = asyncio.create_task(net.listen("127.0.0.1", listener.port, echoing))
        for _ in range(turns):
            await asyncio.sleep(0)
        listening.cancel()
        with suppress(asyncio.CancelledError):
            await (await listening).close()
        again = await net.listen("127.0.0.1", listener.port, echoing)
        await again.close()


@pytest.mark.parametrize(
    "scenario",
    [
        test_connections_beyond_the_limit_are_refused,
        test_closing_aborts_connections_that_do_not_read,
        test_a_cancelled_listen_leaves_the_port_free,
        test_a_port_in_use_is_refused,
    ],
)
def test_uvloop_behaves_the_same(scenario: Callable[[], Awaitable[None]]) -> None:
    pytest.importorskip("uvloop")

    async def run() -> None:
        await scenario()

    net.run(run())


@pytest.mark.parametrize("tls", [None, UNVERIFIED])
async def test_one_port_serves_tls_and_plain_connections(
    both: net.Listener, tls: net.TlsOptions | None
) -> None:
    peer = await net.dial("127.0.0.1", both.port, Peer, tls=tls)
    assert peer.connection.secure == (tls is not None)
    peer.connection.write(DATA)
    await peer.until_data(DATA)
    assert both.connections == 1
    peer.connection.close()
    await peer.until_closed()


async def test_a_failed_handshake_ends_only_its_connection(both: net.Listener) -> None:
    broken = await net.dial("127.0.0.1", both.port, Peer)
    broken.connection.write(b"\x16 is how TLS begins, but this is something else")
    await broken.until_closed()
    plain = await net.dial("127.0.0.1", both.port, Peer)
    plain.connection.write(b"a")
    await plain.until_data(b"a")


async def test_a_connection_closed_before_its_first_byte_is_forgotten(both: net.Listener) -> None:
    silent = await net.dial("127.0.0.1", both.port, Peer)
    silent.connection.close()
    await silent.until_closed()
    plain = await net.dial("127.0.0.1", both.port, Peer)
    plain.connection.write(b"a")
    await plain.until_data(b"a")
    assert both.connections == 1


async def test_closing_closes_silent_connections(both: net.Listener) -> None:
    silent = await net.dial("127.0.0.1", both.port, Peer)
    active = await net.dial("127.0.0.1", both.port, Peer)
    active.connection.write(b"a")
    await active.until_data(b"a")  # so the connection before it has been accepted too
    await both.close()
    await silent.until_closed()
    await active.until_closed()


async def test_silent_connections_are_closed_after_a_while() -> None:
    budget = net.ConnectionBudget(net.ConnectionLimits(first_byte_ms=20))
    server = Server(echo)
    listener = await net.listen(
        "127.0.0.1", 0, server.make, tls=SERVER_TLS, plain=True, budget=budget
    )
    silent = await net.dial("127.0.0.1", listener.port, Peer)
    await silent.until_closed()
    assert budget.connections.count == 0
    await listener.close()


async def test_a_shared_port_in_use_is_refused(both: net.Listener) -> None:
    with pytest.raises(UsageError, match="in use"):
        await net.listen("127.0.0.1", both.port, echoing, tls=SERVER_TLS, plain=True)


LOCAL_PORT_RANGE = 51
"""`IP_LOCAL_PORT_RANGE` of Linux 6.3: the ports that the system may give to a socket."""


def may_give(port: int, to: socket.socket, then: Callable[[socket.socket], object]) -> bool:
    """Whether the system gives this port to a socket that asks for any."""
    with to:
        try:
            to.setsockopt(socket.IPPROTO_IP, LOCAL_PORT_RANGE, struct.pack("I", port | port << 16))
        except OSError as error:
            pytest.skip(f"an older kernel: {error}")
        try:
            then(to)
        except OSError as error:
            if error.errno not in {errno.EADDRINUSE, errno.EADDRNOTAVAIL}:
                raise
            return False
        return to.getsockname()[1] == port


@pytest.mark.skipif(sys.platform != "linux", reason="other systems do not share ports so")
@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", ""])
async def test_the_system_gives_a_kept_port_to_nobody(host: str) -> None:
    def server(one: socket.socket) -> None:
        one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        one.bind((host and "127.0.0.1", 0))

    with socket.create_server(("127.0.0.1", 0)) as elsewhere:

        def client(one: socket.socket) -> None:
            one.connect(elsewhere.getsockname())

        listener = await net.listen(host, 0, echoing)
        await listener.close()
        port = listener.port
        with net.kept_ports(host, [port]):
            assert not may_give(port, socket.socket(), server)
            assert not may_give(port, socket.socket(), client)
            with pytest.raises(ConnectionRefusedError):
                socket.create_connection(("127.0.0.1", port))
            again = await net.listen(host, port, echoing)
            assert again.port == port
        await again.close()
        assert may_give(port, socket.socket(), server), "it would have got it"
        assert may_give(port, socket.socket(), client)


async def test_ports_that_cannot_be_kept_are_left_out() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with net.kept_ports("127.0.0.1", [port]), net.kept_ports("no.such.host.invalid", [port]):
            socket.create_connection(("127.0.0.1", port)).close()
