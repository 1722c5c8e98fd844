"""Reads a range of one queue. No group notices.

The range is exact: no message before its start, none at or behind its end. While the application
looks at one answer the next ones come, as much as `AHEAD_BYTES`. Messages that cannot be delivered
leave a gap: they are counted and logged, and the range goes on behind them.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Sequence
from typing import ClassVar, Final

from coherer._client.engine.lifecycle import Lifecycle
from coherer._client.engine.tasks import Waiters
from coherer._client.rocketmq.door import Door
from coherer._client.rocketmq.pulling import SLACK_MS, Puller, Wish
from coherer._client.rocketmq.start import Edge
from coherer._common.logs import Log
from coherer._record.gaps import between, described
from coherer._wire.rocketmq.codes import ResponseCode
from coherer._wire.rocketmq.delivery import MessageBatch
from coherer._wire.rocketmq.names import TOOLS_GROUP, Queue
from coherer._wire.rocketmq.pulling import SUBSCRIPTION, PullAnswer, PullEncoder
from coherer.errors import CohererError, UnavailableError, UsageError

_log = Log(logging.getLogger(__name__))

AHEAD_BYTES: Final = 8 * 1024 * 1024
"""No more is asked for while so much waits here."""

MAX_MESSAGES: Final = 1_000
"""What one request asks for; Java's brokers give 32 unless they are set otherwise."""

PASSING_CODES: Final = frozenset({ResponseCode.SYSTEM_ERROR, ResponseCode.SYSTEM_BUSY})
"""Refusals that may pass."""

REST_MS: Final = 200
"""Before the next try."""


