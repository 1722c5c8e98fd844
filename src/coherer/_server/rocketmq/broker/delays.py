"""Delivers delayed messages when they are due.

See docs/protocol/rocketmq.md, section 6.6.

`tick`, called ten times a second, reads each level's next entries. Due messages are stored in their
real queue, and the level's offset advances past them. One delivery is in progress at a time, so
that the messages of a level keep their order. A burst is delivered in pieces, one per iteration of
the event loop. A delivery that failed is retried by the next tick.

Invariants:

* Messages are delivered once, even if the process is killed: each delivery is stored together with
  a mark of the levels' offsets, in one append, and the newest mark counts at the start. (A power
  cut can tear the last appends. It can repeat their deliveries, and loses none.) The offsets are
  also written to a file every few seconds, for Java's brokers; the store makes the delivered
  messages that they cover durable first (`Store.save_config`).
* Retention keeps the file of the first message that waits (`coherer._store.retention`). Messages in
  files that are to be deleted soon are carried forward: they become timed messages that are due at
  the same time. If a power cut takes the mark, these do not count (`_rules.rocketmq.timers`).

* A damaged entry costs its own message: no other one is early, waits for it, or is delivered twice.

Setting the machine's clock does not make messages early or late (`_rules.rocketmq.delays.due_ms`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Final

from coherer import limits
from coherer._common.logs import Log
from coherer._record.layout import Record
from coherer._record.system_topics import DELAY_LEVELS_MS, SCHEDULE_TOPIC, TIMER_TOPIC
from coherer._rules.common.origins import Origin
from coherer._rules.rocketmq.delays import (
    MARKS,
    DelayPositions,
    corrected,
    due_count,
    due_ms,
    released,
)
from coherer._server.core.core import Core
from coherer._server.core.foreign import deliverable
from coherer._server.rocketmq.broker.timers import TimerService
from coherer._server.rocketmq.remoting import Channel
from coherer._store import AppendResult, Draft, QueueEntry
from coherer._store.consume_queue import BLANK_SIZE
from coherer._wire.rocketmq.codes import ResponseCode
from coherer._wire.rocketmq.command import Command
from coherer.errors import CohererError, UsageError

_log = Log(logging.getLogger(__name__))

DELAY_FILE: Final = "delayOffset.json"
ENTRIES_AT_ONCE: Final = 200
BYTES_AT_ONCE: Final = 4 * 1024 * 1024
"""The size of one delivery, so that other work can run in between."""


class _Delivery:
    """The messages of one append.

    Args:
        positions: the levels' offsets before it.
        at_once: the largest number of messages.
        room: their largest size in bytes; the first one may be larger.
    """

    def __init__(self, positions: DelayPositions, at_once: int, room: int) -> None:
        self.before = positions
        self.positions = positions.copy()
        self.drafts: list[Draft] = []
        self.size = 0
        self.has_passed = False
        self._at_once = at_once
        self._room = room

    @property
    def is_full(self) -> bool:
        return len(self.drafts) >= self._at_once or self.size >= self._room

    def add(self, level: int, entry: QueueEntry, draft: Draft | None) -> None:
        """Add the message of a level's next entry; None if it is bad and skipped."""
        self.positions[level] = entry.offset + 1
        self.has_passed = True
        if draft is not None:
            self.drafts.append(draft)
            self.size += entry.size_bytes


