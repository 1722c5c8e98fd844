"""Rates of `coherer serve --brokers N` with one and with two brokers.

Two load processes send to the brokers, then receive, at the same time. On a machine with two cores
they compete with the brokers, so the rate alone says little about brokers that have a core each.
What the brokers would do there is the number of messages per second of CPU of the busiest broker
process: it counts all that a message costs, and an uneven distribution over the brokers as well.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import coherer
from bench.results import Single
from bench.sites import CLIENT_PROGRAM, HEARTBEAT_MS
from bench.usage import cpu_of
from tests.interop.peers.driver import Driver, Json
from tests.waiting import until

BROKERS = (1, 2)
LOADS = 2
PARTITIONS = 4
GOAL = 1.8
COUNT, QUICK_COUNT = 150_000, 5_000
"""Messages of each load process."""
WINDOW = 500
"""Messages that each load process has in flight, for each broker."""
TIMEOUT_S = 240.0

FREE = (
    *("--master-port", "0", "--broker-port", "0", "--namesrv-port", "0", "--rocketmq-port", "0"),
    *("--no-admin", "--default-partitions", str(PARTITIONS)),
)


@dataclass(frozen=True)
class _Case:
    protocol: str
    action: str
    title: str
    parameters: dict[str, object]


CASES = [
    _Case("tubemq", "produce", "TubeMQ, send 1 KiB", {"size": 1024}),
    _Case("tubemq", "consume_batches", "TubeMQ, receive", {}),
    _Case("rocketmq", "produce", "RocketMQ, send 1 KiB", {"size": 1024}),
    _Case("rocketmq", "consume_batches", "RocketMQ, pull 1,000", {"per_pull": 1000}),
]


class _Cluster:
    """A running `coherer serve --brokers`, and two load processes for each protocol."""

    def __init__(self, folder: Path, brokers: int) -> None:
        folder.mkdir(parents=True)
        command = ["-m", "coherer", "serve", "--json", "-d", str(folder / "data")]
        self._process = subprocess.Popen(
            [sys.executable, *command, "--brokers", str(brokers), *FREE], stdout=subprocess.PIPE
        )
        assert self._process.stdout is not None
        self._ready = json.loads(self._process.stdout.readline())
        self.pids: list[int] = [one["pid"] for one in self._ready["brokers"]]
        self.pids = self.pids or [self._ready["pid"]]
        self._urls = {"tubemq": self._ready["url"], "rocketmq": self._ready["rocketmq_url"]}
        program = [sys.executable, "-c", CLIENT_PROGRAM]
        self._drivers = [Driver(f"load-{n}", program, folder) for n in range(LOADS)]
        self._clients: dict[str, list[str]] = {}

    def open(self, brokers: int) -> None:
        """Creates the topics on all brokers, and opens the clients."""
        for protocol, url in self._urls.items():
            asyncio.run(_create(url, protocol, brokers))
            opened = [
                one.open("bench", heartbeat_ms=HEARTBEAT_MS, url=url) for one in self._drivers
            ]
            for _, future in opened:
                future.result(TIMEOUT_S)
            self._clients[protocol] = [name for name, _ in opened]

    def run(self, case: _Case, count: int, group: str) -> tuple[float, float]:
        """The rate of all messages, and per second of CPU of the busiest broker."""
        more = dict(case.parameters)
        if case.action == "produce":
            more["window"] = WINDOW * len(self.pids)
        before = [cpu_of(pid) for pid in self.pids]
        begin = time.perf_counter()
        waiting: list[Future[Json]] = [
            driver.call(
                client, case.action, topic=case.protocol, count=count, group=f"{group}-{number}",
                wait_ms=int(TIMEOUT_S * 1000), **more,
            )
            for number, (driver, client) in enumerate(
                zip(self._drivers, self._clients[case.protocol], strict=True)
            )
        ]  # fmt: skip
        done = 0
        for one in waiting:
            answer = one.result(TIMEOUT_S)
            assert isinstance(answer, dict)
            assert not answer.get("failed"), answer
            done += int(str(answer["count"]))
        seconds = time.perf_counter() - begin
        busiest_s = max(cpu_of(pid) - old for pid, old in zip(self.pids, before, strict=True))
        return done / seconds, done / max(busiest_s, 0.01)

    def stop(self) -> None:
        """Ends all processes."""
        for one in self._drivers:
            one.stop()
        self._process.terminate()
        self._process.wait(60)


async def _create(url: str, topic: str, brokers: int) -> None:
    async with coherer.connect(url) as client, asyncio.timeout(TIMEOUT_S):
        await client.admin().topics.create(topic, PARTITIONS) if topic == "rocketmq" else None
        async with client.producer() as producer:
            await producer.publish(topic)
        await until(lambda: _spread(client, topic, brokers), TIMEOUT_S)


async def _spread(client: Any, topic: str, brokers: int) -> bool:
    return len(await client.partitions(topic)) == brokers * PARTITIONS


def measure(
    folder: Path, repetitions: int, log: Callable[[str], None], *, quick: bool
) -> list[Single]:
    """The rates of all cases with one and with two brokers, and their ratios."""
    count = QUICK_COUNT if quick else COUNT
    rates: dict[tuple[str, str, int], list[tuple[float, float]]] = {}
    for repetition in range(repetitions):
        for brokers in BROKERS:
            cluster = _Cluster(folder / f"brokers-{repetition}-{brokers}", brokers)
            try:
                cluster.open(brokers)
                for case in CASES:
                    got = cluster.run(case, count, f"g{repetition}")
                    rates.setdefault((case.protocol, case.action, brokers), []).append(got)
                    log(f"{brokers} brokers, {case.title}: {got[0]:,.0f}/s, "
                        f"{got[1]:,.0f} per second of CPU")  # fmt: skip
            finally:
                cluster.stop()
    found: list[Single] = []
    for case in CASES:
        key = f"brokers-{case.protocol}-{case.action}"
        one, two = (rates[case.protocol, case.action, brokers] for brokers in BROKERS)
        for brokers, values in zip(BROKERS, (one, two), strict=True):
            title = f"{case.title}, {brokers} broker{'s' * (brokers > 1)}"
            found.append(Single(f"{key}-{brokers}", title, "/s", [each[0] for each in values]))
            cpu = [each[1] for each in values]
            title += ", per second of CPU of the busiest"
            found.append(Single(f"{key}-{brokers}-cpu", title, "/s", cpu))
        factors = [b[1] / a[1] for a, b in zip(one, two, strict=True)]
        title = f"{case.title}, 2 brokers to 1, a core each"
        found.append(Single(f"{key}-factor", title, "x", factors, goal=GOAL, at_least=True))
    return found
