"""Programs that use a cluster, and faults that hit them; all of it follows from a plan."""

from __future__ import annotations

import asyncio
import logging
import tempfile
import warnings
from collections.abc import AsyncIterator, Iterator
from contextlib import AbstractAsyncContextManager, contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from random import Random
from typing import Any, Final

import coherer
from coherer._administration.access import Cluster as OpenCluster
from coherer._administration.access import opened
from coherer._administration.overview import overview
from coherer._common import machine
from coherer._common.logs import LOG_THROTTLE
from coherer.errors import CohererError, RefusedError
from coherer.rocketmq import Verdict
from coherer.testing import simulate
from coherer.testing.simulation import Network, Process, SimulatedLoop
from coherer.testing.simulation.process import process_of
from tests.simulation import keeper, replays, stores
from tests.simulation.backups import Backup
from tests.simulation.checker import Wrong, judge
from tests.simulation.history import FAULTS, Event, History, Place
from tests.simulation.machines import OPERATOR, QUEUES, RETENTION_S, Cluster, Machine
from tests.simulation.plan import FOREMAN, FOUNDER, HEIR, MENDERS, TWIN, WATCHER, Plan, plan
from tests.simulation.receivers import GROUPS, receive
from tests.simulation.senders import (
    LEDGER,
    ORDERS,
    SENDERS,
    TOPICS,
    body_of,
    keys_of,
    place_of,
    playing_spark,
)
from tests.simulation.threads import stepping
from tests.simulation.trouble import Trouble

QUIET: Final = 0.03
"""The probability that a sender pauses for longer."""
SAVED_S: Final = 0.5
"""`Node.create_topic` returns before the topic is on the disk, unlike a request to create one."""
INHERITED_S: Final = 14.0
"""Slaves copy topics and positions every 10 s, and for the first time after 3 s."""
CODA_S: Final = 10.0
"""In which members leave one after the other, while the senders send again."""
END_S: Final = 15.0
"""In which the last messages arrive."""
END_LATE_S: Final = 45.0
"""The same if some are due later, or are refused and come again."""
COPIED_S: Final = 1.0
"""Within this time a slave copies what its master has just stored."""
TIMES: Final = 5
"""The number of times whose offsets are asked for at the end."""
LONGEST_S: Final = 1_800.0
"""A run that is longer waits for something that does not happen; others take seven minutes."""
LATE: Final = frozenset({"timer", FOREMAN, "clerk", "seller"})
"""The senders of such messages, and of those that a broker asks about."""
SLAVE_DIFFERS: Final = (
    "has other bytes than this slave's",
    "they do not match",
    "give it a new directory",
)
"""What is said of a slave whose master has written other messages since, or none yet, and when its
master has deleted what it would need next."""
DAMAGED: Final = ("damaged", "is skipped", "are lost")
"""What is said of a record in which a bit has flipped."""
DEAD: Final = "%DLQ%crew"
IN_KEEPER: Final = "metadata in ZooKeeper could not be written"


