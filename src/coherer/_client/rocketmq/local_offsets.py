"""Offsets of a broadcast consumer: in a file, in the form of Java's client (8.15)."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Final

import msgspec

from coherer._client.rocketmq.offsets import OffsetStore
from coherer._wire.rocketmq import fastjson
from coherer._wire.rocketmq.names import Queue
from coherer.errors import CohererError, DamagedStoreError

OFFSETS_FILE: Final = "offsets.json"


class LocalOffsets(OffsetStore):
    """Offsets in a file, in the form of Java's client.

    Args:
        folder: holds `offsets.json` and, from the time before, `offsets.json.bak`.
    """

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self._path = folder / OFFSETS_FILE
        self._read: Mapping[Queue, int] = {}
        self._writing = asyncio.Lock()

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

    async def read(self, queue: Queue, *, exact: bool = True) -> int | None:
        """See `OffsetStore.read`."""
        del exact
        return self._read.get(queue)

    async def persist(self, queues: Collection[Queue] | None = None) -> None:
        """See `OffsetStore.persist`."""
        async with self._writing:  # a second write with newer offsets must not end first
            unsaved = self.table.unsaved(queues)
            if not unsaved:
                return
            self._read = {**self._read, **unsaved}
            await asyncio.to_thread(self._write, offsets_text(self._read.items()))
            for queue, offset in unsaved.items():
                self.table.saved(queue, offset)

    async def confirm(self, queue: Queue) -> None:
        """See `OffsetStore.confirm`."""
        await self.persist([queue])

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
        table = fastjson.loads_unlimited(data)
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
