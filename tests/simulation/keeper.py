"""ZooKeeper, for TubeMQ masters that elect one of them: its nodes, and its clients' sessions.

The server is played, and so is kazoo's client: it has connections of the simulated network, a
session that expires when the server has heard nothing for its timeout, and requests that wait in a
greenlet. The election, and the master that it makes active, are the product's.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from functools import partial
from random import Random
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Final, TypeVar
from unittest import mock

from coherer._common import machine
from coherer._server.tubemq.master import zookeeper
from coherer._server.tubemq.master.ensemble import EnsembleMaster
from coherer._server.tubemq.master.zookeeper import Election
from coherer.testing.simulation import Process, SimulatedLoop
from coherer.testing.simulation.process import process_of
from tests.server.tubemq.master.keeper import Keeper, KeeperError, Nodes, Session
from tests.simulation import blocking
from tests.simulation.blocking import run_blocking, wait

if TYPE_CHECKING:  # a run has a server, and the server is told what the run does
    from tests.simulation.workload import Run

T = TypeVar("T")

ADDRESS: Final = ("127.0.0.1", 2181)
SESSION_MS: Final = 4_000
LOOKS_S: Final = 0.5
"""How often the server looks for sessions that have expired."""
AGAIN_S: Final = 0.2
"""How long a client waits before it connects again."""


class SimulatedKeeper(Keeper):
    """A server of ZooKeeper; what it has accepted is never lost.

    Args:
        longest_s: the longest timeout of a session that it grants.

    Attributes:
        process: its program.
        requests: what clients want, by the numbers on the wire.
    """

    def __init__(self, longest_s: float) -> None:
        super().__init__()
        self.longest_s = longest_s
        self.process = Process("zookeeper")
        self.requests: dict[int, Callable[[_Wire], None]] = {}
        self._heard_s: dict[int, float] = {}
        self._timeouts_s: dict[int, float] = {}

    async def start(self) -> None:
        """Accept clients, and look for sessions that have expired."""
        loop = asyncio.get_running_loop()

        async def listen() -> None:
            await loop.create_server(lambda: _Wire(self._received), *ADDRESS)

        await self.process.start(listen())
        self.process.start(self._look())

    async def _look(self) -> None:
        while True:
            await asyncio.sleep(LOOKS_S)
            now_s = asyncio.get_running_loop().time()
            for number, heard_s in list(self._heard_s.items()):
                if now_s > heard_s + self._timeouts_s[number]:
                    self.expire(number)

    def _received(self, wire: _Wire, number: int) -> None:
        self.requests.pop(number)(wire)
        wire.send(number)

    def connect(self, **options: Any) -> Session:
        return SimulatedSession(self, **options)

    def begin(self, number: int, timeout_s: float) -> int:
        """Go on with a session, or begin another one; returns its number."""
        if number not in self._heard_s:
            number = next(self.sessions)
            self._heard_s[number], self._timeouts_s[number] = 0.0, timeout_s
        self.touch(number)
        return number

    def touch(self, number: int) -> None:
        """Note that a client is there. A server that has lost the others cannot tell them.

        Raises:
            KeeperError: the session has expired.
        """
        if number in self.behind:
            return
        if number not in self._heard_s:
            raise KeeperError("session expired")
        self._heard_s[number] = asyncio.get_running_loop().time()

    def expire(self, session: int) -> None:
        self._heard_s.pop(session, None)
        super().expire(session)

    def lose_others(self, choose: Random) -> int:
        """Let the server of one session lose the others; returns the number of the session."""
        sessions = [number for number in self._heard_s if number not in self.behind]
        if not sessions:
            return 0
        chosen = choose.choice(sessions)
        self.cut_off(chosen)
        return chosen


class SimulatedSession(Session):
    """A client, with kazoo's names, which keeps its session alive."""

    keeper: SimulatedKeeper

    def __init__(self, keeper: SimulatedKeeper, *, timeout: float, **_: object) -> None:
        super().__init__(keeper, timeout=timeout)
        self.number = 0
        self._loop = asyncio.get_running_loop()
        self._changed: Callable[[object], object] = lambda _: None
        self._wire: _Wire | None = None
        self._its_wire: _Wire | None = None
        self._open = asyncio.Event()
        self._waiting: dict[int, asyncio.Future[Any]] = {}
        self._arriving: dict[int, Callable[[], object]] = {}
        self._living: asyncio.Task[None] | None = None

    @property
    def connected(self) -> bool:
        return self._open.is_set()

    def add_listener(self, changed: Callable[[object], object]) -> None:
        self._changed = changed

    def start(self, timeout: float) -> None:
        self._connection._connect()
        self._living = self._loop.create_task(self._live())
        try:
            wait(asyncio.wait_for(self._open.wait(), timeout))
        except TimeoutError:
            raise KeeperError("no connection in time") from None

    def stop(self) -> None:
        if self.connected:
            with suppress(KeeperError):
                self.ask(lambda _: self.keeper.expire(self.number), changes=True)

    def close(self) -> None:
        if self._living is not None:
            self._living.cancel()
        self._lose(self._wire)

    def ask(self, work: Callable[[Nodes], T], *, changes: bool = False) -> T:
        if not self.connected:
            raise KeeperError("connection lost")
        return wait(self._ask(partial(self._serve, work, changes)))

    def _serve(self, work: Callable[[Nodes], T], changes: bool, wire: _Wire) -> T:
        del wire
        self.keeper.touch(self.number)
        return self.serve(work, changes=changes)

    def get_children(self, path: str, watch: Callable[[object], None] | None = None) -> list[str]:
        told = None if watch is None else partial(self._tell, watch)
        return super().get_children(path, told)

    def _tell(self, watch: Callable[[object], None], event: object) -> None:
        """Send an event from the server."""
        if self.number not in self.keeper.behind and self._its_wire is not None:
            number = machine.random.getrandbits(60)
            self._arriving[number] = partial(watch, event)
            self._its_wire.send(number)

    async def _ask(self, work: Callable[[_Wire], T]) -> T:
        if self._wire is None:
            raise KeeperError("connection lost")
        number = machine.random.getrandbits(60)
        answer: asyncio.Future[T] = self._loop.create_future()

        def serve(its_wire: _Wire) -> None:
            try:
                self._arriving[number] = partial(answer.set_result, work(its_wire))
            except KeeperError as error:
                self._arriving[number] = partial(answer.set_exception, error)

        self.keeper.requests[number] = serve
        self._waiting[number] = answer
        self._wire.send(number)
        return await answer

    def _received(self, _: _Wire, number: int) -> None:
        arrived, answer = self._arriving.pop(number), self._waiting.pop(number, None)
        if answer is None or not answer.done():
            arrived()

    def _begin(self, wire: _Wire) -> int:
        self._its_wire = wire
        return self.keeper.begin(self.number, self.timeout_s)

    async def _live(self) -> None:
        """Keep a connection, and find out whether the server answers."""
        patience_s = self.timeout_s * 2 / 3
        while True:
            with suppress(OSError, KeeperError, TimeoutError):
                connecting = self._loop.create_connection(
                    lambda: _Wire(self._received, self._lose), *ADDRESS
                )
                _, self._wire = await asyncio.wait_for(connecting, patience_s)
                self.number = await asyncio.wait_for(self._ask(self._begin), patience_s)
                self._open.set()
                self._changed(None)
                while True:
                    await asyncio.sleep(self.timeout_s / 3)
                    ping = partial(self._serve, len, False)
                    await asyncio.wait_for(self._ask(ping), patience_s)
            self._lose(self._wire)
            await asyncio.sleep(AGAIN_S)

    def _lose(self, wire: _Wire | None) -> None:
        """The connection is gone, and the answers that were to come on it."""
        if wire is None or wire is not self._wire:
            return
        self._wire = None
        self._open.clear()
        wire.transport.close()
        waiting, self._waiting = self._waiting, {}
        for answer in waiting.values():
            if not answer.done():
                answer.set_exception(KeeperError("connection lost"))
        self._changed(None)


