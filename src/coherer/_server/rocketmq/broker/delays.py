"""Delivers delayed messages when they are due (protocol page, 6.6).

`tick`, called ten times a second, looks at each level's next entry; what is due is stored in its
real queue, and the level's position moves behind it. A level has one delivery under way at a time,
so that its messages keep their order; a burst comes in pieces, one per turn of the loop. What could
not be stored is tried again with the next tick.

Setting the machine's clock makes no message early or late (`_rules.rocketmq.delays.due_ms`).

The positions are written every few seconds, and only when the messages that they count as
delivered are on the disk: a power cut repeats deliveries, it loses none.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Final

from coherer._common.logs import Log
from coherer._record.layout import decode
from coherer._record.system_topics import DELAY_LEVELS_MS
from coherer._rules.rocketmq.delays import (
    SCHEDULE_TOPIC,
    DelayPositions,
    due_count,
    due_ms,
    released,
)
from coherer._rules.rocketmq.transactions import HALF_TOPIC
from coherer._server.core.core import Core
from coherer._store import AppendResult, Draft, QueueEntry
from coherer._store.consume_queue import BLANK_SIZE, is_valid_queue
from coherer.errors import CohererError

_log = Log(logging.getLogger(__name__))

DELAY_FILE: Final = "delayOffset.json"
ENTRIES_AT_ONCE: Final = 200
BYTES_AT_ONCE: Final = 4 * 1024 * 1024
"""One delivery of a level: others have their turn between."""


class DelayService:
    """The delayed messages of a broker.

    Args:
        core: what the doors share.
        levels_ms: the delays of the levels; those of the store's options.

    Attributes:
        positions: the next entry to deliver of each level.
    """

    def __init__(self, core: Core, levels_ms: Sequence[int] = DELAY_LEVELS_MS) -> None:
        self._core = core
        self._levels_ms = levels_ms
        self._busy: set[int] = set()
        self._stopped = False
        self._next_ms: dict[int, int] = {}  # by level: when the entry at its position is due
        self.positions = DelayPositions()
        self.load()

    def load(self) -> None:
        """Take the positions from their file.

        Raises:
            StoreError: it cannot be read.
        """
        found = self._core.store.read_config(DELAY_FILE, DelayPositions.load)
        self.positions = DelayPositions() if found is None else found
        self.positions.correct(self._range_of, len(self._levels_ms))
        self._next_ms.clear()
        self._core.files.has(DELAY_FILE, self.positions.dump())

    def follow(self, data: bytes) -> None:
        """Have the positions of a master, as its answer to 45 says them.

        Raises:
            DamagedStoreError: that is none.
        """
        self.positions = DelayPositions.load(data)

    def tick(self) -> None:
        """Deliver what is due."""
        now_ms = self._core.now_ms()
        for level, delay_ms in enumerate(self._levels_ms, 1):
            if level in self._busy:
                continue
            next_ms = self._next_ms.get(level)
            if next_ms is None or now_ms >= next_ms:
                self._deliver(level, delay_ms, now_ms)

    def save(self) -> None:
        """Have the positions written, if they are new: call it every few seconds, and at the end.

        First the messages that they count as delivered are made durable.
        """
        self._core.files.save(DELAY_FILE, self.positions.dump, self._core.store.flush)

    def stop(self) -> None:
        """Deliver nothing more; what is under way ends."""
        self._stopped = True

    # -- inside

    def _range_of(self, level: int) -> tuple[int, int]:
        return self._core.store.queue_range(SCHEDULE_TOPIC, level - 1)

    def _deliver(self, level: int, delay_ms: int, now_ms: int) -> None:
        first, end = self._range_of(level)
        at = max(self.positions[level], first)
        if at >= end:
            return
        entries = self._core.store.entries(SCHEDULE_TOPIC, level - 1, at, ENTRIES_AT_ONCE)
        times = self._core.store.clock_history
        count, next_ms = due_count(entries, now_ms, lambda entry: due_ms(entry, times, delay_ms))
        if next_ms is not None:
            self._next_ms[level] = next_ms
        if count == 0:
            return
        self._next_ms.pop(level, None)
        drafts, following = self._gather(entries[:count])
        if not drafts:
            self.positions[level] = following
            return
        self._busy.add(level)

        def done(outcome: Sequence[AppendResult] | CohererError, _: int) -> None:
            self._busy.discard(level)
            if isinstance(outcome, CohererError):
                _log.warning("Messages of delay level %d wait on: %s", level, outcome, about=level)
            else:
                self.positions[level] = following
                if following < end:
                    asyncio.get_running_loop().call_soon(self._go_on, level, delay_ms)

        self._core.appender.submit(drafts, done, wait_durable=False)

    def _go_on(self, level: int, delay_ms: int) -> None:
        """There may be more that is due: others have had their turn."""
        if not self._stopped and level not in self._busy:
            self._deliver(level, delay_ms, self._core.now_ms())

    def _gather(self, entries: Sequence[QueueEntry]) -> tuple[list[Draft], int]:
        """What to store for these entries, or for the first of them; and where to go on."""
        drafts: list[Draft] = []
        room = BYTES_AT_ONCE
        for entry in entries:
            room -= entry.size_bytes if entry.size_bytes != BLANK_SIZE else 0
            if room < 0 and drafts:
                return drafts, entry.offset
            draft = self._released(entry)
            if draft is not None:
                drafts.append(draft)
        return drafts, entries[-1].offset + 1

    def _released(self, entry: QueueEntry) -> Draft | None:
        if entry.size_bytes == BLANK_SIZE:
            return None
        record = self._core.store.record_at(entry.physical_offset)
        if record is None:
            _log.error(
                "A delayed message at %d of the log is lost",
                entry.physical_offset,
                about=DELAY_FILE,
            )
            return None
        draft = released(decode(record, check_crc=False))
        if (
            draft is None
            or draft.topic == HALF_TOPIC
            or not is_valid_queue(draft.topic, draft.queue_id)
        ):
            _log.error(
                "A delayed message at %d has nowhere to go", entry.physical_offset, about=DELAY_FILE
            )
            return None
        return draft