class Run:
    """One simulation.

    Args:
        plan: what to do.
        directory: where disks are.

    Attributes:
        clients: the programs of senders and receivers, by name.
        recovering: set when the trouble is over.
        calm: set when all is well again, and senders send for the last time.
        end: set when the programs may end.
        verdicts: what the sellers have decided.
        files: what outlives a query's programs: contents by folder and name.
        tasks: what its workers are to do, in order.
        queues: the open connections of its programs.
        chances: when its steps with files happen.
        differing: the directories of slaves whose log says that they differ from their master.
    """

    def __init__(self, plan: Plan, directory: Path) -> None:
        self.plan, self.directory = plan, directory
        self.history = History()
        self.cluster = Cluster(plan, directory)
        self.clients: dict[str, Process] = {}
        self._leaving: dict[str, asyncio.Event] = {}
        self.calm, self.end = asyncio.Event(), asyncio.Event()
        self.verdicts: dict[str, Verdict] = {}
        self.files: dict[str, dict[str, bytes]] = {}
        self.tasks: list[Any] = []
        self.queues: dict[Any, Any] = {}
        self.chances = plan.chance("files")
        self.recovering = asyncio.Event()
        if "retention" in plan.extras:
            self.history.retention_s = RETENTION_S
        self._loop: SimulatedLoop
        self._acting = ("", 0)
        self.differing: set[Path] = set()
        self._numbers = 0
        self._starts = 0
        self._awaited: list[tuple[str, asyncio.Event]] = []
        self._disturbed_s = 0.0
        self._calm_at_s: float | None = None

    # -- for the programs

    @property
    def network(self) -> Network:
        """The network between all programs."""
        return self._loop.network

    def now_s(self) -> float:
        """The time."""
        return self._loop.time()

    def note(self, who: str, what: str, message: str = "", **more: Any) -> None:
        """Add an event."""
        self.history.add([Event(self.now_s(), who, what, message, **more)])
        if what in FAULTS:
            self._disturbed_s = self.now_s()
        for kind, happened in self._awaited:
            if kind == what:
                happened.set()

    def acts(self, master: Process, term: int) -> None:
        """A master acts; noted if it is another one than before, or acts in another term."""
        acting = (master.name, term)
        if acting != self._acting:
            self._acting = acting
            self.note(master.name, "acting", term=term)

    @contextmanager
    def noting(self, who: str) -> Iterator[None]:
        """Note an error instead of raising it."""
        try:
            yield
        except CohererError as error:
            self.note(who, "failed", note=str(error))

    async def undisturbed(self, for_s: float) -> None:
        """Wait until no fault has begun or ended for so long."""
        while True:
            disturbed_s = self._disturbed_s
            await asyncio.sleep(max(0.0, disturbed_s + for_s - self.now_s()))
            if disturbed_s == self._disturbed_s:
                return

    async def happens(self, what: str, timeout_s: float) -> None:
        """Wait for the next event of a kind."""
        awaited = (what, asyncio.Event())
        self._awaited.append(awaited)
        with suppress(TimeoutError):
            await asyncio.wait_for(awaited[1].wait(), timeout_s)
        self._awaited.remove(awaited)

    def disk_has_failed(self) -> bool:
        """Whether a disk is full or fails, or was a moment ago."""
        if any(one.files.full or one.files.sick for one in self.cluster.machines):
            return True
        since_s = self.now_s() - 30
        return any(one.at_s >= since_s for one in self.history.of("full", "sick", "recovered"))

    def connect(self, **options: Any) -> Any:
        """A client of the cluster, by default of its operator."""
        if "accounts" in self.plan.extras and "user" not in options:
            options["user"], options["password"] = OPERATOR
        return coherer.connect(self.cluster.url, timeout_ms=5_000, **options)

    def operate(self) -> AbstractAsyncContextManager[OpenCluster]:
        """What the commands and the console of an operator stand on."""
        user, password = OPERATOR if "accounts" in self.plan.extras else (None, None)
        return opened(self.cluster.url, user=user, password=password)

    def name(self, who: str) -> str:
        """The body of a new message."""
        self._numbers += 1
        return f"{who}-{self._numbers}"

    async def turns(self, chance: Random) -> AsyncIterator[None]:
        """When a sender sends: during the trouble, and again when all is well."""
        while not self.calm.is_set():
            yield
            # After the trouble a few are enough, so that who sends notices broken connections.
            longest_s = 1.5
            if self.recovering.is_set() or chance.random() < QUIET:
                longest_s = self.plan.quiet_s / 5
            with suppress(TimeoutError):
                await asyncio.wait_for(self.calm.wait(), chance.random() * longest_s)
        for _ in range(5):
            yield
            await asyncio.sleep(chance.random() * 1.5)

    def start(self, who: str) -> None:
        """Start a sender, or a member of a group, which is named after it."""
        self._starts += 1
        self._leaving.pop(who, None)
        chance = self.plan.chance(f"{who} {self._starts}")
        self.clients[who] = process = Process(who)
        process.start(self._supervise(who, chance))

    def leaves(self, who: str) -> asyncio.Event:
        """Set when a receiver is to leave."""
        return self._leaving.setdefault(who, asyncio.Event())

    def patience_ms(self) -> int:
        """How long a receiver waits for messages before it looks whether it is to leave."""
        if self._calm_at_s is None or self.calm.is_set():
            return 1_000
        return max(1_000, round((self._calm_at_s - self.now_s()) * 1_000))

    async def leave(self, who: str) -> None:
        """Have a receiver leave in order."""
        self.leaves(who).set()
        await self.happens("left", timeout_s=20)

    async def _supervise(self, who: str, chance: Random) -> None:
        """Run a program again after an error, as a supervisor does."""
        group = who[:-1]
        if group in GROUPS:
            self.note(who, "joined", group=f"{group}/{who}" if GROUPS[group].broadcast else group)
        while True:
            try:
                if group in GROUPS:
                    await receive(self, who, group, chance)
                else:
                    await SENDERS[who](self, who, chance)
            except CohererError as error:  # nothing starts while its servers are away
                self.note(who, "failed", note=str(error))
                await asyncio.sleep(1)
            else:
                return

    # -- the run

    async def main(self) -> None:
        """Start everything, make trouble, wait until it is calm, and look.

        Raises:
            TimeoutError: something waits for ever.
        """
        try:
            async with asyncio.timeout(LONGEST_S):
                await self._play()
        except TimeoutError as error:
            raise TimeoutError(f"the run has not ended after {LONGEST_S:.0f} s") from error

    async def _play(self) -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, SimulatedLoop)
        self._loop = loop
        loop.leaps = False  # everything happens that happens in reality
        loop.network.latency_s, loop.network.jitter_s = 0.0005, self.plan.jitter_s
        loop.network.pieces, loop.threads_s = self.plan.pieces, self.plan.threads_s
        await self.cluster.start()
        await self._prepare()
        for who in self.plan.senders:
            self.start(who)
        for group in self.plan.groups:
            for number in range(2):
                self.start(f"{group}{number}")
        backup = Backup(self) if "backup" in self.plan.extras else None
        backing_up = asyncio.create_task(backup.make()) if backup is not None else None
        trouble = Trouble(self)
        tending = asyncio.create_task(trouble.tend()) if self.plan.shape == HEIR else None
        await trouble.all()
        if backing_up is not None:
            await backing_up
        self._calm_at_s = self.now_s() + self.plan.quiet_s
        self.recovering.set()
        await asyncio.sleep(self.plan.quiet_s)
        self.note("", "calm")
        self.calm.set()
        await asyncio.sleep(CODA_S / 4)
        for group in self.plan.groups:
            if not GROUPS[group].broadcast:
                await self.leave(f"{group}0")
        end_s = END_LATE_S if LATE.intersection(self.plan.senders) else END_S
        await asyncio.sleep(CODA_S * 3 / 4 + end_s)
        await self._look()
        stores.look(self, "opened")
        self.end.set()
        for process in self.clients.values():
            process.kill()
        if tending is not None:
            tending.cancel()
        await self.cluster.stop()
        stores.look(self, "filed")
        if backup is not None:
            backup.look()

    async def _prepare(self) -> None:
        async with self.connect() as client:
            for topic in self._topics():
                await self._create(client, topic)
        if self.plan.shape == HEIR:
            self.history.saved_s = INHERITED_S
            await asyncio.sleep(INHERITED_S)

    def _topics(self) -> Iterator[str]:
        yield from TOPICS
        if set(MENDERS).intersection(self.plan.senders):
            yield replays.MENDED

    async def _create(self, client: Any, topic: str) -> None:
        if self.plan.protocol == "rocketmq":
            await client.admin().topics.create(topic, QUEUES, wait_ms=10_000)
        else:
            self.cluster.active.node.create_topic(topic, QUEUES)
            await asyncio.sleep(SAVED_S)

    async def _look(self, topics: tuple[str, ...] = TOPICS) -> None:
        async with self.connect() as client:
            for topic in topics:
                await self._read(client, topic, "final")
            if FOUNDER in self.plan.senders:
                for topic in await client.admin().topics.names():
                    self.note("reader", "known", topic)
            if "crew" in self.plan.groups:
                with suppress(RefusedError):  # there is none
                    await self._read(client, DEAD, "dead")
            if WATCHER in self.plan.senders:
                async with self.operate() as cluster:
                    for one in (await overview(cluster)).behind:
                        self.note("reader", "lags", group=one.group, note=str(one.lag))
            if set(MENDERS).intersection(self.plan.senders):
                await replays.look(self, client)
            await self._look_by_key(client)
            await self._look_by_time(client)
            await self._look_at_slaves()
            for topic in topics:
                for queue, (first, _) in (await client.offsets(topic)).items():
                    self.note("reader", "begins", topic, place=Place(_name_of(queue), first))

    async def _look_at_slaves(self) -> None:
        if self.plan.shape in {"slave", HEIR}:
            end, _ = self.cluster.copied.content()
            await asyncio.sleep(COPIED_S)
            for slave in self.cluster.slaves:
                has, _ = slave.content()
                self.note(slave.name, "copied", size=max(end - has, 0))

    async def _look_by_key(self, client: Any) -> None:
        events = [one for one in self.history.of("final") if one.place is not None]
        bodies = [one.message for one in events if one.place.queue.startswith(f"{LEDGER}@")]
        for key in sorted({key for body in bodies for key in keys_of(body)}):
            for message in await client.admin().messages.find(LEDGER, key):
                place = place_of(message)
                self.note("reader", "found", body_of(message), place=place, note=key)

    async def _look_by_time(self, client: Any) -> None:
        began_s = machine.wall_ns() / 1e9 - self.now_s()
        stored, chance = self.history.of("stored"), self.plan.chance("times")
        for at_s in [chance.choice(stored).at_s for _ in range(TIMES)] if stored else ():
            time = datetime.fromtimestamp(began_s + at_s, UTC)
            for queue, offset in (await client.offsets_since(ORDERS, time)).items():
                place = Place(_name_of(queue), offset)
                self.note("reader", "since", place=place, due_s=at_s)

    async def _read(self, client: Any, topic: str, what: str) -> None:
        options = {"masters_only": True} if self.plan.protocol == "rocketmq" else {}
        for queue, (first, end) in (await client.offsets(topic)).items():
            async with client.reader(queue, first, end=end, **options) as reader:
                while (batch := await reader.read()) is not None:
                    for message in batch:
                        # A dead letter shows the topic that it was sent to.
                        place = place_of(message) if what == "final" else None
                        self.note("reader", what, body_of(message), place=place)