class DelayService:
    """The delayed messages of a broker.

    Args:
        levels_ms: the delays of the levels; those of the store's options.
        timers: takes messages whose files are to be deleted; None to keep the files.

    Attributes:
        positions: the next entry to deliver, by level.
    """

    def __init__(
        self,
        core: Core,
        levels_ms: Sequence[int] = DELAY_LEVELS_MS,
        timers: TimerService | None = None,
    ) -> None:
        self._core = core
        self._levels_ms = levels_ms
        self._timers = timers
        self._busy = self._stopped = False
        self._at_once = ENTRIES_AT_ONCE
        self._turn = 0  # the level that is looked at first
        self._carried_to = 0  # nothing waits before this log offset
        self._next_ms: dict[int, int] = {}  # by level: when the entry at its position is due
        self._seen_to = -1  # no message has been stored since: the levels are as they were
        self.positions = DelayPositions()
        self.load()
        if timers is not None:
            timers.drop_copies(SCHEDULE_TOPIC, self._newest)
        core.store.holds.add("delayed messages", self._needed)

    def load(self) -> None:
        """Read the offsets from their file and from the newest mark.

        Raises:
            StoreError: the file cannot be read.
        """
        found = self._core.store.read_config(DELAY_FILE, DelayPositions.load)
        loaded = (found or DelayPositions()).dump()
        self.follow(loaded)
        self._core.corrected(DELAY_FILE, loaded, self.positions.dump())

    def follow(self, data: bytes) -> None:
        """Take the offsets from a master's response to GET_ALL_DELAY_OFFSET (45).

        Raises:
            DamagedStoreError: the response is invalid.
        """
        self.positions = DelayPositions.load(data)
        self._read_mark()
        self._next_ms.clear()
        self._seen_to = -1

    def all_offsets(self, _: Channel, request: Command) -> Command:  # noqa: ARG002
        """GET_ALL_DELAY_OFFSET (45): the offsets of the delivered messages of each level."""
        return Command(ResponseCode.SUCCESS, body=self.positions.dump())

    def tick(self) -> None:
        """Deliver due messages, and carry forward those in files that will be deleted soon."""
        if self._busy or self._stopped:
            return
        if self._timers is not None and self._timers.is_starting:
            return  # after another mark a further start could not tell which copies count
        delivery = _Delivery(self.positions, self._at_once, BYTES_AT_ONCE)
        now_ms, end = self._core.now_ms(), self._core.store.end_offset
        next_ms = self.next_ms()
        if end == self._seen_to and (next_ms is None or now_ms < next_ms):
            self._carry(now_ms)
            return
        levels = range(1, len(self._levels_ms) + 1)
        for level in (*levels[self._turn :], *levels[: self._turn]):
            next_ms = self._next_ms.get(level)
            if next_ms is None or now_ms >= next_ms:
                self._gather(delivery, level, now_ms)
            if delivery.is_full:
                self._turn = level % len(levels)
                break
        if delivery.drafts:
            self._submit(delivery)
        elif delivery.has_passed:  # bad messages only
            self.positions = delivery.positions
            asyncio.get_running_loop().call_soon(self.tick)
        else:
            self._seen_to = end
            self._carry(now_ms)

    def next_ms(self) -> int | None:
        """When the next message is due, ms since 1970; None if none waits."""
        return min(self._next_ms.values(), default=None)

    def save(self) -> None:
        """Write the offsets if they have changed; call it every few seconds, and at the end."""
        self._core.files.save(DELAY_FILE, self.positions.dump)

    def stop(self) -> None:
        """Stop delivering; a delivery in progress is completed."""
        self._stopped = True

    # -- inside

    def _entries(self, level: int, position: int, count: int) -> list[QueueEntry]:
        store = self._core.store
        first, end = store.queue_range(SCHEDULE_TOPIC, level - 1)
        at = max(position, first)
        if at >= end:
            return []
        at = store.after_blanks(SCHEDULE_TOPIC, level - 1, at)
        return store.entries(SCHEDULE_TOPIC, level - 1, at, count)

    def _gather(self, delivery: _Delivery, level: int, now_ms: int) -> None:
        """Add a level's due messages to a delivery, as long as there is room."""
        entries = self._entries(level, self.positions[level], self._at_once)
        count, next_ms = due_count(entries, now_ms, lambda one: self._due_ms(level, one, now_ms))
        if count == 0 and next_ms is not None:
            self._next_ms[level] = next_ms
            return
        self._next_ms.pop(level, None)
        for entry in entries[:count]:
            if delivery.is_full:
                break
            delivery.add(level, entry, self._released(level, entry))

    def _due_ms(self, level: int, entry: QueueEntry, now_ms: int) -> int:
        """When the message of an entry is due; now, if the entry does not lead to it.

        So no other message waits for a damaged one.
        """
        store, delay_ms = self._core.store, self._levels_ms[level - 1]
        place, times = (level - 1, entry.offset), store.clock_history
        stored_ms = self._core.foreign.stored_ms(SCHEDULE_TOPIC, entry.physical_offset, place)
        if stored_ms is None:
            if entry.physical_offset < store.end_offset:
                return now_ms
            return min(due_ms(entry, times, delay_ms), now_ms + delay_ms)  # it may just arrive
        due = due_ms(corrected(entry, stored_ms, delay_ms), times, delay_ms)
        if due <= now_ms + delay_ms:
            return due
        return min(due, due_ms(entry, times, delay_ms))  # a bit of the message's time has flipped

    def _submit(self, delivery: _Delivery) -> None:
        """Store messages, and the mark that records their delivery."""
        core = self._core
        core.topics.ensure_topic(TIMER_TOPIC, 1, core.now_ms())
        mark = delivery.positions.mark(core.store.store_host, core.wall_ms())
        self._busy = True

        def done(outcome: Sequence[AppendResult] | CohererError, _: int) -> None:
            self._busy = False
            if isinstance(outcome, UsageError) and len(delivery.drafts) == 1:
                _log.error("A delayed message could not be delivered: %s", outcome)
                self.positions = delivery.positions
            elif isinstance(outcome, CohererError):
                _log.warning("Delayed messages are late: %s", outcome, about=type(outcome))
                if isinstance(outcome, UsageError):
                    self._at_once = 1  # to find the one that cannot be stored
                return
            else:
                self.positions = delivery.positions
                self._at_once = ENTRIES_AT_ONCE
            asyncio.get_running_loop().call_soon(self.tick)

        core.appender.submit(
            delivery.drafts, done, origin=Origin.DELAYS, own=[mark], wait_durable=False
        )

    def _released(self, level: int, entry: QueueEntry) -> Draft | None:
        if entry.size_bytes == BLANK_SIZE:
            return None
        return self._core.foreign.at(
            SCHEDULE_TOPIC,
            entry.physical_offset,
            lambda record: deliverable(released(record)),
            (level - 1, entry.offset),
        )

    def _read_mark(self) -> None:
        """Advance to the offsets of the newest mark where these are larger."""
        store = self._core.store
        self._newest = self._core.foreign.newest(TIMER_TOPIC, MARKS, self._mark_of)
        if self._newest.mark is not None:
            self.positions.advance(self._newest.mark)
        self.positions.correct(
            lambda level: store.queue_range(SCHEDULE_TOPIC, level - 1), len(self._levels_ms)
        )

    def _mark_of(self, record: Record) -> DelayPositions | None:
        """The offsets in a mark; None if it covers messages that were not stored before it."""
        store, found = self._core.store, DelayPositions.load(bytes(record.body))
        for level in range(1, len(self._levels_ms) + 1):
            if found[level] > store.queue_range(SCHEDULE_TOPIC, level - 1)[1]:
                return None
            last = store.place_of(SCHEDULE_TOPIC, level - 1, found[level] - 1)
            if last is not None and last >= record.physical_offset:
                return None
        return found

    # -- keeping messages whose files would be deleted

    def _needed(self) -> int | None:
        """The log offset of the first message that waits."""
        store, found = self._core.store, list[int]()
        for level in range(1, len(self._levels_ms) + 1):
            entries = self._entries(level, self.positions[level], ENTRIES_AT_ONCE)
            real = [one.physical_offset for one in entries if store.leads_to_log(one)]
            found += real[:1] or ([0] if entries else [])
        return min(found, default=None)

    def _carry(self, now_ms: int) -> None:
        """Turn waiting messages of files that will be deleted soon into timed ones."""
        timers, to = self._timers, self._core.next_to_go
        if timers is None or to <= self._carried_to:
            return
        holds = self._core.store.holds
        delivery = _Delivery(self.positions, self._at_once, min(BYTES_AT_ONCE, holds.room()))
        is_all = True
        for level in range(1, len(self._levels_ms) + 1):
            is_all = self._carry_level(delivery, timers, level, to, now_ms) and is_all
        if not delivery.drafts:
            self.positions = delivery.positions
            self._carried_to = to if is_all else self._carried_to
        else:
            holds.carried(delivery.size)
            self._submit(delivery)

    def _carry_level(
        self, delivery: _Delivery, timers: TimerService, level: int, to: int, now_ms: int
    ) -> bool:
        """Add a level's messages before a log offset; returns whether none is left."""
        entries = self._entries(level, delivery.positions[level], ENTRIES_AT_ONCE)
        for number, entry in enumerate(entries):
            # Places increase: if one before `to` follows, the entry is damaged.
            following = [one for one in entries[number:] if one.size_bytes != BLANK_SIZE]
            if following and all(one.physical_offset >= to for one in following):
                return True
            wait_ms = max(self._due_ms(level, entry, now_ms) - now_ms, 0)
            if delivery.is_full or wait_ms > limits.TIMER_DELAY_MS_MAX:
                return False
            draft = self._released(level, entry)
            if draft is not None:
                at_ms = self._core.wall_ms() + wait_ms
                try:
                    draft = timers.hold_back(draft, at_ms, SCHEDULE_TOPIC)
                except UsageError:  # its properties have no room for more
                    return False
                if draft is None:  # too many timed messages are due then
                    return False
            delivery.add(level, entry, draft)
        return not self._entries(level, delivery.positions[level], 1)
