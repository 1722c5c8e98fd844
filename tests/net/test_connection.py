"""Connections: batches in, one write per turn out, back-pressure, and errors that stay local."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest
from coherer._net.limits import PLACES

from coherer import _net as net
from coherer import limits
from coherer._net import limits
from coherer.errors import ConnectError, DisconnectedError, ProtocolError, UsageError


class Peer:
    """Keeps what it receives, or does with it what the test says."""

    def __init__(
        self, connection: net.Connection, act: Callable[[Peer, bytes], None] | None = None
    ) -> None:
        self.connection = connection
        self.data = bytearray()
        self.reads = 0
        self.ends: list[Exception | None] = []
        self.changed = asyncio.Event()
        self._act = act

    def received(self, data: bytes) -> None:
        self.data += data
        self.reads += 1
        self.changed.set()
        if self._act:
            self._act(self, data)

    def closed(self, error: Exception | None) -> None:
        self.ends.append(error)
        self.changed.set()

    async def until(self, condition: Callable[[Peer], object]) -> None:
        async with asyncio.timeout(10):
            while not condition(self):
                self.changed.clear()
                await self.changed.wait()


def echo(peer: Peer, data: bytes) -> None:
    peer.connection.write(data)


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
async def echo_server() -> AsyncIterator[Server]:
    server = Server(echo)
    server.listener = await net.listen("localhost", 0, server.make)
    yield server
    await server.listener.close()


@pytest.fixture
async def echoing() -> AsyncIterator[Server]:
    async with echo_server() as server:
        yield server


async def test_bytes_go_there_and_back(echoing: Server) -> None:
    peer = await echoing.dial()
    peer.connection.write(b"one ")
    peer.connection.write_many([b"two ", memoryview(b"three")])
    await peer.until(lambda p: p.data == b"one two three")
    assert echoing.peers[0].reads == 1, "what is written in one turn leaves in one write"
    assert peer.connection.peer == f"{echoing.listener.host}:{echoing.listener.port}"
    assert peer.connection.peer_host == peer.connection.local_host == "127.0.0.1"
    assert not peer.connection.secure
    assert peer.connection.unsent_bytes == 0


async def test_close_sends_what_was_written(echoing: Server) -> None:
    peer = await echoing.dial()
    peer.connection.write(b"last words")
    peer.connection.close()
    assert peer.connection.closed
    peer.connection.write(b"and more")
    peer.connection.write_many([b"and more"])
    peer.connection.close()
    await peer.until(lambda p: p.ends)
    other = echoing.peers[0]
    await other.until(lambda p: p.ends)
    assert bytes(other.data) == b"last words"
    assert peer.ends == [None]
    with pytest.raises(DisconnectedError):
        await peer.connection.drain()


async def test_a_protocol_error_ends_only_its_connection(
    echoing: Server, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(peer: Peer, data: bytes) -> None:
        peer.connection.write(b"no")
        raise ProtocolError("This is no frame.")

    neighbour = await echoing.dial()
    echoing.act = refuse
    peer = await echoing.dial()
    peer.connection.write(b"x")
    await peer.until(lambda p: p.ends)
    assert bytes(peer.data) == b"no"
    assert "This is no frame." in caplog.text
    neighbour.connection.write(b"still here")
    await neighbour.until(lambda p: p.data == b"still here")


async def test_an_error_of_ours_ends_only_its_connection(
    echoing: Server, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(peer: Peer, data: bytes) -> None:
        raise ZeroDivisionError

    neighbour = await echoing.dial()
    echoing.act = fail
    peer = await echoing.dial()
    peer.connection.write(b"x")
    await peer.until(lambda p: p.ends)
    assert "ZeroDivisionError" in caplog.text
    neighbour.connection.write(b"still here")
    await neighbour.until(lambda p: p.data == b"still here")


async def test_an_error_in_closed_is_logged(
    echoing: Server, caplog: pytest.LogCaptureFixture
) -> None:
    class Sore(Peer):
        def closed(self, error: Exception | None) -> None:
            super().closed(error)
            raise ZeroDivisionError

    peer = await net.dial(echoing.listener.host, echoing.listener.port, Sore)
    peer.connection.abort()
    await peer.until(lambda p: p.ends)
    await asyncio.sleep(0)
    assert "ZeroDivisionError" in caplog.text


async def test_a_reader_that_never_reads_costs_a_bounded_outbox() -> None:
    answer = b"a" * 1_000_000
    answers = 0

    def answer_once_per_read(peer: Peer, data: bytes) -> None:
        nonlocal answers
        answers += 1
        peer.connection.write(answer)

    server = Server(answer_once_per_read)
    server.listener = await net.listen("127.0.0.1", 0, server.make)
    peer = await server.dial()
    peer.connection.pause_reading()
    highest = 0
    for _ in range(200):  # each in its own packet, so that the server could read on
        peer.connection.write(b"?")
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        if server.peers:
            highest = max(highest, server.peers[0].connection.unsent_bytes)
    assert highest <= limits.OUTBOX_HIGH_BYTES + 2 * len(answer)
    peer.connection.resume_reading()
    await server.accepted.wait()
    await server.peers[0].until(lambda p: len(p.data) == 200)
    await peer.until(lambda p: len(p.data) == answers * len(answer))
    await server.listener.close()


async def test_the_more_lag_the_less_may_wait_for_each(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "OUTBOXES_BYTES", 32 << 20)
    server = Server(lambda peer, data: peer.connection.write(b"x" * len(data) * 1000))
    server.listener = await net.listen("127.0.0.1", 0, server.make)
    peers = [await server.dial() for _ in range(16)]
    for peer in peers:
        peer.connection.pause_reading()
    for _ in range(300):  # 12 MiB for each, if all were answered
        for peer in peers:
            peer.connection.write(b"?" * 40)
        await asyncio.sleep(0)
    waiting = [one.connection.unsent_bytes for one in server.peers]
    assert sum(one.connection.full for one in server.peers) == len(peers)
    assert sum(waiting) < limits.OUTBOXES_BYTES * 1.5
    for peer in peers:
        peer.connection.resume_reading()
    for peer in peers:
        await peer.until(lambda p: len(p.data) == 300 * 40_000)
    assert not any(one.connection.full for one in server.peers)
    for peer in peers:
        peer.connection.abort()
    await server.listener.close()


async def test_drain_waits_for_a_slow_server() -> None:
    server = Server(lambda peer, data: None)
    server.listener = await net.listen("127.0.0.1", 0, server.make)
    peer = await server.dial()
    await server.accepted.wait()
    server.peers[0].connection.pause_reading()
    peer.connection.write(b"x" * (limits.OUTBOX_HIGH_BYTES * 2))
    draining = asyncio.ensure_future(peer.connection.drain())
    await asyncio.sleep(0)
    assert not draining.done()
    server.peers[0].connection.resume_reading()
    async with asyncio.timeout(10):
        await draining
    assert peer.connection.unsent_bytes < limits.OUTBOX_HIGH_BYTES
    await server.listener.close()


async def test_a_stalled_reader_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "STALLED_WRITE_MS", 20)
    server = Server(lambda peer, data: peer.connection.write(b"x" * limits.OUTBOX_HIGH_BYTES * 2))
    server.listener = await net.listen("127.0.0.1", 0, server.make)
    peer = await server.dial()
    peer.connection.pause_reading()
    peer.connection.write(b"?")
    await server.accepted.wait()
    await server.peers[0].until(lambda p: p.ends)
    assert server.listener.connections == 0
    peer.connection.abort()
    await peer.until(lambda p: p.ends)
    await server.listener.close()


async def test_a_peer_that_takes_nothing_does_not_keep_a_connection_from_closing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(limits, "STALLED_WRITE_MS", 20)

    def answer(peer: Peer, data: bytes) -> None:
        peer.connection.write(bytes(limits.OUTBOX_HIGH_BYTES // 2))
        peer.connection.close()

    server = Server(answer)
    server.listener = await net.listen("127.0.0.1", 0, server.make)
    gone, slow = await server.dial(), await server.dial()
    gone.connection.pause_reading()
    for peer in (gone, slow):
        peer.connection.write(b"?")
    await slow.until(lambda p: p.ends)
    assert len(slow.data) == limits.OUTBOX_HIGH_BYTES // 2, "who takes it gets all"
    for peer in server.peers:
        await peer.until(lambda p: p.ends)
    assert server.listener.connections == 0
    gone.connection.abort()
    await gone.until(lambda p: p.ends)
    await server.listener.close()


async def test_a_listener_takes_only_so_many() -> None:
    server = Server(echo)
    server.listener = await net.listen("127.0.0.1", 0, server.make, connections_max=1)
    first = await server.dial()
    first.connection.write(b"a")
    await first.until(lambda p: p.data)
    second = await server.dial()
    await second.until(lambda p: p.ends)
    first.connection.write(b"b")
    await first.until(lambda p: p.data == b"ab")
    await server.listener.close()
    await first.until(lambda p: p.ends)


async def test_closing_a_listener_cuts_off_who_does_not_read() -> None:
    server = Server(lambda peer, data: peer.connection.write(b"x" * limits.OUTBOX_HIGH_BYTES * 2))
    server.listener = await net.listen("127.0.0.1", 0, server.make)
    peer = await server.dial()
    peer.connection.pause_reading()
    peer.connection.write(b"?")
    await server.accepted.wait()
    await server.peers[0].until(lambda p: p.data)
    async with asyncio.timeout(5):
        await server.listener.close(timeout_ms=10)
    assert len(server.peers[0].ends) == 1
    peer.connection.abort()
    await peer.until(lambda p: p.ends)


async def test_nobody_there() -> None:
    listener = await net.listen("127.0.0.1", 0, Peer)
    await listener.close()
    with pytest.raises(ConnectError, match=rf"{listener.port}.*Is the server up"):
        await net.dial("127.0.0.1", listener.port, Peer)
    with pytest.raises(ConnectError, match="name of the host"):
        await net.dial("no-such-host.invalid", 1, Peer)
    with pytest.raises(UsageError):
        await net.dial("127.0.0.1", 0, Peer)


async def test_a_port_in_use_is_refused() -> None:
    listener = await net.listen("127.0.0.1", 0, Peer)
    with pytest.raises(UsageError, match="another port"):
        await net.listen("127.0.0.1", listener.port, Peer)
    with pytest.raises(UsageError):
        await net.listen("127.0.0.1", 123_456, Peer)
    with pytest.raises(UsageError, match="an address of this machine"):
        await net.listen("203.0.113.1", 0, Peer)
    await listener.close()


def test_the_loop_is_the_fast_one_where_installed() -> None:
    async def name() -> str:
        return type(asyncio.get_running_loop()).__module__

    pytest.importorskip("uvloop")
    assert net.run(name()).startswith("uvloop")


@pytest.mark.parametrize(
    "scenario",
    [
        test_bytes_go_there_and_back,
        test_close_sends_what_was_written,
        lambda _: test_a_reader_that_never_reads_costs_a_bounded_outbox(),
        lambda _: test_drain_waits_for_a_slow_server(),
        lambda _: test_a_listener_takes_only_so_many(),
        lambda _: test_closing_a_listener_cuts_off_who_does_not_read(),
        lambda _: test_nobody_there(),
        lambda _: test_a_port_in_use_is_refused(),
    ],
)
def test_the_fast_loop_behaves_the_same(scenario: Callable[[Server], Awaitable[None]]) -> None:
    pytest.importorskip("uvloop")

    async def run() -> None:
        async with echo_server() as server:
            await scenario(server)

    net.run(run())


async def test_connections_leave_files_to_others(
    echoing: Server, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    files = 2 * (PLACES.taken + 1)
    monkeypatch.setattr(places, "files_max", lambda: files)
    first = await echoing.dial()
    first.connection.write(b"a")
    await first.until(lambda p: p.data)
    for _ in range(3):
        refused = await echoing.dial()
        await refused.until(lambda p: p.ends)
    assert caplog.text.count("too many connections") == 1
    taken = PLACES.taken
    first.connection.close()
    await echoing.peers[0].until(lambda p: p.ends)
    assert PLACES.taken == taken - 1
    again = await echoing.dial()
    again.connection.write(b"b")
    await again.until(lambda p: p.data)


async def test_who_cannot_be_served_is_hung_up_on(caplog: pytest.LogCaptureFixture) -> None:
    def make(connection: net.Connection) -> Peer:
        raise ZeroDivisionError

    listener = await net.listen("127.0.0.1", 0, make)
    peer = await net.dial("127.0.0.1", listener.port, Peer)
    peer.connection.write(b"?")
    await peer.until(lambda p: p.ends)
    await listener.close()
    assert caplog.text.count("Not serving") == 1


@pytest.mark.parametrize("host", ["a..b", "x" * 64, "a\0b", "\ud800"])
async def test_names_that_cannot_be(host: str) -> None:
    with pytest.raises(ConnectError):
        await net.dial(host, 9876, Peer)


def test_a_server_asks_for_files() -> None:
    resource = pytest.importorskip("resource")
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    few = min(200, before[0])
    resource.setrlimit(resource.RLIMIT_NOFILE, (few, before[1]))
    try:
        assert limits.files_max() == few
        assert net.raise_open_files_limit() >= min(before[0], limits.FILES_MAX)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


async def test_who_does_not_ask_is_heard_however_much_waits_for_it() -> None:
    """A slave says how far it is while the master's log waits for its slow line."""

    def flood(peer: Peer, data: bytes) -> None:
        peer.connection.keep_reading()
        if peer.reads == 1:
            peer.connection.write(bytes(limits.OUTBOX_HIGH_BYTES * 2))

    server = Server(flood)
    server.listener = await net.listen("127.0.0.1", 0, server.make)
    peer = await server.dial()
    peer.connection.pause_reading()
    for number in range(3):
        peer.connection.write(b"%d" % number)
        await server.accepted.wait()
        await server.peers[0].until(lambda p, count=number: len(p.data) > count)  # type: ignore[misc]
    assert server.peers[0].connection.unsent_bytes > limits.OUTBOX_LOW_BYTES
    peer.connection.abort()
    await server.peers[0].until(lambda p: p.ends)
    await server.listener.close()
