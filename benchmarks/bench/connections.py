"""Many clients of one system: what their heartbeats cost, how soon groups are divided, memory.

10,000 clients send what Java's clients send: every 30 s to a RocketMQ broker, every 13 s to a
TubeMQ master. 2,000 of them are consumers, ten in each of 200 groups; those of TubeMQ have a
connection to the broker, too. In each group one consumer is lost, and the time is measured until
the nine others know who is left (RocketMQ, one group after the other), or have its partitions
(TubeMQ, all groups at once). Coherer's node and Java's servers get the same.
"""

from __future__ import annotations

import contextlib
import functools
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final

from bench.connecting import TOPIC
from bench.results import Single
from bench.sites import HEAP_MB
from bench.tubemq_connections import PARTITIONS
from tests.interop.peers.cache import JavaSystem
from tests.interop.peers.java import HOST, JavaBroker, JavaMaster, wait_writable
from tests.interop.peers.ours import start_node
from tests.interop.peers.process import free_ports, listens
from tests.interop.peers.rocketmq import JavaNameServer, JavaRocketBroker

CLIENTS, GROUPS = 10_000, 200
QUICK_CLIENTS, QUICK_GROUPS = 200, 10
BALANCE_MS: Final = 5_000
"""Java's master divides groups so often here; it ships with 30,000."""
TIMEOUT_S: Final = 300.0
PROGRAM: Final = f"""import sys
sys.path.insert(0, {str(Path(__file__).parent.parent)!r})
from bench import connections_main
connections_main.start(sys.argv[1:])"""

Figures = dict[str, float]
Start = Callable[[contextlib.ExitStack, Path], tuple[str, list[int]]]
"""Starts a system; returns the address that clients know, and the processes."""


def measure(
    protocol: str,
    folder: Path,
    repetitions: int,
    log: Callable[[str], None],
    java: JavaSystem | None,
    *,
    quick: bool,
) -> list[Single]:
    """What the clients cost Coherer's node and, if `java` is there, Java's servers."""
    clients = QUICK_CLIENTS if quick else CLIENTS
    groups = QUICK_GROUPS if quick else GROUPS
    ours, javas = SYSTEMS[protocol]
    systems: dict[str, Start] = {"Coherer": ours}
    if java is not None:
        systems["Java"] = functools.partial(javas, java)
    figures: dict[str, list[Figures]] = {}
    for repetition in range(repetitions):
        for system, start in systems.items():
            with contextlib.ExitStack() as stack:
                at = folder / f"connections-{protocol}-{repetition}-{system}"
                found = _figures(protocol, *start(stack, at), clients, groups)
            figures.setdefault(system, []).append(found)
            shown = ", ".join(f"{key} {value:.2f}" for key, value in found.items())
            log(f"{protocol}, {clients:,} clients, {system}: {shown}")
    return _singles(protocol, figures, f"{protocol}: {clients:,} clients, {groups:,} groups")


def _our_rocketmq(stack: contextlib.ExitStack, folder: Path) -> tuple[str, list[int]]:
    names, broker = free_ports(2)
    return _ours(stack, folder, broker, namesrv_port=names, rocketmq_port=broker)


def _our_tubemq(stack: contextlib.ExitStack, folder: Path) -> tuple[str, list[int]]:
    master, broker = free_ports(2)
    return _ours(stack, folder, master, master_port=master, broker_port=broker, rocketmq_port=None)


def _ours(
    stack: contextlib.ExitStack, folder: Path, port: int, **options: object
) -> tuple[str, list[int]]:
    others = {} if "master_port" in options else {"master_port": 0, "broker_port": 0}
    topics = {TOPIC: PARTITIONS}
    child = start_node("node", folder, HOST, admin_port=None, topics=topics, **others, **options)
    stack.callback(child.stop)
    child.wait_for(lambda: listens(port), 30, "listening port")
    return f"{HOST}:{port}", [child.pid]


def _java_rocketmq(
    java: JavaSystem, stack: contextlib.ExitStack, folder: Path
) -> tuple[str, list[int]]:
    names = JavaNameServer(java, folder / "names")
    stack.callback(names.stop)
    names.wait()
    broker = JavaRocketBroker(java, folder / "broker", names.address, heap_mb=HEAP_MB)
    stack.callback(broker.kill)
    broker.start()
    broker.wait()
    assert broker.child is not None
    return broker.address, [broker.child.pid]


def _java_tubemq(
    java: JavaSystem, stack: contextlib.ExitStack, folder: Path
) -> tuple[str, list[int]]:
    master = JavaMaster(java, folder / "master", balance_ms=BALANCE_MS)
    stack.callback(master.stop)
    master.wait()
    broker = JavaBroker(java, folder / "broker", 1, master.address, heap_mb=HEAP_MB)
    broker.add_to(master.web)
    master.web.add_topic(TOPIC, [1], PARTITIONS)
    stack.callback(broker.stop)
    broker.start()
    broker.wait()
    wait_writable(master.web, [TOPIC])
    assert broker.child is not None
    return master.address, [master.child.pid, broker.child.pid]


SYSTEMS: Final = {
    "rocketmq": (_our_rocketmq, _java_rocketmq),
    "tubemq": (_our_tubemq, _java_tubemq),
}


def _figures(protocol: str, address: str, pids: list[int], clients: int, groups: int) -> Figures:
    load = [protocol, address, *map(str, (clients, groups, *pids))]
    command = [sys.executable, "-c", PROGRAM, *load]
    done = subprocess.run(command, stdout=subprocess.PIPE, check=True, timeout=TIMEOUT_S)
    found: Figures = json.loads(done.stdout)
    return found


def _singles(protocol: str, figures: dict[str, list[Figures]], about: str) -> list[Single]:
    found: list[Single] = []
    for key, title, unit, goal in (
        ("heartbeat_cpu", "CPU of all heartbeats", "ms/s", 1.0),
        ("balance", "a member is lost, until the others have its share", "ms", None),
        ("balance_cpu", "the same, CPU", "ms", 1.0),
        ("memory", "memory, without pages of files", "MB", 0.2),
    ):
        named = f"connections-{protocol}-{key.replace('_', '-')}"
        for system, some in figures.items():
            values = [one[key] for one in some]
            found.append(Single(f"{named}-{system}", f"{about}: {title}, {system}", unit, values))
        if goal is not None and len(figures) > 1:
            pairs = zip(figures["Coherer"], figures["Java"], strict=True)
            shares = [ours[key] / java[key] for ours, java in pairs if java[key]]
            title = f"{title}, Coherer / Java"
            found.append(Single(f"{named}-share", title, "x", shares, goal=goal))
    return found
