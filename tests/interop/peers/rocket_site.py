"""Clusters of RocketMQ for a session: every mix of our and Java's name server and broker.

Each is started when a test first asks for it, and stays until the session ends.
"""

from __future__ import annotations

import base64
import itertools
import os
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .cache import JavaSystem, UnavailableError, prepare, prepare_release
from .driver import Driver, Event
from .others import CppDriver, GoDriver, NodeDriver, cpp_python, go_program, node_modules
from .ours import start_node
from .process import Child, free_ports, listens
from .rocketmq import (
    HOST,
    START_TIMEOUT_S,
    JavaNameServer,
    JavaProxy,
    JavaRocketBroker,
    RocketDriver,
    broker_port,
    has_route,
)

KINDS = ("java", "ours", "java-names", "our-names")
"""Both Java's, both ours, and the two mixes, named after the name server. Further ones are Java
servers of another release, `java-4.5.2`, and RocketMQ 5's Proxy in front of them, `proxy-5.5.0`."""
CALL_S = 120.0

# What tests wait for, short; the same for both.
QUICK = {
    "transactionTimeOut": 1_000,
    "transactionCheckInterval": 1_000,
    "traceTopicEnable": "true",
}
OUR_QUICK = {"transaction_timeout_ms": 1_000, "transaction_interval_ms": 1_000}


class OurRocket:
    """Our node with RocketMQ's door, in a process of its own.

    Args:
        folder: where it keeps everything.
        namesrv: the name servers of others; then there is none here.
        only_names: it is only a name server.
        options: further ones of `NodeOptions`.
    """

    def __init__(
        self,
        folder: Path,
        *,
        namesrv: str | None = None,
        only_names: bool = False,
        **options: object,
    ) -> None:
        self.folder = folder
        (self.names_port,) = free_ports(1)
        self.port = broker_port()
        self.namesrv = namesrv or f"{HOST}:{self.names_port}"
        self.address = f"{HOST}:{self.port}"
        self.name = "broker-a"
        roles = ["master"] if only_names else ["master", "broker"]
        given: dict[str, object] = {
            "roles": roles,
            "admin_port": None,
            "master_port": 0,
            "broker_port": 0,
            "rocketmq_port": self.port,
            "namesrv_port": self.names_port,
            "namesrv": namesrv,
        }
        self._only_names = only_names
        self._options = {**given, **options}
        self.child: Child | None = None

    def start(self) -> None:
        """Starts the process; `wait` waits for it."""
        self.child = start_node(f"our-{self.folder.name}", self.folder, HOST, **self._options)

    def wait(self) -> None:
        """Until clients can send."""
        assert self.child is not None
        if self._only_names:
            self.child.wait_for(lambda: listens(self.names_port), START_TIMEOUT_S, "open port")
            return
        names = self.namesrv.split(";")[0]
        self.child.wait_for(lambda: has_route(names, self.name), START_TIMEOUT_S, "route")

    def stop(self) -> None:
        """SIGTERM and a wait: it closes its files."""
        if self.child is not None:
            self.child.stop()
            self.child = None

    def kill(self) -> None:
        """SIGKILL."""
        if self.child is not None:
            self.child.stop(grace_s=0)
            self.child = None


Broker = OurRocket | JavaRocketBroker


@dataclass
class Cluster:
    """A name server with a broker.

    Args:
        kind: one of `KINDS`.
        namesrv: host:port of the name server.
        broker: its broker.
    """

    kind: str
    namesrv: str
    broker: Broker

    @property
    def url(self) -> str:
        """What our client connects to."""
        return f"rocketmq://{self.namesrv}"

    def __str__(self) -> str:
        return self.kind


