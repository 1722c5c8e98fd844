"""Reading a range of one queue without a group.

The range is exact: no message before its start, and none at or after its end. While the application
processes one batch the next ones are fetched, up to `PREFETCH_BYTES`. Messages that cannot be
delivered leave a gap: they are counted and logged, and reading continues after them. A batch is
searched for gaps when the next one is read. By then the application has decoded it, as columns or
as messages, so it is decoded only once.

A slave may serve messages. It never ends or moves a range, because its copy may be behind or may
have been cleaned at other times: messages that a slave lacks are read from the master.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Sequence
from typing import ClassVar, Final

from coherer._client.engine.arguments import checked
from coherer._client.engine.lifecycle import Lifecycle
from coherer._client.engine.tasks import Waiters
from coherer._client.rocketmq.consuming.broker_rpc import BrokerRpc
from coherer._client.rocketmq.consuming.fetch_loop import SLACK_MS, FetchLoop, FetchRequest
from coherer._client.rocketmq.start_position import Edge
from coherer._common.logs import Log
from coherer._record.offset_ranges import between, described, without
from coherer._wire.rocketmq.codes import ResponseCode
from coherer._wire.rocketmq.delivery import MessageBatch
from coherer._wire.rocketmq.names import TOOLS_GROUP, Queue
from coherer._wire.rocketmq.pulling import SUBSCRIPTION, PullEncoder, PullResponse
from coherer.errors import CohererError, UnavailableError, UsageError
from coherer.limits import DECOMPRESSED_BYTES_PER_ANSWER

_log = Log(logging.getLogger(__name__))
INFLATED_MAX: Final = DECOMPRESSED_BYTES_PER_ANSWER

PREFETCH_BYTES: Final = 2 * 1024 * 1024
"""No pull is sent while this many bytes are buffered. Another answer is under way meanwhile; with
more of them, what is decoded has left the processor's cache."""
MAX_MESSAGES: Final = 10_000
"""The maximum number of messages of one pull. Brokers have their own limits: Java's return at
most 32 messages by default, Coherer's 2 MiB."""
TEMPORARY_CODES: Final = frozenset({ResponseCode.SYSTEM_ERROR, ResponseCode.SYSTEM_BUSY})
"""Refusals that may be temporary."""
RETRY_PAUSE_MS: Final = 200
"""The pause before a failed pull is sent again."""


class _PrefetchedRange:
    """The fetched batches of a range; the `FetchHandler` of a reader.

    Args:
        queue: the queue.
        offset: where the first pull begins.
        end: one after the last offset to read.
        max_messages: the maximum number of messages of one pull.
        timeout_ms: how long to retry when the broker does not answer.

    Attributes:
        next_offset: where the next pull begins.
        exhausted: whether the last pull returned nothing.
        gaps: see `Reader`.
    """

    def __init__(
        self, queue: Queue, offset: int, end: int, max_messages: int, timeout_ms: int
    ) -> None:
        self.next_offset = offset
        self.exhausted = False
        self.gaps: list[range] = []
        self._queue = queue
        self._end = end
        self._max_messages = max_messages
        self._timeout_s = timeout_ms / 1000
        self._buffer: deque[MessageBatch] = deque()
        self._buffered_bytes = 0
        self._failure: CohererError | None = None
        self._deadline: float | None = None  # of the retries since the last answer
        self._waiters = Waiters()
        self._loop = asyncio.get_running_loop()

    @property
    def at_end(self) -> bool:
        """Whether the whole range was fetched."""
        return self.next_offset >= self._end

    @property
    def has_batch(self) -> bool:
        """Whether a batch can be taken."""
        return bool(self._buffer)

    @property
    def full(self) -> bool:
        """Whether no more is fetched until a batch is taken."""
        return self._buffered_bytes >= PREFETCH_BYTES

    def take(self) -> MessageBatch:
        """The next batch."""
        batch = self._buffer.popleft()
        self._buffered_bytes -= batch.size_bytes
        return batch

    def raise_failure(self) -> None:
        """Raise the error that ended fetching, once; the next pull tries again."""
        if self._failure is not None:
            failure, self._failure = self._failure, None
            self._deadline = None
            raise failure

    def wake(self) -> None:
        """Wake the tasks in `changed`."""
        self._waiters.wake()

    async def changed(self) -> None:
        """Wait for the next answer or failure."""
        await self._waiters.wait()

    # -- called by the fetch loop

    def next_fetch(self) -> FetchRequest | None:
        """See `FetchHandler`."""
        if self.at_end or self.exhausted or self._failure or self.full:
            return None
        # Never more than the range contains, so that nothing has to be cut off.
        limit = min(self._end - self.next_offset, self._max_messages)
        return FetchRequest(self.next_offset, SUBSCRIPTION, None, limit)

    def arrived(self, answer: PullResponse) -> None:
        """See `FetchHandler`."""
        self._deadline = None
        batch = MessageBatch(
            answer.body,
            self._queue,
            offset=self.next_offset,
            next_offset=answer.next_offset,
            min_offset=answer.min_offset,
            max_offset=answer.max_offset,
            inflated_max=INFLATED_MAX,
        )
        self.next_offset = batch.next_offset
        self.gaps += [gap for gap in answer.gaps if gap.start < self.next_offset]
        if self.next_offset > self._end:
            batch = batch.before(self._end)
        self._buffer.append(batch)
        self._buffered_bytes += batch.size_bytes
        self._waiters.wake()

    def nothing(self, answer: PullResponse) -> None:
        """See `FetchHandler`."""
        self._deadline = None
        self.gaps += answer.gaps
        self.exhausted = answer.next_offset <= self.next_offset
        self.next_offset = max(self.next_offset, answer.next_offset)
        self._waiters.wake()

    def moved(self, answer: PullResponse) -> None:
        """See `FetchHandler`."""
        self.nothing(answer)

    def failed(self, error: CohererError) -> int | None:
        """See `FetchHandler`."""
        now = self._loop.time()
        if self._deadline is None:
            self._deadline = now + self._timeout_s
        temporary = isinstance(error, UnavailableError) or error.code in TEMPORARY_CODES
        if not temporary or now + RETRY_PAUSE_MS / 1000 > self._deadline:
            self._failure = error
            self._waiters.wake()
        return RETRY_PAUSE_MS


