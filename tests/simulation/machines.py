"""Machines of a simulation: a node on a disk that fails and forgets what was not synced."""

from __future__ import annotations

import asyncio
import errno
import itertools
import os
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from random import Random
from typing import Any

import msgspec

from coherer._server.node.node import Node, NodeOptions
from coherer._store import StoreOptions
from coherer.testing.simulation import Process
from tests.simulation import rot, threads
from tests.simulation.keeper import ADDRESS, SESSION_MS, SimulatedKeeper
from tests.simulation.plan import HEIR, MASTERS, TWIN, WATCHER, Plan
from tests.store.conftest import PowerFiles

USUAL_PORTS = ("master_port", "broker_port", "namesrv_port", "rocketmq_port", "rocketmq_fast_port")
PORTS = (*USUAL_PORTS, "admin_port", "ha_port")
QUEUES = 2
OPERATOR = ("operator", "operator-secret")
RETENTION_S = 90.0
NEWEST = 3
"""Half of the flipped bits are in one of so many messages: a start looks at these most closely."""
TOKEN = "token-of-the-operator"
GRANTED_S = (1.5, 40.0)
"""The longest sessions that ZooKeeper grants: shorter than the masters want, or longer."""
SYNC_MASTER = "SYNC_MASTER"
NEVER = (1 << 63, frozenset[str]())
BROKER_NAME = "broker-a"
"""The name of a broker that one machine takes over from another one."""
MASTER_PORTS = (8715, 8725)
"""Masters with standbys have fixed ports, and others for their administration."""


class Disk(PowerFiles):
    """A disk whose files are closed, and whose locks end, with the program that has them open.

    Attributes:
        full: whether nothing more can be written.
        sick: whether every sync fails.
        drops: whether what a failed sync should have written then counts as clean, as on Linux.
        fails_in: the number of the operation from now on that fails, once; 0 for none.
        has_failed: whether it has.
    """

    def __init__(self) -> None:
        super().__init__()
        self.full = self.sick = self.drops = self.has_failed = False
        self.fails_in = 0
        self.before = threads.pause
        self._locks: dict[Path, int] = {}
        self._open: set[int] = set()

    def open(self, path: Path, *, create: bool = False) -> int:
        if create and not path.exists():
            self._check_space()
        handle = super().open(path, create=create)
        self._open.add(handle)
        return handle

    def write(self, handle: int, data: bytes, offset: int) -> None:
        self._check_space()
        super().write(handle, data, offset)

    def make_directory(self, path: Path) -> None:
        if not path.exists():
            self._check_space()
        super().make_directory(path)

    def sync(self, handle: int) -> None:
        self._check_health(handle)
        super().sync(handle)

    def sync_directory(self, path: Path) -> None:
        if self.sick and not self.drops:  # then only the data is not written
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        super().sync_directory(path)

    def sync_all(self, path: Path) -> bool:
        self._check_health()
        return super().sync_all(path)

    def may_fail(self) -> bool:
        """Count an operation; returns whether it fails."""
        failed, self.fails_in = self.fails_in == 1, max(self.fails_in - 1, 0)
        self.has_failed |= failed
        return failed

    def _check_space(self) -> None:
        if self.full:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def _check_health(self, handle: int | None = None) -> None:
        if self.sick:
            if self.drops:
                self.drop(handle)
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    def close(self, handle: int) -> None:
        self._open.discard(handle)
        super().close(handle)

    def lock(self, path: Path) -> int:
        handle = self._locks[path] = super().lock(path)
        return handle

    def unlock(self, path: Path, handle: int) -> None:
        self._locks.pop(path, None)
        self._open.discard(handle)
        super().unlock(path, handle)

    def flip(self, path: Path, at: int, bit: int) -> None:
        """Change a bit of a file, on the disk and for those who read it."""
        data = bytearray(path.read_bytes())
        data[at] ^= bit
        handle = os.open(path, os.O_WRONLY)  # not a new file: a node has mapped this one
        os.pwrite(handle, data[at : at + 1], at)
        os.close(handle)
        self.rot(path, at, bit)

    def close_all(self) -> None:
        """The program is gone."""
        for path, handle in list(self._locks.items()):
            self.unlock(path, handle)
        for handle in list(self._open):
            self.close(handle)


