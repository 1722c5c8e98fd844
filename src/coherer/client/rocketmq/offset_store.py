"""Where a group is in each of its queues, and where that is kept (8.15).

A store has a table in memory. The consumer moves it on as messages are dealt with, and has it
written down every few seconds, when a queue goes, and at the end: with the brokers for a group that
shares its queues, in a file for one whose members all read everything (broadcast).
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Final, Protocol

import msgspec

from coherer.errors import CohererError, DamagedStoreError
from coherer.rocketmq import fastjson
from coherer.rocketmq.names import Queue


class OffsetTable:
    """Offsets in memory, and which of them are not written down yet.

    >>> table, queue = OffsetTable(), Queue("flights", "broker-a", 0)
    >>> table.move(queue, 5)
    >>> table.unsaved()
    {Queue(...): 5}
    >>> table.saved(queue, 5)
    >>> table.unsaved()
    {}
    """

    def __init__(self) -> None:
        self._offsets: dict[Queue, int] = {}
        self._saved: dict[Queue, int] = {}

    def get(self, queue: Queue) -> int | None:
        """Where we are in the queue; None when nothing was dealt with yet."""
        return self._offsets.get(queue)

    def move(self, queue: Queue, offset: int) -> None:
        """We are there now, which may be further back than before."""
        self._offsets[queue] = offset

    def news(self, queue: Queue) -> int | None:
        """Where we are in the queue, if that is not written down."""
        offset = self._offsets.get(queue)
        return None if offset == self._saved.get(queue) else offset

    def saved(self, queue: Queue, offset: int) -> None:
        """That offset has been written down."""
        self._saved[queue] = offset

    def unsave(self, queue: Queue) -> None:
        """What has been written down may be lost."""
        self._saved.pop(queue, None)

    def forget(self, queue: Queue) -> None:
        """The queue is not ours any more."""
        self._offsets.pop(queue, None)
        self._saved.pop(queue, None)

    def unsaved(self, queues: Collection[Queue] | None = None) -> dict[Queue, int]:
        """The offsets that are not written down yet, of these queues or of all."""
        return {
            queue: offset
            for queue, offset in self._offsets.items()
            if self._saved.get(queue) != offset and (queues is None or queue in queues)
        }

    def of_topic(self, topic: str) -> dict[Queue, int]:
        """The offsets of one topic."""
        return {queue: at for queue, at in self._offsets.items() if queue.topic == topic}


class OffsetStore(Protocol):
    """Where offsets are kept."""

    table: OffsetTable

    async def load(self) -> None:
        """Made ready; called once."""
        ...

    async def read(self, queue: Queue) -> int | None:
        """The offset that is written down; None when there is none.

        Raises:
            CohererError: it cannot be told now.
        """
        ...

    async def persist(self, queues: Collection[Queue] | None = None, *, wait: bool = False) -> None:
        """Write down what is not, of these queues or of all. What fails is tried again.

        Args:
            queues: which.
            wait: return when it is known to be written down, or to have failed.
        """
        ...


class Positions(Protocol):
    """Calls to brokers about offsets."""

    async def stored(self, group: str, queue: Queue) -> int | None:
        """What the broker has for a group (14); None when nothing (22)."""
        ...

    async def store(self, group: str, queue: Queue, offset: int) -> None:
        """Tell the broker where a group is (15), without waiting for an answer."""
        ...

    async def store_now(self, group: str, queue: Queue, offset: int) -> None:
        """Tell the broker where a group is, and wait until it has heard it."""
        ...


class RemoteOffsets:
    """Offsets with the brokers.

    Args:
        group: the group.
        positions: the way to the brokers.
    """

    def __init__(self, group: str, positions: Positions) -> None:
        self.table = OffsetTable()
        self._group = group
        self._positions = positions

    async def load(self) -> None:
        """Nothing to do."""

    async def read(self, queue: Queue) -> int | None:
        """See `OffsetStore.read`."""
        return await self._positions.stored(self._group, queue)

    async def persist(self, queues: Collection[Queue] | None = None, *, wait: bool = False) -> None:
        """See `OffsetStore.persist`."""
        store = self._positions.store_now if wait else self._positions.store

        async def save(queue: Queue, offset: int) -> None:
            try:
                await store(self._group, queue, offset)
            except CohererError:
                return  # the broker is away: it is told later, or the messages come again
            self.table.saved(queue, offset)

        unsaved = self.table.unsaved(queues)
        await asyncio.gather(*(save(queue, offset) for queue, offset in unsaved.items()))


OFFSETS_FILE: Final = "offsets.json"


class LocalOffsets:
    """Offsets in a file, in the form of Java's client.

    Args:
        folder: holds `offsets.json` and, from the time before, `offsets.json.bak`.
    """

    def __init__(self, folder: Path) -> None:
        self.table = OffsetTable()
        self._path = folder / OFFSETS_FILE
        self._read: Mapping[Queue, int] = {}

    @staticmethod
    def folder(client_id: str, group: str) -> Path:
        """Where Java's client keeps the file (8.15)."""
        return Path.home() / ".rocketmq_offsets" / client_id / group

    async def load(self) -> None:
        """Read the file; the one before it if it is damaged.

        Raises:
            CohererError: neither can be read.
        """
        self._read = await asyncio.to_thread(self._load)
        for queue, offset in self._read.items():
            self.table.move(queue, offset)
            self.table.saved(queue, offset)

    async def read(self, queue: Queue) -> int | None:
        """See `OffsetStore.read`."""
        return self._read.get(queue)

    async def persist(self, queues: Collection[Queue] | None = None, *, wait: bool = False) -> None:
        """See `OffsetStore.persist`."""
        del wait  # a file is written when this returns
        unsaved = self.table.unsaved(queues)
        if not unsaved:
            return
        self._read = {**self._read, **unsaved}
        await asyncio.to_thread(self._write, offsets_text(self._read.items()))
        for queue, offset in unsaved.items():
            self.table.saved(queue, offset)

    def _load(self) -> dict[Queue, int]:
        damage: list[CohererError] = []
        for path in (self._path, self._backup()):
            try:
                return offsets_of(path.read_bytes())
            except FileNotFoundError:
                continue
            except CohererError as error:
                damage.append(error)
        if damage:
            raise damage[0]
        return {}

    def _backup(self) -> Path:
        return self._path.with_name(f"{OFFSETS_FILE}.bak")

    def _write(self, text: str) -> None:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        fresh = self._path.with_name(f"{OFFSETS_FILE}.tmp")
        fresh.write_text(text, "utf-8")
        if self._path.exists():
            os.replace(self._path, self._backup())  # noqa: PTH105 - this is what it does
        os.replace(fresh, self._path)  # noqa: PTH105


