"""Histories of real processes: the same programs and checks, in real time, at real servers.

A server is killed and stood still at random; Java's RocketMQ can lose what it has not synced, too.
Its clients are tasks of this process, and are not killed.
"""

from __future__ import annotations

import asyncio
import os
import signal
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any, Final, Protocol

import coherer
from coherer.errors import CohererError
from tests.interop.peers.cache import prepare
from tests.interop.peers.java import JavaBroker, JavaMaster, wait_writable
from tests.interop.peers.process import Child
from tests.interop.peers.rocket_site import RocketSite
from tests.simulation.checker import Wrong, judge
from tests.simulation.history import History, Place
from tests.simulation.machines import QUEUES
from tests.simulation.plan import Plan
from tests.simulation.senders import ORDERS, TOPICS
from tests.simulation.workload import CODA_S, END_LATE_S, Run

RECOVERY_S: Final = 45.0
"""Longer than clients need to find a broker again."""
LEVELS: Final = "1s 2s 3s 4s 6s 8s 10s 30s"
UNSYNCED: Final = {
    "flushIntervalCommitLog": 600_000,
    "flushCommitLogThoroughInterval": 600_000,
    "flushIntervalConsumeQueue": 600_000,
    "flushConsumeQueueThoroughInterval": 600_000,
}
"""A power cut may take everything."""


class Server(Protocol):
    """A server that can be killed."""

    url: str
    topics: tuple[str, ...]

    def child(self) -> Child: ...
    def kill(self) -> None: ...
    def start(self) -> None: ...
    def stop(self) -> None: ...


class RocketServer:
    """A broker of RocketMQ, Java's or ours, with a name server."""

    topics = TOPICS

    def __init__(self, kind: str, folder: Path, *, power: bool) -> None:
        self._site = RocketSite(folder)
        self.names = self._site.names(kind)
        levels = "messageDelayLevel" if kind == "java" else "delay_levels"
        settings: dict[str, object] = {levels: LEVELS, **(UNSYNCED if power else {})}
        self.broker: Any = self._site.broker(kind, self.names, **settings)
        self.url = f"rocketmq://{self.names}"

    def child(self) -> Child:
        found: Child = self.broker.child
        return found

    def kill(self) -> None:
        self.broker.kill()

    def start(self) -> None:
        self.broker.start()
        self.broker.wait()

    def stop(self) -> None:
        self._site.stop()

    def cut_power(self, chance: Random) -> None:
        """Kill it, and lose the newest messages, as nothing was synced since the start."""
        self.kill()
        path = min((self.broker.store / "commitlog").iterdir())
        data = path.read_bytes()
        begins = [0]
        while size := int.from_bytes(data[begins[-1] : begins[-1] + 4], "big"):
            begins.append(begins[-1] + size)
        cut = begins[-min(len(begins), chance.randint(2, 12))]
        with path.open("r+b") as file:
            file.seek(cut)
            file.write(bytes(begins[-1] - cut))


class JavaTubeServer:
    """Java's TubeMQ: a master and a broker."""

    topics = (ORDERS,)

    def __init__(self, folder: Path) -> None:
        tube = prepare("tubemq")
        self._master = JavaMaster(tube, folder / "master")
        self._broker = JavaBroker(tube, folder / "broker", 1, self._master.address)
        self._master.wait()
        self._broker.add_to(self._master.web)
        self._master.web.add_topic(ORDERS, [1], QUEUES)
        self.start()
        wait_writable(self._master.web, [ORDERS])
        self.url = f"tubemq://{self._master.address}"

    def child(self) -> Child:
        assert self._broker.child is not None
        return self._broker.child

    def kill(self) -> None:
        self._broker.stop()

    def start(self) -> None:
        self._broker.start()
        self._broker.wait()

    def stop(self) -> None:
        self._broker.stop()
        self._master.stop()


SERVERS: Final[dict[str, tuple[str, Callable[[Path, bool], Server]]]] = {
    "ours": ("rocketmq", lambda folder, power: RocketServer("ours", folder, power=power)),
    "java": ("rocketmq", lambda folder, power: RocketServer("java", folder, power=power)),
    "java-tubemq": ("tubemq", lambda folder, _: JavaTubeServer(folder)),
}
"""By name: the protocol, and what starts it in a folder."""

SENDERS: Final = {
    "rocketmq": ("alice", "bob", "crowd", "seller", "clerk", "foreman"),
    "tubemq": ("alice", "bob", "crowd"),
}
GROUPS: Final = {
    "rocketmq": ("shop", "books", "blue", "large", "ledger", "crew"),
    "tubemq": ("shop", "books", "blue"),
}


