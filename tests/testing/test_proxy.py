"""The proxy makes exactly the trouble that it is asked for."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from coherer import _net as net
from coherer.errors import ConnectError
from coherer.testing import FaultProxy


class Peer:
    """A client that collects."""

    def __init__(self, connection: net.Connection) -> None:
        self.connection = connection
        self.data = bytearray()
        self.ended = False
        self._changed = asyncio.Event()

    def received(self, data: bytes) -> None:
        self.data += data
        self._changed.set()

    def closed(self, error: Exception | None) -> None:
        self.ended = True
        self._changed.set()

    async def until_data(self, data: bytes) -> None:
        async with asyncio.timeout(10):
            while self.data != data:
                self._changed.clear()
                await self._changed.wait()

    async def until_ended(self) -> None:
        async with asyncio.timeout(10):
            while not self.ended:
                self._changed.clear()
                await self._changed.wait()


class Echo(Peer):
    """A server that answers with what it gets, and remembers it."""

    all: list[Echo]

    def received(self, data: bytes) -> None:
        super().received(data)
        self.connection.write(data)


@pytest.fixture
async def echoes() -> list[Echo]:
    return []


@pytest.fixture
async def server(echoes: list[Echo]) -> AsyncIterator[net.Listener]:
    def make(connection: net.Connection) -> Echo:
        echoes.append(Echo(connection))
        return echoes[-1]

    listener = await net.listen("127.0.0.1", 0, make)
    yield listener
    await listener.close()


@pytest.fixture
async def proxy(server: net.Listener) -> AsyncIterator[FaultProxy]:
    async with FaultProxy("127.0.0.1", server.port) as proxy:
        yield proxy


async def dial(proxy: FaultProxy) -> Peer:
    return await net.dial(proxy.host, proxy.port, Peer)


async def test_without_faults_it_is_not_there(proxy: FaultProxy, echoes: list[Echo]) -> None:
    peers = [await dial(proxy), await dial(proxy)]
    for number, peer in enumerate(peers):
        peer.connection.write(b"hello %d" % number)
    for number, peer in enumerate(peers):
        await peer.until_data(b"hello %d" % number)
    assert (proxy.connections, proxy.accepted, len(echoes)) == (2, 2, 2)
    assert proxy.requests.passed_bytes == proxy.answers.passed_bytes == 14
    assert proxy.address == f"127.0.0.1:{proxy.port}"


async def test_the_end_of_either_side_arrives_at_the_other(
    proxy: FaultProxy, echoes: list[Echo]
) -> None:
    peer = await dial(proxy)
    peer.connection.write(b"x")
    await peer.until_data(b"x")
    peer.connection.close()
    await echoes[0].until_ended()
    await proxy.wait_connections(0)

    peer = await dial(proxy)
    peer.connection.write(b"y")
    await peer.until_data(b"y")
    echoes[1].connection.close()
    await peer.until_ended()
    await proxy.wait_connections(0)


async def test_what_is_sent_before_the_end_arrives(proxy: FaultProxy, echoes: list[Echo]) -> None:
    peer = await dial(proxy)
    peer.connection.write(b"last words")
    peer.connection.close()
    await proxy.wait_connections(0)
    assert [bytes(echo.data) for echo in echoes] == [b"last words"]


async def test_delay_keeps_the_order(proxy: FaultProxy) -> None:
    loop = asyncio.get_running_loop()
    peer = await dial(proxy)
    proxy.requests.delay_ms = 60
    start = loop.time()
    peer.connection.write(b"slow ")
    peer.connection.flush()
    await proxy.until(lambda: proxy.connections == 1)
    proxy.answers.delay_ms = 20
    peer.connection.write(b"then quick")
    await peer.until_data(b"slow then quick")
    assert loop.time() - start >= 0.079


async def test_a_black_hole_takes_and_gives_nothing(proxy: FaultProxy) -> None:
    peer = await dial(proxy)
    peer.connection.write(b"a")
    await peer.until_data(b"a")
    proxy.answers.black_hole = True
    peer.connection.write(b"b")
    await proxy.until(lambda: proxy.answers.lost_bytes == 1)
    await proxy.heal()
    peer.connection.write(b"c")
    await peer.until_data(b"ac")
    assert not peer.ended


async def test_single_reads_can_be_lost(proxy: FaultProxy) -> None:
    peer = await dial(proxy)
    proxy.answers.drop_reads = 1
    peer.connection.write(b"lost")
    await proxy.until(lambda: proxy.answers.lost_bytes == 4)
    peer.connection.write(b"kept")
    await peer.until_data(b"kept")


@pytest.mark.parametrize(("after", "arrives"), [(0, b""), (3, b"abc"), (6, b"abcdef")])
async def test_cut_after_bytes(
    proxy: FaultProxy, echoes: list[Echo], after: int, arrives: bytes
) -> None:
    peer = await dial(proxy)
    proxy.requests.cut_after_bytes = after
    peer.connection.write(b"abcdef")
    await peer.until_ended()
    await proxy.wait_connections(0)
    assert bytes(echoes[0].data) == arrives
    assert proxy.requests.cut_after_bytes is None, "one cut, not one per connection"
    again = await dial(proxy)
    again.connection.write(b"fine")
    await again.until_data(b"fine")


async def test_cut_ends_everything_at_once(proxy: FaultProxy, echoes: list[Echo]) -> None:
    peers = [await dial(proxy) for _ in range(3)]
    for peer in peers:
        peer.connection.write(b"x")
        await peer.until_data(b"x")
    assert proxy.cut() == 3
    for peer in peers:
        await peer.until_ended()
    for echo in echoes:
        await echo.until_ended()
    await proxy.wait_connections(0)


async def test_refuse_is_a_server_that_is_down(proxy: FaultProxy) -> None:
    peer = await dial(proxy)
    await proxy.refuse()
    await peer.until_ended()
    with pytest.raises(ConnectError):
        await dial(proxy)
    await proxy.heal()
    peer = await dial(proxy)
    peer.connection.write(b"back")
    await peer.until_data(b"back")


async def test_a_target_that_is_down_ends_the_client(
    proxy: FaultProxy, server: net.Listener
) -> None:
    await server.close()
    peer = await dial(proxy)
    await peer.until_ended()
    await proxy.wait_connections(0)


async def test_a_cut_while_it_dials_leaves_nothing(proxy: FaultProxy, echoes: list[Echo]) -> None:
    peer = await dial(proxy)
    await proxy.until(lambda: proxy.connections == 1)
    proxy.cut()
    await peer.until_ended()
    await proxy.wait_connections(0)
    for echo in echoes:
        await echo.until_ended()


async def test_a_slow_reader_slows_the_sender(proxy: FaultProxy, echoes: list[Echo]) -> None:
    peer = await dial(proxy)
    peer.connection.pause_reading()
    sent = bytes(48 * 1024 * 1024)  # more than the proxy buffers
    peer.connection.write(sent)
    drained = asyncio.create_task(peer.connection.drain())
    await asyncio.sleep(0)
    await proxy.until(lambda: proxy.answers.passed_bytes)
    peer.connection.resume_reading()
    await peer.until_data(sent)
    await drained
