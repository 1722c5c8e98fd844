"""The systems to compare, and their client processes."""

from __future__ import annotations

import contextlib
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from bench.cases import COHERER, CPP, JAVA
from tests.interop.peers.cache import JavaSystem, UnavailableError
from tests.interop.peers.driver import Driver, JavaDriver
from tests.interop.peers.java import HOST, JavaBroker, JavaMaster, WebApi, wait_writable
from tests.interop.peers.others import CppDriver, cpp_python
from tests.interop.peers.ours import start_node
from tests.interop.peers.process import free_ports, listens
from tests.interop.peers.rocketmq import JavaNameServer, JavaRocketBroker, RocketDriver

PARTITIONS = 4
TOPICS = ("produce", "consume", "latency")
HEAP_MB = 1024
START_TIMEOUT_S = 30.0
BALANCE_MS = 1_000
HEARTBEAT_MS = 1_000
WRITABLE_WAIT_MS = 90_000
PULL_MAX = 1_000
PULL_BYTES_MAX = 8 * 1024 * 1024

# With Java's default write cache of 3 MB, its broker refuses a window of 5,000 x 1 KiB (419).
JAVA_TOPIC = {"memCacheMsgSizeInMB": 64, "memCacheMsgCntInK": 256}

# Limits of pulls, and a send queue in which 5,000 sends may wait for more than 200 ms.
JAVA_PULLS = {
    "maxTransferCountOnMessageInMemory": PULL_MAX,
    "maxTransferCountOnMessageInDisk": PULL_MAX,
    "maxTransferBytesOnMessageInMemory": PULL_BYTES_MAX,
    "maxTransferBytesOnMessageInDisk": PULL_BYTES_MAX,
    "mappedFileSizeCommitLog": 1024**3,
    "waitTimeMillsInSendQueue": 5_000,
}

CLIENT_PROGRAM = f"""import sys
sys.path.insert(0, {str(Path(__file__).parent.parent)!r})
from bench import client_main
client_main.start()"""

COHERER_BROKER = {
    "acknowledges": "when the message is written to the file, in the kernel's cache",
    "flush": "async, the default: fsync twice a second",
}

SETTINGS: dict[str, object] = {
    "partitions": PARTITIONS,
    "java tubemq broker": {
        **JAVA_TOPIC,
        "heap_mb": HEAP_MB,
        "acknowledges": "when the message is in its memory cache",
        "flush": "defaults: cache to file at 20 s or when full; fsync at 1,000 messages or 10 s",
        "stores": 1,
    },
    "java rocketmq broker": {
        **JAVA_PULLS,
        "heap_mb": HEAP_MB,
        "acknowledges": "when the message is in its mapped file",
        "flush": "ASYNC_FLUSH, the default: twice a second",
    },
    "coherer broker": COHERER_BROKER,
    "balance_ms": BALANCE_MS,
    "heartbeat_ms": HEARTBEAT_MS,
}


@dataclass
class System:
    """Running servers.

    Args:
        kind: JAVA or COHERER.
        address: of the master or the name server, host:port.
        pids: the processes of its broker; a Coherer node is one process.
    """

    kind: str
    address: str
    pids: list[int]


class Bench(ABC):
    """All processes of a run; use it in a `with` block.

    Args:
        java: the Java system; None to measure Coherer alone.
        folder: for data and logs.
        log: prints progress.

    Attributes:
        scheme: of the URL of a cluster.
        address_name: name of the cluster's address in calls of the Java clients.
    """

    scheme: str
    address_name: str

    def __init__(self, java: JavaSystem | None, folder: Path, log: Callable[[str], None]) -> None:
        self._java = java
        self._folder = folder / self.scheme
        self._log = log
        self._tubemq_url = ""  # of the node, if clients use another URL
        self._stack = contextlib.ExitStack()
        self.systems: dict[str, System] = {}
        self.drivers: dict[str, Driver] = {}
        self.clients: dict[tuple[str, str], str] = {}

    def __enter__(self) -> Self:
        self._folder.mkdir()
        try:
            self._start_node()
            if self._java is not None:
                self._start_java(self._java)
            self._start_clients()
        except BaseException:
            self._stack.close()
            raise
        return self

    def __exit__(self, *_error: object) -> None:
        self._stack.close()

    def driver(self, kind: str) -> Driver:
        """The client process of a kind."""
        return self.drivers[kind]

    @abstractmethod
    def _node_ports(self) -> tuple[int, dict[str, object]]:
        """The port for clients, and the options of the node."""

    @abstractmethod
    def _start_java(self, java: JavaSystem) -> None:
        """Starts the Java servers, and creates the topics."""

    @abstractmethod
    def _java_driver(self, java: JavaSystem) -> Driver:
        """A JVM with clients."""

    def _start_node(self) -> None:
        self._log("starting the node")
        port, options = self._node_ports()
        child = start_node(
            "node",
            self._folder / "node",
            HOST,
            admin_port=None,
            topics=dict.fromkeys(TOPICS, PARTITIONS),
            default_partitions=PARTITIONS,
            **options,
        )
        self._stack.callback(child.stop)
        child.wait_for(lambda: listens(port), START_TIMEOUT_S, "listening port")
        self.systems[COHERER] = System(COHERER, f"{HOST}:{port}", [child.pid])

    def _start_clients(self) -> None:
        command = [sys.executable, "-c", CLIENT_PROGRAM]
        self.drivers[COHERER] = Driver("coherer-client", command, self._folder)
        self._stack.callback(self.drivers[COHERER].stop)
        if self._java is not None:
            self.drivers[JAVA] = self._java_driver(self._java)
            self._stack.callback(self.drivers[JAVA].stop)
            self._prepare()
        for kind, driver in self.drivers.items():
            for system in self.systems.values():
                self._open(kind, driver, system)

    @abstractmethod
    def _prepare(self) -> None:
        """Prepares the Java system before clients are opened."""

    def _open(self, kind: str, driver: Driver, system: System) -> None:
        address = {self.address_name: system.address, "url": f"{self.scheme}://{system.address}"}
        if system.kind == COHERER and self._tubemq_url:
            address["tubemq_url"] = self._tubemq_url
        name, opened = driver.open("bench", heartbeat_ms=HEARTBEAT_MS, **address)
        opened.result(60)
        for topic in TOPICS:
            pending = driver.call(name, "publish", topic=topic, wait_ms=WRITABLE_WAIT_MS)
            pending.result(WRITABLE_WAIT_MS / 1000 + 10)
        self.clients[kind, system.kind] = name


