"""The two systems that are compared, and the client processes."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from peers.cache import JavaSystem
from peers.driver import Driver, JavaDriver
from peers.java import HOST, JavaBroker, JavaMaster, wait_writable
from peers.ours import start_node
from peers.process import free_ports, listens

from bench.cases import JAVA, OURS

PARTITIONS = 4
TOPICS = ("produce", "consume", "latency")
HEAP_MB = 1024
START_TIMEOUT_S = 30.0
BALANCE_MS = 1_000
HEARTBEAT_MS = 1_000
WRITABLE_WAIT_MS = 90_000

# With Java's default of 3 MB of write cache a window of 5,000 x 1 KiB is refused with code 419.
JAVA_TOPIC = {"memCacheMsgSizeInMB": 64, "memCacheMsgCntInK": 256}

OUR_CLIENT = f"""import sys
sys.path.insert(0, {str(Path(__file__).parent.parent)!r})
from bench import our_main
our_main.start()"""

SETTINGS: dict[str, object] = {
    "partitions": PARTITIONS,
    "java broker": {
        **JAVA_TOPIC,
        "heap_mb": HEAP_MB,
        "acknowledges": "when the message is in its memory cache",
        "flush": "defaults: cache to file at 20 s or when full; fsync at 1,000 messages or 10 s",
        "stores": 1,
    },
    "our broker": {
        "acknowledges": "when the message is written to the file, in the kernel's cache",
        "flush": "async, the default: fsync twice a second",
    },
    "balance_ms": BALANCE_MS,
    "heartbeat_ms": HEARTBEAT_MS,
}


@dataclass
class System:
    """A master and broker that run.

    Args:
        kind: JAVA or OURS.
        master: host:port.
        pids: the processes of its broker (ours has the master in it).
    """

    kind: str
    master: str
    pids: list[int]


class Bench:
    """All processes of a run. Use it with `with`.

    Args:
        tube: the Java system; None measures ours alone.
        folder: for data and logs.
        say: told of progress.
    """

    def __init__(self, tube: JavaSystem | None, folder: Path, say: Callable[[str], None]) -> None:
        self._tube = tube
        self._folder = folder
        self._say = say
        self._stack = contextlib.ExitStack()
        self.systems: dict[str, System] = {}
        self.drivers: dict[str, Driver] = {}
        self.clients: dict[tuple[str, str], str] = {}

    def __enter__(self) -> Self:
        try:
            self._start_ours()
            if self._tube is not None:
                self._start_java(self._tube)
            self._start_clients()
        except BaseException:
            self._stack.close()
            raise
        return self

    def __exit__(self, *_error: object) -> None:
        self._stack.close()

    def _start_ours(self) -> None:
        self._say("our node starts")
        port, broker_port = free_ports(2)
        child = start_node(
            "our-node",
            self._folder / "ours",
            HOST,
            master_port=port,
            broker_port=broker_port,
            admin_port=None,
            topics=dict.fromkeys(TOPICS, PARTITIONS),
        )
        self._stack.callback(child.stop)
        child.wait_for(lambda: listens(port), START_TIMEOUT_S, "listening port")
        self.systems[OURS] = System(OURS, f"{HOST}:{port}", [child.pid])

    def _start_java(self, tube: JavaSystem) -> None:
        self._say("the Java master and broker start")
        master = JavaMaster(tube, self._folder / "java-master", balance_ms=BALANCE_MS)
        self._stack.callback(master.stop)
        master.wait()
        folder = self._folder / "java-broker"
        broker = JavaBroker(tube, folder, 1, master.address, heap_mb=HEAP_MB)
        broker.add_to(master.web)
        for topic in TOPICS:
            master.web.add_topic(topic, [1], PARTITIONS, **JAVA_TOPIC)
        self._stack.callback(broker.stop)
        broker.start()
        broker.wait()
        assert broker.child is not None
        self.systems[JAVA] = System(JAVA, master.address, [broker.child.pid])
        self._say("waiting until Java's topics are writable, about 41 s")
        wait_writable(master.web, TOPICS)

    def _start_clients(self) -> None:
        command = [sys.executable, "-c", OUR_CLIENT]
        self.drivers[OURS] = Driver("our-client", command, self._folder)
        self._stack.callback(self.drivers[OURS].stop)
        if self._tube is not None:
            self.drivers[JAVA] = JavaDriver(
                self._tube, self._folder, "java-client", heap_mb=HEAP_MB
            )
            self._stack.callback(self.drivers[JAVA].stop)
        for kind, driver in self.drivers.items():
            for system in self.systems.values():
                name, opened = driver.open("bench", master=system.master, heartbeat_ms=HEARTBEAT_MS)
                opened.result(60)
                for topic in TOPICS:
                    asked = driver.call(name, "publish", topic=topic, wait_ms=WRITABLE_WAIT_MS)
                    asked.result(WRITABLE_WAIT_MS / 1000 + 10)
                self.clients[kind, system.kind] = name
