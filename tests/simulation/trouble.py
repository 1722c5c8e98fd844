"""Carries out the faults of a plan. Each has its own task, so faults overlap."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from coherer.errors import CohererError
from tests.simulation.machines import NEVER, Machine
from tests.simulation.plan import QUERY, SHORT_S, SILENT_S, Fault

if TYPE_CHECKING:  # a run makes trouble, which uses the run
    from coherer.testing.simulation import Process
    from tests.simulation.workload import Run

T = TypeVar("T")

JUMPS_S = (-3600.0, -20.0, 20.0, 3600.0)
NODE_JUMPS_S = (-10.0, 10.0)
STEP_S = 0.2
LOOKS_S = 10.0
OPERATIONS = (5, 50, 500)
"""A node does 30 of them while it starts, and stops with 20."""
COMMIT_S = 0.05
"""How long it takes until a commit is stored; it is synced up to half a second later."""


class Trouble:
    """The faults of a run."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._chance = run.plan.chance("trouble")
        self._promoting = asyncio.Lock()

    async def all(self) -> None:
        """Carry out all faults; returns when the last one has ended."""
        await asyncio.gather(*(self._at_its_time(fault) for fault in self._run.plan.faults))

    async def _at_its_time(self, fault: Fault) -> None:
        await asyncio.sleep(fault.at_s)
        if fault.after:
            await self._run.happens(fault.after, timeout_s=3)
        await getattr(self, f"_{fault.kind}")(fault)

    def _note(self, who: str, what: str, note: str = "") -> None:
        self._run.note(who, what, note=note)

    # -- the network

    async def _cut(self, _: Fault) -> None:
        self._note("network", "cut")
        self._run.network.cut()

    async def _stop(self, fault: Fault) -> None:
        self._note("network", "stopped")
        self._run.network.stop()
        await asyncio.sleep(fault.lasts_s)
        self._run.network.heal()
        self._note("network", "healed")

    async def _sever(self, _: Fault) -> None:
        self._note("network", "severed")
        self._run.network.sever(self._chance)

    async def _unplug(self, fault: Fault) -> None:
        process = self._any_program(fault)
        self._note(process.name, "unplugged")
        self._run.network.stop(process)
        await asyncio.sleep(fault.lasts_s * 2)
        self._run.network.heal(process)
        self._note(process.name, "plugged")

    async def _split(self, fault: Fault) -> None:
        """A server of ZooKeeper loses the others: it knows nothing new, and takes no writes."""
        keeper = self._run.cluster.keeper
        session = 0 if keeper is None else keeper.lose_others(self._chance)
        if keeper is None or not session:
            return
        self._note(keeper.process.name, "split", f"from session {session}")
        await asyncio.sleep(fault.lasts_s)
        keeper.behind.pop(session, None)
        self._note(keeper.process.name, "joined again")

    # -- any program

    def _any_program(self, fault: Fault) -> Process:
        return _chosen(fault, [*self._run.cluster.processes(), *self._run.clients.values()])

    async def _freeze(self, fault: Fault) -> None:
        process = self._any_program(fault)
        self._note(process.name, "frozen")
        process.freeze()
        await asyncio.sleep(fault.lasts_s * 2)
        process.go_on()
        self._note(process.name, "thawed")

    async def _clock(self, fault: Fault) -> None:
        machines = self._run.cluster.machines
        chosen = _chosen(fault, [*machines, *self._run.clients.values()])
        if isinstance(chosen, Machine):
            chosen.set_clock(self._chance.choice(NODE_JUMPS_S))
            self._run.history.jumped = True
        else:
            chosen.clock_s = self._chance.choice(JUMPS_S)
        self._note(chosen.name, "clock", f"{chosen.clock_s:+.0f} s")

    async def _slow(self, fault: Fault) -> None:
        """A program reads slowly, as behind a bad line."""
        process = self._any_program(fault)
        self._note(process.name, "slow")
        process.reads_bytes_s = 4_000
        await asyncio.sleep(fault.lasts_s * 2)
        process.reads_bytes_s = 0
        self._note(process.name, "fast")

    # -- clients

    async def _crash(self, fault: Fault) -> None:
        who = _chosen(fault, list(self._run.clients))
        self._note(who, "crashed")
        if fault.lasts_s >= SILENT_S:
            self._run.network.silence(self._run.clients[who])
        crashed = self._run.clients[who]
        crashed.kill()
        await asyncio.sleep(fault.lasts_s / 4)
        if self._run.clients[who] is crashed:  # no other fault has started it meanwhile
            self._run.start(who)

    async def _leave(self, fault: Fault) -> None:
        if members := [who for who in self._run.clients if who[-1].isdigit()]:
            who = _chosen(fault, members)
            await self._run.leave(who)
            self._run.clients[who].kill()
            self._run.start(who)

    async def _usurp(self, fault: Fault) -> None:
        """A driver of a query hangs, so that somebody starts another one, and goes on."""
        hung = self._run.clients.get(QUERY)
        if hung is None:
            return
        await asyncio.sleep(fault.target * STEP_S)  # between two of its steps
        self._note(QUERY, "frozen")
        hung.freeze()
        await asyncio.sleep(fault.lasts_s / 4)
        if self._run.clients[QUERY] is hung:
            self._run.start(QUERY)
        await asyncio.sleep(fault.lasts_s)
        self._note(QUERY, "thawed")
        hung.go_on()
        await asyncio.sleep(fault.lasts_s)
        self._note(QUERY, "crashed")
        hung.kill()

    # -- nodes

    async def _kill(self, fault: Fault) -> None:
        await self._strike(fault, "killed", lambda machine: machine.kill())

    async def _power(self, fault: Fault) -> None:
        """The power fails. After short failures the node starts twice: it is stopped, or killed."""

        def cut(machine: Machine) -> None:
            self._run.network.silence(machine.process)
            machine.cut_power(self._chance)
            self._run.history.lossy |= self._run.plan.flush == "async"
            self._run.history.forked |= self._run.history.lossy and self._run.plan.shape == "slave"

        await self._strike(fault, "power", cut)
        if fault.lasts_s == SHORT_S:
            await self._restart(fault)
        elif fault.lasts_s < SILENT_S:
            await self._kill(fault)

    async def _promote(self, fault: Fault) -> None:
        """The machine of a master is lost. A slave takes its place, and gets a new slave."""
        if not self._promoting.locked():  # an operator waits for one that is under way
            async with self._promoting:
                await self._replace_master(fault)

    async def _replace_master(self, fault: Fault) -> None:
        cluster = self._run.cluster
        master, slaves = cluster.copied, cluster.slaves
        trusted = [
            one
            for one in slaves
            if one.directory not in self._run.differing and one.needs is not NEVER
        ]
        slave = max(trusted, key=lambda one: one.content()[0], default=None)
        if slave is None or not slave.may_become_master():
            return  # an operator waits until it has everything, and runs
        was_up = master.up
        master.kill()
        self._note(master.name, "killed")
        behind = slave.is_behind(master)
        self._run.history.behind |= behind
        master.needs = slave.content()
        master.become_slave(slave.number)  # if another fault starts it
        for other in slaves:
            other.needs = NEVER if slave.is_behind(other) else slave.content()
        await asyncio.sleep(fault.lasts_s / 2)
        slave.become_master()
        self._note(slave.name, "promoted", "behind" if behind else "")
        if slave.up:  # otherwise another fault starts it
            if fault.target < 0.5:
                slave.kill()
            else:
                await self._stop_in_order(slave)
            await self._start(slave)
        if was_up:
            await self._start(master)

    async def tend(self) -> None:
        """Give a slave an empty disk if its log says that it differs from its master; for ever."""
        while True:
            await self._run.happens("differs", timeout_s=LOOKS_S)
            async with self._promoting:
                for slave in self._run.cluster.slaves:
                    await self._replace_disk(slave)

    async def _replace_disk(self, slave: Machine) -> None:
        core = self._run.cluster.copied.node.core
        if slave.directory not in self._run.differing or not slave.up or core is None:
            return  # another fault starts it, and its log says so again
        slave.kill()
        self._note(slave.name, "killed")
        slave.needs = core.store.written_offset, frozenset(core.topics.names())
        slave.renew()
        self._note(slave.name, "renewed")
        await self._start(slave)

    async def _rot(self, fault: Fault) -> None:
        """A bit flips in a stored message, for the first time. All others are still delivered."""
        brokers = [one for one in self._run.cluster.machines if one.is_broker]
        machine, history = _chosen(fault, brokers), self._run.history
        sent = {event.message for event in history.of("stored", "begun") if event.who != QUERY}
        works = not (machine.files.sick or machine.files.full)
        message, where = machine.rot(sent - history.rotten, self._chance) if works else ("", "")
        if message:
            history.rotten.add(message)
            self._run.note(machine.name, "rotten", message, note=f"in {where}")
            if fault.lasts_s:
                await self._kill(fault)

    async def _tear(self, fault: Fault) -> None:
        """The power fails while half messages are committed."""
        await asyncio.sleep(self._chance.random() * COMMIT_S)
        await self._power(fault)

    async def _strike(self, fault: Fault, what: str, strike: Any) -> None:
        machine = _chosen(fault, self._run.cluster.machines)
        if not machine.up:
            return
        strike(machine)
        self._note(machine.name, what)
        await asyncio.sleep(fault.lasts_s / 2)
        await self._start(machine)

    async def _drain(self, fault: Fault) -> None:
        """Let clients leave a broker, and then restart it."""
        machine = _chosen(fault, self._run.cluster.machines)
        if machine.up and machine.node.core is not None:
            self._note(machine.name, "draining")
            await machine.drain(timeout_s=30, grace_s=5)
        await self._restart(fault)

    async def _restart(self, fault: Fault) -> None:
        machine = _chosen(fault, self._run.cluster.machines)
        if not machine.up:
            return
        await self._stop_in_order(machine)
        await asyncio.sleep(fault.lasts_s / 4)
        await self._start(machine)

    async def _stop_in_order(self, machine: Machine) -> None:
        self._note(machine.name, "stop")
        try:
            await machine.stop()
        except CohererError as error:
            self._complain(machine, f"no orderly stop: {error}")
            machine.kill()

    async def _start(self, machine: Machine) -> None:
        """Start a node, and try again while its disk or ZooKeeper does not let it start.

        Raises:
            CohererError: it cannot start, though nothing is wrong with them.
        """
        while True:
            machine.files.has_failed = False
            try:
                await machine.start()
            except CohererError as error:
                if "ZooKeeper" in str(error):  # the network stands still, for example
                    self._note(machine.name, "complaint", f"no start: {error}")
                    continue
                if not (machine.files.full or machine.files.sick or machine.files.has_failed):
                    raise
                self._complain(machine, f"no start: {error}")
                await asyncio.sleep(1)
            else:
                self._note(machine.name, "started")
                return

    def _complain(self, machine: Machine, text: str) -> None:
        failed = self._run.disk_has_failed()
        self._note(machine.name, "complaint" if failed else "error", text)

    async def _full(self, fault: Fault) -> None:
        machine = _chosen(fault, self._run.cluster.machines)
        self._note(machine.name, "full")
        machine.files.full = True
        await asyncio.sleep(fault.lasts_s)
        machine.files.full = False
        self._note(machine.name, "recovered")

    async def _sick(self, fault: Fault) -> None:
        """Syncs fail for a while, and then the power does, or somebody restarts the node."""
        machine = _chosen(fault, self._run.cluster.machines)
        self._note(machine.name, "sick")
        machine.files.sick = True
        await asyncio.sleep(fault.lasts_s / 2)
        self._note(machine.name, "recovered")
        machine.files.sick = False
        if fault.lasts_s >= SILENT_S:
            await self._power(fault)
        else:
            await self._kill(fault)

    async def _fail(self, fault: Fault) -> None:
        """One operation of a disk fails, perhaps while the node stops or starts."""
        machine = _chosen(fault, self._run.cluster.machines)
        files = machine.files
        self._note(machine.name, "sick")
        files.fails_in = 1 + self._chance.randrange(self._chance.choice(OPERATIONS))
        if fault.lasts_s == SHORT_S:
            await self._kill(fault)
        elif fault.lasts_s < SILENT_S:
            await self._restart(fault)
        await asyncio.sleep(fault.lasts_s / 2)
        files.fails_in = 0
        self._note(machine.name, "recovered")
        await (self._kill if fault.lasts_s < SILENT_S else self._power)(fault)

    async def _drop(self, fault: Fault) -> None:
        """Syncs fail, and what they did not write counts as clean from then on, as on Linux.

        The next process finds all of it in the cache, until the power fails.
        """
        machine = _chosen(fault, self._run.cluster.machines)
        self._note(machine.name, "sick")
        machine.files.sick = machine.files.drops = True
        await asyncio.sleep(fault.lasts_s / 2)
        machine.files.sick = machine.files.drops = False
        self._note(machine.name, "recovered")
        await self._kill(fault)
        await self._run.happens("stored", timeout_s=fault.lasts_s)
        await self._power(fault)


def _chosen(fault: Fault, among: Sequence[T]) -> T:
    return among[int(fault.target * len(among))]
