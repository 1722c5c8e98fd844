"""Reading a range of one partition, in a group of its own.

See docs/protocol/tubemq.md, section 8.7.

Where offsets count messages (Coherer's broker), the range is exact: no message before its start,
and none at or after its end. With Java's broker, offsets are byte positions in an index that
partitions share: a read begins exactly at a position that the broker returned, and ends with the
first batch that reaches the end, which may contain messages after it.

Messages that cannot be delivered leave a gap: they are counted and logged, and reading continues
after them.

A task fetches ahead of the application, up to `AHEAD_BYTES`, and decodes nothing. For columns it
asks for records as they are stored, which Coherer's brokers send without a step per message
(section 8.7.1). If these are not the records of the partition, because the broker's log is damaged,
the reader goes back to their first offset and asks for messages from then on.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from typing import ClassVar, Final, TypeAlias

from coherer._client.engine.arguments import checked
from coherer._client.engine.lifecycle import Lifecycle
from coherer._client.engine.tasks import backoff
from coherer._client.tubemq.broker_rpc import BrokerRpc, StartPosition
from coherer._client.tubemq.fetching import LOST_CODES
from coherer._client.tubemq.topics import TopicCatalog
from coherer._common.logs import Log
from coherer._record.offset_ranges import between, described, without
from coherer._wire.tubemq import codes
from coherer._wire.tubemq.codes import ResultCode
from coherer._wire.tubemq.delivery import MessageBatch
from coherer._wire.tubemq.names import Partition
from coherer.errors import CohererError, UnavailableError, UsageError

_log = Log(logging.getLogger(__name__))

TEMPORARY_CODES: Final = frozenset(
    {
        ResultCode.MOVED,
        ResultCode.SERVER_CONSUME_SPEED_LIMIT,
        ResultCode.INTERNAL_SERVER_ERROR,
        ResultCode.SERVICE_UNAVAILABLE,
    }
)
"""Refusals that may be temporary."""

RECORD_BYTES: Final = 2 * 1024 * 1024
"""The most bytes of stored records to ask for at once."""

AHEAD_BYTES: Final = 2 * RECORD_BYTES
"""No further batch is fetched while this many bytes wait for the application."""

EMPTY_MS: Final = 5
"""The pause after an empty batch; Java's brokers return several in a row."""


BatchAndEnd: TypeAlias = tuple[MessageBatch, int]
"""Messages, and the offset after them."""


