"""One assigned queue: pulls ahead of the application, delivers, and moves the offset to commit.

See docs/protocol/rocketmq.md, sections 8.10, 8.13 and 8.14.

The state is in `engine.assigned`; this is the I/O around it.

* At most one pull is in flight (`fetch_loop`). The next one is sent as soon as the answer is here,
  unless enough is buffered (`ConsumerOptions`), the queue is paused, or an orderly queue is not
  locked.
* The offset to commit moves when messages are acknowledged. If the broker does not know it yet, the
  next pull carries it (`OffsetStore.offset_for_pull`); slaves do not get offsets.
* A message is sent back once: while its broker is asked, another `retry` waits for the answer, and
  acknowledging the message has no effect.
* Bodies that are decompressed exceed `INFLATED_MAX` in no batch. The messages behind it are pulled
  again.
* Messages that cannot be delivered are skipped. They are counted and logged once, when the batch is
  taken. A batch without deliverable messages is acknowledged here.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from datetime import timedelta
from typing import Final

import msgspec

from coherer._client.engine.assigned import Delivery, PartitionState, RetryAfter
from coherer._client.engine.assignments import PrefetchBuffer
from coherer._client.engine.consumer import Progress
from coherer._client.engine.tasks import Waiters
from coherer._client.rocketmq.consuming.broker_rpc import BrokerRpc
from coherer._client.rocketmq.consuming.fetch_loop import SLACK_MS, FetchLoop, FetchRequest
from coherer._client.rocketmq.consuming.offsets import OffsetStore
from coherer._client.rocketmq.consuming.redelivery import Redelivery
from coherer._client.rocketmq.options import ConsumerOptions, fetch_limits
from coherer._client.rocketmq.received import (
    ReceivedBatch,
    count_of,
    count_retry,
    message_at,
    retry_reason,
    split,
)
from coherer._client.rocketmq.routing import MASTER
from coherer._common.clock import now_ms
from coherer._common.logs import Log
from coherer._record.offset_ranges import described, without
from coherer._record.system_topics import DELAY_LEVELS_MS
from coherer._wire.rocketmq.bodies import ConsumeStatus
from coherer._wire.rocketmq.codes import ResponseCode
from coherer._wire.rocketmq.names import Queue
from coherer._wire.rocketmq.pulling import LITE, SUSPEND, PullEncoder, PullResponse
from coherer._wire.rocketmq.subscription import Subscription
from coherer.errors import ClosedError, CohererError, UnavailableError
from coherer.limits import DECOMPRESSED_BYTES_PER_ANSWER

_log = Log(logging.getLogger(__name__))

PAUSE_MS: Final = 1_000
"""The pause after a failed pull (section 8.10)."""

SUSPEND_MS: Final = (10, 30_000)
"""The minimum and maximum pause of an orderly queue after a failure (section 8.14)."""

AGAIN_MS: Final = 5_000
"""A message that no broker accepted is delivered again after this time (section 8.13)."""

INFLATED_MAX: Final = DECOMPRESSED_BYTES_PER_ANSWER

UNKNOWN_MS: Final = 50
"""The pause after the first refusal by a broker that has not received the heartbeat yet."""

UNKNOWN_WARNED: Final = 5
"""After this many refusals in a row heartbeats have not helped, and the refusal is logged."""

UNKNOWN_CODES: Final = frozenset(
    {
        ResponseCode.SUBSCRIPTION_NOT_EXIST,
        ResponseCode.SUBSCRIPTION_NOT_LATEST,
        ResponseCode.FILTER_DATA_NOT_EXIST,
        ResponseCode.FILTER_DATA_NOT_LATEST,
    }
)
"""The broker does not know the subscription, or not its current version."""

LOCK_LIFE_MS: Final = 30_000
"""How long a lock is considered valid (section 8.14); the broker keeps it for twice as long."""

WINDOW_MS: Final = 60_000
BUCKET_MS: Final = 5_000


class _Bucket(msgspec.Struct, gc=False):
    """Sums over some seconds."""

    begin_ms: int
    pulls: int = 0
    pull_ms: int = 0
    pulled: int = 0
    batches: int = 0
    consume_ms: int = 0
    ok: int = 0
    failed: int = 0


class ConsumeStatistics:
    """Counts pulls and deliveries of one topic over the last minute, for brokers that ask (307).

    No I/O and no clock: the caller passes the time. Counts once per batch.

    >>> statistics = ConsumeStatistics()
    >>> statistics.pulled(0, 30, took_ms=4)
    >>> statistics.consumed(1_000, ok=29, failed=1, took_ms=58)
    >>> status = statistics.status(2_000)
    >>> status.pull_tps, status.pull_rt, status.consume_rt, status.consume_failed_msgs
    (0.5, 4.0, 58.0, 1)
    >>> statistics.status(100_000).pull_tps
    0.0
    """

    def __init__(self) -> None:
        self._buckets: deque[_Bucket] = deque(maxlen=WINDOW_MS // BUCKET_MS)

    def pulled(self, now_ms: int, count: int, took_ms: int) -> None:
        """Count a pull that returned messages."""
        bucket = self._bucket(now_ms)
        bucket.pulls += 1
        bucket.pull_ms += took_ms
        bucket.pulled += count

    def consumed(self, now_ms: int, *, ok: int, failed: int, took_ms: int) -> None:
        """Count a batch that is done."""
        bucket = self._bucket(now_ms)
        bucket.batches += 1
        bucket.consume_ms += took_ms
        bucket.ok += ok
        bucket.failed += failed

    def status(self, now_ms: int) -> ConsumeStatus:
        """The last minute: rates per second, times in ms per pull and batch."""
        recent = [one for one in self._buckets if one.begin_ms > now_ms - WINDOW_MS]
        seconds = WINDOW_MS / 1000
        return ConsumeStatus(
            pull_rt=_mean(sum(one.pull_ms for one in recent), sum(one.pulls for one in recent)),
            pull_tps=sum(one.pulled for one in recent) / seconds,
            consume_rt=_mean(
                sum(one.consume_ms for one in recent), sum(one.batches for one in recent)
            ),
            consume_ok_tps=sum(one.ok for one in recent) / seconds,
            consume_failed_tps=sum(one.failed for one in recent) / seconds,
            consume_failed_msgs=sum(one.failed for one in recent),
        )

    def _bucket(self, now_ms: int) -> _Bucket:
        begin_ms = now_ms // BUCKET_MS * BUCKET_MS
        if not self._buckets or self._buckets[-1].begin_ms != begin_ms:
            self._buckets.append(_Bucket(begin_ms))
        return self._buckets[-1]


def _mean(total: int, count: int) -> float:
    return total / count if count else 0.0


class QueueContext(msgspec.Struct, frozen=True):
    """The parts that all assigned queues of a consumer share.

    Args:
        flags: of pulls, see `coherer._wire.rocketmq.pulling`.
        unknown: called when a broker does not know the subscription.
        missing: called with the queue when a broker does not have the topic.
    """

    rpc: BrokerRpc
    group: str
    options: ConsumerOptions
    flags: int
    store: OffsetStore
    redelivery: Redelivery
    buffer: PrefetchBuffer[ReceivedBatch]
    make_batch: Callable[..., ReceivedBatch]
    unknown: Callable[[], None]
    missing: Callable[[Queue], None]

    @property
    def manual(self) -> bool:
        """Whether the consumer moves offsets itself."""
        return bool(self.flags & LITE)

    @property
    def locking(self) -> bool:
        """Whether queues are locked."""
        return self.options.orderly and self.options.model == "clustering"


class AssignedQueue:
    """One assigned queue. A `Fetcher` of the engine, and the `FetchHandler` of its fetch loop.

    Args:
        context: shared by the consumer's queues.
        offset: where to begin.

    Attributes:
        queue: the queue.
        state: what was fetched and acknowledged.
        max_offset, min_offset: the ends of the queue in the last answer, -1 while unknown.
        locked_ms: when the broker last locked the queue; 0 if it is not locked.
        listed: see `Fetcher`.
        heard_ms: when a broker last answered.
        left_out: how many messages could not be delivered.
    """

    def __init__(
        self,
        context: QueueContext,
        queue: Queue,
        subscription: Subscription,
        offset: int,
        statistics: ConsumeStatistics,
    ) -> None:
        options = context.options
        self.queue = queue
        self.max_offset = -1
        self.min_offset = -1
        self.locked_ms = 0
        self.listed = False
        self.heard_ms = now_ms()
        self.left_out = 0
        self.state = PartitionState[ReceivedBatch](
            self, offset, ordered=options.orderly, limits=fetch_limits(options)
        )
        self._context = context
        self._options = options
        self._store = context.store
        self._buffer = context.buffer
        self._reported = offset  # messages before it are counted and logged
        self._gaps: list[range] = []  # offsets behind it that never had a message
        self._subscription = subscription
        self._tags = subscription.accepted
        self._filtered = bool(subscription.tags) or subscription.kind != "TAG"
        self._asked_ms = 0
        self._statistics = statistics
        self._error: CohererError | None = None  # of the last pull
        self._unknown = 0  # refusals by UNKNOWN_CODES in a row
        self._timers: set[asyncio.TimerHandle] = set()
        self._returned = Waiters()
        self._loop = asyncio.get_running_loop()
        self._fetching = self._new_fetch_loop()

    def __repr__(self) -> str:
        return f"<AssignedQueue {self.queue}, {self.state}>"

    # -- called by the assignment manager

    @property
    def progress(self) -> Progress:
        """How far the queue has been processed."""
        return Progress(
            self.state.commit_offset,
            self.max_offset,
            -1,
            exact=True,
            left_out=self.left_out,
            error=self._error,
        )

    @property
    def locked(self) -> bool:
        """Whether the broker has locked the queue for this consumer, as far as it is known."""
        return now_ms() - self.locked_ms < LOCK_LIFE_MS

    def silent_since(self, before_ms: int) -> bool:
        """Whether a pull that was sent before this time is still unanswered."""
        return self._fetching.busy and self.heard_ms < before_ms and self._asked_ms < before_ms

    def seek(self, offset: int) -> None:
        """Continue at another offset; everything that was fetched is dropped."""
        self.close()
        self.state.seek(offset)
        self._buffer.count(self)
        if not self._context.manual:
            self._store.table.move(self.queue, offset)
        self._reported = offset
        self._fetching = self._new_fetch_loop()
        self._fetching.fetch_more()

    def close(self) -> None:
        """Stop pulling and redelivering."""
        self._fetching.stop()
        for timer in self._timers:
            timer.cancel()
        self._timers.clear()

    def sync(self) -> None:
        """Move the offset to commit behind the messages that loops have passed."""
        for delivery in self.state:
            delivery.count_seen()
        self._move(self.state.commit_offset)

    # -- called by the engine

    @property
    def can_take(self) -> bool:
        """See `Fetcher`."""
        return self.state.can_take and (not self._context.locking or self.locked)

    def take(self) -> ReceivedBatch | None:
        """See `Fetcher`."""
        while self.can_take and (delivery := self.state.take(now_ms())) is not None:
            batch = delivery.batch
            self._report(batch)
            if len(batch):
                return batch
            delivery.acknowledge()
        return None

    def fetch_more(self) -> None:
        """See `Fetcher`."""
        self._fetching.fetch_more()

    def ready(self) -> None:
        """See `Fetcher`."""
        self._buffer.count(self)
        self._buffer.add(self, first=True)

    def acknowledged(self) -> None:
        """See `Fetcher`."""
        self._move(self.state.commit_offset)
        self._buffer.count(self)
        if self.state.ordered:
            self._buffer.add(self)
        self._fetching.fetch_more()

    def finished(self, delivery: Delivery[ReceivedBatch]) -> None:
        """See `Fetcher`."""
        failed = len(delivery.failed)
        if not len(delivery.batch):
            return
        now = now_ms()
        ok = max(delivery.count - failed, 0)
        self._statistics.consumed(now, ok=ok, failed=failed, took_ms=now - delivery.taken_ms)
        if delivery.on_done is not None:
            delivery.on_done(delivery.failed)

    async def retry(
        self, delivery: Delivery[ReceivedBatch], number: int | None, after: RetryAfter
    ) -> None:
        """See `Fetcher`."""
        for each in delivery.open_numbers if number is None else (number,):
            await self._retry(delivery, each, after)

    async def _retry(
        self, delivery: Delivery[ReceivedBatch], number: int, after: RetryAfter
    ) -> None:
        while number in delivery.returning:
            await self._returned.wait()
        if not delivery.in_hand or number not in delivery.open_numbers:
            return
        message = message_at(delivery.batch, number)
        delivery.failed.add(message.offset or 0)
        delivery.returning.add(number)
        accepted = False
        try:
            reason = retry_reason(delivery.batch, number)
            accepted = await self._context.redelivery.send_back(message, after, reason)
        except BaseException:  # cancelled, or there is no such delay level
            if delivery.released:  # nobody would settle the message any more
                self._deliver_again(delivery, number, after)
            else:
                delivery.failed.discard(message.offset or 0)
            raise
        finally:
            delivery.returning.discard(number)
            self._returned.wake()
        if accepted:
            delivery.acknowledge(number)
        else:
            self._deliver_again(delivery, number, after)

    def _deliver_again(
        self, delivery: Delivery[ReceivedBatch], number: int, after: RetryAfter
    ) -> None:
        """Deliver a message again that no broker has taken back."""
        if self.state.ordered:
            delivery.failed.update(delivery.batch.offsets())
            self._wake_later(self._suspend_ms(after), delivery.rest())
        else:
            self._wake_later(AGAIN_MS, delivery.set_aside(number))

    def _wake_later(self, pause_ms: int, resting: Delivery[ReceivedBatch] | None) -> None:
        """Deliver a resting delivery after a pause, as another attempt."""
        self._buffer.count(self)
        if resting is None:
            return

        def wake() -> None:
            self._timers.discard(timer)
            count_retry(resting.batch)
            self.state.wake(resting)
            self._buffer.add(self)

        timer = self._loop.call_later(pause_ms / 1000, wake)
        self._timers.add(timer)

    def _suspend_ms(self, after: RetryAfter) -> int:
        """How long an orderly queue pauses after a failure."""
        wanted_ms = self._options.suspend_ms
        if isinstance(after, timedelta):
            wanted_ms = int(after.total_seconds() * 1000)
        elif after and 0 < after <= len(DELAY_LEVELS_MS):
            wanted_ms = DELAY_LEVELS_MS[after - 1]
        return min(max(wanted_ms, SUSPEND_MS[0]), SUSPEND_MS[1])

    # -- called by the fetch loop

    def next_fetch(self) -> FetchRequest | None:
        """See `FetchHandler`."""
        if not self.state.can_fetch or not self._buffer.has_space(self):
            return None
        if self._context.locking and not self.locked:
            return None
        self._asked_ms = now_ms()
        return FetchRequest(self.state.next_offset, self._context.flags, self._offset_for_pull())

    def arrived(self, answer: PullResponse) -> None:
        """See `FetchHandler`."""
        self._answered(answer)
        batch = self._context.make_batch(
            answer.body,
            self.queue,
            tags=self._tags,
            offset=self.state.next_offset,
            next_offset=answer.next_offset,
            min_offset=answer.min_offset,
            max_offset=answer.max_offset,
            inflated_max=INFLATED_MAX,
            filtered=self._filtered,
        )
        self._gaps += [gap for gap in answer.gaps if gap.start < batch.next_offset]
        count = count_of(batch)
        if not count or (self._filtered and not len(batch)):
            self._report(batch)
            self._pass_over(batch.next_offset)
            return
        self._statistics.pulled(self.heard_ms, count, self.heard_ms - self._asked_ms)
        size = self._options.batch_messages
        self.state.fetched(*(split(batch, size) if size else (batch,)))
        self.state.fetched_ms = self.heard_ms
        self._buffer.count(self)
        self._buffer.add(self)

    def nothing(self, answer: PullResponse) -> None:
        """See `FetchHandler`."""
        self._answered(answer)
        if answer.next_offset != self.state.next_offset:
            self._pass_over(answer.next_offset)

    def moved(self, answer: PullResponse) -> None:
        """See `FetchHandler`."""
        self._answered(answer)
        _log.warning(
            "%s: offset %d is out of range; continuing at %d",
            self.queue,
            self.state.next_offset,
            answer.next_offset,
            about=self.queue,
        )
        if self.state.empty:
            self.state.passed_over(answer.next_offset)
        else:
            self.state.seek(answer.next_offset)
            self._buffer.count(self)
        if not self._context.manual:
            self._store.table.move(self.queue, answer.next_offset)

    def failed(self, error: CohererError) -> int | None:
        """See `FetchHandler`."""
        if isinstance(error, ClosedError):
            return None
        first = self._error is None or error.code != self._error.code
        lost = isinstance(error, UnavailableError)
        self._store.pull_failed(self.queue, lost=lost)
        if not lost:
            self.heard_ms = now_ms()
        unknown = error.code in UNKNOWN_CODES
        self._unknown = self._unknown + 1 if unknown else 0
        if unknown:
            self._context.unknown()
        if first and error.code == ResponseCode.TOPIC_NOT_EXIST:
            self._context.missing(self.queue)
        if self._unknown == UNKNOWN_WARNED or (first and not unknown):
            _log.warning("Pulling from %s failed: %s", self.queue, error, about=self.queue)
        self._error = error
        return UNKNOWN_MS if first and unknown else PAUSE_MS

    def _new_fetch_loop(self) -> FetchLoop:
        context, options = self._context, self._options
        inline = context.flags & ~SUSPEND != 0
        encoder = PullEncoder(
            context.group,
            self.queue,
            max_messages=options.pull_messages,
            suspend_ms=options.poll_ms,
            sub_version=0 if inline else self._subscription.version_ms,
            expression=self._subscription.text if inline else None,
            expression_type=self._subscription.kind,
        )
        return FetchLoop(context.rpc, self.queue, encoder, self, options.poll_ms + SLACK_MS)

    def _offset_for_pull(self) -> int | None:
        if self._context.manual or self._fetching.broker != MASTER:
            return None
        return self._store.offset_for_pull(self.queue)

    def _answered(self, answer: PullResponse) -> None:
        self._error = None
        self._unknown = 0
        self.heard_ms = self.state.fetched_ms = now_ms()
        self.min_offset, self.max_offset = answer.min_offset, answer.max_offset
        self._store.pull_answered(self.queue)

    def _report(self, batch: ReceivedBatch) -> None:
        """Count and log the messages that a batch leaves out, when it is first taken."""
        if batch.next_offset <= self._reported:
            return
        self._reported = batch.next_offset
        if self._filtered:
            count, what = batch.skipped, f"{batch.skipped} of those from offset {batch.offset}"
        elif len(batch) == batch.next_offset - batch.offset:
            return
        else:
            missing = without(batch.left_out, self._gaps)
            count, what = sum(map(len, missing)), described(missing)
            self._gaps = [gap for gap in self._gaps if gap.stop > batch.next_offset]
        if count:
            self.left_out += count
            _log.warning("%s: left out messages that cannot be delivered: %s", self.queue, what)

    def _pass_over(self, next_offset: int) -> None:
        empty = self.state.empty
        self.state.passed_over(next_offset)
        if empty:
            self._move(next_offset)

    def _move(self, offset: int) -> None:
        """Move the offset to commit forward."""
        table = self._store.table
        if not self._context.manual and offset > (table.get(self.queue) or -1):
            table.move(self.queue, offset)