def _name_of(queue: Any) -> str:
    """A partition or queue, as the places of messages name it."""
    return f"{queue.topic}@{getattr(queue.broker, 'id', queue.broker)}.{queue.id}"


def run(what: Plan) -> tuple[History, list[Wrong]]:
    """Run one simulation, and judge it."""
    logging.disable(logging.WARNING)
    LOG_THROTTLE.forget(period_s=0)  # its minute would be one of real time
    errors = _Errors()
    logging.getLogger().addHandler(errors)
    with (
        tempfile.TemporaryDirectory(prefix="coherer-") as directory,
        warnings.catch_warnings(),
    ):
        # Those of killed programs.
        warnings.filterwarnings("ignore", "coroutine .* was never awaited", RuntimeWarning)
        one = Run(what, Path(directory))
        errors.run = one
        try:
            with playing_spark(one), keeper.playing(one), stepping(what.steps_s):
                simulate(one.main(), seed=what.seed)
        except Exception as error:  # noqa: BLE001 - no fault may end the node or a client
            one.note("simulation", "error", note=repr(error))
        finally:
            logging.getLogger().removeHandler(errors)
            logging.disable(logging.NOTSET)
            LOG_THROTTLE.forget()
    return one.history, judge(one.history)


def run_seed(seed: int, protocol: str) -> tuple[History, list[Wrong]]:
    """Run the simulation of a seed, and judge it."""
    return run(plan(seed, protocol))