class Reader(Lifecycle):
    """Reads one queue from an offset on. Made by `Client.reader`; use `async with`.

    Args:
        door: the way to the brokers.
        queue: what to read.
        offset: where to begin; moved up by the broker where messages are gone.
        end: the offset behind the last to read; the end of the queue at the start when None.
        timeout_ms: how long to try when the broker does not answer.
        max_messages: what to ask for at a time.

    Attributes:
        partition: the queue that is read.
        exact: True: offsets count messages.
        position: the next offset to read.
        end: the offset behind the last to read.
        left_out: how many messages of the range could not be delivered, or are not there any more.
    """

    _KIND: ClassVar[str] = "reader"

    def __init__(
        self,
        door: Door,
        queue: Queue,
        offset: int,
        end: int | None = None,
        *,
        timeout_ms: int = 10_000,
        max_messages: int = MAX_MESSAGES,
    ) -> None:
        if offset < 0 or (end is not None and end < offset):
            raise UsageError(f"There is no range from {offset} to {end}.")
        if max_messages < 1:
            raise UsageError("A reader asks for one message at least.")
        self.partition = queue
        self.exact = True
        self.position = offset
        self.end = end
        self.left_out = 0
        self._door = door
        self._timeout_ms = timeout_ms
        self._max_messages = max_messages
        self._state = "new"
        self._ahead = offset  # where the next pull begins
        self._ready: deque[MessageBatch] = deque()
        self._ready_bytes = 0
        self._dry = False  # there was nothing more
        self._failure: CohererError | None = None
        self._deadline: float | None = None  # of the tries since an answer came
        self._takers = Waiters()
        self._puller: Puller
        self._loop: asyncio.AbstractEventLoop

    def __repr__(self) -> str:
        queue, end = self.partition, "the end" if self.end is None else self.end
        where = f"{queue.broker}:{queue.topic}:{queue.id}"
        return f"<Reader of {where} at {self.position}, to {end}: {self._state}>"

    async def start(self) -> None:
        """Find the broker, and begin to read.

        Raises:
            RefusedError: there is no such topic or queue.
            UnavailableError: its broker cannot be reached.
        """
        self._check_new()
        self._state = "closed"
        self._loop = asyncio.get_running_loop()
        await self._door.instance.start()
        await self._door.instance.route(self.partition.topic)
        if self.end is None:
            end = await self._door.place(self.partition, Edge.END)
            self.end = max(end, self.position)
        encoder = PullEncoder(
            TOOLS_GROUP,
            self.partition,
            max_messages=self._max_messages,
            expression="*",
            expression_type="TAG",
        )
        timeout_ms = min(self._timeout_ms, SLACK_MS)
        self._puller = Puller(self._door, self.partition, encoder, self, timeout_ms)
        self._state = "open"
        self._puller.kick()

    async def read(self) -> MessageBatch | None:
        """The next messages; None when the end is reached or there are no more.

        Raises:
            UnavailableError: the broker has not answered for as long as the timeout.
            RefusedError: the broker does not let us read.
        """
        if self._state == "open" and self._dry and not self._ready:
            self._dry = False  # something may have come since
            self._puller.kick()
        while True:
            self.check()
            if self._ready:
                return self._take()
            if self._failure is not None:
                failure, self._failure = self._failure, None
                self._deadline = None
                raise failure
            if self._dry or self._at_end:
                end = self._ahead if self.end is None else min(self._ahead, self.end)
                self._report(end, ())
                self.position = max(self.position, self._ahead)
                return None
            self._puller.kick()
            await self._takers.wait()

    async def close(self) -> None:
        """Read no more. Calling it again does nothing."""
        opened, self._state = self._state == "open", "closed"
        if opened:
            self._puller.stop()
            self._takers.wake()

    # -- what the puller calls

    def wants(self) -> Wish | None:
        """See `pulling.Source`."""
        if self._at_end or self._dry or self._failure or self._ready_bytes >= AHEAD_BYTES:
            return None
        # Never more than the range holds, so that nothing has to be cut off.
        left = self._max_messages if self.end is None else self.end - self._ahead
        return Wish(self._ahead, SUBSCRIPTION, None, min(left, self._max_messages))

    def arrived(self, answer: PullAnswer) -> None:
        """See `pulling.Source`."""
        self._deadline = None
        batch = MessageBatch(
            answer.body,
            self.partition,
            offset=self._ahead,
            next_offset=answer.next_offset,
            min_offset=answer.min_offset,
            max_offset=answer.max_offset,
        )
        if self.end is not None and answer.next_offset > self.end:
            batch = batch.before(self.end)
        self._ahead = answer.next_offset
        self._ready.append(batch)
        self._ready_bytes += batch.size_bytes
        self._takers.wake()

    def nothing(self, answer: PullAnswer) -> None:
        """See `pulling.Source`."""
        self._deadline = None
        self._dry = answer.next_offset <= self._ahead
        self._ahead = max(self._ahead, answer.next_offset)
        self._takers.wake()

    def moved(self, answer: PullAnswer) -> None:
        """See `pulling.Source`."""
        self.nothing(answer)

    def failed(self, error: CohererError) -> int | None:
        """See `pulling.Source`."""
        now = self._loop.time()
        if self._deadline is None:
            self._deadline = now + self._timeout_ms / 1000
        passes = isinstance(error, UnavailableError) or error.code in PASSING_CODES
        if not passes or now + REST_MS / 1000 > self._deadline:
            self._failure = error
            self._takers.wake()
        return REST_MS

    # -- inside

    def _check_client(self) -> None:
        self._door.instance.pool.check()

    def _report(self, end: int, offsets: Sequence[int]) -> None:
        """Count and log what is missing from the position to an offset."""
        gaps = between(self.position, end, offsets)
        if gaps:
            self.left_out += sum(map(len, gaps))
            queue = self.partition
            _log.warning("%s: left out, because it cannot be delivered: %s", queue, described(gaps))

    @property
    def _at_end(self) -> bool:
        return self.end is not None and self._ahead >= self.end

    def _take(self) -> MessageBatch:
        batch = self._ready.popleft()
        self._ready_bytes -= batch.size_bytes
        if len(batch) != batch.next_offset - self.position:
            self._report(batch.next_offset, batch.offsets())
        self.position = batch.next_offset
        if self._ready_bytes < AHEAD_BYTES:
            self._puller.kick()
        return batch
