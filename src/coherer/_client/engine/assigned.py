"""The state of one assigned partition (TubeMQ) or queue (RocketMQ): a table, without IO.

A `PartitionState` records the fetched batches, the ones that the application has received, the
acknowledged messages, and the offset that may be committed. A `Fetcher` does the IO: it fetches
while `can_fetch` is true, passes answers to `fetched`, and commits `commit_offset`.

Phases, and what each allows:

| phase | fetch | deliver | acknowledge | entered when |
|---|---|---|---|---|
| fetching | yes | yes | yes | the partition is assigned; `resume` |
| paused | no | no | yes | `pause` |
| draining | no | no | yes | the partition is about to be given up |
| revoked | no | no | no | it was given up or lost; this phase is final |

A fetched batch is a `Delivery`. Its states:

| state | meaning | left by |
|---|---|---|
| waiting | in the prefetch buffer | `take` |
| in hand | the application has it | all messages acknowledged, `requeue`, `rest` |
| resting | waits for its redelivery | `wake` |
| done | all messages are acknowledged | - |
| void | acknowledging or retrying it has no effect | - |

Invariants:

1. No unacknowledged message lies before `commit_offset`. It never moves back, except by `seek`.
2. Deliveries are taken in the order of their offsets. An ordered partition has at most one in
   hand, and it is the first one.
3. `seek` and `revoke` void every delivery. A batch that is in hand then is delivered again to the
   next reader of the partition; acknowledging it has no effect.
4. `requeue` and `rest` void the delivery and replace it with a new one that contains the
   unacknowledged messages. So a batch is never both in hand and waiting.
5. An acknowledged message is not delivered again, except after `seek`.
6. `messages` and `size_bytes` are the sums over all deliveries that hold `commit_offset` back or
   come after one that does; `waiting_bytes` is the sum over those that wait.
"""

# Applications hold batches; these members of a batch are for this module alone.
# pyright: reportPrivateUsage=false

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from datetime import timedelta
from enum import Enum
from typing import Any, Final, Generic, Protocol, Self, TypeAlias, TypeVar

import msgspec

MIB: Final = 1024 * 1024

RetryAfter = timedelta | int | None
"""The delay of a redelivery: a time, a delay level of the broker, or None for the protocol's
default."""


class Phase(Enum):
    """What an assigned partition may do; see the module."""

    FETCHING = "fetching"
    PAUSED = "paused"
    DRAINING = "draining"
    REVOKED = "revoked"


class Event(Enum):
    """Moves a partition from one phase to another."""

    PAUSE = "pause"
    RESUME = "resume"
    DRAIN = "drain"
    KEEP = "keep"
    REVOKE = "revoke"


_REVOKED: Final = dict.fromkeys(Event, Phase.REVOKED)

TRANSITIONS: Final[Mapping[Phase, Mapping[Event, Phase]]] = {
    Phase.FETCHING: {
        Event.PAUSE: Phase.PAUSED,
        Event.RESUME: Phase.FETCHING,
        Event.DRAIN: Phase.DRAINING,
        Event.REVOKE: Phase.REVOKED,
    },
    Phase.PAUSED: {
        Event.PAUSE: Phase.PAUSED,
        Event.RESUME: Phase.FETCHING,
        Event.DRAIN: Phase.DRAINING,
        Event.REVOKE: Phase.REVOKED,
    },
    Phase.DRAINING: {
        Event.PAUSE: Phase.DRAINING,
        Event.RESUME: Phase.DRAINING,
        Event.DRAIN: Phase.DRAINING,
        Event.KEEP: Phase.FETCHING,
        Event.REVOKE: Phase.REVOKED,
    },
    Phase.REVOKED: _REVOKED,
}
"""The next phase. `keep` undoes `drain`; the consumer pauses the partition again if necessary."""


class DeliveryState(Enum):
    """The state of a delivery; see the module."""

    WAITING = "waiting"
    IN_HAND = "in hand"
    RESTING = "resting"
    DONE = "done"
    VOID = "void"