class Client:
    """A client in another process, and what it said unasked."""

    def __init__(self, driver: Driver, kind: str, parameters: Mapping[str, object]) -> None:
        self._driver = driver
        self.events: list[dict[str, Any]] = []
        self.name, opened = driver.open(kind, self._take, **parameters)
        opened.result(CALL_S)

    def _take(self, event: Event) -> None:
        self.events.append(event)  # type: ignore[arg-type]

    def __call__(self, action: str, **parameters: object) -> Any:
        """Asks it to do something, and waits for what it answers."""
        return self.asked(action, **parameters).result(CALL_S)

    def asked(self, action: str, **parameters: object) -> Future[Any]:
        """Asks it to do something."""
        return self._driver.call(self.name, action, **parameters)

    def send(self, topic: str, body: str, **more: object) -> Any:
        """Sends one message."""
        return self("send", topic=topic, body=b64(body), **more)

    def messages(self, event: str = "messages") -> list[dict[str, Any]]:
        """The messages of all events of a kind, in their order."""
        return [
            one for found in self.events if found["event"] == event for one in found["messages"]
        ]

    def bodies(self, event: str = "messages") -> list[str]:
        """The bodies of these messages."""
        return [base64.b64decode(one["body"]).decode() for one in self.messages(event)]

    def wait_for(
        self, count: int, event: str = "messages", timeout_s: float = CALL_S
    ) -> list[dict[str, Any]]:
        """Waits for so many messages."""
        try:
            wait_until(lambda: len(self.messages(event)) >= count, timeout_s)
        except TimeoutError as late:
            raise TimeoutError(f"{late}: {count} {event}; there are {self.events}") from None
        return self.messages(event)

    def close(self) -> None:
        """Ends it."""
        self("close")