@checked
class Reader(Lifecycle):
    """Reads one queue, beginning at an offset. Made by `Client.reader`; use `async with`.

    Args:
        rpc: calls to brokers.
        queue: the queue.
        offset: where to begin; the broker moves it up if messages are deleted.
        end: one after the last offset to read; the end of the queue at the start when None.
        timeout_ms: how long to retry when the broker does not answer.
        max_messages: the maximum number of messages of one pull.
        masters_only: read nothing from slaves.

    Attributes:
        partition: the queue that is read.
        exact: True: offsets count messages.
        position: the next offset to read.
        end: one after the last offset to read.
    """

    _KIND: ClassVar[str] = "reader"

    def __init__(
        self,
        rpc: BrokerRpc,
        queue: Queue,
        offset: int,
        end: int | None = None,
        *,
        timeout_ms: int = 10_000,
        max_messages: int = MAX_MESSAGES,
        masters_only: bool = False,
    ) -> None:
        if offset < 0 or (end is not None and end < offset):
            raise UsageError(
                f"A range cannot go from {offset} to {end}.",
                topic=queue.topic,
                partition=queue.id,
            )
        if max_messages < 1:
            raise UsageError("A reader requests at least one message at a time.")
        self.partition = queue
        self.exact = True
        self.position = offset
        self.end = end
        self._left_out = 0
        self._unchecked: tuple[int, MessageBatch] | None = None  # a batch and its first offset
        self._rpc = rpc
        self._timeout_ms = timeout_ms
        self._max_messages = max_messages
        self._masters_only = masters_only
        self._state = "new"
        self._fetched: _PrefetchedRange
        self._fetching: FetchLoop

    def __repr__(self) -> str:
        end = "the end" if self.end is None else self.end
        return f"<Reader of {self.partition.key} at {self.position}, to {end}: {self._state}>"

    @property
    def left_out(self) -> int:
        """The number of messages of the range that could not be delivered, or were deleted."""
        self._check_gaps()
        return self._left_out

    @property
    def gaps(self) -> list[range]:
        """Offsets that a power cut left empty, as far as was fetched; they hold no messages."""
        return list(self._fetched.gaps)

    async def start(self) -> None:
        """Connect to the broker, and begin to fetch.

        Raises:
            RefusedError: the topic or the queue does not exist.
            UnavailableError: its broker cannot be reached.
        """
        await self._start_with(self._begin, _nothing)
        self._fetching.fetch_more()

    async def _begin(self) -> None:
        await self._rpc.instance.start()
        await self._rpc.instance.routes.route(self.partition.topic)
        if self.end is None:
            end = await self._rpc.resolve(self.partition, Edge.END, masters_only=True)
            self.end = max(end, self.position)
        encoder = PullEncoder(
            TOOLS_GROUP,
            self.partition,
            max_messages=self._max_messages,
            expression="*",
            expression_type="TAG",
        )
        self._fetched = _PrefetchedRange(
            self.partition, self.position, self.end, self._max_messages, self._timeout_ms
        )
        timeout_ms = min(self._timeout_ms, SLACK_MS)
        self._fetching = FetchLoop(
            self._rpc,
            self.partition,
            encoder,
            self._fetched,
            timeout_ms,
            exact=True,
            masters_only=self._masters_only,
        )

    async def read(self) -> MessageBatch | None:
        """The next messages; None at the end of the range or of the queue.

        Raises:
            UnavailableError: the broker did not answer within the timeout.
            RefusedError: the broker refused the pull.
        """
        self.check()
        self._check_gaps()
        fetched = self._fetched
        if fetched.exhausted and not fetched.has_batch:
            fetched.exhausted = False  # messages may have been stored since
            self._fetching.fetch_more()
        while True:
            self.check()
            if fetched.has_batch:
                return self._take()
            fetched.raise_failure()
            if fetched.exhausted or fetched.at_end:
                end = (
                    fetched.next_offset if self.end is None else min(fetched.next_offset, self.end)
                )
                self._report_gaps(self.position, end, ())
                self.position = max(self.position, fetched.next_offset)
                return None
            self._fetching.fetch_more()
            await fetched.changed()

    async def close(self) -> None:
        """Stop fetching. Calling it again does nothing."""
        if self._end():
            self._check_gaps()
            self._fetching.stop()
            self._fetched.wake()

    def _check_client(self) -> None:
        self._rpc.instance.pool.check()

    def _check_gaps(self) -> None:
        """Search the last batch for gaps."""
        if self._unchecked is not None:
            (begin, batch), self._unchecked = self._unchecked, None
            if len(batch) != batch.next_offset - begin:
                self._report_gaps(begin, batch.next_offset, batch.offsets())

    def _report_gaps(self, begin: int, end: int, offsets: Sequence[int]) -> None:
        """Count and log the missing messages between two offsets."""
        gaps = between(begin, end, offsets)
        if gaps and (gaps := without(gaps, self._fetched.gaps)):
            self._left_out += sum(map(len, gaps))
            queue = self.partition
            _log.warning(
                "%s: left out messages that cannot be delivered: %s", queue, described(gaps)
            )

    def _take(self) -> MessageBatch:
        batch = self._fetched.take()
        self._unchecked = self.position, batch
        self.position = batch.next_offset
        if not self._fetched.full:
            self._fetching.fetch_more()
        return batch


