"""Reading a range of one partition, in a group of its own.

See docs/protocol/tubemq.md, section 8.7.

Where offsets count messages (Coherer's broker), the range is exact: no message before its start,
and none at or after its end. With Java's broker, offsets are byte positions in an index that
partitions share: a read begins exactly at a position that the broker returned, and ends with the
first batch that reaches the end, which may contain messages after it.

Messages that cannot be delivered leave a gap: they are counted and logged, and reading continues
after them.
"""

from __future__ import annotations

import asyncio
import logging
from typing import ClassVar, Final, TypeAlias

from coherer._client.engine.lifecycle import Lifecycle
from coherer._client.engine.tasks import backoff
from coherer._client.tubemq.broker_rpc import BrokerRpc, StartPosition
from coherer._client.tubemq.fetching import LOST_CODES
from coherer._client.tubemq.topics import TopicCatalog
from coherer._common.logs import Log
from coherer._record.offset_ranges import between, described
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

EMPTY_MS: Final = 5
"""The pause after an empty batch; Java's brokers return several in a row."""


BatchAndEnd: TypeAlias = tuple[MessageBatch, int]
"""Messages, and the offset after them."""


class Reader(Lifecycle):
    """Reads one partition from an offset on. Made by `Client.reader`; use `async with`.

    Args:
        catalog: gives the reader a group of its own.
        partition: the partition.
        offset: where to begin; the broker moves it up if messages are deleted.
        end: one after the last offset to read; the end of the partition at the start when None.
        timeout_ms: how long to retry when the broker does not answer.

    Attributes:
        partition: the partition that is read.
        exact: whether offsets count messages; set by `start`.
        position: the next offset to read.
        end: one after the last offset to read.
        left_out: how many messages of the range could not be delivered, or are deleted. With Java's
            broker it counts damaged messages only.
    """

    _KIND: ClassVar[str] = "reader"

    def __init__(
        self,
        catalog: TopicCatalog,
        partition: Partition,
        offset: int,
        end: int | None,
        timeout_ms: int,
    ) -> None:
        if offset < 0 or (end is not None and end < offset):
            raise UsageError(f"A range cannot go from {offset} to {end}.")
        self.partition = partition
        self.exact = False
        self.position = offset
        self.end = end
        self.left_out = 0
        self._catalog = catalog
        self._timeout_ms = timeout_ms
        self._slot: int | None = None
        self._state = "new"
        self._ack_pending = False
        self._ahead: asyncio.Task[BatchAndEnd | None] | None = None
        self._max_offset = -1
        self._rpc: BrokerRpc

    def __repr__(self) -> str:
        key, end = self.partition.key, "the end" if self.end is None else self.end
        return f"<Reader of {key} at {self.position}, to {end}: {self._state}>"

    async def start(self) -> None:
        """Register the partition with its broker.

        Raises:
            RefusedError: the partition does not exist.
            UnavailableError: its broker cannot be reached.
        """
        self._check_new()
        await self._catalog.ready()
        self._slot = self._catalog.reserve()
        try:
            self._rpc = self._catalog.rpc(self._slot)
            await self._register()
        except BaseException:
            self._state = "closed"
            self._release()
            raise
        self._state = "open"

    async def read(self) -> MessageBatch | None:
        """The next messages; None at the end of the range or of the partition.

        Raises:
            UnavailableError: the broker did not answer within the timeout.
            RefusedError: the broker refused the get.
        """
        self.check()
        while self.end is None or self.position < self.end:
            if self.exact and self.position >= self._max_offset and not await self._has_more():
                return None
            found = await self._fetch_with_retries()
            if found is None:
                return None
            batch, end = found
            self._report_gaps(batch, end)
            self.position = end
            if self.exact:
                self._fetch_ahead()
            if len(batch):
                return batch
            await asyncio.sleep(EMPTY_MS / 1000)
        return None

    async def close(self) -> None:
        """Unregister the partition. Calling it again does nothing."""
        opened, self._state = self._state == "open", "closed"
        if not opened:
            return
        await self._forget_ahead()
        try:
            await self._rpc.unregister(self.partition, consumed=False)
        except CohererError as error:
            _log.info("Unregistering %s failed: %s", self.partition.key, error)
        self._release()

    # -- inside

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
            gaps = between(self.position, end, batch.offsets())
            self.left_out += sum(map(len, gaps))
            _log.warning("%s: left out messages that cannot be delivered: %s", key, described(gaps))

    def _report_deleted(self, first: int, end: int) -> None:
        """Count and log deleted messages."""
        if self.exact:
            self.left_out += end - first
            gap = described([range(first, end)])
            _log.warning("%s: messages are deleted: %s", self.partition.key, gap)

    def _release(self) -> None:
        if self._slot is not None:
            self._catalog.release(self._slot)
            self._slot = None

    async def _register(self) -> StartPosition:
        start = await self._rpc.register(self.partition, read_status=0, offset=self.position)
        self.exact = start.step == 1
        if start.offset > self.position:
            self._report_deleted(self.position, start.offset)
        self.position = start.offset
        self._ack_pending = False
        self._max_offset = start.max_offset
        if self.end is None:
            self.end = start.max_offset
        return start

    async def _has_more(self) -> bool:
        """Whether messages were stored after the last known end."""
        start = await self._register()
        return start.max_offset > self.position

    async def _fetch_with_retries(self) -> BatchAndEnd | None:
        """The next batch; temporary failures are retried."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._timeout_ms / 1000
        wait = backoff()
        while True:
            ahead, self._ahead = self._ahead, None
            try:
                return await (ahead or self._get())
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

    def _fetch_ahead(self) -> None:
        """Request the next batch while the application handles this one."""
        if self._ack_pending and self.position < min(self._max_offset, self.end or self.position):
            self._ahead = asyncio.create_task(self._get(), name=f"read {self.partition.key}")

    async def _forget_ahead(self) -> None:
        ahead, self._ahead = self._ahead, None
        if ahead is not None:
            ahead.cancel()
            await asyncio.gather(ahead, return_exceptions=True)

    async def _get(self) -> BatchAndEnd | None:
        link = await self._rpc.link(self.partition.broker)
        acknowledged, self._ack_pending = self._ack_pending, False
        body = await self._rpc.get(
            link,
            self.partition,
            acknowledged=acknowledged,
            escapes=False,
            timeout_ms=self._timeout_ms,
        )
        batch = MessageBatch(
            body,
            topic=self.partition.topic,
            broker=str(self.partition.broker.id),
            partition=self.partition.id,
            exact_offsets=self.exact,
        )
        if batch.code == ResultCode.SUCCESS:
            return await self._arrived(batch)
        if batch.code == ResultCode.NOT_FOUND:
            if self.exact:
                return None
            # Java's broker also answers this after thousands of entries of other partitions in a
            # row (section 8.7); then the offset has moved, and more messages may follow.
            found = await self._arrived(batch)
            return found if found[1] > self.position else None
        raise codes.refused(
            batch.code,
            batch.text,
            server=link.server,
            topic=self.partition.topic,
            partition=self.partition.id,
        )

    async def _arrived(self, batch: MessageBatch) -> BatchAndEnd:
        self._max_offset = max(self._max_offset, batch.max_offset)
        if self.exact:
            self._ack_pending = True
            end = max(batch.next_offset, self.position)
            if self.end is None or end <= self.end:
                return batch, end
            return batch.before(self.end), self.end
        # Only the answer to a commit contains the end of the batch.
        link = await self._rpc.link(self.partition.broker)
        answer = await self._rpc.commit(link, self.partition, consumed=True)
        return batch, self._rpc.committed(link, self.partition, answer).currOffset
