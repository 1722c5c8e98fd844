"""An event loop whose time is virtual and whose network is memory.

The product runs in it unchanged: a node and clients of both protocols in one thread. When nothing
is ready, time moves to the next timer at once. Functions for executors run in the loop's thread,
and take no time. `coherer._common.machine` gives the same time, and random numbers of one seed.
"""

from __future__ import annotations

import asyncio
import errno
import os
import threading
from collections import deque
from collections.abc import Callable, Coroutine
from random import Random
from typing import Any, Final, TypeVar

from coherer._common import clock, machine

T = TypeVar("T")

EPOCH_NS: Final = 1_800_000_000 * 10**9
LATENCY_S: Final = 0.0002


class _NoSelector:
    """Takes the place of a selector: waiting moves the time."""

    def __init__(self, loop: SimulatedLoop) -> None:
        self._loop = loop

    def select(self, timeout: float | None) -> list[object]:
        if timeout is None:
            raise RuntimeError("Nothing will ever happen: every task waits for another one.")
        self._loop.now_s += max(timeout, 0)
        return []

    def close(self) -> None:
        """Nothing to close."""


class _Transport(asyncio.Transport):
    """One end of a connection in memory."""

    def __init__(
        self, loop: SimulatedLoop, protocol: asyncio.Protocol, here: object, there: object
    ) -> None:
        super().__init__({"sockname": here, "peername": there})
        self._loop, self._protocol = loop, protocol
        self.peer: _Transport
        # asyncio does not keep the order of timers that are due at one moment. So a timer says
        # that a piece arrives, and not which one.
        self._under_way: deque[bytes | None] = deque()  # None is the end
        self._arrived: deque[bytes | None] = deque()
        self._paused = self._closing = self._lost = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if not self._closing:
            self.peer.expect(bytes(data))

    def expect(self, data: bytes | None) -> None:
        self._under_way.append(data)
        self._loop.call_later(self._loop.latency_s, self._arrive)

    def _arrive(self) -> None:
        self._arrived.append(self._under_way.popleft())
        self._hand_over()

    def _hand_over(self) -> None:
        while self._arrived and not self._paused and not self._lost:
            data = self._arrived.popleft()
            if data is None:
                self.lose(None)
            elif not self._closing:
                self._protocol.data_received(data)

    def lose(self, error: Exception | None) -> None:
        if not self._lost:
            self._closing = self._lost = True
            self._protocol.connection_lost(error)

    def is_closing(self) -> bool:
        return self._closing

    def close(self) -> None:
        if not self._closing:
            self._closing = True
            self.peer.expect(None)
            self._loop.call_soon(self.lose, None)

    def abort(self) -> None:
        self.close()

    def pause_reading(self) -> None:
        self._paused = True

    def resume_reading(self) -> None:
        self._paused = False
        self._loop.call_soon(self._hand_over)

    def get_write_buffer_size(self) -> int:
        return 0

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Everything that is written is sent at once."""


class _Bound:
    def __init__(self, address: tuple[str, int]) -> None:
        self._address = address

    def getsockname(self) -> tuple[str, int]:
        return self._address


class _Server:
    def __init__(self, loop: SimulatedLoop, address: tuple[str, int]) -> None:
        self._loop, self._address = loop, address
        self.sockets = (_Bound(address),)

    def close(self) -> None:
        self._loop.servers.pop(self._address, None)


class SimulatedLoop(asyncio.BaseEventLoop):
    """See the module."""

    def __init__(self) -> None:
        super().__init__()
        self.now_s = 0.0
        self.latency_s = LATENCY_S
        self.servers: dict[tuple[str, int], Callable[[], asyncio.Protocol]] = {}
        self._selector = _NoSelector(self)
        self._clock_resolution = 1e-7
        self._ports = iter(range(20_000, 65_000))

    def time(self) -> float:
        """Seconds of virtual time since the loop was made."""
        return self.now_s

    def _process_events(self, event_list: list[object]) -> None:
        """There are no events of the system."""

    def _write_to_self(self) -> None:
        """The loop never sleeps."""

    def run_in_executor(  # type: ignore[override]
        self,
        executor: Any,  # noqa: ARG002
        func: Callable[..., T],
        *args: Any,
    ) -> asyncio.Future[T]:
        """Call a function at the next turn; a simulation has one thread."""
        future: asyncio.Future[T] = self.create_future()

        def run() -> None:
            if future.cancelled():
                return
            try:
                future.set_result(func(*args))
            except Exception as error:  # noqa: BLE001 - it is the future's
                future.set_exception(error)

        self.call_soon(run)
        return future

    async def getaddrinfo(self, host: Any, port: Any, **_: Any) -> Any:
        """Every name is an address, and `localhost` is 127.0.0.1."""
        name = "127.0.0.1" if host == "localhost" else host
        return [(2, 1, 6, "", (name, port))]  # IPv4, a stream, TCP

    async def create_server(
        self, protocol_factory: Any, host: Any = None, port: Any = None, **_: Any
    ) -> Any:
        """Listen in memory."""
        address = (host, port or next(self._ports))
        if address in self.servers:
            raise OSError(errno.EADDRINUSE, os.strerror(errno.EADDRINUSE))
        self.servers[address] = protocol_factory
        return _Server(self, address)

    async def create_connection(
        self, protocol_factory: Any, host: Any = None, port: Any = None, **_: Any
    ) -> Any:
        """Connect to a server of this loop."""
        await asyncio.sleep(self.latency_s)
        there = ("127.0.0.1" if host == "localhost" else host, port)
        accept = self.servers.get(there)
        if accept is None:
            raise ConnectionRefusedError(errno.ECONNREFUSED, os.strerror(errno.ECONNREFUSED))
        here = ("127.0.0.1", next(self._ports))
        mine, its = protocol_factory(), accept()
        one, two = _Transport(self, mine, here, there), _Transport(self, its, there, here)
        one.peer, two.peer = two, one
        its.connection_made(two)
        mine.connection_made(one)
        return one, mine


class _OwnRandom(Random):
    """Numbers of a seed for one thread; other threads get random ones."""

    def __init__(self, seed: int, other: Random) -> None:
        super().__init__(seed)
        self._thread, self._other = threading.get_ident(), other

    def random(self) -> float:
        return super().random() if threading.get_ident() == self._thread else self._other.random()

    def getrandbits(self, k: int, /) -> int:
        mine = threading.get_ident() == self._thread
        return super().getrandbits(k) if mine else self._other.getrandbits(k)


def simulate(main: Coroutine[Any, Any, T], *, seed: int = 0) -> T:
    """Run a coroutine to completion in virtual time, on a network in memory.

    Nodes of `async_embedded_node` and asyncio clients run inside, with the caller's own tasks. A
    sleep takes no real time.

    Args:
        main: the coroutine.
        seed: of the random numbers.

    Raises:
        RuntimeError: every task waits for another one, and no timer is set.
    """
    loop, thread = SimulatedLoop(), threading.get_ident()
    real_wall, real_ticks = machine.wall_ns, machine.ticks_ns

    def wall_ns() -> int:
        if threading.get_ident() != thread:
            return real_wall()
        return EPOCH_NS + round(loop.now_s * 1e9)

    def ticks_ns() -> int:
        if threading.get_ident() != thread:
            return real_ticks()
        return wall_ns() - clock.BEGAN_NS

    own = _OwnRandom(seed, machine.secret)
    with (
        machine.replaced(machine.Machine(wall_ns, ticks_ns, own, own)),
        asyncio.Runner(loop_factory=lambda: loop) as runner,
    ):
        return runner.run(main)
