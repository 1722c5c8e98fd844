"""Connections in memory, and their faults.

Data takes the latency and a random part of the jitter. Within a connection it arrives in order;
between connections the order varies. What the other end has not read, beyond the buffers of the
systems (`WINDOW_BYTES`), is in the write buffer of the sender.
"""

from __future__ import annotations

import asyncio
import errno
import os
from collections import deque
from collections.abc import Callable
from contextvars import Context, copy_context
from random import Random
from typing import Final

from coherer._common import machine
from coherer.testing.simulation.process import Process, process_of

LATENCY_S: Final = 0.0002
WINDOW_BYTES: Final = 64 * 1024
HIGH_BYTES: Final = 64 * 1024
"""asyncio's default limit of a write buffer."""

Protocols = Callable[[], asyncio.Protocol]


class Network:
    """The network of a simulation: `SimulatedLoop.network`.

    Args:
        loop: the loop of the simulation.
        changed: called when a connection begins or ends, and when nobody accepts one.

    Attributes:
        latency_s: the least time that data is under way.
        jitter_s: the maximum of the random time in addition.
        pieces: the probability that a write arrives in two pieces.
    """

    def __init__(
        self, loop: asyncio.AbstractEventLoop, changed: Callable[[], object] = lambda: None
    ) -> None:
        self._changed = changed
        self.latency_s = LATENCY_S
        self.jitter_s = 0.0
        self.pieces = 0.0
        self.servers: dict[tuple[str, int], tuple[Protocols, Context]] = {}
        self.loop = loop
        self._ports = iter(range(20_000, 65_000))
        self._ends: dict[Transport, None] = {}  # a set in the order of its making
        self._stopped = False
        self._isolated: dict[Process, None] = {}
        self._moved = asyncio.Event()

    def cut(self, port: int | None = None) -> None:
        """Reset all connections, or those to one port."""
        for one in list(self._ends):
            if port in (None, one.port):
                one.lose(ConnectionResetError(errno.ECONNRESET, os.strerror(errno.ECONNRESET)))

    def stop(self, program: Process | None = None) -> None:
        """Let nothing arrive until `heal`, as if a cable were unplugged: connections stay open.

        Args:
            program: unplug only this one.
        """
        if program is None:
            self._stopped = True
        else:
            self._isolated[program] = None

    def heal(self, program: Process | None = None) -> None:
        """End `stop`. Data that was sent meanwhile arrives now, because TCP would send it again."""
        if program is None:
            self._stopped = False
        self._isolated.pop(program, None)  # type: ignore[arg-type]
        self._changed()
        self._moved.set()
        self._moved = asyncio.Event()
        for one in list(self._ends):
            one.wake()

    def sever(self, choose: Random) -> None:
        """Let one connection transport nothing any more, as if a firewall had forgotten it.

        Neither end notices it.
        """
        if ends := list(self._ends):
            chosen = choose.choice(ends)
            self._changed()
            chosen.severed = chosen.peer.severed = True

    def silence(self, program: Process) -> None:
        """Sever all connections of a program: its machine is about to lose its power."""
        self._changed()
        for one in self._ends:
            if one.process is program:
                one.severed = one.peer.severed = True

    @property
    def whole(self) -> bool:
        """Whether data arrives between all programs."""
        return not self._stopped and not self._isolated

    @property
    def stopped(self) -> bool:
        """Whether nothing arrives."""
        return self._stopped

    def reaches(self, one: Process | None, other: Process | None) -> bool:
        """Whether data between two programs arrives."""
        apart = self._isolated
        return not (self._stopped or (apart and (one in apart or other in apart)))

    def port(self) -> int:
        """The next free port."""
        return next(self._ports)

    def delay_s(self) -> float:
        """The time that the next piece of data is under way."""
        if not self.jitter_s:
            return self.latency_s
        return self.latency_s + machine.random.random() * self.jitter_s

    def listen(self, factory: Protocols, address: tuple[str, int]) -> Server:
        """Open a port.

        Raises:
            OSError: it is open.
        """
        if address in self.servers:
            raise OSError(errno.EADDRINUSE, os.strerror(errno.EADDRINUSE))
        self.servers[address] = (factory, copy_context())
        server = Server(self, address)
        if (process := process_of()) is not None:
            process.at_kill(server.close)
        return server

    async def connect(
        self, factory: Protocols, there: tuple[str, int]
    ) -> tuple[Transport, asyncio.Protocol]:
        """Connect to an open port.

        Raises:
            ConnectionRefusedError: nobody listens.
        """
        await asyncio.sleep(self.delay_s())
        while not self._answers(there):
            await self._moved.wait()
        self._changed()
        if there not in self.servers:
            raise ConnectionRefusedError(errno.ECONNREFUSED, os.strerror(errno.ECONNREFUSED))
        accept, its_context = self.servers[there]
        here = ("127.0.0.1", self.port())
        mine = Transport(self, self.loop, copy_context(), here, there, there[1])
        its = Transport(self, self.loop, its_context, there, here, there[1])
        mine.peer, its.peer = its, mine
        self._ends[its] = self._ends[mine] = None
        self.loop.call_soon(its.begin, accept, context=its_context.copy())
        mine.begin(factory)
        return mine, mine.protocol

    def _answers(self, there: tuple[str, int]) -> bool:
        server = self.servers.get(there)
        return self.reaches(process_of(), process_of(server[1]) if server else None)

    def forget(self, end: Transport) -> None:
        """Remove one end of a connection."""
        self._changed()
        self._ends.pop(end, None)


