"""Scenarios that run at the same time, and the tests that wait for their outcome.

Most of a scenario is waiting: for heartbeats, balances, a topic to become writable. One after
another they would take half an hour. So all that were collected run in one event loop from the
moment their servers are ready, and each test only waits for its own and raises what it raised.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import os
import queue
import tempfile
import threading
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from .cache import UnavailableError, prepare
from .clients import Clients, JavaClients
from .our_clients import OurClients
from .site import Deployed, Site, Topology, wait

AT_ONCE = 12
READY_TIMEOUT_S = 180.0
SCENARIO_TIMEOUT_S = 900.0
SAY_S = 0.5
DOWN_S = 3.0  # longer than the period of heartbeats
TOPIC_CHARS = 50  # of 64, for a topic's name


@dataclass(frozen=True)
class Cell:
    """One combination: whose client, at which master and brokers.

    Args:
        client: "java" or "ours".
        topology: master and brokers.
    """

    client: str
    topology: Topology

    def __str__(self) -> str:
        return f"{self.client}:{self.topology}"


@dataclass(frozen=True)
class At:
    """What a scenario is given: its clients, its servers, and names that nobody else uses."""

    clients: Clients
    deployed: Deployed
    restarts: Restarts
    name: str

    @property
    def master(self) -> str:
        """The master's host:port."""
        return self.deployed.address

    @property
    def topic(self) -> str:
        """The scenario's topic."""
        return self.name

    async def restart(self) -> None:
        """Restart the broker, as soon as all tests that share it have called this."""
        await self.restarts.arrive(self.deployed, self.name)

    def group(self, suffix: str = "") -> str:
        """A group of consumers that nobody else uses."""
        return f"g_{self.name}{suffix}"


Scenario = Callable[[At], Awaitable[None]]


class Restarts:
    """Restarts of brokers that several scenarios load.

    Args:
        wanted: all that will run.
    """

    def __init__(self, wanted: Iterable[Wanted]) -> None:
        self._missing: dict[Topology, set[str]] = {}
        self._begun: set[Topology] = set()
        self._done: dict[Topology, asyncio.Event] = {}
        for one in wanted:
            if one.cell.topology.restarts:
                self._missing.setdefault(one.cell.topology, set()).add(one.name)
                self._done.setdefault(one.cell.topology, asyncio.Event())

    async def arrive(self, deployed: Deployed, name: str) -> None:
        """Waits for the others; one of them restarts the broker."""
        topology = deployed.topology
        self.give_up(topology, name)
        async with asyncio.timeout(SCENARIO_TIMEOUT_S):
            while self._missing[topology]:  # noqa: ASYNC110 - a few waits of a minute, no hurry
                await asyncio.sleep(0.05)
        if topology not in self._begun:
            self._begun.add(topology)
            await asyncio.to_thread(_restart, deployed)
            self._done[topology].set()
        await self._done[topology].wait()

    def give_up(self, topology: Topology, name: str) -> None:
        """One fewer to wait for."""
        self._missing.get(topology, set()).discard(name)


def _restart(deployed: Deployed) -> None:
    for broker in deployed.brokers:
        broker.crash()
        time.sleep(DOWN_S)
        broker.start()
        broker.wait()


@dataclass(frozen=True)
class Wanted:
    """A scenario that runs in a cell."""

    scenario: Scenario
    cell: Cell
    partitions: int

    @property
    def name(self) -> str:
        """Of the topic, and part of the group's."""
        name = self.scenario.__name__.removeprefix("test_")[:TOPIC_CHARS]
        return f"{name}_{self.cell.client}_{self.cell.topology.code}"


def scenario(
    topologies: Iterable[Topology],
    *,
    partitions: int = 4,
    clients: Iterable[str] = ("java", "ours"),
) -> Callable[[Scenario], Callable[..., None]]:
    """Makes a test of a scenario, one per cell."""
    cells = [Cell(client, topology) for topology in topologies for client in clients]

    def decorate(run: Scenario) -> Callable[..., None]:
        @pytest.mark.interop
        @pytest.mark.slow
        @pytest.mark.parametrize("cell", cells, ids=str)
        def test(cell: Cell, runs: Runs) -> None:
            runs.outcome(Wanted(run, cell, partitions))

        test.__name__ = run.__name__
        test.__doc__ = run.__doc__
        test.wanted = lambda cell: Wanted(run, cell, partitions)  # type: ignore[attr-defined]
        return test

    return decorate


