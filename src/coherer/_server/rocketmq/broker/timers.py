"""Holds timed messages until they are due. `coherer._rules.rocketmq.timers` has the rules.

`schedule` puts a message into the queue of its slot. `tick`, called ten times a second, reads the
entries of the current slot into memory (and from a minute before its start, those of the next one),
stores due messages in their real queue together with a progress mark, and reads the next slot.
A message that is due before the next tick gets a timer of the event loop, so that deliveries are
exact to a few milliseconds. After a long stop, the past slots are processed one after the other:
memory never holds more than two slots, with `limits.TIMER_SLOT_MESSAGES_MAX` entries each.

Invariants:

* A slot is passed only when all of its messages are delivered. If a message becomes visible in a
  slot that was passed, delivery goes back to that slot: `_arrived` looks at stored messages, not at
  submitted ones.
* A damaged entry delivers no message early or twice. The time of a message is what its record says.
  If an entry names another message, its own counts as damaged.
* Retention keeps the file of the first message that waits (`coherer._store.retention`). Messages in
  files that are to be deleted soon are stored again at the end of the log, together with a mark. So
  a message may wait for three days in a log that keeps less. If a power cut takes the mark, the
  copies do not count.
"""

from __future__ import annotations

import asyncio
import heapq
import logging
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import Final, TypeVar

from coherer import limits
from coherer._common.logs import Log
from coherer._record.layout import Record, properties_of
from coherer._record.system_topics import TIMER_TOPIC
from coherer._rules.common.origins import Origin
from coherer._rules.rocketmq.timers import (
    MARKS,
    SLOT_MS,
    SLOTS,
    Progress,
    TimedEntry,
    TimerError,
    copied_from,
    due_ms_in,
    due_ms_of,
    mark,
    read_mark,
    released,
    rolled,
    slot_of,
    waiting,
)
from coherer._server.core.core import Core
from coherer._server.core.foreign import Newest, deliverable
from coherer._server.rocketmq.remoting import Refusal
from coherer._store import AppendResult, Draft, DraftBatch, Store
from coherer._store.consume_queue import BLANK_SIZE
from coherer._store.model import QueueEntry
from coherer._wire.rocketmq.codes import ResponseCode
from coherer.errors import CohererError, UsageError

T = TypeVar("T")

_log = Log(logging.getLogger(__name__))

ENTRIES_AT_ONCE: Final = 2_000
"""The number of entries to read before other work can run."""
MESSAGES_AT_ONCE: Final = 200
BYTES_AT_ONCE: Final = 4 * 1024 * 1024
"""The size of one delivery, so that other work can run in between."""
SLOTS_AT_ONCE: Final = 100
"""The number of empty slots to pass before other work can run."""
AHEAD_MS: Final = 60_000
"""How long before its start a slot is read."""
TICK_MS: Final = 100
_OFFSET_BITS: Final = 63


class _Slot:
    """The entries of one slot; those not delivered yet are in a heap."""

    def __init__(self, core: Core, number: int) -> None:
        self.number = number
        self.queue = number % SLOTS
        self.log_offset = 0  # entries stored before it are in the heap
        self._store, self._foreign = core.store, core.foreign
        self._begin_ms = number * SLOT_MS
        self._next = first_of(core, number)
        self._heap: list[int] = []  # (due - begin, offset) as one number: half the memory of pairs

    def load(self, progress: Progress) -> bool:
        """Read more entries; returns whether all have been read."""
        store = self._store
        log_offset = store.end_offset
        first, end = store.queue_range(TIMER_TOPIC, self.queue)
        self._next = max(self._next, first)
        if self._next < end:
            entries = store.entries(TIMER_TOPIC, self.queue, self._next, ENTRIES_AT_ONCE)
            for entry in entries:
                timed = _timed_entry(store, self.queue, entry)
                if timed is None:
                    self._pass_over(entry)
                    continue
                if progress.has(timed):
                    continue
                if slot_of(timed.due_ms) == self.number:
                    key = (timed.due_ms - self._begin_ms) << _OFFSET_BITS | timed.offset
                    heapq.heappush(self._heap, key)
            self._next = entries[-1].offset + 1 if entries else end
        if self._next < end:
            return False
        self.log_offset = log_offset
        return True

    def _pass_over(self, entry: QueueEntry) -> None:
        if entry.size_bytes != BLANK_SIZE:
            self._foreign.pass_over(TIMER_TOPIC, entry.physical_offset, "It has no time.")

    @property
    def first(self) -> TimedEntry | None:
        """The entry that is due first."""
        return self._place(self._heap[0]) if self._heap else None

    def pop(self) -> TimedEntry:
        """Remove the entry that is due first, and those that name the same message."""
        key = heapq.heappop(self._heap)
        found = self._place(key)
        while self._heap and self._heap[0] == key:
            heapq.heappop(self._heap)
            self._foreign.pass_over(TIMER_TOPIC, found.offset, "Two entries name it.")
        return found

    def _place(self, key: int) -> TimedEntry:
        offset = key & ((1 << _OFFSET_BITS) - 1)
        return TimedEntry(self._begin_ms + (key >> _OFFSET_BITS), offset)


