"""What a look at a page costs the broker."""

from __future__ import annotations

import json
import mmap
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from coherer._administration.access import opened
from coherer._server.node.node import Node
from coherer._store import Draft
from tests.console import filling
from tests.console.looking import PAGES, ROCKETMQ
from tests.console.visitor import visiting
from tests.server.node_harness import options

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="Linux tells the time of each thread"),
]

TOPICS = 1000
CPU_MS = 20
OVERVIEW_CPU_MS = 60
"""A node computes the lag of all groups for its status."""
LOOP = range(500_000)
"""On a machine where this takes longer than `CPU_MS`, a look may take longer in proportion."""
FAULT_US = 5
"""Some virtual machines need 15 µs to hand out a page: more than the broker needs for anything."""
LOOKS = 5
"""The cheapest look counts, because a busy machine makes all of them slower."""


class Broker:
    """A node in a process of its own, with 1,000 topics that 1,000 groups read."""

    def __init__(self, directory: Path) -> None:
        ports = [
            f"--{name}-port=0" for name in ("admin", "master", "broker", "namesrv", "rocketmq")
        ]
        self.process = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "coherer",
                "serve",
                f"--directory={directory}",
                "--json",
                *ports,
            ],
            stdout=subprocess.PIPE,
        )
        assert self.process.stdout is not None
        ready = json.loads(self.process.stdout.readline())
        self.urls = {"rocketmq": ready["rocketmq_url"], "tubemq": ready["url"]}

    @property
    def cpu_ms(self) -> float:
        """The processor time of all its threads."""
        tasks = Path(f"/proc/{self.process.pid}/task")
        spent = [int((task / "schedstat").read_text().split()[0]) for task in tasks.iterdir()]
        return sum(spent) / 1e6

    def stop(self) -> None:
        self.process.send_signal(signal.SIGTERM)
        self.process.communicate(timeout=60)


def loop_ms() -> float:
    """The processor time of a loop, as a measure of the machine."""
    spent: list[float] = []
    for _ in range(LOOKS):
        begun_s = time.thread_time()
        for _ in LOOP:
            pass
        spent.append((time.thread_time() - begun_s) * 1000)
    return min(spent)


def fault_us() -> float:
    """The processor time of touching a fresh page, mostly the kernel's: 0.2 to 1 µs as a rule."""
    spent: list[float] = []
    for _ in range(LOOKS):
        with mmap.mmap(-1, 16 << 20) as fresh:
            begun_s = time.thread_time()
            for at in range(0, len(fresh), mmap.PAGESIZE):
                fresh[at] = 1
            spent.append((time.thread_time() - begun_s) * 1e6 * mmap.PAGESIZE / len(fresh))
    return min(spent)


async def fill(directory: Path) -> None:
    async with Node(options(directory)) as node:
        core = node.core
        assert core is not None
        names = [f"bulk-{number:04}" for number in range(TOPICS)]
        for name in names:
            core.topics.ensure_topic(name, 2, core.now_ms())
            core.groups.add(f"group-of-{name}", core.now_ms())
            core.offsets.open(f"group-of-{name}", name, 0).move_to(0)
        await core.files.flush()
        core.store.append([Draft(name, queue, b"x", b"") for name in names for queue in (0, 1)])


@pytest.fixture
async def broker(tmp_path: Path) -> AsyncIterator[Broker]:
    await fill(tmp_path / "node")
    running = Broker(tmp_path / "node")
    try:
        await filling.fill(running.urls["rocketmq"])
        async with opened(running.urls["rocketmq"]) as cluster:
            await filling.wait_dead(cluster)
        yield running
    finally:
        running.stop()


@pytest.mark.parametrize("protocol", ["rocketmq", "tubemq"])
async def test_a_look_costs_the_broker_at_most_20_ms(broker: Broker, protocol: str) -> None:
    if fault_us() > FAULT_US:
        pytest.skip("the kernel's page faults take longer here than the broker's work")
    pages = {**PAGES, **ROCKETMQ} if protocol == "rocketmq" else PAGES
    costs: dict[str, list[float]] = {name: [] for name in pages}
    for _ in range(LOOKS):
        async with visiting(broker.urls[protocol]) as visitor:  # a console that knows nothing yet
            for name, path in pages.items():
                before = broker.cpu_ms
                answer = await visitor.get(path)
                costs[name].append(broker.cpu_ms - before)
                assert answer.status_code == (404 if name == "refusal" else 200), (name, answer)
    slower = max(1.0, loop_ms() / CPU_MS)
    most_ms = {**dict.fromkeys(pages, CPU_MS), "overview": OVERVIEW_CPU_MS}
    too_much = {n: spent for n, spent in costs.items() if min(spent) > slower * most_ms[n]}
    assert too_much == {}, slower
