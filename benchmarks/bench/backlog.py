"""What grows with a backlog of small messages that nobody reads: nothing should.

A store is filled by its own writer, in a process that dies without closing it. Then a node starts
in it, and each operation is measured once per store: with a small backlog and with a large one.
On a busy machine look at the CPU of the node and of the backup.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import coherer
from bench.backlog_main import GROUP, TOPIC
from bench.results import Single
from bench.usage import cpu_of

COUNTS, QUICK_COUNTS = (200_000, 4_000_000), (20_000, 200_000)
"""Messages; each takes 138 bytes on the disk."""
GOAL_MS = 1000
TIMEOUT_S = 60.0
FREE = (
    *("--master-port", "0", "--broker-port", "0", "--namesrv-port", "0", "--rocketmq-port", "0"),
    *("--admin-port", "0"),
)


def measure(
    folder: Path, log: Callable[[str], None], *, counts: Sequence[int] = COUNTS
) -> list[Single]:
    """The seconds that each operation takes, by the size of the backlog."""
    found: list[Single] = []
    for count in counts:
        directory = folder / f"backlog-{count}"
        log(f"storing a backlog of {count:,} messages")
        middle = _fill(directory, count)
        for name, seconds in _operations(directory, middle).items():
            log(f"{count:,} messages, {name}: {seconds:.2f} s")
            title = f"{name}, backlog of {count:,}"
            found.append(
                Single(f"backlog-{count}-{name}", title, "ms", [seconds * 1000], goal=GOAL_MS)
            )
    return found


def _fill(directory: Path, count: int) -> datetime:
    program = f"import sys; sys.path.insert(0, {str(Path(__file__).parent.parent)!r})\n"
    program += "import runpy; runpy.run_module('bench.backlog_main', run_name='__main__')"
    command = [sys.executable, "-c", program, str(directory), str(count)]
    done = subprocess.run(command, stdout=subprocess.PIPE, check=False)
    return datetime.fromtimestamp(json.loads(done.stdout)["middle_ms"] / 1000, UTC)


def _operations(directory: Path, middle: datetime) -> dict[str, float]:
    """Start a node in the directory, and run each operation."""
    took: dict[str, float] = {}
    begin = time.perf_counter()
    command = ["-m", "coherer", "serve", "--json", "-d", str(directory), *FREE]
    with subprocess.Popen([sys.executable, *command], stdout=subprocess.PIPE) as node:
        try:
            assert node.stdout is not None
            ready = json.loads(node.stdout.readline())
            took["start after a kill"] = time.perf_counter() - begin
            took["start after a kill, CPU"] = cpu_of(node.pid)
            for url in (ready["url"], ready["rocketmq_url"]):
                took |= asyncio.run(_ask(url, middle))
            backup = [sys.executable, "-m", "coherer", "backup", "-d", str(directory)]
            backup.append(str(directory.with_suffix(".backup")))
            subprocess.run(backup, check=True, stdout=subprocess.DEVNULL)
            begin, before = time.perf_counter(), os.times()
            subprocess.run(backup, check=True, stdout=subprocess.DEVNULL)
            took["backup again"] = time.perf_counter() - begin
            after = os.times()
            took["backup again, CPU"] = (
                after.children_user + after.children_system
                - before.children_user - before.children_system
            )  # fmt: skip
        finally:
            node.kill()
    return took


async def _ask(url: str, middle: datetime) -> dict[str, float]:
    took: dict[str, float] = {}
    protocol = url.partition(":")[0]

    async def timed(name: str, work: Awaitable[object]) -> None:
        begin = time.perf_counter()
        async with asyncio.timeout(TIMEOUT_S):
            await work
        took[f"{name}, {protocol}"] = time.perf_counter() - begin

    async with coherer.connect(url) as client:
        groups = client.admin().groups
        await timed("lag of a group", groups.list(GROUP))
        await timed("offsets since a time", client.offsets_since(TOPIC, middle))
        await timed("reset to a time", groups.reset_offsets(GROUP, TOPIC, middle))
        consumer = client.consumer("from-earliest", TOPIC, start="earliest")
        await timed("first fetch of a new group", _first(consumer))
        consumer = client.consumer("from-latest", TOPIC, start="latest")
        await timed("a new group at the end", _joined(consumer))
    return took


async def _first(consumer: Any) -> None:
    async with consumer:
        await consumer.receive()


async def _joined(consumer: Any) -> None:
    async with consumer:
        await consumer.wait_assigned()
