"""Connections: batched reads, one write per turn, backpressure, and errors that stay local."""

from __future__ import annotations

import asyncio
import mmap
import os
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from pathlib import Path

import pytest

from coherer import _net as net
from coherer.errors import ConnectError, DisconnectedError, ProtocolError, UsageError
from tests.net.peers import Peer, Server, echo, serving

HIGH_BYTES = net.ConnectionLimits().write_buffer_high_bytes
LOW_BYTES = net.ConnectionLimits().write_buffer_low_bytes
STALLING = net.ConnectionLimits(write_stall_ms=20)


@pytest.fixture
async def server() -> AsyncIterator[Server]:
    async with serving(echo, host="localhost") as server:
        yield server


async def test_bytes_travel_both_ways(server: Server) -> None:
    peer = await server.dial()
    peer.connection.write(b"one ")
    peer.connection.write_many([b"two ", memoryview(b"three")])
    await peer.until_data(b"one two three")
    assert server.peers[0].reads == 1, "what is written in one turn leaves in one write"
    assert peer.connection.peer == f"{server.listener.host}:{server.listener.port}"
    assert peer.connection.peer_host == peer.connection.local_host == "127.0.0.1"
    assert not peer.connection.secure
    assert peer.connection.unsent_bytes == 0
    assert not peer.connection.overloaded


async def test_writes_that_were_alone_in_their_turn_leave_at_once(server: Server) -> None:
    peer = await server.dial()
    connection = peer.connection

    def waits(data: bytes, *, alone: bool = True) -> bool:
        connection.write(data, alone=alone)
        return connection.unsent_bytes > 0

    assert waits(b"1"), "others may follow in this turn"
    await peer.until_data(b"1")
    assert not waits(b"2"), "nothing followed the last time"
    assert waits(b"3", alone=False)
    await peer.until_data(b"123")
    assert waits(b"4", alone=False)
    assert waits(b"5")
    await peer.until_data(b"12345")
    assert waits(b"6"), "5 has followed 4 in its turn"
    await peer.until_data(b"123456")
    found = [waits(b"7") for _ in range(100)]
    assert not found[0]
    assert found[-1], "now and then a write waits, to find out whether others follow"
    await peer.until_data(b"123456" + 100 * b"7")


async def test_large_pieces_leave_in_order(server: Server) -> None:
    with mmap.mmap(-1, 300_000) as mapped:
        mapped.write(bytes(range(250)) * 1200)
        large = memoryview(b"large" * 60_000)
        peer = await server.dial()
        with memoryview(mapped) as view, view[5:] as piece:
            peer.connection.write_many([b"one", b"two", large, b"three", piece, b"four", large])
            peer.connection.flush()
        assert peer.connection.unsent_bytes < 900_000
        expected = b"onetwo%bthree%bfour%b" % (bytes(large), mapped[5:], bytes(large))
        await peer.until_data(expected)


async def test_close_sends_written_bytes(server: Server) -> None:
    peer = await server.dial()
    peer.connection.write(b"last words")
    peer.connection.close()
    assert peer.connection.closed
    peer.connection.write(b"and more")
    peer.connection.write_many([b"and more"])
    peer.connection.close()
    await peer.until_closed()
    other = server.peers[0]
    await other.until_closed()
    assert bytes(other.data) == b"last words"
    assert peer.ends == [None]
    with pytest.raises(DisconnectedError):
        await peer.connection.drain()


