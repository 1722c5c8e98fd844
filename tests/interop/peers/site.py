"""All servers of a session: two masters, brokers of both kinds at each, and brokers to restart.

A topology is a master with one or more of its brokers. Topics of every topology are created before
brokers start: the Java system makes a topic writable only some 41 s after its broker's start.
"""

from __future__ import annotations

import asyncio
import itertools
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from .cache import JavaSystem
from .driver import JavaDriver, OurDriver
from .java import HOST, JavaBroker, JavaMaster, WebApi, wait_writable
from .ours import OurBroker, OurMaster

Broker = JavaBroker | OurBroker
Master = JavaMaster | OurMaster
BALANCE_MS = 2_000
CONSUMER_TIMEOUT_MS = 20_000


@dataclass
class Topology:
    """A master and those of its brokers that hold a scenario's topics.

    Args:
        name: `master/broker`, for the ids of tests.
        master: "java" or "ours".
        brokers: their kinds; a restart topology has brokers that nobody else uses.
        restarts: whether the brokers are for restarting.
    """

    name: str
    master: str
    brokers: tuple[str, ...]
    restarts: bool = False

    def __str__(self) -> str:
        return self.name

    @property
    def code(self) -> str:
        """A few letters, for names of topics."""
        return "".join(word[0] for word in self.name.replace("-", "/").split("/"))

    def __hash__(self) -> int:
        return hash(self.name)


PAIRS = [
    Topology("java/java", "java", ("java",)),
    Topology("java/ours", "java", ("ours",)),
    Topology("ours/java", "ours", ("java",)),
    Topology("ours/ours", "ours", ("ours",)),
]
SEVERAL = [
    Topology("java/several", "java", ("java", "ours")),
    Topology("ours/several", "ours", ("java", "ours")),
]
RESTARTS = [
    Topology(f"{pair.name}-restarted", pair.master, pair.brokers, restarts=True) for pair in PAIRS
]


@dataclass
class Deployed:
    """A topology with its running servers."""

    topology: Topology
    address: str
    brokers: list[Broker]
    web: WebApi
    ready: threading.Event = field(default_factory=threading.Event)
    failure: BaseException | None = None

    async def writable(self, timeout_s: float) -> None:
        """Waits until its topics take messages; raises what went wrong."""
        await wait(self.ready, timeout_s)
        if self.failure is not None:
            raise self.failure


async def wait(event: threading.Event, timeout_s: float) -> None:
    """Awaits an event of another thread."""
    async with asyncio.timeout(timeout_s):
        while not event.is_set():  # noqa: ASYNC110 - another thread sets it
            await asyncio.sleep(0.05)


class Site:
    """Brings up what the wanted topologies need, in the background.

    Args:
        tube: the Java system.
        folder: logs and data.
        topics: topology to topic to number of partitions.
        say: told of progress, from any thread.
    """

    def __init__(
        self,
        tube: JavaSystem,
        folder: Path,
        topics: Mapping[Topology, Mapping[str, int]],
        say: Callable[[str], None],
    ) -> None:
        self._tube = tube
        self._folder = folder
        self._topics = topics
        self._say = say
        self._lock = threading.Lock()
        self._stops: list[Callable[[], None]] = []
        self._stopped = False
        self._numbers = itertools.count(1)  # of brokers and drivers
        self.java_driver: JavaDriver | None = None
        self.topologies: dict[Topology, Deployed] = {}
        self.known = threading.Event()
        self._thread = threading.Thread(target=self._bring_up, name="site", daemon=True)
        self.failure: BaseException | None = None

    def start(self) -> None:
        """Begins, and returns at once."""
        self._thread.start()

    def java_clients(self) -> JavaDriver:
        """A further JVM of clients."""
        name = f"java-driver-{next(self._numbers)}"
        driver = JavaDriver(self._tube, self._folder, name, heap_mb=256)
        self._owe(driver.stop)
        return driver

    def our_clients(self) -> OurDriver:
        """A further process of our clients."""
        driver = OurDriver(self._folder, f"our-driver-{next(self._numbers)}")
        self._owe(driver.stop)
        return driver

    def stop(self) -> None:
        """Ends every process."""
        with self._lock:
            self._stopped = True
            stops, self._stops = self._stops, []
        with ThreadPoolExecutor(max(len(stops), 1)) as pool:
            list(pool.map(lambda stop: stop(), stops))
        self._thread.join(30)

    def _owe(self, stop: Callable[[], None]) -> None:
        with self._lock:
            if not self._stopped:
                self._stops.append(stop)
                return
        stop()

    def _bring_up(self) -> None:
        try:
            start = time.monotonic()
            self.java_driver = self.java_clients()
            masters = {kind: self._master(kind) for kind in {p.master for p in self._topics}}
            shared: dict[tuple[str, str, int], Broker] = {}
            for topology in self._topics:
                self._deploy(topology, masters[topology.master], shared)
            self._start_brokers()
            self._say(f"masters and brokers are up after {time.monotonic() - start:.0f} s")
            self.known.set()
            self._watch(start)
        except BaseException as failure:  # noqa: BLE001 - handed to whoever waits
            self.failure = failure
            for deployed in self.topologies.values():
                deployed.failure = failure
                deployed.ready.set()
            self.known.set()

    def _master(self, kind: str) -> Master:
        folder = self._folder / f"{kind}-master"
        options = {"balance_ms": BALANCE_MS, "consumer_timeout_ms": CONSUMER_TIMEOUT_MS}
        master: Master = (
            JavaMaster(self._tube, folder, **options)
            if kind == "java"
            else OurMaster(folder, **options)
        )
        self._owe(master.stop)
        master.wait()
        return master

    def _deploy(
        self, topology: Topology, master: Master, shared: dict[tuple[str, str, int], Broker]
    ) -> None:
        brokers = []
        for index, kind in enumerate(topology.brokers):
            key = (topology.master, kind, topology.brokers[:index].count(kind))
            broker = None if topology.restarts else shared.get(key)
            if broker is None:
                broker = self._new_broker(kind, master)
                if not topology.restarts:
                    shared[key] = broker
            brokers.append(broker)
        for topic, partitions in self._topics[topology].items():
            master.web.add_topic(topic, [broker.broker_id for broker in brokers], partitions)
        self.topologies[topology] = Deployed(topology, master.address, brokers, master.web)

    def _new_broker(self, kind: str, master: Master) -> Broker:
        number = next(self._numbers)
        folder = self._folder / f"{kind}-broker-{number}"
        broker: Broker = (
            JavaBroker(self._tube, folder, number, master.address, heap_mb=384)
            if kind == "java"
            else OurBroker(folder, number, master.address)
        )
        broker.add_to(master.web)
        return broker

    def _start_brokers(self) -> None:
        brokers = {id(b): b for d in self.topologies.values() for b in d.brokers}.values()
        for broker in brokers:
            self._owe(broker.stop)
            broker.start()
        for broker in brokers:
            broker.wait()

    def _watch(self, start: float) -> None:
        """Says of each topology when all of its topics are writable."""

        def watch(deployed: Deployed) -> None:
            try:
                wait_writable(deployed.web, self._topics[deployed.topology])
                took = time.monotonic() - start
                self._say(f"{deployed.topology} is writable after {took:.0f} s")
            except BaseException as failure:  # noqa: BLE001 - handed to whoever waits
                deployed.failure = failure
            deployed.ready.set()

        with ThreadPoolExecutor(max(len(self.topologies), 1)) as pool:
            list(pool.map(watch, self.topologies.values()))


__all__ = ["HOST", "PAIRS", "RESTARTS", "SEVERAL", "Deployed", "Site", "Topology"]