class Fetched(Protocol):
    """The messages of one fetch, or a part of them."""

    _delivery: Delivery[Any] | None
    """Its delivery, from when it is taken until all of it is acknowledged or requeued."""

    @property
    def offset(self) -> int:
        """Where the fetch began; the batch contains no earlier message."""
        ...

    @property
    def next_offset(self) -> int:
        """Where the next fetch begins; -1 if the broker does not report it."""
        ...

    @property
    def size_bytes(self) -> int:
        """Its size in memory."""
        ...

    @property
    def _count(self) -> int:
        """The number of messages, as far as it is known without decoding them."""
        ...

    def __len__(self) -> int: ...

    def offsets(self) -> Sequence[int]:
        """The offset of each message, ascending."""
        ...

    def _part(self, numbers: Sequence[int]) -> Self:
        """A new batch of the messages at these positions."""
        ...


B = TypeVar("B", bound=Fetched)

DoneCallback: TypeAlias = Callable[[Collection[int]], None]
"""Called when the application has finished a batch, with the offsets of retried messages."""


def delivery_of(batch: Fetched) -> Delivery[Any] | None:
    """The delivery of a batch that was taken; None when the application has finished it."""
    return batch._delivery


class FetchLimits(msgspec.Struct, frozen=True, kw_only=True):
    """A partition that has reached one of these limits is not fetched from.

    Args:
        messages: the number of unacknowledged messages.
        span: the distance from the first unacknowledged offset to the last; 0 for no limit. A
            single message can hold the commit offset back, and this limits how many messages are
            delivered again after a crash.
    """

    messages: int = 1000
    size_bytes: int = 100 * MIB
    span: int = 2000


class Fetcher(Protocol[B]):
    """The IO of one assigned partition: fetches into `state`, commits and redelivers from it."""

    state: PartitionState[B]
    listed: bool
    """Whether it is queued in the prefetch buffer; only the buffer changes it."""

    @property
    def can_take(self) -> bool:
        """Whether `take` may return a batch."""
        ...

    def take(self) -> B | None:
        """The next batch for the application, linked with its delivery."""
        ...

    def fetch_more(self) -> None:
        """Fetch, if the state allows it."""
        ...

    def ready(self) -> None:
        """A batch waits again."""
        ...

    def acknowledged(self) -> None:
        """Messages were acknowledged: commit, and fetch if there is space."""
        ...

    def finished(self, delivery: Delivery[B]) -> None:
        """The application has finished a delivery: it is acknowledged, or failed and resting."""
        ...

    async def retry(self, delivery: Delivery[B], number: int | None, after: RetryAfter) -> None:
        """Have one message of a delivery delivered again, or all that are not acknowledged."""
        ...