async def test_a_protocol_error_ends_only_its_connection(
    server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(peer: Peer, data: bytes) -> None:
        peer.connection.write(b"no")
        raise ProtocolError("Not a frame.")

    neighbour = await server.dial()
    server.act = refuse
    peer = await server.dial()
    peer.connection.write(b"x")
    await peer.until_closed()
    assert bytes(peer.data) == b"no"
    assert "Not a frame." in caplog.text
    neighbour.connection.write(b"still here")
    await neighbour.until_data(b"still here")


async def test_an_unhandled_error_ends_only_its_connection(
    server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(peer: Peer, data: bytes) -> None:
        raise ZeroDivisionError

    neighbour = await server.dial()
    server.act = fail
    peer = await server.dial()
    peer.connection.write(b"x")
    await peer.until_closed()
    assert "ZeroDivisionError" in caplog.text
    neighbour.connection.write(b"still here")
    await neighbour.until_data(b"still here")


async def test_an_error_in_closed_is_logged(
    server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    class Failing(Peer):
        def closed(self, error: Exception | None) -> None:
            raise ZeroDivisionError

    peer = await net.dial(server.listener.host, server.listener.port, Failing)
    other = server.peers[0]
    peer.connection.abort()
    await other.until_closed()
    assert "ZeroDivisionError" in caplog.text


async def has_received(peer: Peer, count: int) -> bool:
    """Wait until a peer has received bytes; False if it does not read."""
    try:
        async with asyncio.timeout(0.5):
            await peer.until(lambda p: len(p.data) == count)
    except TimeoutError:
        return False
    return True


async def test_a_peer_that_never_reads_fills_only_its_write_buffer() -> None:
    answer = b"a" * 1_000_000

    def answer_once_per_read(peer: Peer, data: bytes) -> None:
        peer.connection.write(answer)

    async with serving(answer_once_per_read) as server:
        peer = await server.dial()
        peer.connection.pause_reading()
        await server.accepted.wait()
        other, sent = server.peers[0], 1
        peer.connection.write(b"?")
        while await has_received(other, sent):  # so each "?" is a packet of its own
            peer.connection.write(b"?")
            sent += 1
        assert other.connection.unsent_bytes <= HIGH_BYTES + 2 * len(answer)
        peer.connection.resume_reading()
        await other.until(lambda p: len(p.data) == sent)
        await peer.until(lambda p: len(p.data) == other.reads * len(answer))


async def test_lagging_peers_share_the_memory_for_unsent_bytes() -> None:
    limits = net.ConnectionLimits(write_buffers_bytes=32 << 20)
    answered = asyncio.Event()

    def answer(peer: Peer, data: bytes) -> None:
        peer.connection.write(b"x" * len(data) * 1000)
        answered.set()

    async with serving(answer, limits) as server:
        peers = [await server.dial() for _ in range(16)]
        for peer in peers:
            peer.connection.pause_reading()
        asked = 0
        async with asyncio.timeout(20):
            while not server.peers or not all(one.connection.full for one in server.peers):
                for peer in peers:
                    peer.connection.write(b"?" * 40)
                asked += 40
                answered.clear()
                await answered.wait()
        unsent = [one.connection.unsent_bytes for one in server.peers]
        assert len(unsent) == len(peers)
        assert sum(unsent) < limits.write_buffers_bytes * 1.5
        for peer in peers:
            peer.connection.resume_reading()
        for peer in peers:
            await peer.until(lambda p: len(p.data) == asked * 1000)
        assert not any(one.connection.full for one in server.peers)
        for peer in peers:
            peer.connection.abort()


async def test_drain_waits_for_a_slow_server() -> None:
    async with serving(lambda peer, data: None) as server:
        peer = await server.dial()
        await server.accepted.wait()
        server.peers[0].connection.pause_reading()
        peer.connection.write(b"x" * (HIGH_BYTES * 2))
        assert peer.connection.overloaded
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await peer.connection.drain()
        assert peer.connection.full
        server.peers[0].connection.resume_reading()
        async with asyncio.timeout(10):
            await peer.connection.drain()
        assert not peer.connection.overloaded


async def test_a_peer_that_stops_reading_is_disconnected() -> None:
    def answer(peer: Peer, data: bytes) -> None:
        peer.connection.write(b"x" * HIGH_BYTES * 2)

    async with serving(answer, STALLING) as server:
        peer = await server.dial()
        peer.connection.pause_reading()
        peer.connection.write(b"?")
        await server.accepted.wait()
        await server.peers[0].until_closed()
        assert server.listener.connections == 0
        peer.connection.abort()
        await peer.until_closed()


async def test_a_peer_that_stops_reading_does_not_prevent_closing() -> None:
    def answer(peer: Peer, data: bytes) -> None:
        peer.connection.write(bytes(HIGH_BYTES // 2))
        peer.connection.close()

    async with serving(answer, STALLING) as server:
        stopped, slow = await server.dial(), await server.dial()
        stopped.connection.pause_reading()
        for peer in (stopped, slow):
            peer.connection.write(b"?")
        await slow.until_closed()
        assert len(slow.data) == HIGH_BYTES // 2, "a peer that reads gets everything"
        for peer in server.peers:
            await peer.until_closed()
        assert server.listener.connections == 0
        stopped.connection.abort()
        await stopped.until_closed()


async def test_keep_reading_reads_however_much_is_unsent() -> None:
    """A slave reports its progress while the master's log waits for its slow line."""

    def flood(peer: Peer, data: bytes) -> None:
        peer.connection.keep_reading()
        if peer.reads == 1:
            peer.connection.write(bytes(HIGH_BYTES * 2))

    async with serving(flood) as server:
        peer = await server.dial()
        peer.connection.pause_reading()
        for number in range(3):
            peer.connection.write(b"%d" % number)
            await server.accepted.wait()
            await server.peers[0].until(lambda p, count=number: len(p.data) > count)  # type: ignore[misc]
        assert server.peers[0].connection.unsent_bytes > LOW_BYTES
        peer.connection.abort()
        await server.peers[0].until_closed()


async def test_dialling_a_closed_port_fails() -> None:
    listener = await net.listen("127.0.0.1", 0, Peer)
    await listener.close()
    with pytest.raises(ConnectError, match=rf"{listener.port}.*Is the server up"):
        await net.dial("127.0.0.1", listener.port, Peer)
    with pytest.raises(ConnectError, match="host name right"):
        await net.dial("no-such-host.invalid", 1, Peer)
    with pytest.raises(UsageError, match="0 is not a valid port"):
        await net.dial("127.0.0.1", 0, Peer)


@pytest.mark.parametrize("host", ["a..b", "x" * 64, "a\0b", "\ud800"])
async def test_dialling_an_invalid_name_fails(host: str) -> None:
    with pytest.raises(ConnectError):
        await net.dial(host, 9876, Peer)


@pytest.mark.parametrize(
    "scenario",
    [
        test_bytes_travel_both_ways,
        test_close_sends_written_bytes,
        lambda _: test_a_peer_that_never_reads_fills_only_its_write_buffer(),
        lambda _: test_drain_waits_for_a_slow_server(),
        lambda _: test_dialling_a_closed_port_fails(),
    ],
)
def test_uvloop_behaves_the_same(scenario: Callable[[Server], Awaitable[None]]) -> None:
    pytest.importorskip("uvloop")

    async def run() -> None:
        async with serving(echo, host="localhost") as server:
            await scenario(server)

    net.run(run())


def read_all(one: socket.socket) -> None:
    while one.recv(1 << 20):
        pass


async def test_reset_drops_what_the_system_has_taken() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        dialled = await net.dial(*listening.getsockname(), Peer)
        server, _ = listening.accept()
    with server:
        dialled.connection.write(b"x" * 100_000)
        dialled.connection.flush()
        dialled.connection.reset()
        await dialled.until_closed()
        server.settimeout(10)
        with pytest.raises(ConnectionResetError):  # and no orderly end
            read_all(server)
    dialled.connection.reset()
    dialled.connection.limit_delivery(1_000)


def delivery_limits(port: int) -> set[int]:
    """The limits of this process's sockets with a local port."""
    limits: set[int] = set()
    for path in Path("/proc/self/fd").iterdir():
        with suppress(OSError), socket.socket(fileno=os.dup(int(path.name))) as one:
            if one.getsockname()[1:2] == (port,):
                limits.add(one.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT))
    return limits


@pytest.mark.skipif(not hasattr(socket, "TCP_USER_TIMEOUT"), reason="only Linux limits delivery")
async def test_the_system_delivers_for_a_limited_time() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        dialled = await net.dial(*listening.getsockname(), Peer)
        server, (_, port) = listening.accept()
    with server:
        dialled.connection.limit_delivery(1_234)
        assert delivery_limits(port) == {1_234}
    dialled.connection.abort()
    await dialled.until_closed()
