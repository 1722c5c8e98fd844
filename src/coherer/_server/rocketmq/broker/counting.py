"""What a RocketMQ broker counts, for 28, 208 and 315 (2.12).

Messages count when they are stored, by whichever door they came, and when a pull brings them.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from operator import attrgetter
from typing import Final

from coherer._rules.rocketmq.stats import (
    BROKER_GET_NUMS,
    BROKER_PUT_NUMS,
    SEND_BACK_NUMS,
    StatsTable,
    Totals,
)
from coherer._server.core.core import Core
from coherer._store import AppendResult, Draft, DraftBatch

PUT: Final = "put"
PUT_BYTES: Final = "put bytes"
GOT: Final = "got"
FOUND: Final = "found"
MISSED: Final = "missed"
"""Messages stored and their bytes, messages given away, and pulls with and without messages."""

_queue_of: Final = attrgetter("topic", "queue_id")
_size_of: Final = attrgetter("size_bytes")
_count_of: Final = attrgetter("count")


class Counts:
    """The counters of one broker.

    Args:
        core: tells what was stored.
        cluster: the cluster's name.

    Attributes:
        stats: by topic, group and queue.
        totals: of the whole broker.
        started_ms: when counting began.
    """

    def __init__(self, core: Core, cluster: str) -> None:
        now_ms = core.now_ms()
        self._zone_ms = time.localtime(core.wall_ms() // 1000).tm_gmtoff * 1000
        self._wall_ms = core.wall_ms
        self.stats = StatsTable(now_ms)
        self.totals = Totals(
            (PUT, PUT_BYTES, GOT, FOUND, MISSED), now_ms, self._day_offset_ms(now_ms)
        )
        self.started_ms = now_ms
        self._cluster = cluster
        core.on_arrival(self._arrived)
        core.on_removal(self.stats.forget_topic)

    def read(self, group: str, topic: str, queue_id: int, records: Sequence[memoryview]) -> None:
        """A group was given these messages."""
        count, numbers = len(records), self.totals.numbers
        if not count:
            numbers[MISSED] += 1
            return
        numbers[FOUND] += 1
        numbers[GOT] += count
        self.stats.read(group, topic, queue_id, count, sum(map(len, records)))
        self.stats.add(BROKER_GET_NUMS, self._cluster, count)

    def sent_back(self, group: str, topic: str) -> None:
        """A consumer wants a message again later."""
        self.stats.add(SEND_BACK_NUMS, f"{topic}@{group}", 1)

    def tick(self, now_ms: int) -> None:
        """Look at the counters when it is time: call it every second or so."""
        self.stats.tick(now_ms)
        self.totals.tick(now_ms, self._day_offset_ms(now_ms))

    def _day_offset_ms(self, now_ms: int) -> int:
        return self._zone_ms + self._wall_ms() - now_ms

    def _arrived(
        self, drafts: Sequence[Draft | DraftBatch], appended: Sequence[AppendResult]
    ) -> None:
        count, size_bytes = sum(map(_count_of, appended)), sum(map(_size_of, appended))
        self.totals.numbers[PUT] += count
        self.totals.numbers[PUT_BYTES] += size_bytes
        if len(drafts) == 1:
            counts = {_queue_of(drafts[0]): count}
        else:
            counts = Counter(map(_queue_of, drafts))
            if count > len(drafts):  # some of them are several messages
                for draft, one in zip(drafts, appended, strict=True):
                    counts[_queue_of(draft)] += one.count - 1
        self.stats.stored(counts, size_bytes)
        self.stats.add(BROKER_PUT_NUMS, self._cluster, count)
