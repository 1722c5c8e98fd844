"""A backup of a running node, and what a node that is restored from it holds."""

from __future__ import annotations

import asyncio
import zlib
from typing import TYPE_CHECKING

from coherer._record.compression import COMPRESSED
from coherer._record.layout import decode
from coherer._store import Store
from coherer._store.backup import back_up
from coherer._store.restore import restore
from tests.simulation.history import Place
from tests.simulation.senders import FILLED, TOPICS

if TYPE_CHECKING:  # a run makes backups, which use the run
    from tests.simulation.workload import Run


class Backup:
    """The backup of the run's last machine, which is no slave."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._chance = run.plan.chance("backup")
        self._target = run.directory / "backup"
        machines = [one for one in run.cluster.machines if one.name not in {"slave", "master"}]
        self._machine = machines[-1]

    async def make(self) -> None:
        """Make a backup, and bring it up to date a few times."""
        for _ in range(3):
            await asyncio.sleep(self._chance.random() * 20)
            if self._machine.up:
                with self._run.noting("backup"):
                    back_up(self._machine.directory, self._target, wall_ns=self._wall_ns)
                    self._run.note(self._machine.name, "backup")

    def _wall_ns(self) -> int:
        return round(self._run.now_s() * 1e9) + 1_800_000_000 * 10**9

    def look(self) -> None:
        """Restore it, and note what it holds."""
        if not self._run.history.of("backup"):
            return
        target = self._run.directory / "restored"
        restore(self._target, target)
        with Store.open(target, now_ms=lambda: self._wall_ns() // 1_000_000) as store:
            for topic in TOPICS:
                for queue in store.queues(topic):
                    self._read(store, topic, queue)

    def _read(self, store: Store, topic: str, queue: int) -> None:
        at, end = store.queue_range(topic, queue)
        while at < end:
            found = store.read(topic, queue, at, max_bytes=1 << 20, max_count=100)
            for offset, record in zip(found.offsets, found.records, strict=True):
                stored = decode(record)
                body = bytes(stored.body)
                if stored.sys_flag & COMPRESSED:
                    body = zlib.decompress(body)
                place = Place(f"{topic}@{self._machine.name}.{queue}", offset)
                text = body.decode().partition(FILLED)[0]
                self._run.note(self._machine.name, "restored", text, place=place)
            at = found.next_offset
