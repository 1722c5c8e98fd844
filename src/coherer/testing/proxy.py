"""A TCP proxy that injects network faults: delay, loss, broken connections, silence.

The proxy opens a connection to the target for each connection that it accepts. Each direction has a
queue: the bytes of a socket read leave in order at their due time, unless a fault applies. The end
of a connection is queued like its bytes, so it arrives after them.

`FaultProxy.before` is a proxy of a whole cluster: it has a port for the master or name server, and
one for each broker that this server names (`rewriting`). `FaultProxy(host, port)` is a proxy of one
port and forwards the bytes unchanged.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable
from functools import partial
from types import TracebackType
from typing import Self

import msgspec

from coherer import _net as net
from coherer._client.engine.options import parse_url
from coherer._common.logs import Log
from coherer._common.opened import opened
from coherer.errors import CohererError, DisconnectedError, UsageError
from coherer.testing.rewriting import Addresses, Translator

_log = Log(logging.getLogger(__name__))


class Faults(msgspec.Struct):
    """The faults of one direction of a `FaultProxy`. Change the fields at any time.

    Attributes:
        delay_ms: the delay of everything that is sent.
        black_hole: drop everything that is sent; the connection stays open.
        drop_reads: the number of socket reads to drop; counts down.
        cut_after_bytes: break the connection after this many more bytes; counts down, then None.
        passed_bytes: the number of bytes that were forwarded.
        lost_bytes: the number of bytes that `black_hole` and `drop_reads` have dropped.
    """

    delay_ms: int = 0
    black_hole: bool = False
    drop_reads: int = 0
    cut_after_bytes: int | None = None
    passed_bytes: int = 0
    lost_bytes: int = 0

    def heal(self) -> None:
        """Clear all faults."""
        self.delay_ms, self.black_hole = 0, False
        self.drop_reads, self.cut_after_bytes = 0, None


class FaultProxy:
    """A proxy between a client and a server that injects faults on demand.

    A client gets the addresses of brokers from the server in its URL, and connects to them
    directly. `before` makes a proxy that catches this traffic, too; a proxy made with `host` and
    `port` catches only what is sent to that port.

    Args:
        host: the server.
        port: its port.
        listen_port: the port for clients; 0 for any free port.

    Attributes:
        host: the address for clients.
        port: the port for clients.
        target: the server's (host, port); a change applies to new connections.
        requests: faults on the way to the server.
        answers: faults on the way back.
        accepted: the number of accepted connections.

    ```python
    async with FaultProxy.before(node.url) as proxy:
        client = coherer.connect(proxy.url)
        proxy.answers.delay_ms = 200
        proxy.cut()
        await proxy.refuse()
        await proxy.heal()
    ```
    """

    def __init__(self, host: str, port: int, *, listen_port: int = 0) -> None:
        self.host = "127.0.0.1"
        self.port = listen_port
        self.target = (host, port)
        self.requests = Faults()
        self.answers = Faults()
        self.accepted = 0
        self._scheme = ""
        self._addresses = Addresses(self._stand_in)
        self._brokers: dict[tuple[str, int], tuple[str, int]] = {}  # by address for clients
        self._listeners: list[net.Listener] = []
        self._pairs: set[_Pair] = set()
        self._changed = asyncio.Event()

    @classmethod
    def before(cls, url: str) -> Self:
        """Return a proxy of the cluster of a URL, its brokers included.

        All connections share the faults. The brokers must have addresses of this machine.

        Args:
            url: the URL of one master or name server, without TLS.

        Raises:
            UsageError: the URL is invalid, names several servers, or needs TLS.
        """
        address = parse_url(url)
        server, *others = address.servers
        if address.secure or others:
            raise UsageError(
                "A FaultProxy stands before one master or name server, without TLS.",
                hint="Give it a URL such as tubemq://127.0.0.1:8715.",
            )
        proxy = cls(*server)
        proxy._scheme = address.scheme
        return proxy

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    @property
    def address(self) -> str:
        """The address for clients, as `host:port`."""
        return f"{self.host}:{self.port}"

    @property
    def url(self) -> str:
        """The URL for clients.

        Raises:
            UsageError: the proxy was not made by `before`.
        """
        if not self._scheme:
            raise UsageError(
                "This FaultProxy stands before a port, not before a cluster.",
                hint="Make it with FaultProxy.before(url).",
            )
        return f"{self._scheme}://{self.address}"

    @property
    def connections(self) -> int:
        """The number of open connections."""
        return len(self._pairs)

    async def start(self) -> None:
        """Open the ports for clients; `async with` does this.

        Raises:
            UsageError: another program uses a port.
        """
        if self._listeners:
            return
        opened(self, lambda one: bool(one._listeners))
        try:
            await self._listen(self.host, self.port, self._accept)
            self.port = self._listeners[0].port
            for (host, port), broker in tuple(self._brokers.items()):
                await self._listen(host, port, partial(self._accept_for, broker))
        except BaseException:
            await self.close()
            raise

    async def close(self) -> None:
        """Close the ports and break all connections."""
        self.cut()
        listeners, self._listeners = self._listeners, []
        for listener in listeners:
            await listener.close()
        self.cut()  # connections that were accepted meanwhile
        await self.wait_connections(0)

    def cut(self) -> int:
        """Break all connections on both sides; returns their number."""
        pairs = tuple(self._pairs)
        for pair in pairs:
            pair.cut()
        return len(pairs)

    async def refuse(self) -> None:
        """Act like a server that is down: break connections and refuse new ones until `heal`."""
        await self.close()

    async def heal(self) -> None:
        """Clear all faults and open the port."""
        self.requests.heal()
        self.answers.heal()
        await self.start()

    async def wait_connections(self, count: int) -> None:
        """Wait until exactly `count` connections are open."""
        await self.until(lambda: len(self._pairs) == count)

    async def until(self, condition: Callable[[], object]) -> None:
        """Wait until `condition` is true; it is evaluated after each event of the proxy.

        ```python
        await proxy.until(lambda: proxy.answers.lost_bytes)
        ```
        """
        while not condition():
            self._changed.clear()
            await self._changed.wait()

    async def _listen(
        self, host: str, port: int, accept: Callable[[net.Connection], net.Receiver]
    ) -> int:
        listener = await net.listen(host, port, accept)
        self._listeners.append(listener)
        return listener.port

    async def _stand_in(self, host: str, port: int, listen_port: int) -> int:
        """Open a port for a broker."""
        if not self._listeners:
            raise UsageError("The proxy was closed while it read a broker's address.")
        opened = await self._listen(host, listen_port, partial(self._accept_for, (host, port)))
        self._brokers[host, opened] = (host, port)
        return opened

    def _accept(self, connection: net.Connection) -> net.Receiver:
        translated = (self._scheme, self._addresses) if self._scheme else None
        return self._add(
            _Pair(self, connection, self.target, self._forget, self._changed, translated)
        )

    def _accept_for(self, broker: tuple[str, int], connection: net.Connection) -> net.Receiver:
        return self._add(_Pair(self, connection, broker, self._forget, self._changed))

    def _add(self, pair: _Pair) -> _Side:
        self.accepted += 1
        self._pairs.add(pair)
        self._changed.set()
        return pair.client

    def _forget(self, pair: _Pair) -> None:
        self._pairs.discard(pair)
        self._changed.set()


class _Pair:
    """A connection from a client and its connection to the server.

    Args:
        proxy: the proxy.
        connection: the connection from the client.
        target: the server's host and port.
        ended: called with the pair when both of its connections have ended.
        changed: set when bytes are forwarded or dropped.
        translated: the protocol, and the addresses to replace in its frames; None for none.
    """

    def __init__(
        self,
        proxy: FaultProxy,
        connection: net.Connection,
        target: tuple[str, int],
        ended: Callable[[_Pair], None],
        changed: asyncio.Event,
        translated: tuple[str, Addresses] | None = None,
    ) -> None:
        self.changed = changed
        self._answers = proxy.answers
        self._ended = ended
        self._target = target
        self._translated = translated
        self._cut = False
        self.client = _Side(self, connection, proxy.requests)
        if translated is not None:
            self.client.translate(translated[0], translated[1].restore)
        self.server: _Side | None = None
        self._dialling: asyncio.Task[None] | None = asyncio.create_task(self._dial())

    async def _dial(self) -> None:
        # Never cancelled: a connection made while its task is cancelled would leak.
        try:
            server = await net.dial(*self._target, self._receive_answers)
        except CohererError:
            self.client.connection.abort()
        else:
            self.server, self.client.other, server.other = server, server, self.client
            if self._cut:
                server.connection.abort()
            self.client.pump()
        self._dialling = None
        self.report_end()

    def _receive_answers(self, connection: net.Connection) -> _Side:
        side = _Side(self, connection, self._answers)
        if self._translated is not None:
            side.translate(self._translated[0], self._translated[1].hide)
        return side

    def cut(self) -> None:
        self._cut = True
        for side in (self.client, self.server):
            if side is not None:
                side.cut()

    def report_end(self) -> None:
        """Tell the proxy if both connections have ended."""
        alive = not self.client.over or not (self.server is None or self.server.over)
        if self._dialling is None and not alive:
            self._ended(self)


class _Side:
    """One of the two connections of a pair, and the queue of bytes that it received."""

    def __init__(self, pair: _Pair, connection: net.Connection, faults: Faults) -> None:
        self.connection = connection
        self.other: _Side | None = None
        self._pair = pair
        self._faults = faults
        self._loop = asyncio.get_running_loop()
        self._queue: deque[tuple[float, bytes | None]] = deque()  # None: the end of this side
        self._timer: asyncio.TimerHandle | None = None
        self._draining: asyncio.Task[None] | None = None
        self._forward: Callable[[bytes | None], None] = self._put
        self.over = False

    def translate(self, scheme: str, change: Callable[[bytes], Awaitable[bytes]]) -> None:
        """Replace addresses in the frames of a protocol."""
        self._forward = Translator(scheme, change, self._put, self._fail).received

    def _fail(self, error: CohererError) -> None:
        _log.error("The proxy cannot replace the addresses of brokers: %s", error)
        self._pair.cut()

    def cut(self) -> None:
        self._queue.clear()
        self.connection.abort()

    def received(self, data: bytes) -> None:
        faults = self._faults
        if faults.black_hole or faults.drop_reads:
            faults.drop_reads = max(0, faults.drop_reads - 1)
            faults.lost_bytes += len(data)
            self._pair.changed.set()
        else:
            self._forward(data)

    def closed(self, error: Exception | None) -> None:
        del error
        self._forward(None)
        if self._draining is not None:
            self._draining.cancel()
        self.over = True
        self._pair.report_end()

    def pump(self) -> None:
        """Forward the bytes that are due."""
        self._timer = None
        while self._queue and self.other is not None:
            due, data = self._queue[0]
            if due > self._loop.time():
                self._timer = self._loop.call_at(due, self.pump)
                return
            self._queue.popleft()
            self._pass(self.other, data)

    def _put(self, data: bytes | None) -> None:
        due = self._loop.time() + self._faults.delay_ms / 1000
        if self._queue:
            due = max(due, self._queue[-1][0])
        self._queue.append((due, data))
        if self._timer is None:
            self.pump()

    def _pass(self, other: _Side, data: bytes | None) -> None:
        if data is None:
            other.connection.close()
            return
        faults = self._faults
        left = faults.cut_after_bytes
        if left is not None:
            data = data[:left]
            faults.cut_after_bytes = left - len(data) or None
        other.connection.write(data)
        faults.passed_bytes += len(data)
        self._pair.changed.set()
        if left is not None and faults.cut_after_bytes is None:
            other.connection.flush()
            self._queue.clear()
            # Close instead of abort: the last bytes must arrive.
            other.connection.close()
            self.connection.abort()
        elif other.connection.overloaded and self._draining is None:
            self.connection.pause_reading()
            self._draining = asyncio.ensure_future(self._drain(other))

    async def _drain(self, other: _Side) -> None:
        try:
            await other.connection.drain()
        except DisconnectedError:
            return
        self._draining = None
        self.connection.resume_reading()