class _Wire(asyncio.Protocol):
    """One end of a connection, which transports the numbers of requests."""

    transport: asyncio.Transport

    def __init__(
        self,
        received: Callable[[_Wire, int], object],
        lost: Callable[[_Wire], object] = lambda _: None,
    ) -> None:
        self._receive, self._lost = received, lost
        self._data = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        *lines, self._data = (self._data + data).split(b"\n")
        for line in lines:
            self._receive(self, int(line))

    def connection_lost(self, exc: Exception | None) -> None:
        del exc
        self._lost(self)

    def send(self, number: int) -> None:
        """Send a number."""
        self.transport.write(b"%d\n" % number)


@contextmanager
def playing(run: Run) -> Generator[None]:
    """Let masters elect one of them in the server of a run, if it has one.

    Functions for executors then run in greenlets, because those of masters wait.
    """
    keeper = run.cluster.keeper
    if keeper is None:
        yield
        return
    may_act, elected = Election.may_act.fget, EnsembleMaster.elected
    assert may_act is not None

    def noting(election: Election) -> bool:
        acts, process = may_act(election), process_of()
        if acts and process is not None:
            run.acts(process, election.epoch)
        return acts

    def becoming(ensemble: EnsembleMaster, content: bytes | None, term: int) -> None:
        elected(ensemble, content, term)
        ensemble.master.state.may_act()

    kazoo = keeper.kazoo()
    threads = SimpleNamespace(Thread=blocking.Thread, Event=blocking.Event, Lock=blocking.Lock)
    with (
        mock.patch.object(zookeeper, "import_module", return_value=kazoo),
        mock.patch.object(zookeeper, "threading", threads),
        mock.patch.object(Election, "may_act", property(noting)),
        mock.patch.object(EnsembleMaster, "elected", becoming),
        mock.patch.object(SimulatedLoop, "run_in_executor", _run_in_executor),
    ):
        yield


def _run_in_executor(
    loop: SimulatedLoop,
    executor: object,
    func: Callable[..., T],
    *args: Any,
) -> asyncio.Future[T]:
    """Run a function in a greenlet; like a thread it goes on if nobody waits for it any more."""
    del executor

    async def run() -> T:
        if loop.threads_s:
            await asyncio.sleep(machine.random.random() * loop.threads_s)
        return await run_blocking(partial(func, *args))

    return asyncio.shield(loop.create_task(run()))
