"""An event loop whose time is virtual and whose network is memory.

The product runs in it unchanged: a node and clients of both protocols in one thread. When nothing
is ready, time moves to the next timer at once. Functions for executors run in the loop's thread.
`coherer._common.machine` returns the same time, and random numbers of one seed.

A *leap* passes over time in which only heartbeats, polls and other periodic work would happen. It
moves the loop's clock and the time of day to just before the next moment that matters: a timer of
anybody else, or a message that becomes due (`alarms`). The timers of the periodic work move with
it, and the monotonic clocks of Coherer, by which it measures leases and waits for answers, stand
still. So for node and clients a leap is as if their machines had slept together. After a change of
connections the loop runs for `AWAKE_S` before the next leap, so that leases expire and members
share their queues first.

A program that waits for what never happens ends with `NeverEndsError`: nothing is left that could
wake it, or it polls until it has taken too much time, or it never lets the time move at all. Time
that was passed over does not count. When it has ended, the rest of its tasks are cancelled, and
have `CLOSING_S` to end.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import math
import sys
import threading
from collections import deque
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator, Mapping
from contextlib import contextmanager
from contextvars import Context
from random import Random
from types import FrameType
from typing import Any, Final, NoReturn, TypeVar

from coherer._common import clock, machine
from coherer.testing.simulation import network
from coherer.testing.simulation.process import Callback, Timer, abandon, process_of
from coherer.testing.waiting import waiting_at, with_places

T = TypeVar("T")

EPOCH_NS: Final = 1_800_000_000 * 10**9
PROCESS_ID: Final = 10_000
"""Part of what clients store, so that its digits count."""

_simulating: Final = threading.Lock()
"""Held by the one simulation of the process: the time is replaced for all of it."""


_STUCK: Final = "Nothing will ever happen: every task waits for another one."
_TOO_LONG: Final = (
    "It has not ended within {for_s:,.0f} s of virtual time, leaps not counted. Does it poll, or "
    "catch CancelledError? If it needs more time, use the mark coherer_virtual_time, or limit_s of "
    "simulate."
)
_STILL_THERE: Final = (
    "It has ended, but tasks that it has left still run {for_s:,.0f} s of virtual time after they "
    "were cancelled. Do they catch CancelledError?"
)
_STANDS_STILL: Final = (
    "Virtual time stands still: the loop has run {turns:,} times and nothing has let it move. Does "
    "a task call asyncio.sleep(0) for ever?"
)

LIMIT_S: Final = 6 * 3600.0
"""Longer than RocketMQ's sixteen retries, for a test that polls all the while."""
CLOSING_S: Final = 600.0
TURNS_MAX: Final = 1_000_000

AWAKE_S: Final = 130.0
"""Longer than every lease: RocketMQ's brokers forget a client after 120 s."""
CALM_S: Final = 1.0
"""How long nothing but periodic work happens before a leap."""
LANDING_S: Final = 0.5
"""The end of a leap before its moment, so that periodic work of that moment is done in time."""
STUCK_S: Final = 600.0

_PERIODIC: Final = frozenset(
    {
        "coherer._client.engine.connections",
        "coherer._client.engine.tasks",
        "coherer._client.rocketmq.consuming.membership",
        "coherer._client.tubemq.consumer",
        "coherer._client.tubemq.membership",
        "coherer._client.tubemq.producer",
        "coherer._client.tubemq.publisher",
        "coherer._common.upkeep",
        "coherer._server.node.node",
        "coherer._server.rocketmq.broker.registration",
        "coherer._server.tubemq.broker.master_link",
    }
)
"""The modules whose timers are for periodic work. A leap does not pass over those of others."""


def _asker(frame: FrameType | None) -> str:
    """The module that asked asyncio for a timer."""
    while frame is not None:
        name = str(frame.f_globals.get("__name__", ""))
        if name != __name__ and not name.startswith("asyncio."):
            is_users = frame.f_code.co_name in _USERS_DEADLINES
            return f"{name}:{frame.f_code.co_name}" if is_users else name
        frame = frame.f_back
    return ""