class TubeMQBench(Bench):
    """TubeMQ: Coherer's client and node, Java's client, master and broker."""

    scheme = "tubemq"
    address_name = "master"
    _web: WebApi

    def _node_ports(self) -> tuple[int, dict[str, object]]:
        port, broker_port = free_ports(2)
        return port, {"master_port": port, "broker_port": broker_port, "rocketmq_port": None}

    def _java_driver(self, java: JavaSystem) -> Driver:
        return JavaDriver(java, self._folder, "java-client", heap_mb=HEAP_MB)

    def _start_java(self, java: JavaSystem) -> None:
        self._log("starting the Java master and broker")
        master = JavaMaster(java, self._folder / "java-master", balance_ms=BALANCE_MS)
        self._stack.callback(master.stop)
        master.wait()
        folder = self._folder / "java-broker"
        broker = JavaBroker(java, folder, 1, master.address, heap_mb=HEAP_MB)
        broker.add_to(master.web)
        for topic in TOPICS:
            master.web.add_topic(topic, [1], PARTITIONS, **JAVA_TOPIC)
        self._stack.callback(broker.stop)
        broker.start()
        broker.wait()
        assert broker.child is not None
        self.systems[JAVA] = System(JAVA, master.address, [broker.child.pid])
        self._web = master.web

    def _prepare(self) -> None:
        self._log("waiting until Java's topics are writable, about 41 s")
        wait_writable(self._web, TOPICS)


class RocketMQBench(Bench):
    """RocketMQ: Coherer's client and node, Java's client and servers, and the C++ client."""

    scheme = "rocketmq"
    address_name = "namesrv"
    _cpp: CppDriver

    def _node_ports(self) -> tuple[int, dict[str, object]]:
        port, master_port = free_ports(2)
        self._tubemq_url = f"tubemq://{HOST}:{master_port}"
        others = {"master_port": master_port, "broker_port": 0}
        return port, {"namesrv_port": port, "rocketmq_port": 0, **others}

    def _java_driver(self, java: JavaSystem) -> Driver:
        return RocketDriver(java, self._folder / "java-client", "java-client", heap_mb=HEAP_MB)

    def _start_java(self, java: JavaSystem) -> None:
        self._log("starting the Java name server and broker")
        names = JavaNameServer(java, self._folder / "java-names")
        self._stack.callback(names.stop)
        names.wait()
        folder = self._folder / "java-broker"
        broker = JavaRocketBroker(java, folder, names.address, heap_mb=HEAP_MB, settings=JAVA_PULLS)
        self._stack.callback(broker.kill)
        broker.start()
        broker.wait()
        assert broker.child is not None
        self.systems[JAVA] = System(JAVA, names.address, [broker.child.pid])

    def _prepare(self) -> None:
        self._create_topics()
        try:
            python = cpp_python(self._log)
        except UnavailableError as reason:
            self._log(f"no C++ client: {reason}")
            return
        self._cpp = CppDriver(python, self._folder / "cpp-client")
        self._stack.callback(self._cpp.stop)
        self._open(CPP, self._cpp, self.systems[JAVA])

    def driver(self, kind: str) -> Driver:
        """The client process of a kind."""
        return self._cpp if kind == CPP else self.drivers[kind]

    def _create_topics(self) -> None:
        driver, address = self.drivers[JAVA], self.systems[JAVA].address
        admin, opened = driver.open("admin", namesrv=address)
        opened.result(60)
        for topic in TOPICS:
            queues = ["-r", str(PARTITIONS), "-w", str(PARTITIONS)]
            command = ["updateTopic", "-c", "DefaultCluster", "-t", topic, *queues]
            driver.call(admin, "run", arguments=command).result(60)