class Delivery(Generic[B]):
    """A batch, and which of its messages are acknowledged.

    Args:
        batch: the messages.

    Attributes:
        state: see the module.
        taken_ms: when the application took it; 0 before.
        seen: how many messages from its start a loop has passed. They are acknowledged later
            (`count_seen`), so that a loop costs one addition per message.
        failed: the offsets of messages that were retried.
        returning: the positions of the messages that a server is asked to take back. The answer
            decides about them: acknowledging them meanwhile has no effect.
        released: whether the application has acknowledged all the others meanwhile.
        on_end: called when the application has finished it, with whether all was acknowledged.
        on_done: called then, too, with the offsets of the messages that were retried.
    """

    __slots__ = (
        "_beyond",
        "_fetcher",
        "_first",
        "_offsets",
        "batch",
        "failed",
        "on_done",
        "on_end",
        "released",
        "returning",
        "seen",
        "state",
        "taken_ms",
    )

    def __init__(self, batch: B, fetcher: Fetcher[B]) -> None:
        self.batch = batch
        self.state = DeliveryState.WAITING
        self.taken_ms = 0
        self.seen = 0
        self.failed: set[int] = set()
        self.returning: set[int] = set()
        self.released = False
        self.on_end: Callable[[bool], None] | None = None
        self.on_done: DoneCallback | None = None
        self._fetcher = fetcher
        self._first = 0  # how many messages from the start are acknowledged
        self._beyond: set[int] = set()  # the positions of acknowledged messages after a gap
        self._offsets: Sequence[int] | None = None

    def __repr__(self) -> str:
        return f"<Delivery from {self.position} to {self.batch.next_offset}, {self.state.value}>"

    @property
    def fetcher(self) -> Fetcher[B]:
        """The IO of the partition."""
        return self._fetcher

    @property
    def count(self) -> int:
        """The number of messages, as far as it is known without decoding them."""
        return self.batch._count

    @property
    def in_hand(self) -> bool:
        """Whether the application has it, and can acknowledge it."""
        return self.state is DeliveryState.IN_HAND

    @property
    def position(self) -> int:
        """The first unacknowledged offset; the next offset if all are acknowledged."""
        if self.state is DeliveryState.DONE:
            return self.batch.next_offset
        if not self._first:
            return self.batch.offset
        if self._offsets is None:
            self._offsets = self.batch.offsets()
        return self._offsets[self._first]

    @property
    def open_numbers(self) -> list[int]:
        """The positions in the batch of the messages that are not acknowledged."""
        if self.state is DeliveryState.DONE:
            return []
        every = range(self._first, len(self.batch))
        return [number for number in every if number not in self._beyond]

    def acknowledge(self, number: int | None = None) -> None:
        """Acknowledge the message at a position, or all; no effect unless it is in hand."""
        if not self.in_hand or number in self.returning:
            return
        if number is not None and not self._mark(number):
            return
        if number is None and self.returning:
            self.released = True
            self._mark_before(len(self.batch))
        elif number is None or self._first >= len(self.batch):
            self._done()
        self._fetcher.acknowledged()

    def count_seen(self) -> None:
        """Acknowledge the messages that a loop has passed, unless only batches can be."""
        if self.in_hand and self.seen > self._first and self._fetcher.state.by_message:
            self._mark_before(self.seen)
            if self._first >= len(self.batch):
                self._done()
                self._fetcher.acknowledged()

    async def retry(self, number: int | None = None, after: RetryAfter = None) -> None:
        """Have the message at a position delivered again, or all that are not acknowledged."""
        if self.in_hand:
            await self._fetcher.retry(self, number, after)

    def detach(self) -> None:
        """Let the batch forget its delivery: it cannot be acknowledged or retried any more."""
        self.batch._delivery = None  # without this cycle, the bytes are freed at once

    def requeue(self) -> None:
        """Deliver the unacknowledged messages again, before later batches."""
        self.count_seen()
        if self.in_hand:
            self._fetcher.state.wake(self._replace())
            self._fetcher.ready()

    def rest(self) -> Delivery[B] | None:
        """Withhold the unacknowledged messages until `PartitionState.wake`; another attempt.

        Returns:
            The new delivery; None if all messages are acknowledged, or it is not in hand.
        """
        self.count_seen()
        if not self.in_hand:
            return None
        self._end(ok=False)
        return self._replace()

    def set_aside(self, number: int) -> Delivery[B] | None:
        """Move one unacknowledged message to a delivery of its own, which rests until `wake`."""
        if not self.in_hand or not self._mark(number):
            return None
        aside = self._fetcher.state.put_aside(self.batch._part((number,)))
        if self._first >= len(self.batch):
            self._done()
            self._fetcher.acknowledged()
        return aside

    def _mark(self, number: int) -> bool:
        """Record an acknowledgement; returns False if the message was acknowledged before."""
        if number < self._first or number in self._beyond:
            return False
        self._beyond.add(number)
        self._close_gap()
        return True

    def _mark_before(self, end: int) -> None:
        """Record an acknowledgement of all messages before a position."""
        if self.returning:
            self._beyond.update(set(range(self._first, end)) - self.returning)
        else:
            self._first = end
        self._close_gap()

    def _close_gap(self) -> None:
        while self._first in self._beyond:
            self._beyond.discard(self._first)
            self._first += 1

    def _end(self, *, ok: bool) -> None:
        self._fetcher.finished(self)
        if self.on_end is not None:
            self.on_end(ok)

    def _done(self) -> None:
        self._end(ok=not self.failed)
        self.state = DeliveryState.DONE
        self.detach()
        self._fetcher.state.drop_finished()

    def _replace(self) -> Delivery[B]:
        rest = self._fetcher.state.replace(self, self.batch._part(self.open_numbers))
        self.state = DeliveryState.VOID
        self.detach()
        return rest