@checked
class Reader(Lifecycle):
    """Reads one partition from an offset on. Made by `Client.reader`; use `async with`.

    Args:
        catalog: gives the reader a group of its own.
        partition: the partition.
        offset: where to begin; the broker moves it up if messages are deleted.
        end: one after the last offset to read; the end of the partition at the start when None.
        timeout_ms: how long to retry when the broker does not answer.
        columns: the application reads columns (`MessageBatch.to_arrow`), not single messages.

    Attributes:
        partition: the partition that is read.
        exact: whether offsets count messages; set by `start`.
        position: the next offset to read.
        end: one after the last offset to read.
        left_out: how many messages of the range could not be delivered, or are deleted. With Java's
            broker it counts damaged messages only.
        gaps: offsets that a power cut left empty, as far as was fetched; they hold no messages.
    """

    _KIND: ClassVar[str] = "reader"

    def __init__(
        self,
        catalog: TopicCatalog,
        partition: Partition,
        offset: int,
        end: int | None,
        timeout_ms: int,
        *,
        columns: bool = False,
    ) -> None:
        if offset < 0 or (end is not None and end < offset):
            raise UsageError(
                f"A range cannot go from {offset} to {end}.",
                topic=partition.topic,
                partition=partition.id,
            )
        self.partition = partition
        self.exact = False
        self.position = offset
        self.end: int | None = end
        self.left_out = 0
        self.gaps: list[range] = []
        self._catalog = catalog
        self._timeout_ms = timeout_ms
        self._columns = columns
        self._record_bytes: int | None = RECORD_BYTES if columns else 0
        self._slot: int | None = None
        self._state = "new"
        self._registered = False
        self._ack_pending = False
        self._next = offset  # the next offset to fetch
        self._max_offset = -1
        self._waiting: deque[BatchAndEnd] = deque()
        self._waiting_bytes = 0
        self._changed = asyncio.Event()
        self._fetching: asyncio.Task[None] | None = None
        self._rpc: BrokerRpc

    def __repr__(self) -> str:
        key, end = self.partition.key, "the end" if self.end is None else self.end
        return f"<Reader of {key} at {self.position}, to {end}: {self._state}>"

    async def start(self) -> None:
        """Register the partition with its broker, and start fetching.

        Raises:
            RefusedError: the partition does not exist.
            UnavailableError: its broker cannot be reached.
        """
        await self._start_with(self._begin, self._leave)

    async def _begin(self) -> None:
        await self._catalog.ready()
        self._slot = self._catalog.reserve()
        self._rpc = self._catalog.rpc(self._slot)
        start = await self._register()
        self._registered = True
        if self.exact and start.offset > self.position:
            self._report_deleted(start.offset)
        self.position = start.offset
        if start.offset < start.max_offset:
            self._begin_fetching()

    async def read(self) -> MessageBatch | None:
        """The next messages; None at the end of the range or of the partition.

        A batch may be empty, if all of its messages are bad (`batch.bad_records()`).

        Raises:
            UnavailableError: the broker did not answer within the timeout.
            RefusedError: the broker refused the get.
        """
        self.check()
        while self.end is None or self.position < self.end:
            found = await self._take()
            if found is None:
                break
            batch, end = found
            if not batch.intact:
                await self._go_back()
                continue
            if self.exact and self.end is not None and end > self.end:
                batch, end = batch.before(self.end), self.end
            self._report_gaps(batch, end)
            self.position = end
            if len(batch) or batch.skipped:
                return batch
        end = self._next if self.end is None else min(self._next, self.end)
        if self.exact and self.position < end:  # the last fetch may have gone beyond the range
            self._report_deleted(end)
        return None

    async def close(self) -> None:
        """Unregister the partition. Calling it again does nothing."""
        if self._end():
            await self._leave()

    # -- inside

    async def _leave(self) -> None:
        try:
            await self._stop_fetching()
            if self._registered:
                self._registered = False
                await self._rpc.unregister(self.partition, consumed=False)
        except CohererError as error:
            _log.info("Unregistering %s failed: %s", self.partition.key, error)
        finally:  # also if the caller is cancelled: whoever has the slot next can register
            self._release()

    def _check_client(self) -> None:
        self._catalog.check_client()

    def _report_gaps(self, batch: MessageBatch, end: int) -> None:
        """Count and log the missing messages between the position and the end of a batch."""
        key = self.partition.key
        if not self.exact:
            if batch.skipped:
                self.left_out += batch.skipped
                _log.warning(
                    "%s: left out damaged messages: %d of those from offset %d",
                    key,
                    batch.skipped,
                    batch.offset,
                )
        elif len(batch) != end - self.position:
            gaps = without(between(self.position, end, batch.offsets()), self.gaps)
            if gaps:
                self.left_out += sum(map(len, gaps))
                _log.warning(
                    "%s: left out messages that cannot be delivered: %s", key, described(gaps)
                )

    def _report_deleted(self, end: int) -> None:
        """Count and log the messages from the position to `end`, which are deleted."""
        end = end if self.end is None else min(end, self.end)
        self.left_out += end - self.position
        gap = described([range(self.position, end)])
        _log.warning("%s: messages are deleted: %s", self.partition.key, gap)
        self.position = end

    def _release(self) -> None:
        if self._slot is not None:
            self._catalog.release(self._slot)
            self._slot = None

    async def _register(self) -> StartPosition:
        start = await self._rpc.register(self.partition, read_status=0, offset=self._next)
        self.exact = start.step == 1
        self._next = start.offset
        self._ack_pending = False
        self._max_offset = start.max_offset
        if self.end is None:
            self.end = start.max_offset
        return start

    # -- fetching ahead

    def _begin_fetching(self) -> asyncio.Task[None]:
        self._fetching = asyncio.create_task(self._fetch(), name=f"read {self.partition.key}")
        return self._fetching

    async def _take(self) -> BatchAndEnd | None:
        """The next batch; None at the end."""
        while not self._waiting:
            if self._fetching is None:
                self._fetching = self._begin_fetching()
            self._changed.clear()
            if self._fetching.done():
                task, self._fetching = self._fetching, None
                task.result()
                if not self._waiting:
                    return None
            else:
                await self._changed.wait()
        found = self._waiting.popleft()
        self._waiting_bytes -= found[0].size_bytes
        self._changed.set()
        return found

    async def _fetch(self) -> None:
        """Fetch batches until the end."""
        try:
            while self.end is None or self._next < self.end:
                if self.exact and self._next >= self._max_offset and not await self._has_more():
                    return
                while self._waiting_bytes >= AHEAD_BYTES:
                    self._changed.clear()
                    await self._changed.wait()
                found = await self._fetch_with_retries()
                if found is None:
                    return
                batch, self._next = found
                self._waiting.append(found)
                self._waiting_bytes += batch.size_bytes
                self._changed.set()
                if not batch.delivered:
                    await asyncio.sleep(EMPTY_MS / 1000)
        finally:
            self._changed.set()

    async def _stop_fetching(self) -> None:
        task, self._fetching = self._fetching, None
        self._waiting.clear()
        self._waiting_bytes = 0
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def _go_back(self) -> None:
        """Fetch again from the position, and messages instead of records."""
        _log.warning(
            "%s: stored records from offset %d on cannot be read; reading messages instead",
            self.partition.key,
            self.position,
        )
        await self._stop_fetching()
        self._record_bytes = None
        self._next = self.position
        await self._register()

    async def _has_more(self) -> bool:
        """Whether messages were stored after the last known end."""
        start = await self._register()
        return start.max_offset > self._next

    async def _fetch_with_retries(self) -> BatchAndEnd | None:
        """The next batch; temporary failures are retried."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._timeout_ms / 1000
        wait = backoff()
        while True:
            try:
                return await self._get()
            except CohererError as error:
                lost = isinstance(error, UnavailableError) or error.code in LOST_CODES
                pause = wait()
                if not (lost or error.code in TEMPORARY_CODES) or loop.time() + pause > deadline:
                    raise
                _log.info("Reading %s: %s", self.partition.key, error, about=self.partition.key)
            await asyncio.sleep(pause)
            if lost:
                await self._catalog.ready()
                await self._register()

    async def _get(self) -> BatchAndEnd | None:
        link = await self._rpc.link(self.partition.broker)
        acknowledged, self._ack_pending = self._ack_pending, False
        body = await self._rpc.get(
            link,
            self.partition,
            acknowledged=acknowledged,
            escapes=False,
            timeout_ms=self._timeout_ms,
            record_bytes=self._record_bytes if self.exact else None,
            record_end=self.end,
        )
        batch = MessageBatch(
            body,
            topic=self.partition.topic,
            broker=str(self.partition.broker.id),
            partition=self.partition.id,
            exact_offsets=self.exact,
            columns=self._columns,
        )
        if batch.code == ResultCode.SUCCESS:
            return await self._arrived(batch)
        if batch.code == ResultCode.NOT_FOUND:
            if self.exact:
                return None
            # Java's broker also answers this after thousands of entries of other partitions in a
            # row (section 8.7); then the offset has moved, and more messages may follow.
            found = await self._arrived(batch)
            return found if found[1] > self._next else None
        raise codes.refused(
            batch.code,
            batch.text,
            server=link.server,
            topic=self.partition.topic,
            partition=self.partition.id,
        )

    async def _arrived(self, batch: MessageBatch) -> BatchAndEnd:
        self._max_offset = max(self._max_offset, batch.max_offset)
        self.gaps += batch.gaps
        if self.exact:
            self._ack_pending = True
            return batch, max(batch.next_offset, self._next)
        # Only the answer to a commit contains the end of the batch.
        link = await self._rpc.link(self.partition.broker)
        answer = await self._rpc.commit(link, self.partition, consumed=True)
        return batch, self._rpc.committed(link, self.partition, answer).currOffset
