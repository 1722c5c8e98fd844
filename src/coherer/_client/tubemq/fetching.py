"""Fetching from one assigned partition, and acknowledging at its broker.

The state is in `engine.assigned`; this is the IO around it. Rules:

* At most one batch of a partition is unacknowledged. The next get is sent when the application has
  acknowledged it or had it redelivered.
* An acknowledgement is sent with the next get, unless `commit` sends it alone. It is sent once: if
  that get is lost, a second one might acknowledge a batch that never arrived. The batch may then be
  delivered again; nothing is skipped.
* From Coherer's brokers, a consumer without filters gets records as they are stored. If it cannot
  read them, it asks for the same ones again, as messages.
* A batch without deliverable messages is acknowledged here, so that the partition continues. The
  messages that are left out are logged once.
* A commit acknowledges the result of the last get, never a time or a count.
* A caller of `seek` or `commit` that is cancelled stops neither fetching nor the commit: the
  partition would stay assigned, and nobody would read it.
* Without an answer, the get is repeated after growing pauses; after `LOST_MS` the partition is
  given up, so that the master can assign it to a member that can reach the broker.

`PAUSES_MS` and `LOST_CODES` define what the broker's codes mean for the partition.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from copy import copy
from datetime import timedelta
from typing import Any, Final, Self

from coherer._client.engine.arguments import checked
from coherer._client.engine.assigned import Delivery, FetchLimits, PartitionState, RetryAfter
from coherer._client.engine.assignments import PrefetchBuffer
from coherer._client.engine.batches import Acknowledgeable
from coherer._client.engine.consumer import Progress
from coherer._client.engine.tasks import backoff, cancel, shared
from coherer._client.tubemq.broker_rpc import BrokerRpc, StartPosition
from coherer._client.tubemq.flow_control import FlowControl
from coherer._client.tubemq.options import ConsumerOptions
from coherer._common.clock import now_ms
from coherer._common.logs import Log
from coherer._record.offset_ranges import described, without
from coherer._wire.tubemq import codes
from coherer._wire.tubemq.codes import ResultCode
from coherer._wire.tubemq.delivery import MessageBatch
from coherer._wire.tubemq.names import Partition
from coherer.errors import CohererError, RefusedError, UnavailableError, UsageError

_log = Log(logging.getLogger(__name__))

PAUSES_MS: Final = {
    int(ResultCode.FORBIDDEN): 2000,
    int(ResultCode.SERVICE_UNAVAILABLE): 300,
    int(ResultCode.MOVED): 200,
}
"""The pause after these codes."""

PAUSE_MS: Final = 300
"""The pause after all others."""

LIMITED_MS: Final = 400
"""The pause after code 452 if the answer contains no time."""

LOST_CODES: Final = frozenset(
    {ResultCode.HB_NO_NODE, ResultCode.DUPLICATE_PARTITION, ResultCode.CERTIFICATE_FAILURE}
)
"""The broker has not assigned the partition to this member."""

LOST_MS: Final = 30_000
"""Servers forget a member that is silent for this long, so the partition can be given up."""

HELD_MS_MIN: Final = 100
"""A broker that answers "not found" sooner does not hold gets until there are messages."""

ONE_BATCH: Final = FetchLimits(messages=1, span=0)


@checked
class ReceivedBatch(MessageBatch, Acknowledgeable):
    """The messages of one get. TubeMQ acknowledges whole batches.

    `retry` without `later` requests the batch again at once; with a `timedelta`, the consumer keeps
    it and delivers it again after that time.
    """

    __slots__ = ("_delivery",)

    def __init__(self, body: bytes, **fields: Any) -> None:
        super().__init__(body, **fields)
        self._delivery: Delivery[ReceivedBatch] | None = None

    @property
    def _count(self) -> int:
        return self.delivered

    def _part(self, numbers: object) -> Self:
        del numbers  # the messages are acknowledged together
        again = copy(self)
        again._delivery = None
        return again


class PartitionFetcher:
    """Fetches from one assigned partition; a `Fetcher` of the engine.

    Args:
        start: the broker's answer to the registration.
        accepted: the accepted tags; None for all.
        flow: limits how fast it is read.
        lost: called when the broker does not assign the partition to this member any more.

    Attributes:
        state: what was fetched and acknowledged.
        partition: as given.
        key: its name in maps.
        listed: see `Fetcher`.
        ack_pending: whether the next get acknowledges the last batch.
    """

    def __init__(
        self,
        partition: Partition,
        start: StartPosition,
        accepted: frozenset[str] | None,
        flow: FlowControl,
        rpc: BrokerRpc,
        buffer: PrefetchBuffer[ReceivedBatch],
        options: ConsumerOptions,
        make_batch: Callable[..., ReceivedBatch],
        lost: Callable[[PartitionFetcher, CohererError], None],
    ) -> None:
        self.partition = partition
        self.key = partition.key
        self.listed = False
        self.ack_pending = False
        self.state = PartitionState[ReceivedBatch](
            self, start.offset, by_message=False, limits=ONE_BATCH
        )
        self._broker = str(partition.broker.id)
        self._exact = start.step == 1 and accepted is None
        self._records_from = start.offset  # below this offset, messages are asked for
        self._holds_gets = start.step is not None
        self._accepted = accepted
        self._flow = flow
        self._rpc = rpc
        self._buffer = buffer
        self._options = options
        self._make_batch = make_batch
        self._lost = lost
        self._offset = start.offset  # where the last batch began
        self._max_offset = start.max_offset
        self._backlog_bytes = -1
        self._left_out = 0
        self._error: CohererError | None = None  # of the last get
        self._reported = False  # whether the left-out messages of the last batch are logged
        self._committing = False  # no get may overtake a commit
        self._changed = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._silent_since: float | None = None
        self._task: asyncio.Task[None] | None = None
        self._ended = False

    def __repr__(self) -> str:
        return f"<PartitionFetcher {self.key}, {self._offset} of {self._max_offset}, {self.state}>"

    @property
    def progress(self) -> Progress:
        """How far the partition has been read."""
        return Progress(
            self._offset,
            self._max_offset,
            self._backlog_bytes,
            self._exact,
            self._left_out,
            self._error,
        )

    # -- called by the assignment manager

    def begin(self) -> None:
        """Begin to fetch, unless it has been ended."""
        if not self._ended:
            self._task = asyncio.create_task(self._run(), name=f"fetch {self.key}")

    def end(self) -> asyncio.Task[None] | None:
        """Stop fetching for good; returns the task that is ending."""
        self._ended = True
        return self._stop()

    async def wait_acknowledged(self) -> None:
        """Wait until the application has acknowledged the current batch."""
        while self.state.in_hand:
            self._changed.clear()
            await self._changed.wait()

    async def seek(self, offset: int) -> int:
        """Register again at another offset; earlier batches become void.

        Returns:
            The offset that the broker continues with.

        Raises:
            RefusedError: the broker does not assign the partition to this member.
            UnavailableError: no answer.
        """
        try:
            await cancel(self._stop())
            self._forget(offset)
            start = await self._rpc.register(self.partition, 0, offset)
            self._forget(start.offset)
            self._offset, self._max_offset = start.offset, start.max_offset
        finally:
            self.begin()
        return start.offset

    def commit(self) -> asyncio.Task[int] | None:
        """Send the pending acknowledgement now, if any.

        Returns:
            A task of the group's new offset, for `asyncio.shield`.
        """
        if not self.ack_pending:
            return None
        self._committing = True
        self.ack_pending = False
        return shared(self._send_commit(consumed=True), f"commit {self.key}")

    # -- called by the engine

    @property
    def can_take(self) -> bool:
        """See `Fetcher`."""
        return self.state.can_take

    def take(self) -> ReceivedBatch | None:
        """See `Fetcher`."""
        while (delivery := self.state.take(now_ms())) is not None:
            batch = delivery.batch
            self._buffer.count(self)
            if not batch.intact:
                delivery.detach()
                self._ask_for_messages(batch)
                return None
            self._report(batch)
            if len(batch):
                return batch
            delivery.acknowledge()
        return None

    def fetch_more(self) -> None:
        """See `Fetcher`."""
        self._changed.set()

    def ready(self) -> None:
        """See `Fetcher`."""
        self._buffer.count(self)
        self._buffer.add(self, first=True)
        self._changed.set()

    def acknowledged(self) -> None:
        """See `Fetcher`."""
        self.ack_pending = True
        self._changed.set()

    def finished(self, delivery: Delivery[ReceivedBatch]) -> None:
        """See `Fetcher`."""

    async def retry(
        self, delivery: Delivery[ReceivedBatch], number: int | None, after: RetryAfter
    ) -> None:
        """See `Fetcher`.

        Raises:
            UsageError: `after` is a delay level, which TubeMQ does not have.
            RefusedError: the broker does not assign the partition to this member any more.
            UnavailableError: no answer; the batch is delivered again.
        """
        del number
        if isinstance(after, timedelta):
            resting = delivery.rest()
            if resting is not None:
                self._loop.call_later(after.total_seconds(), self._wake, resting)
            return
        if after is not None:
            raise UsageError(
                "TubeMQ has no delay levels.",
                topic=self.partition.topic,
                partition=self.partition.id,
                hint="Give a timedelta.",
            )
        delivery.detach()
        self._committing = True
        self._forget(delivery.batch.offset)
        await self._send_commit(consumed=False)

    # -- fetching

    async def _run(self) -> None:
        """Fetch until the partition is lost or this is cancelled."""
        wait = backoff()
        while True:
            await self._wait_until_allowed()
            try:
                pause_ms = await self._fetch_once()
                wait = backoff()
                self._silent_since = self._error = None
            except CohererError as error:
                self._error = error
                if self._is_lost(error):
                    self._lost(self, error)
                    return
                temporary = isinstance(error, UnavailableError)
                tell = _log.info if temporary else _log.warning
                tell("Fetching from %s failed: %s", self.key, error, about=self.key)
                pause_ms = int(wait() * 1000) if temporary else PAUSE_MS
            except Exception:  # noqa: BLE001 - fetching must go on
                _log.exception("Fetching from %s failed", self.key, about=self.key)
                pause_ms = PAUSE_MS
            if pause_ms > 0:
                await asyncio.sleep(pause_ms / 1000)

    def _is_lost(self, error: CohererError) -> bool:
        """Whether the partition must be assigned again after an error."""
        if isinstance(error, UnavailableError):
            now = self._loop.time()
            self._silent_since = now if self._silent_since is None else self._silent_since
            return (now - self._silent_since) * 1000 > LOST_MS
        return isinstance(error, RefusedError) and error.code in LOST_CODES

    async def _wait_until_allowed(self) -> None:
        while self._committing or not self.state.can_fetch or not self._buffer.has_space(self):
            self._changed.clear()
            await self._changed.wait()

    async def _fetch_once(self) -> int:
        """One get and its processing; returns the pause before the next one in ms."""
        link = await self._rpc.link(self.partition.broker)
        sent_at = self._loop.time()
        acknowledged, self.ack_pending = self.ack_pending, False
        body = await self._rpc.get(
            link,
            self.partition,
            acknowledged=acknowledged,
            escapes=self._flow.limits_itself(now_ms()),
            timeout_ms=self._options.poll_ms,
            record_bytes=0 if self._takes_records else None,
        )
        answered_at = self._loop.time()
        batch = self._make_batch(
            body,
            topic=self.partition.topic,
            broker=self._broker,
            partition=self.partition.id,
            exact_offsets=self._exact,
            accepted_tags=self._accepted,
        )
        if batch.code != ResultCode.SUCCESS:
            return self._no_messages(batch, answered_at - sent_at, link.server)
        self._offset, self._max_offset = batch.offset, batch.max_offset
        self._backlog_bytes = batch.backlog_bytes
        self._reported = False
        if batch.delivered and (self._accepted is None or len(batch)):
            self.state.fetched(batch)
            self._buffer.count(self)
            self._buffer.add(self)
            while not self.state.empty:
                self._changed.clear()
                await self._changed.wait()
        else:
            # Either the broker filters by a hash, and nothing matched, or no message can be
            # delivered. Coherer's older brokers then wait for the acknowledgement; Java's brokers
            # continue without it.
            self._report(batch)
            self.ack_pending = batch.delivered > 0 or self._holds_gets
        spent_ms = int((self._loop.time() - answered_at) * 1000)
        return self._flow.delivered(batch, now_ms()) - spent_ms

    @property
    def _takes_records(self) -> bool:
        return self._exact and self.state.next_offset >= self._records_from

    def _no_messages(self, batch: ReceivedBatch, took: float, server: str) -> int:
        if batch.code in LOST_CODES:
            where = self.partition
            raise codes.refused(
                batch.code, batch.text, server=server, topic=where.topic, partition=where.id
            )
        if batch.code == ResultCode.NOT_FOUND:
            waited = self._holds_gets and took * 1000 >= HELD_MS_MIN
            return self._flow.empty(0 if waited else self._options.empty_ms, now_ms())
        pause_ms = PAUSES_MS.get(batch.code, PAUSE_MS)
        if batch.code == ResultCode.SERVER_CONSUME_SPEED_LIMIT:
            pause_ms = batch.wait_ms if batch.wait_ms > 0 else LIMITED_MS
        else:
            _log.warning(
                "%s refused a get from %s: %d %s",
                server,
                self.key,
                batch.code,
                batch.text,
                about=(self.key, batch.code),
            )
        return self._flow.refused(pause_ms, now_ms())

    # -- inside

    def _stop(self) -> asyncio.Task[None] | None:
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
        return task

    async def _send_commit(self, *, consumed: bool) -> int:
        where = self.partition
        try:
            link = await self._rpc.link(where.broker)
            answer = self._rpc.commit(link, where, consumed=consumed)
        finally:
            # The next get may be sent from now on: it uses the same connection, so the broker gets
            # it after the commit.
            self._committing = False
            self._changed.set()
        committed = self._rpc.committed(link, where, await answer)
        if committed.HasField("maxOffset"):
            self._max_offset = committed.maxOffset
        return committed.currOffset

    def _forget(self, offset: int) -> None:
        """Continue at an offset; earlier batches and acknowledgements are void."""
        self.ack_pending = False
        self.state.seek(offset)
        self._buffer.count(self)
        self._changed.set()

    def _ask_for_messages(self, batch: ReceivedBatch) -> None:
        _log.warning(
            "%s: stored records from offset %d on cannot be read; asking for messages instead",
            self.key,
            batch.offset,
            about=self.key,
        )
        self._records_from = batch.next_offset
        self._forget(batch.offset)  # a get without an acknowledgement is answered from there again

    def _wake(self, resting: Delivery[ReceivedBatch]) -> None:
        self.state.wake(resting)
        self.ready()

    def _report(self, batch: ReceivedBatch) -> None:
        """Count and log the messages that the last batch leaves out, once."""
        if self._reported or not batch.skipped:
            return
        self._reported = True
        lost = without(batch.left_out, batch.gaps)  # no message ever had the offsets of a gap
        count = batch.skipped - sum(map(len, batch.left_out)) + sum(map(len, lost))
        if not count:
            return
        self._left_out += count
        missing = described(lost) if lost else f"{count} of those from offset {batch.offset}"
        _log.warning("%s: left out messages that cannot be delivered: %s", self.key, missing)