def offsets_text(offsets: Iterable[tuple[Queue, int]]) -> str:
    r"""The text of an offset file.

    >>> offsets_text([(Queue("T", "b", 0), 5)])
    '{\n\t"offsetTable":{{"brokerName":"b","queueId":0,"topic":"T"}:5\n\t}\n}'
    """
    entries = ",".join(
        f'{{"brokerName":{_text(queue.broker)},"queueId":{queue.id},"topic":{_text(queue.topic)}}}'
        f":{offset}"
        for queue, offset in offsets
    )
    return f'{{\n\t"offsetTable":{{{entries}\n\t}}\n}}'


def offsets_of(data: bytes) -> dict[Queue, int]:
    """Read an offset file, one of ours or Java's.

    Raises:
        DamagedStoreError: it is none.

    >>> offsets_of(b'{"offsetTable":{{"brokerName":"b","queueId":0,"topic":"T"}:5}}')
    {Queue(...): 5}
    """
    try:
        table = fastjson.loads(data)
    except CohererError as error:
        raise DamagedStoreError("A file of offsets cannot be read.") from error
    entries = table.get("offsetTable") if isinstance(table, dict) else None
    if not isinstance(entries, dict):
        raise DamagedStoreError("A file of offsets holds none.")
    return {
        queue: offset
        for queue, offset in entries.items()
        if isinstance(queue, Queue) and isinstance(offset, int)
    }


def _text(value: str) -> str:
    return msgspec.json.encode(value).decode()