class Transport(asyncio.Transport):
    """One end of a connection.

    Attributes:
        process: the program that it belongs to.
        severed: whether nothing arrives any more, unnoticed by both ends.

    Args:
        network: the network that it belongs to.
        loop: the loop of the simulation.
        context: a context of the program that it belongs to.
        here: its address.
        there: the address of the other end.
        port: the server's port.
    """

    def __init__(
        self,
        network: Network,
        loop: asyncio.AbstractEventLoop,
        context: Context,
        here: tuple[str, int],
        there: tuple[str, int],
        port: int,
    ) -> None:
        super().__init__({"sockname": here, "peername": there})
        self.protocol: asyncio.Protocol
        self.peer: Transport
        self.port = port
        self._network, self._loop, self._context = network, loop, context
        # asyncio does not keep the order of timers that are due at one moment. So a timer says
        # that a piece arrives, and not which one.
        self._under_way: deque[bytes | None] = deque()  # None is the end
        self._arrived: deque[bytes | None] = deque()
        self._last_s = 0.0
        self._paused = self._closing = self._lost = self._full = False
        self._unread = 0  # bytes that the other end has not read
        self._high, self._low = HIGH_BYTES, HIGH_BYTES // 4
        self._reads_at_s = 0.0  # a slow program reads the next piece then
        self.severed = False
        self.process = process_of(context)
        if self.process is not None:
            self.process.at_kill(self._killed)

    def begin(self, make: Protocols) -> None:
        """Create the protocol and report the connection to it."""
        self.protocol = make()
        self.protocol.connection_made(self)

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Send data."""
        if self._closing or not data:
            return
        chance, whole = self._network.pieces, bytes(data)
        self._unread += len(whole)
        if chance and len(whole) > 1 and machine.random.random() < chance:
            middle = 1 + int(machine.random.random() * (len(whole) - 1))
            self.peer.expect(whole[:middle])
            whole = whole[middle:]
        self.peer.expect(whole)
        self._pause_if_full()

    def _pause_if_full(self) -> None:
        if not self._full and self.get_write_buffer_size() > self._high:
            self._full = True
            self.protocol.pause_writing()

    def were_read(self, count: int) -> None:
        """The other end has read bytes."""
        self._unread -= count
        if self._full and not self._lost and self.get_write_buffer_size() <= self._low:
            self._full = False
            self._loop.call_soon(self.protocol.resume_writing, context=self._context)

    def expect(self, data: bytes | None) -> None:
        """Schedule the arrival of data, or of the end of the connection (None)."""
        if self.severed:
            return
        self._under_way.append(data)
        self._last_s = max(self._last_s, self._loop.time() + self._network.delay_s())
        self._loop.call_at(self._last_s, self._arrive, context=self._context)

    def _arrive(self) -> None:
        self._arrived.append(self._under_way.popleft())
        self._deliver()

    def _deliver(self) -> None:
        reaches = self._network.reaches
        while self._arrived and not (self._paused or self._lost or self.severed):
            if not reaches(self.process, self.peer.process):
                return
            if self._reads_at_s > self._loop.time():
                return
            data = self._arrived.popleft()
            if data is not None:
                self.peer.were_read(len(data))
                self._slow_down(len(data))
            if data is None:
                self._end(None)
            elif not self._closing:
                self.protocol.data_received(data)

    def _slow_down(self, count: int) -> None:
        if self.process is not None and self.process.reads_bytes_s:
            self._reads_at_s = self._loop.time() + count / self.process.reads_bytes_s
            self._loop.call_at(self._reads_at_s, self._deliver, context=self._context)

    def lose(self, error: Exception | None) -> None:
        """Break the connection."""
        self._loop.call_soon(self._end, error, context=self._context)

    def _end(self, error: Exception | None) -> None:
        self._network.forget(self)
        if self.process is not None:
            self.process.not_at_kill(self._killed)
        if not self._lost:
            self._closing = self._lost = True
            self.protocol.connection_lost(error)

    def _killed(self) -> None:
        self._network.forget(self)
        if not self._lost:
            self._closing = self._lost = True
            if self.severed:
                return
            self.peer.lose(ConnectionResetError(errno.ECONNRESET, os.strerror(errno.ECONNRESET)))

    def is_closing(self) -> bool:
        """Whether it is closed, or will be."""
        return self._closing

    def close(self) -> None:
        """Close the connection after all written data has arrived."""
        if not self._closing:
            self._closing = True
            self.peer.expect(None)
            self.lose(None)

    def abort(self) -> None:
        """See `close`: there is no buffer to discard."""
        self.close()

    def pause_reading(self) -> None:
        """Deliver nothing until `resume_reading`."""
        self._paused = True

    def resume_reading(self) -> None:
        """Deliver data again."""
        self._paused = False
        self.wake()

    def wake(self) -> None:
        """Deliver data that has arrived, unless reading is paused."""
        self._loop.call_soon(self._deliver, context=self._context)

    def get_write_buffer_size(self) -> int:
        """The bytes that the other end has not read, beyond `WINDOW_BYTES`."""
        return max(self._unread - WINDOW_BYTES, 0)

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Set the sizes at which the protocol pauses and resumes writing; see asyncio."""
        self._high = HIGH_BYTES if high is None else high
        self._low = self._high // 4 if low is None else low
        self._pause_if_full()


class Server(asyncio.AbstractServer):
    """An open port, as an `asyncio.Server`."""

    def __init__(self, network: Network, address: tuple[str, int]) -> None:
        self._network, self._address = network, address
        self._closed = asyncio.Event()
        self.sockets: tuple[Server, ...] = (self,)

    def getsockname(self) -> tuple[str, int]:
        """Its address."""
        return self._address

    async def start_serving(self) -> None:
        """It serves from the beginning."""

    async def serve_forever(self) -> None:
        """Wait for ever; close the port when this is cancelled."""
        try:
            await self._closed.wait()
            raise asyncio.CancelledError
        finally:
            self.close()

    def is_serving(self) -> bool:
        """Whether the port is open."""
        return not self._closed.is_set()

    def get_loop(self) -> asyncio.AbstractEventLoop:
        """The loop of the simulation."""
        return self._network.loop

    def close(self) -> None:
        """Close the port; connections stay open."""
        if not self._closed.is_set():
            self._network.servers.pop(self._address, None)
            self.sockets = ()
            self._closed.set()

    async def wait_closed(self) -> None:
        """Wait until the port is closed."""
        await self._closed.wait()