class TimerService:
    """The timed messages of a broker.

    Args:
        is_slave: whether this broker follows a master, which delivers the messages.

    Attributes:
        is_starting: True until it is recorded which copies do not count.
    """

    def __init__(self, core: Core, *, is_slave: Callable[[], bool] = lambda: False) -> None:
        self._core = core
        self._store = core.store
        self._is_slave = is_slave
        newest = self._newest_mark()
        self._progress = newest.mark or Progress()
        self._slots: dict[int, _Slot] = {}
        self._firsts: dict[int, int] = {}  # by slot: the offset of its first message
        self._first = self._first_slot()
        self._busy = False
        self._stopped = False
        self.is_starting = False
        self._at_once = MESSAGES_AT_ONCE
        self._next_turn: asyncio.Handle | None = None
        self._wake: asyncio.TimerHandle | None = None
        self._wake_ms = 0
        self._waits_from: dict[int, int] = {}  # by queue: entries before it are done
        self._carried_to = 0  # nothing waits before this log offset
        self._expected = False  # a message was scheduled that may not be stored yet
        self.drop_copies(TIMER_TOPIC, newest)
        core.on_arrival(self._arrived)
        core.store.holds.add("timed messages", self._needed)

    # -- scheduling

    def schedule(self, draft: Draft) -> Draft:
        """Return the draft to store for a message: the message itself, or one in the timer topic.

        Raises:
            Refusal: its time is invalid, or too many messages are due then.
        """
        now_ms = self._core.wall_ms()
        try:
            due_ms = due_ms_of(draft.properties, now_ms)
        except TimerError as error:
            raise Refusal(ResponseCode.MESSAGE_ILLEGAL, str(error)) from error
        if due_ms is None:
            return draft
        waits = self.hold_back(draft, due_ms)
        if waits is None:
            raise Refusal(
                ResponseCode.SYSTEM_ERROR,
                "timer message is under flow control, max num limit is "
                f"{limits.TIMER_SLOT_MESSAGES_MAX} in {SLOT_MS // 1000} s",
            )
        return waits

    def hold_back(self, draft: Draft, due_ms: int, copy_from: str = "") -> Draft | None:
        """Return the draft to store now for a message that is due later.

        Args:
            due_ms: when it is due, ms since 1970; at most `limits.TIMER_DELAY_MS_MAX` from now.
            copy_from: for a copy, the topic where the original waits.

        Returns:
            The draft; None if too many messages are due at that time.

        Raises:
            UsageError: its properties become too long.
        """
        if self._count(slot_of(due_ms)) >= limits.TIMER_SLOT_MESSAGES_MAX:
            return None
        now_ms = self._core.wall_ms()
        self._core.topics.ensure_topic(TIMER_TOPIC, 1, now_ms)
        self._expected = True
        self._wake_at(due_ms, now_ms)
        return waiting(draft, due_ms, copy_from)

    def check(self, draft: Draft) -> None:
        """Refuse a message that `schedule` would refuse, but that is scheduled later.

        Raises:
            Refusal: its time is invalid.
        """
        try:
            due_ms_of(draft.properties, self._core.wall_ms())
        except TimerError as error:
            raise Refusal(ResponseCode.MESSAGE_ILLEGAL, str(error)) from error

    def _count(self, slot: int) -> int:
        first = self._firsts.get(slot)
        if first is None:
            if len(self._firsts) >= 2 * SLOTS:
                self._firsts.clear()
            first = self._firsts[slot] = first_of(self._core, slot)
        return self._store.queue_range(TIMER_TOPIC, slot % SLOTS)[1] - first

    # -- delivery

    def tick(self) -> None:
        """Deliver due messages, and carry forward those in files that will be deleted soon."""
        if not self._core.appender.waiting:
            self._expected = False
        if self._busy or self._stopped:
            return
        if self.is_starting:
            self._submit((), self._progress)
        elif not self._deliver(self._core.wall_ms()):
            self._carry()

    def next_ms(self) -> int | None:
        """When the next message is due; None if none waits.

        Messages of a later slot have not been read. For them it is the begin of the slot.
        """
        for number in range(self._first, self._first + SLOTS):
            slot = self._slots.get(number)
            if slot is not None and slot.first is not None:
                return slot.first.due_ms
            begin, end = self._store.queue_range(TIMER_TOPIC, number % SLOTS)
            if number > self._first and begin < end and self._count(number):
                return number * SLOT_MS
        return None

    def stop(self) -> None:
        """Stop delivering; a delivery in progress is completed."""
        self._stopped = True
        if self._wake is not None:
            self._wake.cancel()

    def _arrived(
        self, drafts: Sequence[Draft | DraftBatch], _: Sequence[AppendResult] = ()
    ) -> None:
        """Go back to the slot of a message that was stored after its slot had been passed."""
        if not self._expected:
            return
        for draft in drafts:
            if draft.topic != TIMER_TOPIC or isinstance(draft, DraftBatch):
                continue
            if draft.queue_id < MARKS and slot_of(draft.tag_code) < self._first:
                self._slots.clear()
                self._first = slot_of(draft.tag_code)

    def _later(self) -> None:
        if self._next_turn is None:
            self._next_turn = asyncio.get_running_loop().call_soon(self._go_on)

    def _go_on(self) -> None:
        self._next_turn = None
        self.tick()

    def _wake_at(self, due_ms: int, now_ms: int) -> None:
        if due_ms - now_ms >= TICK_MS:
            return
        if self._wake is not None:
            if self._wake_ms <= due_ms:
                return
            self._wake.cancel()
        self._wake_ms = due_ms
        self._wake = asyncio.get_running_loop().call_later((due_ms - now_ms) / 1000, self._woken)

    def _woken(self) -> None:
        self._wake = None
        self.tick()

    def _deliver(self, now_ms: int) -> bool:
        """Store due messages or read entries; returns whether there is more to do at once."""
        for _ in range(SLOTS_AT_ONCE):
            slot = self._slot(self._first)
            if not slot.load(self._progress):
                self._later()
                return True
            if self._store_due(slot, now_ms):
                return True
            if (self._first + 1) * SLOT_MS > now_ms:
                break
            self._slots.pop(self._first, None)
            self._firsts.pop(self._first, None)
            self._first += 1
        else:
            self._first = self._next_slot(slot_of(now_ms))
            self._later()
            return True
        following = slot.first
        if following is not None:
            self._wake_at(following.due_ms, now_ms)
        if (self._first + 1) * SLOT_MS <= now_ms + AHEAD_MS:
            self._slot(self._first + 1).load(self._progress)
        return False

    def _next_slot(self, last: int) -> int:
        """The slot to go on with, up to `last`: after years, most are empty."""
        found = list(islice(self._oldest(), ENTRIES_AT_ONCE))
        if len(found) == ENTRIES_AT_ONCE:
            return self._first
        return max(min([last, *(slot_of(timed.due_ms) for timed, _ in found)]), self._first)

    def _slot(self, number: int) -> _Slot:
        slot = self._slots.get(number)
        if slot is None:
            slot = self._slots[number] = _Slot(self._core, number)
        return slot

    def _store_due(self, slot: _Slot, now_ms: int) -> bool:
        """Store due messages; returns whether there were any."""
        drafts: list[Draft] = []
        later: list[Draft] = []
        last: TimedEntry | None = None
        budget = BYTES_AT_ONCE
        for _ in range(self._at_once):
            following = slot.first
            if following is None or following.due_ms > now_ms or budget <= 0:
                break
            last = slot.pop()
            draft = self._released(last, now_ms)
            if draft is not None:
                (later if draft.topic == TIMER_TOPIC else drafts).append(draft)
                budget -= len(draft.body) + len(draft.properties)
        if last is None:
            return False
        self._submit(drafts, self._progress.delivered(last, slot.log_offset), later)
        return True

    def _submit(
        self, drafts: Sequence[Draft], progress: Progress, copies: Sequence[Draft] = ()
    ) -> None:
        """Store due messages, or copies of waiting ones, with the mark that records it."""
        self._busy = True
        progress_mark = mark(progress, self._store.store_host, self._core.wall_ms())

        def done(outcome: Sequence[AppendResult] | CohererError, _: int) -> None:
            self._busy = False
            if isinstance(outcome, UsageError) and len(drafts) + len(copies) == 1:
                _log.error("A timed message could not be delivered: %s", outcome)
                self._submit([], progress)
            elif isinstance(outcome, CohererError):
                _log.warning("Timed messages are late: %s", outcome)
                self._slots.clear()  # entries taken from the heap are read again
                if isinstance(outcome, UsageError):
                    self._at_once = 1  # to find the one that cannot be stored
            else:
                self._at_once, self.is_starting = MESSAGES_AT_ONCE, False
                self._progress = progress
                self._later()

        self._core.appender.submit(
            drafts, done, origin=Origin.TIMERS, own=[*copies, progress_mark], wait_durable=False
        )

    def _released(self, timed: TimedEntry, now_ms: int) -> Draft | None:
        """A due message; one that is due later, because its entry is wrong, waits again."""
        if timed.offset < self._progress.rolled_to:
            return None
        if self._is_void(timed.offset):
            return None

        def parse(record: Record) -> Draft | None:
            if self._due_ms(record, timed) > now_ms:
                return rolled(record)
            return deliverable(released(record, now_ms))

        return self._core.foreign.at(TIMER_TOPIC, timed.offset, parse)

    def _due_ms(self, record: Record, timed: TimedEntry) -> int:
        """When the message of an entry is due.

        Raises:
            UsageError: the record is another message.
        """
        due_ms = due_ms_in(record.properties) if record.topic == TIMER_TOPIC else None
        if due_ms is not None:
            if due_ms == timed.due_ms:
                return due_ms
            queue, store = record.queue_id, self._store
            own = store.entries(TIMER_TOPIC, queue, record.queue_offset, 1)
            if own and _timed_entry(store, queue, own[0]) == timed:
                return due_ms
        raise UsageError("It is another message: an entry of its queue is damaged.")

    # -- keeping messages whose files would be deleted

    def _needed(self) -> int | None:
        """The log offset of the first message that waits."""
        if self._is_slave():
            self._progress = self._newest_mark().mark or Progress()
        return next((timed.offset for timed, _ in self._oldest()), None)

    def _carry(self) -> None:
        """Store the waiting messages of files that will be deleted soon once more."""
        to = self._core.next_to_go
        if to <= max(self._carried_to, self._progress.rolled_to):
            return
        copies: list[Draft] = []
        dropped = False
        last = -1
        size, end, room = 0, to, min(BYTES_AT_ONCE, self._store.holds.room())
        for timed, size_bytes in self._oldest():
            if timed.offset >= to:
                break
            if timed.offset == last:
                continue  # two entries name it
            if size + size_bytes > room or len(copies) >= self._at_once:
                end = timed.offset
                break
            if self._is_void(timed.offset):
                dropped = True
                continue
            last = timed.offset
            copy = self._copied(timed)
            if copy is not None:
                copies.append(copy)
                size += size_bytes
        if not copies and not dropped:
            self._carried_to = end
        else:
            self._store.holds.carried(size)
            self._submit((), self._progress.rolling(end), copies)

    def _copied(self, timed: TimedEntry) -> Draft | None:
        def parse(record: Record) -> Draft | None:
            self._due_ms(record, timed)
            return rolled(record)

        return self._core.foreign.at(TIMER_TOPIC, timed.offset, parse)

    def _oldest(self) -> Iterator[tuple[TimedEntry, int]]:
        """The waiting entries of all slots and the sizes of their messages, in log order."""
        chains = [self._waiting_in(queue) for queue in self._store.queues(TIMER_TOPIC)]
        return heapq.merge(*chains, key=lambda one: one[0].offset)

    def _waiting_in(self, queue: int) -> Iterator[tuple[TimedEntry, int]]:
        if queue >= MARKS:
            return
        first, end = self._store.queue_range(TIMER_TOPIC, queue)
        offset, count, done = max(first, self._waits_from.get(queue, 0)), 1, True
        while offset < end:
            entries = self._store.entries(TIMER_TOPIC, queue, offset, count)
            for entry in entries:
                timed = _timed_entry(self._store, queue, entry)
                if timed is not None and not self._progress.has(timed):
                    done = False
                    if self._store.leads_to_log(entry):  # otherwise it would hide those behind it
                        yield timed, entry.size_bytes
                elif done:
                    self._waits_from[queue] = entry.offset + 1
            offset = entries[-1].offset + 1 if entries else end
            count = MESSAGES_AT_ONCE  # usually the first one is too young, and reading ends there

    # -- recovery

    def _newest_mark(self) -> Newest[Progress]:
        return self._core.foreign.newest(TIMER_TOPIC, MARKS, _mark_of)

    def drop_copies(self, topic: str, newest: Newest[T]) -> None:
        """Record at the start which copies do not count, because their mark is lost.

        Args:
            topic: the topic of the originals.
            newest: the last mark that says which of them have been copied.
        """
        store, marked_to = self._store, newest.offset
        if not newest.is_last:
            return  # a copy may be all that is left
        for queue in store.queues(TIMER_TOPIC):
            last = store.place_of(TIMER_TOPIC, queue, store.queue_range(TIMER_TOPIC, queue)[1] - 1)
            if queue < MARKS and last is not None and last > marked_to:
                self._progress = self._progress.without_copies(
                    topic, marked_to, store.end_offset, store.min_offset
                )
                self.is_starting = True
                return

    def _is_void(self, offset: int) -> bool:
        """Whether a waiting message is a copy that does not count."""
        topics = self._progress.voids_at(offset)
        if not topics:
            return False
        view = self._store.record_at(offset)
        return view is not None and copied_from(bytes(properties_of(view))) in topics

    def _first_slot(self) -> int:
        """The first slot that may hold undelivered messages."""
        progress, store = self._progress, self._store
        slots = [slot_of(self._core.wall_ms())]
        if progress.due_ms is not None:
            slots.append(slot_of(progress.due_ms))
        for queue in store.queues(TIMER_TOPIC):
            if queue >= MARKS:
                continue
            first = store.first_behind(TIMER_TOPIC, queue, progress.known_to)
            for entry in store.entries(TIMER_TOPIC, queue, first, 1):
                timed = _timed_entry(store, queue, entry)
                if timed is not None:
                    slots.append(slot_of(timed.due_ms))
        return min(slots)


