"""Machines of a simulation: a node on a disk that forgets what was not synced."""

from __future__ import annotations

import itertools
from pathlib import Path
from random import Random

import msgspec

from coherer._server.node.node import Node, NodeOptions
from coherer._store import StoreOptions
from coherer.testing.simulation import Process
from tests.store.conftest import PowerFiles

PORTS = ("master_port", "broker_port", "namesrv_port", "rocketmq_port", "rocketmq_fast_port")


class Disk(PowerFiles):
    """A disk whose files are closed, and whose locks end, with the program that has them open."""

    def __init__(self) -> None:
        super().__init__()
        self._locks: dict[Path, int] = {}
        self._open: set[int] = set()

    def open(self, path: Path, *, create: bool = False) -> int:
        handle = super().open(path, create=create)
        self._open.add(handle)
        return handle

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

    def close_all(self) -> None:
        """The program is gone."""
        for path, handle in list(self._locks.items()):
            self.unlock(path, handle)
        for handle in list(self._open):
            self.close(handle)


class SmallFiles(NodeOptions, frozen=True, kw_only=True):
    """The options of a node whose files are so small that it soon needs the next ones."""

    def store_options(self) -> StoreOptions:
        return msgspec.structs.replace(
            super().store_options(), queue_segment_bytes=2_000, index_slots=50, index_entries=100
        )


class Machine:
    """A machine with a node, which can be killed and cut off from power.

    Args:
        directory: of all its disks; each power cut makes a new one.
        options: of the node.
    """

    def __init__(self, directory: Path, **options: object) -> None:
        self._base = directory
        self._images = itertools.count()
        self._options = SmallFiles(
            **{
                **dict.fromkeys(PORTS, 0),
                "admin_port": None,
                "directory": directory / "0",
                "segment_bytes": 64 << 10,
                **options,
            }
        )
        next(self._images)
        self.files = Disk()
        self.process = Process("node")
        self.node: Node

    async def start(self) -> None:
        """Start the node, on the ports that it had before."""
        self.process = Process("node")
        self.node = Node(self._options, files=self.files)
        await self.process.start(self.node.start())
        ports = self.node.ports()
        self._options = msgspec.structs.replace(
            self._options, **{name: ports[name] for name in PORTS if name in ports}
        )

    async def stop(self) -> None:
        """Stop the node in order."""
        await self.process.start(self.node.stop())

    def kill(self) -> None:
        """End the node's program; what it has written stays in the system's memory."""
        self.process.kill()
        self.files.close_all()

    def cut_power(self, chance: Random) -> None:
        """End the program, and lose some of what is not on the disk."""
        self.kill()
        image = self._base / str(next(self._images))
        self.files.cut(self._options.directory, image, chance)
        self.files = Disk()
        self.files.adopt(image)
        self._options = msgspec.structs.replace(self._options, directory=image)