def wanted_of(item: pytest.Item) -> Wanted | None:
    """What a collected test waits for, if it is one of ours."""
    make = getattr(getattr(item, "function", None), "wanted", None)
    callspec = getattr(item, "callspec", None)
    return make(callspec.params["cell"]) if make and callspec else None


class Runs:
    """All scenarios of a session.

    Args:
        wanted: what was collected.
    """

    def __init__(self, wanted: Iterable[Wanted]) -> None:
        self._outcomes: dict[tuple[str, Cell], concurrent.futures.Future[None]] = {}
        self._wanted = list(wanted)
        self._said: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._site: Site | None = None
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="scenarios", daemon=True)
        self.folder = Path(tempfile.mkdtemp(prefix="coherer-interop-"))
        self.tell: Callable[[str], None] = lambda _line: None
        for one in self._wanted:
            self._outcomes[one.name, one.cell] = concurrent.futures.Future()

    def start(self) -> None:
        """Begins in the background, unless it has begun."""
        if self._thread.ident is None:
            self._thread.start()

    def outcome(self, one: Wanted) -> None:
        """Waits for a scenario and raises what it raised; skips where Java is not to be had."""
        future = self._outcomes[one.name, one.cell]
        while True:
            while not self._said.empty():
                self.tell(self._said.get())
            try:
                return future.result(SAY_S)
            except concurrent.futures.TimeoutError:
                if future.done():
                    raise
            except UnavailableError as reason:
                if os.environ.get("CI"):
                    pytest.fail(f"CI needs the Java system: {reason}")
                pytest.skip(f"no Java system: {reason}")

    def say(self, line: str) -> None:
        """Notes progress, from any thread."""
        self._said.put(line)

    def stop(self) -> None:
        """Ends everything, finished or not."""
        self._stopping.set()
        if self._site is not None:
            self._site.stop()
        if self._thread.is_alive():
            self._thread.join(60)

    def _run(self) -> None:
        try:
            tube = prepare("tubemq", self.say).short_lived()
            topics: dict[Topology, dict[str, int]] = {}
            for one in self._wanted:
                topics.setdefault(one.cell.topology, {})[one.name] = one.partitions
            self._site = Site(tube, self.folder, topics, self.say)
            self._site.start()
            asyncio.run(self._run_all(self._site))
            self._site.stop()  # the other tests need the processors
        except BaseException as failure:  # noqa: BLE001 - every test shall hear of it
            for future in self._outcomes.values():
                if not future.done():
                    future.set_exception(failure)

    async def _run_all(self, site: Site) -> None:
        await wait(site.known, READY_TIMEOUT_S)
        if site.failure is not None:
            raise site.failure
        assert site.java_driver is not None
        clients: Mapping[str, Clients] = {
            "java": JavaClients(site.java_driver, site.java_clients),
            "ours": OurClients(site.our_clients),
        }
        slots = asyncio.Semaphore(AT_ONCE)
        restarts = Restarts(self._wanted)
        tasks = [
            asyncio.create_task(self._one(one, site, clients[one.cell.client], slots, restarts))
            for one in self._wanted
        ]
        while not (self._stopping.is_set() or all(t.done() for t in tasks)):  # noqa: ASYNC110
            await asyncio.sleep(0.05)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _one(
        self,
        one: Wanted,
        site: Site,
        clients: Clients,
        slots: asyncio.Semaphore,
        restarts: Restarts,
    ) -> None:
        future = self._outcomes[one.name, one.cell]
        topology = one.cell.topology
        try:
            deployed = site.topologies[topology]
            await deployed.writable(READY_TIMEOUT_S)
            # Those that restart wait for each other: they must not wait for a slot as well.
            limit = contextlib.nullcontext() if topology.restarts else slots
            async with limit, asyncio.timeout(SCENARIO_TIMEOUT_S):
                await one.scenario(At(clients, deployed, restarts, one.name))
            future.set_result(None)
            self.say(f"{one.scenario.__name__}[{one.cell}] is done")
        except BaseException as failure:
            future.set_exception(_plain(failure))
            if not isinstance(failure, Exception):
                raise
        finally:
            restarts.give_up(topology, one.name)


def _plain(failure: BaseException) -> Exception:
    """A cancelled scenario is a failed test, not a cancelled one."""
    if isinstance(failure, Exception):
        return failure
    return RuntimeError(f"the scenario was ended: {failure!r}")
