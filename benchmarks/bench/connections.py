"""Many clients of one broker: what their heartbeats cost, how soon a group is balanced, memory.

10,000 connections send what Java's clients send every 30 s. 2,000 of them are consumers, ten in
each of 200 groups. In each group in turn, one consumer is lost, and the time is measured until the
nine others have been called by the broker and know who is left. Coherer's node and Java's broker
get the same.
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

from bench.results import Single
from bench.sites import HEAP_MB
from tests.interop.peers.cache import JavaSystem
from tests.interop.peers.java import HOST
from tests.interop.peers.ours import start_node
from tests.interop.peers.process import free_ports, listens
from tests.interop.peers.rocketmq import JavaNameServer, JavaRocketBroker

CONNECTIONS, GROUPS = 10_000, 200
QUICK_CONNECTIONS, QUICK_GROUPS = 200, 10
TIMEOUT_S: Final = 300.0
PROGRAM: Final = f"""import sys
sys.path.insert(0, {str(Path(__file__).parent.parent)!r})
from bench import connections_main
connections_main.start(sys.argv[1:])"""

Figures = dict[str, float]
Start = Callable[[contextlib.ExitStack, Path], tuple[str, int]]
"""Starts a system; returns the address of its broker, and the process."""


def measure(
    folder: Path,
    repetitions: int,
    log: Callable[[str], None],
    java: JavaSystem | None,
    *,
    quick: bool,
) -> list[Single]:
    """What the clients cost Coherer's node and, if `java` is there, Java's broker."""
    connections = QUICK_CONNECTIONS if quick else CONNECTIONS
    groups = QUICK_GROUPS if quick else GROUPS
    systems: dict[str, Start] = {"Coherer": _ours}
    if java is not None:
        systems["Java"] = functools.partial(_java, java)
    figures: dict[str, list[Figures]] = {}
    for repetition in range(repetitions):
        for system, start in systems.items():
            with contextlib.ExitStack() as stack:
                at = folder / f"connections-{repetition}-{system}"
                found = _figures(*start(stack, at), connections, groups)
            figures.setdefault(system, []).append(found)
            shown = ", ".join(f"{key} {value:.2f}" for key, value in found.items())
            log(f"{connections:,} connections, {system}: {shown}")
    return _singles(figures, f"{connections:,} connections, {groups:,} groups")


def _ours(stack: contextlib.ExitStack, folder: Path) -> tuple[str, int]:
    names, broker = free_ports(2)
    ports = {"namesrv_port": names, "rocketmq_port": broker, "master_port": 0, "broker_port": 0}
    child = start_node("node", folder, HOST, admin_port=None, **ports)
    stack.callback(child.stop)
    child.wait_for(lambda: listens(broker), 30, "listening port")
    return f"{HOST}:{broker}", child.pid


def _java(java: JavaSystem, stack: contextlib.ExitStack, folder: Path) -> tuple[str, int]:
    names = JavaNameServer(java, folder / "names")
    stack.callback(names.stop)
    names.wait()
    broker = JavaRocketBroker(java, folder / "broker", names.address, heap_mb=HEAP_MB)
    stack.callback(broker.kill)
    broker.start()
    broker.wait()
    assert broker.child is not None
    return broker.address, broker.child.pid


def _figures(address: str, pid: int, connections: int, groups: int) -> Figures:
    command = [sys.executable, "-c", PROGRAM, address, str(pid), str(connections), str(groups)]
    done = subprocess.run(command, stdout=subprocess.PIPE, check=True, timeout=TIMEOUT_S)
    found: Figures = json.loads(done.stdout)
    return found


def _singles(figures: dict[str, list[Figures]], about: str) -> list[Single]:
    found: list[Single] = []
    for key, title, unit, goal in (
        ("heartbeat_cpu", "CPU of all heartbeats", "ms/s", 1.0),
        ("balance", "a member is lost, until the others know", "ms", None),
        ("balance_cpu", "the same, CPU", "ms", 1.0),
        ("memory", "memory, without pages of files", "MB", 0.2),
    ):
        named = f"connections-{key.replace('_', '-')}"
        for system, some in figures.items():
            values = [one[key] for one in some]
            found.append(Single(f"{named}-{system}", f"{about}: {title}, {system}", unit, values))
        if goal is not None and len(figures) > 1:
            pairs = zip(figures["Coherer"], figures["Java"], strict=True)
            shares = [ours[key] / java[key] for ours, java in pairs if java[key]]
            title = f"{title}, Coherer / Java"
            found.append(Single(f"{named}-share", title, "x", shares, goal=goal))
    return found
