"""A queue that is ours: pulled from, handed out, dealt with.

Rules:

* At most one pull is under way. The next leaves as soon as its answer is here, unless enough waits
  (`ConsumerOptions`), the queue is paused, or, in order, it is not locked.
* A batch in the application's hands has a claim (`claims`). When the queue is given up, or begins
  anew at another offset, claims from before have no effect any more.
* The offset to commit moves with what is dealt with. When the broker does not know it yet, it rides
  on the next pull (`OffsetStore.ride`); slaves are not told.
* Messages that cannot be delivered are passed over: counted and logged once, when what was pulled
  with them is taken. A batch of which nothing is left is dealt with here.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from datetime import timedelta
from typing import Final, Protocol

from coherer._client.rocketmq.claimed import ClaimedBatch, Later
from coherer._client.rocketmq.claims import HeldClaim
from coherer._client.rocketmq.consumer_options import ConsumerOptions
from coherer._client.rocketmq.door import Door
from coherer._client.rocketmq.figures import Figures
from coherer._client.rocketmq.offset_store import OffsetStore
from coherer._client.rocketmq.process_queue import Package, ProcessQueue
from coherer._client.rocketmq.pulling import SLACK_MS, Puller, Wish
from coherer._client.rocketmq.routes import MASTER
from coherer._common.clock import now_ms
from coherer._common.logs import Log
from coherer._record.gaps import described
from coherer._record.schedule import DELAY_LEVELS_MS
from coherer._wire.rocketmq.codes import ResponseCode
from coherer._wire.rocketmq.messages import StoredMessage
from coherer._wire.rocketmq.names import Queue
from coherer._wire.rocketmq.pulling import LITE, SUSPEND, PullAnswer, PullEncoder
from coherer._wire.rocketmq.subscription import Subscription
from coherer.errors import ClosedError, CohererError, UnavailableError

_log = Log(logging.getLogger(__name__))

PAUSE_MS: Final = 1_000
"""After a pull that failed (8.10)."""

SUSPEND_MS: Final = (10, 30_000)
"""How short and how long an orderly queue rests after a failure (8.14)."""

UNKNOWN_MS: Final = 50
"""After the first refusal by a broker that has not heard our heartbeat yet."""

UNKNOWN_CODES: Final = frozenset(
    {
        ResponseCode.SUBSCRIPTION_NOT_EXIST,
        ResponseCode.SUBSCRIPTION_NOT_LATEST,
        ResponseCode.FILTER_DATA_NOT_EXIST,
        ResponseCode.FILTER_DATA_NOT_LATEST,
    }
)
"""The broker does not know what we subscribe to, or not what we subscribe to now."""

LOCK_LIFE_MS: Final = 30_000
"""How long we believe in a lock (8.14); the broker keeps it for twice as long."""


class Keeper(Protocol):
    """Who holds the queues."""

    door: Door
    options: ConsumerOptions
    store: OffsetStore
    group: str
    make: Callable[..., ClaimedBatch]

    def ready(self, held: Held) -> None:
        """Something can be taken from the queue."""
        ...

    def has_room(self, held: Held) -> bool:
        """Whether more may be pulled; if not, the queue is kicked when it may."""
        ...

    def figures_of(self, topic: str) -> Figures:
        """How we fare with a topic."""
        ...

    def cached(self, size_bytes: int) -> None:
        """So many bytes more are here, or fewer."""
        ...

    def unknown(self) -> None:
        """A broker does not know us."""
        ...

    async def send_back(self, message: StoredMessage, later: Later) -> bool:
        """Have a message delivered again later; whether it is out of our hands."""
        ...


class Held:
    """A queue that is ours. A `pulling.Source`, and the `claims.Origin` of its batches.

    Args:
        keeper: who holds it.
        queue: which queue.
        subscription: what is taken of it.
        offset: where to begin.
        flags: of its pulls, see `coherer._wire.rocketmq.pulling`.

    Attributes:
        keeper, queue: as given.
        process: what is here of it.
        max_offset, min_offset: its ends when last heard, -1 while unknown.
        locked_ms: when the broker last locked it for us; 0 when it is not locked.
        listed: whether the keeper's inbox has it.
        heard_ms: when a broker last answered.
        left_out: how many messages could not be delivered.
    """

    def __init__(
        self, keeper: Keeper, queue: Queue, subscription: Subscription, offset: int, flags: int
    ) -> None:
        options = keeper.options
        self.keeper = keeper
        self.queue = queue
        self.max_offset = -1
        self.min_offset = -1
        self.locked_ms = 0
        self.listed = False
        self.paused = False
        self.heard_ms = now_ms()
        self.left_out = 0
        self._reported = offset  # what is left out before is counted and logged
        self._thresholds = options.thresholds
        self._subscription = subscription
        self._tags = subscription.accepted
        self._filtered = bool(subscription.tags) or subscription.kind != "TAG"
        self._flags = flags
        self._broadcast = options.model == "broadcast"
        self._manual = bool(flags & LITE)  # the consumer says itself what is dealt with
        self._counted = 0
        self._asked_ms = 0
        self._figures = keeper.figures_of(queue.topic)
        self._refused = 0  # the code that was logged last
        self._timers: set[asyncio.TimerHandle] = set()
        self._loop = asyncio.get_running_loop()
        self.process = ProcessQueue[ClaimedBatch](offset, orderly=options.orderly)
        self._puller = self._new_puller()

    def __repr__(self) -> str:
        return f"<Held {self.queue}, {self.process}>"

    # -- what the keeper calls

    def kick(self) -> None:
        """Pull, if that makes sense now."""
        self._puller.kick()

    def take(self) -> ClaimedBatch | None:
        """The next batch, with a claim."""
        while (package := self.process.take(now_ms())) is not None:
            batch = package.batch
            self._report(batch)
            if len(batch):
                batch.claim = HeldClaim(self, self.process, package)
                return batch
            self.process.finish(package)
            self.settled()
        return None

    @property
    def locked(self) -> bool:
        """Whether the broker has locked it for us, as far as we know."""
        return now_ms() - self.locked_ms < LOCK_LIFE_MS

    def silent_since(self, before_ms: int) -> bool:
        """Whether nothing was heard since then, although something was asked before it."""
        return self._puller.busy and self.heard_ms < before_ms and self._asked_ms < before_ms

    @property
    def can_take(self) -> bool:
        """Whether `take` gives something that may be dealt with now."""
        if self.paused or not self.process.can_take:
            return False
        return not self._needs_lock or self.locked

    def restart(self, offset: int) -> None:
        """Begin anew at another offset; what is here is forgotten."""
        self.drop()
        self.process = ProcessQueue[ClaimedBatch](offset, orderly=self.process.orderly)
        if not self._manual:
            self.keeper.store.table.move(self.queue, offset)
        self._reported = offset
        self._puller = self._new_puller()
        self._puller.kick()

    def drop(self) -> None:
        """Pull no more, and hand out no more."""
        self.process.dropped = True
        self._puller.stop()
        for timer in self._timers:
            timer.cancel()
        self._timers.clear()
        self.keeper.cached(-self._counted)
        self._counted = 0

    def sync(self) -> None:
        """Note how far everything is dealt with."""
        for package in list(self.process):
            claim = package.batch.claim
            if isinstance(claim, HeldClaim):
                claim.count()
        self._commit(self.process.commit_offset)

    # -- what claims call

    def ready(self) -> None:
        """See `claims.Origin`."""
        self.keeper.ready(self)

    def later(
        self,
        pause_ms: int,
        process: ProcessQueue[ClaimedBatch],
        package: Package[ClaimedBatch],
    ) -> None:
        """See `claims.Origin`."""

        def again() -> None:
            self._timers.discard(timer)
            process.give_back(package)
            package.batch.tries += 1
            self.counted()
            self.keeper.ready(self)

        timer = self._loop.call_later(pause_ms / 1000, again)
        self._timers.add(timer)

    def pause_ms(self, later: Later) -> int:
        """See `claims.Origin`."""
        wanted_ms = self.keeper.options.suspend_ms
        if isinstance(later, timedelta):
            wanted_ms = int(later.total_seconds() * 1000)
        elif later and 0 < later <= len(DELAY_LEVELS_MS):
            wanted_ms = DELAY_LEVELS_MS[later - 1]
        return min(max(wanted_ms, SUSPEND_MS[0]), SUSPEND_MS[1])

    async def send_back(self, message: StoredMessage, later: Later) -> bool:
        """See `claims.Origin`."""
        return await self.keeper.send_back(message, later)

    def settled(self) -> None:
        """See `claims.Origin`."""
        process = self.process
        process.settle()
        self._commit(process.commit_offset)
        self.counted()
        if process.orderly and process.can_take:
            self.keeper.ready(self)
        self._puller.kick()

    def dealt_with(self, package: Package[ClaimedBatch], failed: int) -> None:
        """See `claims.Origin`."""
        ok = max(package.batch.count - failed, 0)
        now = now_ms()
        self._figures.consumed(now, ok=ok, failed=failed, took_ms=now - package.taken_ms)

    def counted(self) -> None:
        """Tell the keeper how many bytes are here now."""
        # What a paused queue has must not keep others from being pulled from.
        delta = (0 if self.paused else self.process.size_bytes) - self._counted
        if delta:
            self._counted += delta
            self.keeper.cached(delta)

    # -- what the puller calls

    def wants(self) -> Wish | None:
        """See `pulling.Source`."""
        process = self.process
        if self.paused or process.full(self._thresholds) or not self.keeper.has_room(self):
            return None
        if self._needs_lock and not self.locked:
            return None
        self._asked_ms = now_ms()
        return Wish(process.next_offset, self._flags, self._ride())

    def arrived(self, answer: PullAnswer) -> None:
        """See `pulling.Source`."""
        self._heard(answer)
        process = self.process
        batch = self.keeper.make(
            answer.body,
            self.queue,
            tags=self._tags,
            offset=process.next_offset,
            next_offset=answer.next_offset,
            min_offset=answer.min_offset,
            max_offset=answer.max_offset,
            filtered=self._filtered,
        )
        if not batch.count or (self._filtered and not len(batch)):
            self._report(batch)
            self._passed_over(answer.next_offset)
            return
        self._figures.pulled(self.heard_ms, batch.count, self.heard_ms - self._asked_ms)
        size = self.keeper.options.batch_messages
        process.put(*(batch.parts(size) if size else (batch,)))
        self.counted()
        self.keeper.ready(self)

    def nothing(self, answer: PullAnswer) -> None:
        """See `pulling.Source`."""
        self._heard(answer)
        if answer.next_offset != self.process.next_offset:
            self._passed_over(answer.next_offset)

    def moved(self, answer: PullAnswer) -> None:
        """See `pulling.Source`."""
        self._heard(answer)
        _log.warning(
            "%s has nothing at %d; reading on from %d",
            self.queue,
            self.process.next_offset,
            answer.next_offset,
            about=self.queue,
        )
        if not self.process.empty:
            self.process.dropped = True
            self.process = ProcessQueue[ClaimedBatch](
                answer.next_offset, orderly=self.process.orderly
            )
            self.counted()
        self.process.skip(answer.next_offset)
        if not self._manual:
            self.keeper.store.table.move(self.queue, answer.next_offset)

    def failed(self, error: CohererError) -> int | None:
        """See `pulling.Source`."""
        if isinstance(error, ClosedError):
            return None
        first = error.code != self._refused
        died = isinstance(error, UnavailableError)
        self.keeper.store.lost(self.queue, died=died)
        if not died:
            self.heard_ms = now_ms()
        if error.code in UNKNOWN_CODES:
            self.keeper.unknown()
        elif first:
            _log.warning("Pulling from %s: %s", self.queue, error, about=self.queue)
        self._refused = error.code or 0
        return UNKNOWN_MS if first and error.code in UNKNOWN_CODES else PAUSE_MS

    # -- inside

    @property
    def _needs_lock(self) -> bool:
        return self.process.orderly and not self._broadcast

    def _new_puller(self) -> Puller:
        options = self.keeper.options
        inline = self._flags & ~SUSPEND != 0
        encoder = PullEncoder(
            self.keeper.group,
            self.queue,
            max_messages=options.pull_messages,
            suspend_ms=options.poll_ms,
            sub_version=0 if inline else self._subscription.version_ms,
            expression=self._subscription.text if inline else None,
            expression_type=self._subscription.kind,
        )
        return Puller(self.keeper.door, self.queue, encoder, self, options.poll_ms + SLACK_MS)

    def _ride(self) -> int | None:
        if self._manual or self._puller.broker != MASTER:
            return None
        return self.keeper.store.ride(self.queue)

    def _heard(self, answer: PullAnswer) -> None:
        self._refused = 0
        self.heard_ms = self.process.pulled_ms = now_ms()
        self.min_offset, self.max_offset = answer.min_offset, answer.max_offset
        self.keeper.store.landed(self.queue)

    def _report(self, batch: ClaimedBatch) -> None:
        """Count and log what is left out of a batch, the first time that it is taken."""
        if batch.next_offset <= self._reported:
            return
        self._reported = batch.next_offset
        if self._filtered:
            count, what = batch.skipped, f"{batch.skipped} of the messages from {batch.offset} on"
        elif len(batch) == batch.next_offset - batch.offset:
            return
        else:
            count, what = sum(map(len, batch.left_out)), described(batch.left_out)
        if count:
            self.left_out += count
            _log.warning("%s: left out, because it cannot be delivered: %s", self.queue, what)

    def _passed_over(self, next_offset: int) -> None:
        process = self.process
        empty = process.empty
        process.skip(next_offset)
        if empty:
            self._commit(next_offset)

    def _commit(self, offset: int) -> None:
        table = self.keeper.store.table
        if not self._manual and offset > (table.get(self.queue) or -1):
            table.move(self.queue, offset)