def _timed_entry(store: Store, queue: int, entry: QueueEntry) -> TimedEntry | None:
    """The waiting message of a queue's entry; None if it is not one."""
    if entry.size_bytes == BLANK_SIZE:
        return None
    timed = TimedEntry.of(entry)
    if timed is not None and slot_of(timed.due_ms) % SLOTS == queue:
        return timed  # otherwise the entry is damaged
    record = store.record_at(entry.physical_offset)
    due_ms = None if record is None else due_ms_in(bytes(properties_of(record)))
    return None if due_ms is None else TimedEntry(due_ms, entry.physical_offset)


def _mark_of(record: Record) -> Progress | None:
    """The progress in a mark; None if it covers messages that were not stored before it."""
    found = read_mark(bytes(record.body))
    return found if found is not None and found.known_to <= record.physical_offset else None


def first_of(core: Core, slot: int) -> int:
    """The offset of the first message in a slot's queue that may belong to the slot."""
    # A message is stored at most `limits.TIMER_DELAY_MS_MAX` before it is due. The messages of the
    # slot that used the queue before are older, because store times never decrease.
    begin_ms = slot * SLOT_MS - limits.TIMER_DELAY_MS_MAX
    return core.store.offset_at_time(TIMER_TOPIC, slot % SLOTS, begin_ms)
