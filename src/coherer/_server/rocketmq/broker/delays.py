"""Delivers delayed messages when they are due.

See docs/protocol/rocketmq.md, section 6.6.

`tick`, called ten times a second, reads each level's next entries. Due messages are stored in their
real queue, and the level's offset advances behind them. Each level has one delivery in progress at
a time, so that its messages keep their order. A burst is delivered in pieces, one per iteration of
the event loop. A delivery that failed is retried by the next tick.

Setting the machine's clock does not make messages early or late (`_rules.rocketmq.delays.due_ms`).

The offsets are written every few seconds. The store makes the delivered messages that they cover
durable first (`Store.save_config`): a power cut can repeat deliveries, but loses none.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Final

from coherer._common.logs import Log
from coherer._record.layout import decode
from coherer._record.system_topics import DELAY_LEVELS_MS, SCHEDULE_TOPIC
from coherer._rules.common.origins import Origin
from coherer._rules.rocketmq.delays import (
    DelayPositions,
    due_count,
    due_ms,
    released,
)
from coherer._server.core.core import Core
from coherer._server.rocketmq.remoting import Channel
from coherer._store import AppendResult, Draft, QueueEntry
from coherer._store.consume_queue import BLANK_SIZE, is_valid_queue
from coherer._wire.rocketmq.codes import ResponseCode
from coherer._wire.rocketmq.command import Command
from coherer.errors import CohererError

_log = Log(logging.getLogger(__name__))

DELAY_FILE: Final = "delayOffset.json"
ENTRIES_AT_ONCE: Final = 200
BYTES_AT_ONCE: Final = 4 * 1024 * 1024
"""The size of one delivery, so that other work can run in between."""


class DelayService:
    """The delayed messages of a broker.

    Args:
        core: the core of the node.
        levels_ms: the delays of the levels; those of the store's options.

    Attributes:
        positions: the next entry to deliver, by level.
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
        """Read the offsets from their file.

        Raises:
            StoreError: the file cannot be read.
        """
        found = self._core.store.read_config(DELAY_FILE, DelayPositions.load)
        self.positions = DelayPositions() if found is None else found
        loaded = self.positions.dump()
        self.positions.correct(self._range_of, len(self._levels_ms))
        self._core.corrected(DELAY_FILE, loaded, self.positions.dump())
        self._next_ms.clear()

    def follow(self, data: bytes) -> None:
        """Take the offsets from a master's response to GET_ALL_DELAY_OFFSET (45).

        Raises:
            DamagedStoreError: the response is invalid.
        """
        self.positions = DelayPositions.load(data)

    def all_offsets(self, _: Channel, request: Command) -> Command:  # noqa: ARG002
        """GET_ALL_DELAY_OFFSET (45): the offsets of the delivered messages of each level."""
        return Command(ResponseCode.SUCCESS, body=self.positions.dump())

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
        """Write the offsets if they have changed; call it every few seconds, and at the end."""
        self._core.files.save(DELAY_FILE, self.positions.dump)

    def stop(self) -> None:
        """Stop delivering; a delivery in progress is completed."""
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
                _log.warning("Messages of delay level %d are late: %s", level, outcome, about=level)
            else:
                self.positions[level] = following
                if following < end:
                    asyncio.get_running_loop().call_soon(self._go_on, level, delay_ms)

        self._core.appender.submit(drafts, done, origin=Origin.DELAYS, wait_durable=False)

    def _go_on(self, level: int, delay_ms: int) -> None:
        """Deliver more after other work has run."""
        if not self._stopped and level not in self._busy:
            self._deliver(level, delay_ms, self._core.now_ms())

    def _gather(self, entries: Sequence[QueueEntry]) -> tuple[list[Draft], int]:
        """The drafts for the first of these entries, and the offset to continue from."""
        drafts: list[Draft] = []
        budget = BYTES_AT_ONCE
        for entry in entries:
            budget -= entry.size_bytes if entry.size_bytes != BLANK_SIZE else 0
            if budget < 0 and drafts:
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
                "The delayed message at log offset %d is lost",
                entry.physical_offset,
                about=DELAY_FILE,
            )
            return None
        draft = released(decode(record, check_crc=False))
        if draft is None or not is_valid_queue(draft.topic, draft.queue_id):
            _log.error(
                "The delayed message at log offset %d has no valid destination",
                entry.physical_offset,
                about=DELAY_FILE,
            )
            return None
        return draft