def _stands_still(module: str) -> bool:
    """Whether a leap does not move the loop's clock for a module, which has deadlines by it."""
    return module.startswith("coherer.") and not module.startswith("coherer.testing.")


_USERS_DEADLINES: Final = frozenset({"wait_assigned"})
"""Functions of those modules that wait as long as their callers want."""


class NeverEndsError(RuntimeError):
    """A program of a simulation waits for what will never happen."""


def _missing(what: str) -> Any:
    """A method of the loop that says what does not work."""

    def method(*_: object, **__: object) -> NoReturn:
        # The error of asyncio's own loops, which libraries expect where a system lacks something.
        raise NotImplementedError(
            f"{what} do not work in virtual time. Use the fixture coherer_node for such a test."
        )

    return method


class SimulatedLoop(asyncio.BaseEventLoop):
    """See the module.

    Attributes:
        now_s: seconds of virtual time since the loop was created.
        network: the connections of its programs.
        threads_s: functions for executors, such as a sync of the disk, finish up to so much later.
        alarms: each returns when a node has something to do (in the loop's time); None for never.
        leaped_s: how much of the time was passed over.
        leaps: whether it leaps at all.
    """

    def __init__(self) -> None:
        super().__init__()
        self.now_s = self._leap_from_s = self._stuck_at_s = 0.0
        self.network = network.Network(self, lambda: self.stay_awake(AWAKE_S))
        self.threads_s = 0.0
        self.alarms: list[Callable[[], float | None]] = []
        self.leaped_s = 0.0
        self.leaps = True
        self._ready: deque[asyncio.Handle]
        self._stopping: bool
        # Not `_scheduled`: tuples are compared much faster than timers.
        self._timers: list[tuple[float, int, Timer]] = []
        self._numbers = itertools.count()
        self._turns = 0  # since the time has moved
        self._until_s, self._late = math.inf, ""

    def time(self) -> float:
        """Seconds of virtual time since the loop was created.

        Coherer itself sees the time without leaps, for example when it waits for an answer.
        """
        if self.leaped_s and _stands_still(_asker(sys._getframe(1))):  # pyright: ignore[reportPrivateUsage] - documented
            return self.now_s - self.leaped_s
        return self.now_s

    def call_soon(  # type: ignore[override]
        self, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.Handle:
        """Schedule a callback for the next turn. It is left out if its program is killed before."""
        if self.is_closed():
            raise RuntimeError("Event loop is closed")
        handle = Callback(callback, args, self, context)
        self._ready.append(handle)
        return handle

    def call_at(  # type: ignore[override]
        self,
        when: float,
        callback: Callable[..., object],
        *args: Any,
        context: Context | None = None,
    ) -> asyncio.TimerHandle:
        """Schedule a callback for a time. It is left out if its program is killed before."""
        if self.is_closed():
            raise RuntimeError("Event loop is closed")
        asker = _asker(sys._getframe(1)) if self.leaps else ""  # pyright: ignore[reportPrivateUsage]
        if _stands_still(asker):
            when += self.leaped_s
        # Rounded, so that periods which add up to the same moment end at the same moment. What is
        # still to come does not end now: a caller that looks at the time would wait again for ever.
        moment = round(when, 7)
        if moment <= self.now_s < when:
            moment = round(self.now_s + 1e-7, 7)
        timer = Timer(moment, callback, args, self, context)
        timer.periodic = asker in _PERIODIC
        if self.leaps and not timer.periodic and asker != network.__name__:
            self.stay_awake(CALM_S)
        heapq.heappush(self._timers, (timer.when(), next(self._numbers), timer))
        return timer

    def _run_once(self) -> None:
        """Run what is ready. If nothing is, move the time to the next timer first."""
        timers, ready = self._timers, self._ready
        while timers and timers[0][2].cancelled():
            heapq.heappop(timers)
        if not (ready or self._stopping):
            if not timers or timers[0][0] == math.inf:  # anyio's `sleep_forever` sleeps so long
                raise self._endless(_STUCK)
            if timers[0][0] > self.now_s:
                self._move()
        self._turns += 1
        if self._turns > TURNS_MAX:
            raise self._endless(_STANDS_STILL.format(turns=TURNS_MAX))
        while timers and timers[0][0] <= self.now_s:
            ready.append(heapq.heappop(timers)[2])
        for _ in range(len(ready)):
            handle = ready.popleft()
            if not handle.cancelled():
                handle._run()

    def _move(self) -> None:
        """Move the time to the next timer."""
        self._turns = 0
        if not self.leap():
            self.now_s = self._timers[0][0]
        if self.now_s - self.leaped_s > self._until_s:
            raise self._endless(self._late)

    def limit(self, for_s: float, text: str) -> None:
        """Bound the time that passes from now on; what is passed over does not count.

        Args:
            for_s: how much.
            text: of the error; `{for_s}` is the limit.
        """
        self._turns = 0
        self._until_s = self.now_s - self.leaped_s + for_s
        self._late = text.format(for_s=for_s)

    def _endless(self, text: str) -> NeverEndsError:
        return NeverEndsError(with_places(text, waiting_at(asyncio.all_tasks(self))))

    def again(self, handles: list[asyncio.Handle]) -> None:
        """Run the callbacks that a frozen program could not run."""
        self._ready.extend(handles)

    @contextmanager
    def alarm(self, moment: Callable[[], float | None]) -> Generator[None]:
        """Do not leap past the moments that a function returns."""
        self.alarms.append(moment)
        try:
            yield
        finally:
            self.alarms.remove(moment)

    def stay_awake(self, for_s: float) -> None:
        """Something has happened: do not leap for so long."""
        self._leap_from_s = max(self._leap_from_s, self.now_s + for_s)
        self._stuck_at_s = self._leap_from_s + STUCK_S

    def leap(self) -> bool:
        """Pass over a time in which only periodic work would happen; returns whether it did."""
        if not self.leaps or not self.network.whole or self.now_s < self._leap_from_s:
            return False
        moments = [
            when
            for when, _, timer in self._timers
            if when < math.inf and not (timer.periodic or timer.cancelled())
        ]
        moments += [moment for alarm in self.alarms if (moment := alarm()) is not None]
        if not moments and self.now_s > self._stuck_at_s:
            raise self._endless(_STUCK)
        by_s = min(moments, default=0.0) - LANDING_S - self.now_s
        if by_s < CALM_S:
            self._leap_from_s = self.now_s + LANDING_S
            return False
        for index, (when, number, timer) in enumerate(self._timers):
            if timer.periodic:
                timer._when = when + by_s  # pyright: ignore[reportPrivateUsage] - no other way
                self._timers[index] = (when + by_s, number, timer)
        heapq.heapify(self._timers)
        self.now_s = round(self.now_s + by_s, 7)
        self.leaped_s += by_s
        self.stay_awake(LANDING_S + CALM_S)
        return True

    def create_task(  # type: ignore[override]
        self, coro: Any, *, name: str | None = None, context: Context | None = None
    ) -> asyncio.Task[Any]:
        """Start a task, of the program that the context belongs to."""
        task = super().create_task(coro, name=name, context=context)
        if (process := process_of(context)) is not None:
            process.own(task)
        return task

    def _asyncgen_firstiter_hook(self, agen: AsyncGenerator[Any]) -> None:
        # The loop closes the generators that it knows when it ends. A killed program's stay open.
        if (process := process_of()) is not None:
            process.own(agen)
        else:
            super()._asyncgen_firstiter_hook(agen)  # type: ignore[misc]

    def _write_to_self(self) -> None:
        """The loop never sleeps."""

    def run_in_executor(  # type: ignore[override]
        self,
        executor: Any,  # noqa: ARG002
        func: Callable[..., T],
        *args: Any,
    ) -> asyncio.Future[T]:
        """Run a function in the loop's thread, at the next turn or within `threads_s`."""
        future: asyncio.Future[T] = self.create_future()

        def run() -> None:
            if future.cancelled():
                return
            try:
                future.set_result(func(*args))
            except BaseException as error:  # noqa: BLE001 - it is the future's, as in a thread
                future.set_exception(error)

        if self.threads_s:
            self.call_later(machine.random.random() * self.threads_s, run)
        else:
            self.call_soon(run)
        return future

    subprocess_exec = subprocess_shell = _missing("Subprocesses")
    add_signal_handler = remove_signal_handler = _missing("Signal handlers")
    create_datagram_endpoint = _missing("Datagrams")
    create_unix_connection = create_unix_server = _missing("Unix sockets")
    add_reader = add_writer = remove_reader = remove_writer = _missing("Sockets and pipes")
    sock_connect = sock_accept = sock_recv = sock_sendall = _missing("Sockets and pipes")
    connect_read_pipe = connect_write_pipe = _missing("Sockets and pipes")

    async def getaddrinfo(self, host: Any, port: Any, **_: Any) -> Any:
        """Every name is an address, and `localhost` is 127.0.0.1."""
        return [(2, 1, 6, "", (_address(host), port))]  # IPv4, a stream, TCP

    async def create_server(
        self, protocol_factory: Any, host: Any = None, port: Any = None, **options: Any
    ) -> Any:
        """Listen in memory."""
        _check_plain(options)
        return self.network.listen(protocol_factory, (_address(host), port or self.network.port()))

    async def create_connection(
        self, protocol_factory: Any, host: Any = None, port: Any = None, **options: Any
    ) -> Any:
        """Connect to a server of this loop."""
        _check_plain(options)
        return await self.network.connect(protocol_factory, (_address(host), port))


def _address(host: str | None) -> str:
    """The machine has one address, whichever of its names is used."""
    return "127.0.0.1" if host in (None, "", "localhost", "0.0.0.0") else host  # noqa: S104


def _check_plain(options: Mapping[str, object]) -> None:
    # A test of TLS would see neither bad certificates nor who is refused.
    if options.get("ssl"):
        _missing("Connections with TLS")()


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


def simulate(main: Coroutine[Any, Any, T], *, seed: int = 0, limit_s: float = LIMIT_S) -> T:
    """Run a coroutine to completion in virtual time, on a network in memory.

    Nodes of `async_embedded_node` and asyncio clients run inside, with the caller's own tasks. A
    sleep takes no real time.

    Args:
        main: the coroutine.
        seed: of the random numbers.
        limit_s: how much virtual time it may take. Time in which only heartbeats and other periodic
            work would happen is passed over, and does not count.

    Raises:
        RuntimeError: every task waits for another one, and no timer is set; or it did not end
            within the limit; or another thread of this process is simulating.
    """
    if not _simulating.acquire(blocking=False):
        main.close()
        raise RuntimeError("Another simulation is running in this process.")
    try:
        return _simulate(main, seed, limit_s)
    finally:
        _simulating.release()


def _simulate(main: Coroutine[Any, Any, T], seed: int, limit_s: float) -> T:
    loop, thread = SimulatedLoop(), threading.get_ident()
    calls = itertools.count()
    real_wall, real_ticks = machine.wall_ns, machine.ticks_ns

    def wall_ns() -> int:
        if threading.get_ident() != thread:
            return real_wall()
        process = process_of()
        return EPOCH_NS + round((loop.now_s + (process.clock_s if process else 0.0)) * 1e9)

    def ticks_ns() -> int:
        if threading.get_ident() != thread:
            return real_ticks()
        # No two are equal: clients make unique names of them.
        unleaped_s = loop.now_s - loop.leaped_s
        return EPOCH_NS + round(unleaped_s * 1e9) + next(calls) - clock.BEGAN_NS

    own = _OwnRandom(seed, machine.secret)
    with (
        machine.replaced(machine.Machine(wall_ns, ticks_ns, own, own, lambda: PROCESS_ID)),
        _abandoning(loop),
        asyncio.Runner(loop_factory=lambda: loop) as runner,
    ):
        loop.limit(limit_s, _TOO_LONG)
        try:
            return runner.run(main)
        finally:
            loop.limit(CLOSING_S, _STILL_THERE)


@contextmanager
def _abandoning(loop: SimulatedLoop) -> Generator[None]:
    """Let the tasks that have not ended with the loop never run again."""
    try:
        yield
    finally:
        abandon(asyncio.all_tasks(loop))