class RocketSite:
    """What tests of RocketMQ ask for. Everything is started once, at the first question.

    Args:
        folder: for files and logs.
        say: told of progress.
    """

    def __init__(self, folder: Path, say: Callable[[str], None] = lambda _text: None) -> None:
        self.folder = folder
        self._say = say
        self._java: JavaSystem | None = None
        self._clusters: dict[str, Cluster] = {}
        self._drivers: dict[str, Driver] = {}
        self._stops: list[Callable[[], None]] = []
        self._stops_of_releases: list[Callable[[], None]] = []
        self._numbers = itertools.count(1)

    @property
    def java(self) -> JavaSystem:
        """The Java system.

        Raises:
            UnavailableError: it cannot be had.
        """
        if self._java is None:
            self._java = prepare("rocketmq", self._say).short_lived()
        return self._java

    def cluster(self, kind: str) -> Cluster:
        """A cluster of a kind, shared by all tests."""
        if kind not in self._clusters:
            self._clusters[kind] = self._start(kind)
        return self._clusters[kind]

    def driver(self, language: str = "java") -> Driver:
        """A process with clients: java, node, cpp or go; shared by all tests."""
        if language not in self._drivers:
            self._drivers[language] = self.new_driver(language)
        return self._drivers[language]

    def has(self, language: str) -> bool:
        """Whether there are clients in a language here.

        Raises:
            UnavailableError: there are none, in CI.
        """
        try:
            self.driver(language)
        except UnavailableError:
            if os.environ.get("CI"):
                raise
            return False
        return True

    def new_driver(self, language: str = "java", **options: int) -> Driver:
        """A process with clients, for one test alone; options are those of `RocketDriver`."""
        driver = self._make_driver(language, **options)
        self._stops.append(driver.stop)
        return driver

    def client(
        self, cluster: Cluster, kind: str, language: str = "java", **parameters: object
    ) -> Client:
        """A client of a kind that its driver knows; close it."""
        return Client(self.driver(language), kind, {"namesrv": cluster.namesrv, **parameters})

    def names(self, kind: str) -> str:
        """A name server of its own: its address."""
        folder = self._folder(f"{kind}-names")
        if kind == "java":
            server = JavaNameServer(self.java, folder)
            self._stops.append(server.stop)
            server.wait()
            return server.address
        ours = OurRocket(folder, only_names=True)
        self._stops.append(ours.kill)
        ours.start()
        ours.wait()
        return ours.namesrv

    def broker(self, kind: str, namesrv: str, **settings: object) -> Broker:
        """A broker of its own, started; the settings are Java's, or those of `NodeOptions`."""
        folder = self._folder(f"{kind}-broker")
        broker: Broker = (
            JavaRocketBroker(self.java, folder, namesrv, settings={**QUICK, **settings})
            if kind == "java"
            else OurRocket(folder, namesrv=namesrv, **{**OUR_QUICK, **settings})
        )
        self._stops.append(broker.kill)
        broker.start()
        broker.wait()
        return broker

    def stop(self) -> None:
        """Ends every process."""
        self.stop_releases()
        stops, self._stops = self._stops, []
        for stop in reversed(stops):
            stop()

    def stop_releases(self) -> None:
        """Ends servers of other releases. An idle broker of 5.5 keeps a processor busy."""
        stops, self._stops_of_releases = self._stops_of_releases, []
        for stop in reversed(stops):
            stop()
        self._clusters = {kind: one for kind, one in self._clusters.items() if kind in KINDS}

    def _start(self, kind: str) -> Cluster:
        start = time.monotonic()
        if kind.startswith("proxy-"):
            release = kind.removeprefix("proxy-")
            behind = self.cluster(f"java-{release}")
            system = prepare_release("rocketmq-proxy", release, self._say)
            proxy = JavaProxy(system, self._folder(kind), behind.namesrv, behind.broker.name)
            self._stops_of_releases.append(proxy.stop)
            proxy.wait()
            cluster = Cluster(kind, proxy.address, behind.broker)
        elif kind.startswith("java-") and kind not in KINDS:
            system = prepare_release("rocketmq-server", kind.removeprefix("java-"), self._say)
            names = JavaNameServer(system, self._folder(f"{kind}-names"))
            self._stops_of_releases.append(names.stop)
            names.wait()
            folder = self._folder(f"{kind}-broker")
            broker = JavaRocketBroker(system, folder, names.address, settings=QUICK)
            self._stops_of_releases.append(broker.kill)
            broker.start()
            broker.wait()
            cluster = Cluster(kind, names.address, broker)
        elif kind == "ours":  # both in one process, as people start it
            ours = OurRocket(self._folder("both"), **OUR_QUICK)
            self._stops.append(ours.kill)
            ours.start()
            ours.wait()
            cluster = Cluster(kind, ours.namesrv, ours)
        else:
            namesrv = self.names("ours" if kind == "our-names" else "java")
            broker = self.broker("ours" if kind == "java-names" else "java", namesrv)
            cluster = Cluster(kind, namesrv, broker)
        self._say(f"cluster {kind} is up after {time.monotonic() - start:.1f} s")
        return cluster

    def _make_driver(self, language: str, **options: int) -> Driver:
        folder = self._folder(f"{language}-clients")
        if language == "java":
            return RocketDriver(self.java, folder, **options)  # type: ignore[arg-type]
        if language.startswith("java-"):
            release = language.removeprefix("java-")
            return RocketDriver(prepare_release("rocketmq-client", release, self._say), folder)
        if language == "node":
            return NodeDriver(node_modules(self._say), folder)
        if language == "go":
            return GoDriver(go_program(self._say), folder)
        return CppDriver(cpp_python(self._say), folder)

    def _folder(self, name: str) -> Path:
        return self.folder / f"{name}-{next(self._numbers)}"


def b64(text: str) -> str:
    """A body for a driver."""
    return base64.b64encode(text.encode()).decode()


def wait_until(
    holds: Callable[[], object],
    timeout_s: float = CALL_S,
    state: Callable[[], object] = lambda: "",
) -> None:
    """Waits until something holds that another process does; the error shows `state`."""
    until = time.monotonic() + timeout_s
    while not holds():
        if time.monotonic() > until:
            raise TimeoutError(f"not in {timeout_s:.0f} s {state()}".strip())
        time.sleep(0.02)