async def _nothing() -> None:
    """Leave nothing: connections belong to the client."""


async def first_since(rpc: BrokerRpc, queue: Queue, low: int, high: int, time_ms: int) -> int:
    """The offset of the first message that was stored at a time or later.

    Brokers can search by time (29), but they return the *nearest* message, and select a file by its
    modification time, which a copied directory has lost (docs/protocol/rocketmq.md, section 6.3). A
    reader that begins at a time must not miss a message, so this is a binary search with reads of
    single messages. Where an offset has none (in the gap of a power cut, or because the message is
    damaged or was deleted meanwhile), the next message decides.

    The store times in a queue do not decrease, unless the broker's clock does.

    Args:
        rpc: calls to brokers.
        queue: the queue.
        low: the first offset.
        high: one after the last offset.
        time_ms: since 1970.

    Returns:
        The offset; `high` if all messages are older.

    Raises:
        CohererError: the broker refused a pull, or does not answer.
    """
    found = high
    while low < high:
        middle = (low + high) // 2
        first = await _first_of(rpc, queue, middle, middle + 1)
        if first is None and middle + 1 < high:
            first = await _first_of(rpc, queue, middle + 1, high)
        if first is None:
            high = middle
            continue
        offset, stored_ms = max(first[0], middle), first[1]  # a broken broker must not turn it back
        if stored_ms < time_ms:
            low = offset + 1
        else:
            high, found = middle, offset
    return found


async def _first_of(rpc: BrokerRpc, queue: Queue, begin: int, end: int) -> tuple[int, int] | None:
    """Return the offset and the store time of a range's first message, or None if it is empty."""
    async with Reader(rpc, queue, begin, end, max_messages=1) as reader:
        while (batch := await reader.read()) is not None:
            for offset, message in zip(batch.offsets(), batch, strict=True):
                return offset, message.stored_ms
    return None