class _Errors(logging.Handler):
    """Notes the errors of all logs.

    A node whose disk fails says so. That is no error, unless nobody has handled it.
    """

    run: Run

    def emit(self, record: logging.LogRecord) -> None:
        text = record.getMessage()
        history = self.run.history
        if any(part in text for part in SLAVE_DIFFERS) and (
            history.lossy or history.rotten or TWIN in self.run.plan.extras
        ):
            # It holds what its master has lost, or lacks what its master has, and says so.
            for slave in self._differing():
                self.run.differing.add(slave.directory)
                self.run.note(slave.name, "differs")
            return
        if self.run.cluster.keeper is not None and IN_KEEPER in text:
            return  # ZooKeeper does not answer, or another master is active
        if history.rotten and any(part in text for part in DAMAGED):
            self.run.note(record.name, "complaint", note=text)
            return
        unhandled = "nhandled" in text or "never retrieved" in text or record.name == "asyncio"
        what = "error" if unhandled or not self.run.disk_has_failed() else "complaint"
        self.run.note(record.name, what, note=text)

    def _differing(self) -> list[Machine]:
        """The slave whose log it is; of the master's log, those whose ends are not in it."""
        cluster, program = self.run.cluster, process_of()
        if own := [one for one in cluster.slaves if one.process is program]:
            return own
        core = cluster.copied.node.core
        assert core is not None
        log = range(core.store.min_offset, core.store.end_offset + 1)
        return [one for one in cluster.slaves if one.content()[0] not in log]