def _failing(operation: Callable[..., Any]) -> Callable[..., Any]:
    """An operation of a disk that may be the one that fails; a write has written a half then."""

    def may_fail(disk: Disk, *args: Any, **options: Any) -> Any:
        if not disk.may_fail():
            return operation(disk, *args, **options)
        if operation.__name__ == "write":
            handle, data, offset = args
            operation(disk, handle, data[: len(data) // 2], offset)
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    return may_fail


for _name in (
    *("open", "resize", "read", "map", "write", "sync", "sync_directory", "sync_all"),
    *("make_directory", "names", "replace", "link", "remove", "remove_tree"),
):
    setattr(Disk, _name, _failing(getattr(Disk, _name)))


class SmallFiles(NodeOptions, frozen=True, kw_only=True):
    """The options of a node whose files are so small that it soon needs the next ones."""

    def store_options(self) -> StoreOptions:
        return msgspec.structs.replace(
            super().store_options(), queue_segment_bytes=2_000, index_slots=50, index_entries=100
        )


class Machine:
    """A machine with a node, which can be killed and cut off from power.

    Args:
        name: of its program.
        directory: of all its disks; each power cut makes a new one.
        options: of the node.

    Attributes:
        clock_s: how far its clock is ahead.
        up: whether its node runs.
        needs: as a slave, how much of the log and which topics it has to copy until it may become
            the master; `NEVER` before it has an empty disk.
    """

    def __init__(self, name: str, directory: Path, **options: object) -> None:
        self.name = name
        self._base = directory / name
        self._images = itertools.count()
        self._options = SmallFiles(
            **{
                "admin_port": None,
                "directory": self._base / str(next(self._images)),
                "segment_bytes": 64 << 10,
                "default_partitions": QUEUES,
                **dict.fromkeys(USUAL_PORTS, 0),
                **options,
            }
        )
        self.files = Disk()
        self.process = Process(name)
        self.clock_s = 0.0
        self.up = False
        self.needs: tuple[int, frozenset[str]] = (0, frozenset())
        self.node: Node

    async def start(self) -> None:
        """Start the node, on the ports that it had before.

        Raises:
            CohererError: it could not start, because its disk is full or fails.
        """
        self.process = Process(self.name)
        self.process.clock_s = self.clock_s
        self.node = Node(self._options, files=self.files)
        try:
            await self.process.start(self.node.start())
        except BaseException:
            self.kill()
            raise
        ports = self.node.ports()
        self._options = msgspec.structs.replace(
            self._options, **{name: ports[name] for name in PORTS if name in ports}
        )
        self.up = True

    async def stop(self) -> None:
        """Stop the node in order."""
        self.up = False
        await self.process.start(self.node.stop())
        self.kill()

    def become_master(self) -> None:
        """Have the next start be one as a master."""
        self._become(SYNC_MASTER, 0)

    def become_slave(self, number: int) -> None:
        """Have the next start be one as a slave, with an empty disk."""
        self._become("SLAVE", number)
        self.renew()

    def _become(self, role: str, number: int) -> None:
        self._options = msgspec.structs.replace(self._options, role=role, rocketmq_broker_id=number)

    @property
    def number(self) -> int:
        """Which of the machines of a RocketMQ broker it is; 0: the master."""
        return self._options.rocketmq_broker_id

    def renew(self) -> None:
        """Give it an empty disk."""
        self.files = Disk()
        directory = self._base / str(next(self._images))
        self._options = msgspec.structs.replace(self._options, directory=directory)

    def content(self) -> tuple[int, frozenset[str]]:
        """How much of the log its broker has, and which topics; -1 before it has started."""
        core = self.node.core
        if core is None:
            return -1, frozenset()
        return core.store.end_offset, frozenset(core.topics.names())

    def may_become_master(self) -> bool:
        """Whether it has copied what it needs, and runs."""
        (has, topics), (needs, others) = self.content(), self.needs
        return self.up and has >= needs and topics >= others

    def is_behind(self, master: Machine) -> bool:
        """Whether it lacks a part of another machine's log."""
        own, theirs = self.node.core, master.node.core
        return not (own and theirs and own.store.end_offset >= theirs.store.written_offset)

    @property
    def is_broker(self) -> bool:
        """Whether its node stores messages."""
        return "broker" in self._options.roles

    @property
    def is_slave(self) -> bool:
        """Whether its node copies another one, when it runs."""
        return self._options.role == "SLAVE"

    async def drain(self, *, timeout_s: float, grace_s: float) -> None:
        """Let clients leave."""

        async def leave() -> None:
            self.node.drain.start(timeout_s, grace_s)
            await self.node.drain.finished.wait()

        # Not `wait_for`: it would wait until a killed program has noticed that it is cancelled.
        await asyncio.wait({self.process.start(leave())}, timeout=2 * timeout_s)

    @property
    def directory(self) -> Path:
        """The directory of its node."""
        return self._options.directory

    def set_clock(self, ahead_s: float) -> None:
        """Set its time of day."""
        self.clock_s = self.process.clock_s = ahead_s

    def kill(self) -> None:
        """End the node's program; what it has written stays in the system's memory."""
        self.up = False
        self.process.kill()
        self.files.close_all()

    def rot(self, messages: Collection[str], chance: Random) -> tuple[str, str]:
        """Flip a bit of one of some messages; returns which, and where.

        Without a message there is none.
        """
        found = list(rot.records(self.directory, messages))
        if not found:
            return "", ""
        one = chance.choice(found[-NEWEST:] if chance.random() < 0.5 else found)
        bit = one.a_bit(chance)
        self.files.flip(bit.path, bit.at, bit.mask)
        return one.message, f"{bit.path.parent.name}/{bit.path.name}, {bit.text}, in {one.topic}"

    def cut_power(self, chance: Random) -> None:
        """End the program, and lose some of what is not on the disk."""
        self.kill()
        image = self._base / str(next(self._images))
        self.files.cut(self._options.directory, image, chance)
        self.files = Disk()
        self.files.adopt(image)
        self._options = msgspec.structs.replace(self._options, directory=image)


class Cluster:
    """The machines of a run.

    Args:
        plan: their number, and the options of the brokers.
        directory: of all disks.

    Attributes:
        machines: the first one is the one that the others need.
        keeper: ZooKeeper, if there are several masters.
    """

    def __init__(self, plan: Plan, directory: Path) -> None:
        self._plan = plan
        self._directory = directory
        self._accounts: dict[str, object] = {}
        if "accounts" in plan.extras:
            self._accounts = {"users": dict([OPERATOR])}
        self._watched: dict[str, object] = {}
        if WATCHER in plan.senders and plan.protocol == "tubemq":
            self._watched = {"admin_port": 0}  # who looks at TubeMQ asks over HTTP
        self.machines: list[Machine] = []
        self.keeper: SimulatedKeeper | None = None
        if plan.shape == MASTERS:
            self.keeper = SimulatedKeeper(plan.chance("zookeeper").choice(GRANTED_S))

    async def start(self) -> None:
        """Start all machines, the one that the others need first."""
        rocketmq = self._plan.protocol == "rocketmq"
        if self._plan.shape == "one":
            await self._add("node", **self._broker(), **self._watched)
        elif self._plan.shape == "slave":
            await self._add("node", **self._broker(), ha_port=0, protocols=frozenset({"rocketmq"}))
            await self._add("slave", **self._apart(1), role="SLAVE", rocketmq_broker_id=1)
        elif self._plan.shape == HEIR:
            own = frozenset({"rocketmq"})
            await self._add("master", roles=frozenset({"master"}), protocols=own)
            pair: dict[str, object] = {**self._apart(1), "broker_name": BROKER_NAME, "ha_port": 0}
            await self._add("broker-a", **pair, role=SYNC_MASTER)
            await self._add("broker-b", **pair, role="SLAVE", rocketmq_broker_id=1)
            if TWIN in self._plan.extras:
                await self._add("broker-c", **pair, role="SLAVE", rocketmq_broker_id=2)
        elif self.keeper is not None:
            await self.keeper.start()
            for name, port in zip("ab", MASTER_PORTS, strict=True):
                await self._add(f"master-{name}", **_elected(port))
            for number in (1, 2):
                await self._add(f"broker-{'ab'[number - 1]}", **self._apart(number))
        else:
            own = frozenset({"rocketmq" if rocketmq else "tubemq"})
            await self._add("master", roles=frozenset({"master"}), protocols=own, **self._watched)
            for number in (1, 2):
                name = f"broker-{'ab'[number - 1]}"
                await self._add(name, **self._apart(number), broker_name=name)

    async def stop(self) -> None:
        """Stop all machines in order."""
        for machine in reversed(self.machines):
            await machine.stop()

    @property
    def url(self) -> str:
        """For clients."""
        if self.keeper is not None:
            return "tubemq://" + ",".join(f"127.0.0.1:{port}" for port in MASTER_PORTS)
        node = self.machines[0].node
        return node.rocketmq_url if self._plan.protocol == "rocketmq" else node.url

    @property
    def slaves(self) -> list[Machine]:
        """The machines that copy a broker, when they run."""
        return [one for one in self.machines if one.is_broker and one.is_slave]

    @property
    def copied(self) -> Machine:
        """The machine whose broker they copy."""
        return next(one for one in self.machines if one.is_broker and not one.is_slave)

    @property
    def active(self) -> Machine:
        """The machine with the active master or the name server."""
        masters = (one for one in self.machines if one.up and one.node.master is not None)
        acting = (one for one in masters if one.node.master and not one.node.master.standby)
        return next(acting, self.machines[0])

    def _broker(self) -> dict[str, object]:
        retention: dict[str, object] = {}
        if "retention" in self._plan.extras:
            retention = {"retention_hours": RETENTION_S / 3600, "segment_bytes": 16 << 10}
        return {
            **retention,
            "flush": self._plan.flush,
            "transaction_interval_ms": 10_000,
            "delay_levels": "1s 2s 3s 4s 6s 8s 10s 30s",
        }

    def _apart(self, number: int) -> dict[str, object]:
        """The options of a broker without a master or name server in its own node."""
        node = self.machines[0].node
        options = {**self._broker(), **self._watched}
        options |= {"roles": frozenset({"broker"}), "broker_id": number}
        if self._plan.protocol == "rocketmq":
            there = f"127.0.0.1:{node.namesrv_port}"
            return {**options, "protocols": frozenset({"rocketmq"}), "namesrv": there}
        ports = [node.master_port] if self.keeper is None else MASTER_PORTS
        there = ",".join(f"127.0.0.1:{port}" for port in ports)
        return {**options, "protocols": frozenset({"tubemq"}), "master": there}

    async def _add(self, name: str, **options: object) -> None:
        if self._accounts:
            home = self._directory / "accounts" / name
            home.mkdir(parents=True)
            options |= {**self._accounts, "accounts_directory": home}
        machine = Machine(name, self._directory, **options)
        self.machines.append(machine)
        await machine.start()
        await machine.process.start(machine.node.ready())

    def processes(self) -> Iterator[Process]:
        """The programs of the machines that are up."""
        yield from (machine.process for machine in self.machines if machine.up)
        if self.keeper is not None:
            yield self.keeper.process


def _elected(port: int) -> dict[str, object]:
    """The options of a master with standbys."""
    return {
        "roles": frozenset({"master"}),
        "protocols": frozenset({"tubemq"}),
        "master_port": port,
        "admin_port": port + 1,
        "admin_token": TOKEN,
        "zookeeper": f"{ADDRESS[0]}:{ADDRESS[1]}/simulated",
        "zookeeper_session_ms": SESSION_MS,
    }