class PartitionState(Generic[B]):
    """One assigned partition; see the module.

    Args:
        offset: where fetching begins.
        ordered: whether deliveries are taken one at a time.
        by_message: whether single messages can be acknowledged, not only whole batches.
        limits: when to stop fetching.

    Attributes:
        phase: see the module.
        next_offset: where the next fetch begins.
        generation: grows with each `seek`; answers to fetches of earlier generations are dropped.
        messages: how many messages are unacknowledged, or come after one that is.
        size_bytes: the number of their bytes.
        waiting_bytes: the bytes of the deliveries that wait.
        ordered, by_message, limits: as given.
        fetched_ms, taken_ms: when messages were last fetched and taken, ms.
    """

    __slots__ = (
        "_aside",
        "_deliveries",
        "_fetcher",
        "_waiting",
        "by_message",
        "fetched_ms",
        "generation",
        "limits",
        "messages",
        "next_offset",
        "ordered",
        "phase",
        "size_bytes",
        "taken_ms",
        "waiting_bytes",
    )

    def __init__(
        self,
        fetcher: Fetcher[B],
        offset: int,
        *,
        ordered: bool = False,
        by_message: bool = True,
        limits: FetchLimits | None = None,
    ) -> None:
        self.phase = Phase.FETCHING
        self.next_offset = offset
        self.generation = 0
        self.messages = 0
        self.size_bytes = 0
        self.waiting_bytes = 0
        self.ordered = ordered
        self.by_message = by_message
        self.limits = limits or FetchLimits()
        self.fetched_ms = 0
        self.taken_ms = 0
        self._fetcher = fetcher
        self._deliveries: deque[Delivery[B]] = deque()
        self._aside: list[Delivery[B]] = []
        self._waiting: deque[Delivery[B]] = deque()

    def __repr__(self) -> str:
        span = f"{self.commit_offset} to {self.next_offset}"
        return f"<PartitionState {self.phase.value}, {span}, {self.messages} messages>"

    def __iter__(self) -> Iterator[Delivery[B]]:
        """The deliveries that hold the commit offset back, or come after one that does."""
        return iter((*self._deliveries, *self._aside))

    # -- the phase

    def on(self, event: Event) -> None:
        """Move to the next phase.

        Raises:
            RuntimeError: the phase has no such event.
        """
        following = TRANSITIONS[self.phase].get(event)
        if following is None:
            raise RuntimeError(f"A partition that is {self.phase.value} cannot {event.value}.")
        self.phase = following
        if event is Event.REVOKE:
            self._void()

    @property
    def can_fetch(self) -> bool:
        """Whether more may be fetched."""
        return self.phase is Phase.FETCHING and not self.full

    @property
    def full(self) -> bool:
        """Whether a limit is reached."""
        limits = self.limits
        if self.messages >= limits.messages or self.size_bytes >= limits.size_bytes:
            return True
        return 0 < limits.span < self.span

    @property
    def can_take(self) -> bool:
        """Whether `take` returns a delivery."""
        if not self._waiting or self.phase is not Phase.FETCHING:
            return False
        return not self.ordered or self._deliveries[0] is self._waiting[0]

    # -- offsets

    @property
    def commit_offset(self) -> int:
        """Everything before this offset is acknowledged."""
        first = self._deliveries[0].position if self._deliveries else self.next_offset
        return min([first, *(one.position for one in self._aside)]) if self._aside else first

    @property
    def span(self) -> int:
        """The distance from the first unacknowledged offset to the last fetched one."""
        return 0 if self.empty else self.next_offset - 1 - self.commit_offset

    @property
    def empty(self) -> bool:
        """Whether all fetched messages are acknowledged."""
        return not self._deliveries and not self._aside

    @property
    def in_hand(self) -> bool:
        """Whether the application has a delivery."""
        return any(one.in_hand for one in self)

    def overdue(self, before_ms: int) -> list[Delivery[B]]:
        """The deliveries in hand that were taken before this time."""
        return [one for one in self if one.in_hand and one.taken_ms < before_ms]

    # -- fetching

    def fetched(self, *batches: B) -> None:
        """Add the result of a fetch, as one batch or in parts."""
        for batch in batches:
            delivery = Delivery(batch, self._fetcher)
            self._deliveries.append(delivery)
            self._waiting.append(delivery)
            self._count(delivery, 1)
            self.waiting_bytes += batch.size_bytes
            self.next_offset = batch.next_offset

    def passed_over(self, next_offset: int) -> None:
        """A fetch returned no deliverable messages; the next one begins here."""
        self.next_offset = next_offset

    def seek(self, offset: int) -> None:
        """Drop everything, and continue at another offset."""
        self._void()
        self.generation += 1
        self.next_offset = offset

    # -- delivering

    def take(self, now_ms: int) -> Delivery[B] | None:
        """Take the next waiting delivery for the application."""
        if not self.can_take:
            return None
        delivery = self._waiting.popleft()
        self.waiting_bytes -= delivery.batch.size_bytes
        delivery.state = DeliveryState.IN_HAND
        delivery.batch._delivery = delivery
        delivery.taken_ms = self.taken_ms = now_ms
        return delivery

    def wake(self, delivery: Delivery[B]) -> None:
        """Deliver a resting delivery again, before later ones."""
        if delivery.state is not DeliveryState.RESTING:
            return
        delivery.state = DeliveryState.WAITING
        self.waiting_bytes += delivery.batch.size_bytes
        offset = delivery.batch.offset
        earlier = sum(1 for one in self._waiting if one.batch.offset <= offset)
        self._waiting.insert(earlier, delivery)

    # -- called by deliveries

    def drop_finished(self) -> None:
        """Remove the finished deliveries from the start."""
        deliveries = self._deliveries
        while deliveries and deliveries[0].state is DeliveryState.DONE:
            self._count(deliveries.popleft(), -1)
        for aside in [one for one in self._aside if one.state is DeliveryState.DONE]:
            self._aside.remove(aside)
            self._count(aside, -1)

    def replace(self, delivery: Delivery[B], batch: B) -> Delivery[B]:
        """Replace a delivery with a new, resting one that contains `batch`."""
        rest = Delivery(batch, self._fetcher)
        rest.state = DeliveryState.RESTING
        where = self._aside if delivery in self._aside else self._deliveries
        where[where.index(delivery)] = rest
        self._count(delivery, -1)
        self._count(rest, 1)
        return rest

    def put_aside(self, batch: B) -> Delivery[B]:
        """Add a resting delivery outside the order of the others."""
        aside = Delivery(batch, self._fetcher)
        aside.state = DeliveryState.RESTING
        self._aside.append(aside)
        self._count(aside, 1)
        return aside

    # -- inside

    def _count(self, delivery: Delivery[B], sign: int) -> None:
        self.messages += sign * delivery.count
        self.size_bytes += sign * delivery.batch.size_bytes

    def _void(self) -> None:
        for delivery in self:
            delivery.state = DeliveryState.VOID
        self._deliveries.clear()
        self._aside.clear()
        self._waiting.clear()
        self.messages = self.size_bytes = self.waiting_bytes = 0