class RealRun(Run):
    """A run at a real server.

    Args:
        plan: its programs.
        directory: for what clients store.
        server: where they work.
        trouble_s: how long things go wrong.
        power: whether the server loses its power, too.
    """

    def __init__(
        self, plan: Plan, directory: Path, server: Server, trouble_s: float, *, power: bool
    ) -> None:
        super().__init__(plan, directory)
        self.server, self._trouble_s, self._power = server, trouble_s, power
        self._began_s = time.monotonic()
        self._finals = 0
        self._tasks: dict[str, asyncio.Task[None]] = {}

    def now_s(self) -> float:
        return time.monotonic() - self._began_s

    def note(self, who: str, what: str, message: str = "", **more: Any) -> None:
        place: Place | None = more.get("place")
        if place is not None and isinstance(self.server, JavaTubeServer):
            # Its offsets are not the same in a receipt, for a reader and for a consumer.
            self._finals += 1
            more["place"] = Place(place.queue, self._finals) if what == "final" else None
        super().note(who, what, message, **more)

    def connect(self, **options: Any) -> Any:
        return coherer.connect(self.server.url, timeout_ms=5_000, **options)

    def start(self, who: str) -> None:
        self._leaving.pop(who, None)
        chance = self.plan.chance(f"{who} {len(self._tasks)}")
        self._tasks[who] = asyncio.create_task(self._supervise(who, chance))

    async def main(self) -> None:
        async with self.connect() as client:
            if self.plan.protocol == "rocketmq":
                for topic in self.server.topics:
                    await client.admin().topics.create(topic, QUEUES, wait_ms=30_000)
        for who in self.plan.senders:
            self.start(who)
        for group in self.plan.groups:
            for number in range(2):
                self.start(f"{group}{number}")
        await self._trouble()
        self.recovering.set()
        await asyncio.sleep(RECOVERY_S)
        self.note("", "calm")
        self.calm.set()
        await asyncio.sleep(CODA_S / 2)
        for group in self.plan.groups:
            await self.leave(f"{group}0")
        await asyncio.sleep(CODA_S / 2 + END_LATE_S)
        await self._look(self.server.topics)
        self.end.set()
        for task in self._tasks.values():
            task.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)

    async def _trouble(self) -> None:
        chance, until_s = self.plan.chance("trouble"), self.now_s() + self._trouble_s
        while self.now_s() < until_s:
            await asyncio.sleep(2 + chance.random() * 8)
            await self.happens("stored", timeout_s=3)
            kind = chance.choice(["killed", "killed", "frozen"] + ["power"] * 2 * self._power)
            if kind == "frozen":
                pid = self.server.child().pid
                self.note("server", "frozen")
                os.kill(pid, signal.SIGSTOP)
                await asyncio.sleep(chance.random() * 10)
                os.kill(pid, signal.SIGCONT)
                self.note("server", "thawed")
                continue
            if kind == "power":
                assert isinstance(self.server, RocketServer)
                await asyncio.to_thread(self.server.cut_power, chance)
                self.history.lossy = True
            else:
                await asyncio.to_thread(self.server.kill)
            self.note("server", kind)
            await asyncio.to_thread(self.server.start)
            self.note("server", "started")


def record(
    name: str, seed: int, trouble_s: float = 60.0, *, power: bool = False
) -> tuple[History, list[Wrong]]:
    """Run the programs at a real server, and judge what they have seen.

    Args:
        name: of the server, one of `SERVERS`.
        seed: of the programs and faults. Two runs differ nevertheless.
        trouble_s: how long things go wrong.
        power: whether the server also loses what was not synced; only Java's RocketMQ can.

    Raises:
        UnavailableError: Java's servers are not to be had.
    """
    protocol, make = SERVERS[name]
    plan = Plan(
        seed, protocol, "long", "one", "async", 0, 0, 0, SENDERS[protocol], GROUPS[protocol], (), ()
    )
    with tempfile.TemporaryDirectory(prefix="coherer-real-") as directory:
        server = make(Path(directory) / "server", power)
        try:
            run = RealRun(plan, Path(directory), server, trouble_s, power=power)
            asyncio.run(run.main())
        except CohererError as error:
            run.note("run", "error", note=repr(error))
        finally:
            server.stop()
    return run.history, judge(run.history)
