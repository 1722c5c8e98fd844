"""The offsets of a consumer in its queues, and where they are stored.

See docs/protocol/rocketmq.md, section 8.15.

A store has a table in memory. The consumer moves its offsets as messages are acknowledged. They are
stored every few seconds, when a queue is revoked, on `commit`, and at the end: at the brokers for a
group that shares its queues (`BrokerOffsets`), in a file for a broadcast consumer (`LocalOffsets`).

Offsets get to a broker in two ways: with a pull, or with a request of their own (15). Java's
brokers process both concurrently, in several threads: of two updates of a queue in flight, the
older one may be applied last and stay. Therefore:

* There is at most one update of a queue in flight. While a request is in flight, pulls carry no
  offset; while a pull carries one, no request is sent until the pull is answered or `APPLIED_MS`
  have passed.
* Offset requests are answered (Java's client sends them one-way), because only the answer shows
  that the update is applied and the next one may be sent.
* The first updates of a group in a topic go to a broker one by one, and not with pulls: Java's
  broker creates the table for them without a lock, and of two concurrent updates may keep one (it
  acknowledged both in 9 of 263 tries).
* A caller that stops waiting does not cancel the update: the next update still waits for it.
"""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Collection, Iterable, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Final

import msgspec

from coherer._client.rocketmq.consuming.broker_rpc import BrokerRpc
from coherer._common.logs import Log
from coherer._common.paths import child
from coherer._wire.rocketmq import fastjson
from coherer._wire.rocketmq.names import Queue
from coherer.errors import CohererError, DamagedStoreError, StoreError

_log = Log(logging.getLogger(__name__))

APPLIED_MS: Final = 500
"""After this time a pull's offset is applied, even if the broker still holds the pull."""

OFFSETS_FILE: Final = "offsets.json"


class OffsetTable:
    """Offsets in memory, and which of them are stored.

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
        """The offset in a queue; None if nothing was acknowledged yet."""
        return self._offsets.get(queue)

    def move(self, queue: Queue, offset: int) -> None:
        """Set an offset, which may be lower than before."""
        self._offsets[queue] = offset

    def unsaved_offset(self, queue: Queue) -> int | None:
        """The offset in a queue if it is not stored; otherwise None."""
        offset = self._offsets.get(queue)
        return None if offset == self._saved.get(queue) else offset

    def saved(self, queue: Queue, offset: int) -> None:
        """Note that an offset is stored."""
        self._saved[queue] = offset

    def unsave(self, queue: Queue) -> None:
        """Note that the stored offset may be lost."""
        self._saved.pop(queue, None)

    def forget(self, queue: Queue) -> None:
        """Remove a queue that was revoked."""
        self._offsets.pop(queue, None)
        self._saved.pop(queue, None)

    def unsaved(self, queues: Collection[Queue] | None = None) -> dict[Queue, int]:
        """The offsets that are not stored, of these queues or of all."""
        return {
            queue: offset
            for queue, offset in self._offsets.items()
            if self._saved.get(queue) != offset and (queues is None or queue in queues)
        }

    def of_topic(self, topic: str) -> dict[Queue, int]:
        """The offsets of one topic."""
        return {queue: at for queue, at in self._offsets.items() if queue.topic == topic}


class OffsetStore(ABC):
    """Where offsets are stored.

    Attributes:
        table: the offsets in memory.
    """

    def __init__(self) -> None:
        self.table = OffsetTable()

    @abstractmethod
    async def load(self) -> None:
        """Prepare the store; called once."""

    @abstractmethod
    async def read(self, queue: Queue, *, exact: bool = True) -> int | None:
        """The stored offset, or None if the group has not stored one.

        Args:
            exact: whether 0 and None mean different things to the caller; it may take another
                request to distinguish them.

        Raises:
            CohererError: it cannot be read now.
        """

    @abstractmethod
    async def persist(self, queues: Collection[Queue] | None = None) -> None:
        """Store the unsaved offsets of these queues or of all. Failures are retried later."""

    @abstractmethod
    async def commit(self, queue: Queue) -> None:
        """Store the offset of a queue.

        Raises:
            CohererError: it may not be stored.
        """

    def forget(self, queue: Queue) -> None:
        """Remove a queue that was revoked."""
        self.table.forget(queue)

    # -- offsets in pulls, for the store that uses them

    def offset_for_pull(self, queue: Queue) -> int | None:
        """The offset to send with the next pull, or None."""
        del queue
        return None

    def pull_answered(self, queue: Queue) -> None:
        """The pull has been answered."""
        del queue

    def pull_failed(self, queue: Queue, *, lost: bool) -> None:
        """The pull was refused, or (`lost`) the broker may be down and have lost the offset."""
        del queue, lost

    async def pulls_applied(self, queues: Iterable[Queue]) -> None:
        """Wait until the offsets in pulls are applied."""
        del queues


class _QueueUpdate:
    """The update of one queue's offset that is in flight.

    Attributes:
        lock: held while a request is in flight.
        in_pull: the offset in the pull that is in flight, or None.
    """

    def __init__(self) -> None:
        self.lock = asyncio.Lock()
        self.in_pull: int | None = None
        self._free = asyncio.Event()
        self._free.set()
        self._applied_at = 0.0

    def begin(self, offset: int | None) -> None:
        """A pull is sent that carries this offset."""
        self.end()
        self.in_pull = offset
        if offset is not None:
            self._applied_at = asyncio.get_running_loop().time() + APPLIED_MS / 1000
            self._free.clear()

    def end(self) -> None:
        """No pull carries an offset any more."""
        self.in_pull = None
        self._free.set()

    async def applied(self) -> None:
        """Wait until the offset in the pull is applied."""
        if not self._free.is_set():
            with suppress(TimeoutError):
                async with asyncio.timeout_at(self._applied_at):
                    await self._free.wait()


class _BrokerTable:
    """A broker's table of the group's offsets in one topic.

    Attributes:
        exists: whether the broker has created it.
    """

    def __init__(self) -> None:
        self.exists = False
        self._creating = asyncio.Lock()

    @asynccontextmanager
    async def created(self) -> AsyncGenerator[None]:
        """Allow one update at a time until the table exists."""
        if self.exists:
            yield
            return
        async with self._creating:
            yield
            self.exists = True


class BrokerOffsets(OffsetStore):
    """Offsets stored at the brokers."""

    def __init__(self, group: str, rpc: BrokerRpc) -> None:
        super().__init__()
        self._group = group
        self._rpc = rpc
        self._updates: dict[Queue, _QueueUpdate] = {}
        self._tables: dict[tuple[str, str], _BrokerTable] = {}

    async def load(self) -> None:
        """Nothing to prepare."""

    async def read(self, queue: Queue, *, exact: bool = True) -> int | None:
        """See `OffsetStore.read`."""
        return await self._rpc.stored_offset(self._group, queue, exact=exact)

    async def persist(self, queues: Collection[Queue] | None = None) -> None:
        """See `OffsetStore.persist`."""
        unsaved = self.table.unsaved(queues)
        if unsaved:
            await asyncio.wait([self._begin(queue) for queue in unsaved])

    async def commit(self, queue: Queue) -> None:
        """See `OffsetStore.commit`."""
        storing = self._begin(queue)
        await asyncio.wait([storing])
        error = storing.result()
        if error is not None:
            raise error

    def forget(self, queue: Queue) -> None:
        """See `OffsetStore.forget`."""
        super().forget(queue)
        update = self._updates.get(queue)
        if update is not None and not update.lock.locked():
            del self._updates[queue]

    def offset_for_pull(self, queue: Queue) -> int | None:
        """See `OffsetStore.offset_for_pull`."""
        update = self._updates.setdefault(queue, _QueueUpdate())
        blocked = update.lock.locked() or not self._table(queue).exists
        # Like Java's clients, do not send the offset 0 in a pull (section 8.10).
        offset = None if blocked else self.table.unsaved_offset(queue) or None
        update.begin(offset)
        return offset

    def pull_answered(self, queue: Queue) -> None:
        """See `OffsetStore.pull_answered`."""
        update = self._updates.get(queue)
        if update is not None and update.in_pull is not None:
            self.table.saved(queue, update.in_pull)
            update.end()

    def pull_failed(self, queue: Queue, *, lost: bool) -> None:
        """See `OffsetStore.pull_failed`."""
        if lost:
            self.table.unsave(queue)
            self._tables.pop((queue.broker, queue.topic), None)
        if queue in self._updates:
            self._updates[queue].end()

    async def pulls_applied(self, queues: Iterable[Queue]) -> None:
        """See `OffsetStore.pulls_applied`."""
        updates = [self._updates[queue] for queue in queues if queue in self._updates]
        await asyncio.gather(*(update.applied() for update in updates))

    def _begin(self, queue: Queue) -> asyncio.Task[CohererError | None]:
        """Store an offset in a task, which continues if its caller is cancelled."""
        return asyncio.create_task(self._try_to_store(queue), name="store an offset")

    async def _try_to_store(self, queue: Queue) -> CohererError | None:
        try:
            await self._store(queue)
        except CohererError as error:  # it is stored later, or the messages are delivered again
            _log.info("Storing the offset of %s in %s failed: %s", self._group, queue, error)
            return error
        return None

    async def _store(self, queue: Queue) -> None:
        update = self._updates.setdefault(queue, _QueueUpdate())
        async with update.lock:
            await update.applied()
            offset = self.table.unsaved_offset(queue)
            if offset is None:
                return
            async with self._table(queue).created():
                await self._rpc.store_offset(self._group, queue, offset)
            update.end()  # the pull with an older offset may still be held
            self.table.saved(queue, offset)

    def _table(self, queue: Queue) -> _BrokerTable:
        return self._tables.setdefault((queue.broker, queue.topic), _BrokerTable())


class LocalOffsets(OffsetStore):
    """Offsets in a file in the format of Java's client.

    Args:
        directory: contains `offsets.json` and its previous version, `offsets.json.bak`.
    """

    def __init__(self, directory: Path) -> None:
        super().__init__()
        self._path = directory / OFFSETS_FILE
        self._loaded: Mapping[Queue, int] = {}
        self._writing = asyncio.Lock()

    @staticmethod
    def default_directory(client_id: str, group: str) -> Path:
        """The directory that Java's client uses (section 8.15).

        Raises:
            UsageError: the client id or the group cannot be the name of a directory.
        """
        return child(child(Path.home() / ".rocketmq_offsets", client_id, "client"), group, "group")

    async def load(self) -> None:
        """Read the file, or its previous version if it is damaged.

        Raises:
            CohererError: neither can be read.
        """
        self._loaded = await asyncio.to_thread(self._read_file)
        for queue, offset in self._loaded.items():
            self.table.move(queue, offset)
            self.table.saved(queue, offset)

    async def read(self, queue: Queue, *, exact: bool = True) -> int | None:
        """See `OffsetStore.read`."""
        del exact
        return self._loaded.get(queue)

    async def persist(self, queues: Collection[Queue] | None = None) -> None:
        """See `OffsetStore.persist`."""
        try:
            await self._save(queues)
        except StoreError as error:  # a full disk must not keep messages from the application
            _log.warning("%s", error, about=self._path)

    async def commit(self, queue: Queue) -> None:
        """See `OffsetStore.commit`."""
        await self._save([queue])

    async def _save(self, queues: Collection[Queue] | None) -> None:
        async with self._writing:  # a second write with newer offsets must not end first
            unsaved = self.table.unsaved(queues)
            if not unsaved:
                return
            self._loaded = {**self._loaded, **unsaved}
            try:
                await asyncio.to_thread(self._write_file, encode_offsets(self._loaded.items()))
            except OSError as error:
                raise StoreError(f"The offsets cannot be stored: {error}.") from error
            for queue, offset in unsaved.items():
                self.table.saved(queue, offset)

    def _read_file(self) -> dict[Queue, int]:
        errors: list[CohererError] = []
        for path in (self._path, self._backup()):
            try:
                return decode_offsets(path.read_bytes())
            except FileNotFoundError:
                continue
            except CohererError as error:
                errors.append(error)
            except OSError as error:
                errors.append(StoreError(f"The stored offsets cannot be read: {error}."))
        if errors:
            raise errors[0]
        return {}

    def _backup(self) -> Path:
        return self._path.with_name(f"{OFFSETS_FILE}.bak")

    def _write_file(self, text: str) -> None:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        new = self._path.with_name(f"{OFFSETS_FILE}.tmp")
        new.write_text(text, "utf-8")
        if self._path.exists():
            self._path.replace(self._backup())
        new.replace(self._path)


def encode_offsets(offsets: Iterable[tuple[Queue, int]]) -> str:
    r"""The text of an offset file.

    >>> encode_offsets([(Queue("T", "b", 0), 5)])
    '{\n\t"offsetTable":{{"brokerName":"b","queueId":0,"topic":"T"}:5\n\t}\n}'
    """
    entries = ",".join(
        f'{{"brokerName":{_json(queue.broker)},"queueId":{queue.id},"topic":{_json(queue.topic)}}}'
        f":{offset}"
        for queue, offset in offsets
    )
    return f'{{\n\t"offsetTable":{{{entries}\n\t}}\n}}'


def decode_offsets(data: bytes) -> dict[Queue, int]:
    """Parse an offset file, written by Java or by this client.

    Raises:
        DamagedStoreError: it is not a valid offset file.

    >>> decode_offsets(b'{"offsetTable":{{"brokerName":"b","queueId":0,"topic":"T"}:5}}')
    {Queue(...): 5}
    """
    try:
        table = fastjson.loads_unlimited(data)
    except CohererError as error:
        raise DamagedStoreError("An offset file cannot be read.") from error
    entries = table.get("offsetTable") if isinstance(table, dict) else None
    if not isinstance(entries, dict):
        raise DamagedStoreError("An offset file contains no offsets.")
    return {
        queue: offset
        for queue, offset in entries.items()
        if isinstance(queue, Queue) and isinstance(offset, int)
    }


def _json(value: str) -> str:
    return msgspec.json.encode(value).decode()
