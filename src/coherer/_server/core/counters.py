"""The counters of a node: messages stored and read, over either protocol.

RocketMQ's administration (docs/protocol/rocketmq.md, section 2.12) and the metrics show them.
Counting costs a few additions per batch.

`Counters.stored` counts everything that goes into the log, as the statistics do. `received` counts
what producers send, as the metrics do: a delayed message counts once, for its own topic, when the
broker accepts it, and not again when it is delivered there.
"""

from __future__ import annotations

import time
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from operator import attrgetter
from typing import Final

from coherer._common.distribution import Distribution
from coherer._record.properties import REAL_TOPIC, RETRY_TOPIC, SHARDING_KEY, decode
from coherer._record.system_topics import DLQ_PREFIX, HALF_TOPIC, SCHEDULE_TOPIC, TIMER_TOPIC
from coherer._rules.rocketmq.stats import (
    BROKER_GET_NUMS,
    BROKER_PUT_NUMS,
    GROUP_GET_NUMS,
    SEND_BACK_NUMS,
    StatsTable,
    Totals,
)
from coherer._rules.rocketmq.transactions import messages_in
from coherer._store import AppendResult, Draft, DraftBatch
from coherer.errors import CohererError

PUT: Final = "put"
PUT_BYTES: Final = "put bytes"
GOT: Final = "got"
FOUND: Final = "found"
MISSED: Final = "missed"
"""Stored messages and their bytes, delivered messages, and reads with and without messages."""

SIZES: Final = (1 << 10, 4 << 10, 512 << 10, 1 << 20, 2 << 20, 4 << 20)
"""Upper limits of the buckets of message sizes, in bytes, as in RocketMQ 5."""

BATCHES: Final = (1, 4, 16, 64, 256, 1024, 4096)
"""Upper limits of the buckets of batch sizes, in messages."""

COMMIT_S: Final = (5, 60, 10 * 60, 60 * 60, 12 * 60 * 60, 24 * 60 * 60)
"""The same for the time from a half message to its commit, in s, as in RocketMQ 5."""

PUT_MS: Final = (0, 9, 49, 99, 199, 499, 999, 1999, 2999, 3999, 4999, 9999)
"""The same for the time that it takes to put a batch into the log, in whole ms, as in Java's
broker."""

NORMAL: Final = "normal"
FIFO: Final = "fifo"
DELAY: Final = "delay"
TRANSACTION: Final = "transaction"
"""The message types of RocketMQ 5."""

_WAITING: Final = {SCHEDULE_TOPIC: DELAY, TIMER_TOPIC: DELAY, HALF_TOPIC: TRANSACTION}
"""The topics in which messages for other topics wait."""
_SHARDING_MARK: Final = SHARDING_KEY.encode() + b"\x01"

_topic_of: Final = attrgetter("topic")
_properties_of: Final = attrgetter("properties")
_queue_of: Final = attrgetter("topic", "queue_id")
_size_of: Final = attrgetter("size_bytes")
_count_of: Final = attrgetter("count")


class Counters:
    """The counters of a node.

    Args:
        now_ms: the time of the monotonic clock at the start.
        wall_ms: returns the time of day.

    Attributes:
        stats: counters by topic, group and queue.
        totals: counters of the whole node.
        incoming: sizes of the messages that producers have sent, in bytes, by topic and kind.
        dead: the number of dead letters, by topic and group.
        finished: the number of ended transactions, by topic and by whether they were committed.
        commits: how long committed transactions took, in whole seconds, by topic.
        appends: the sizes of stored batches, in messages.
        puts: how long it took to put batches into the log, in whole ms.
        put_ms_max: the longest of these times.
        get_ms_max: the longest time that it took to read the messages of a RocketMQ pull, in ms.
        read_to: the offset after the last read, by group, topic and queue.
        cluster: the name under which totals are kept in `stats`.
        started_ms: when counting began.
    """

    def __init__(self, now_ms: int, wall_ms: Callable[[], int]) -> None:
        self._wall_ms = wall_ms
        self.stats = StatsTable(now_ms)
        self.totals = Totals(
            (PUT, PUT_BYTES, GOT, FOUND, MISSED), now_ms, self._day_offset_ms(now_ms)
        )
        self.incoming: dict[tuple[str, str], Distribution] = {}
        self.dead: Counter[tuple[str, str]] = Counter()
        self.finished: Counter[tuple[str, bool]] = Counter()
        self.commits: dict[str, Distribution] = {}
        self._normal: dict[str, Distribution] = {}
        self.appends = Distribution(BATCHES)
        self.puts = Distribution(PUT_MS)
        self.put_ms_max = self.get_ms_max = 0
        self.read_to: dict[tuple[str, str, int], int] = {}
        self.cluster = ""
        self.started_ms = now_ms

    def read(
        self,
        group: str,
        topic: str,
        queue_id: int,
        count: int,
        size_bytes: int,
        next_offset: int,
    ) -> None:
        """Count a read; `next_offset` is the offset after its last message."""
        numbers = self.totals.numbers
        if not count:
            numbers[MISSED] += 1
            return
        numbers[FOUND] += 1
        numbers[GOT] += count
        self.read_to[group, topic, queue_id] = next_offset
        self.stats.read(group, topic, queue_id, count, size_bytes)
        self.stats.add(BROKER_GET_NUMS, self.cluster, count)

    def stored(
        self, drafts: Sequence[Draft | DraftBatch], appended: Sequence[AppendResult]
    ) -> None:
        """Count a stored batch."""
        if len(drafts) == 1:
            (one,) = appended
            count, size_bytes = one.count, one.size_bytes
            counts = {_queue_of(drafts[0]): count}
        else:
            count, size_bytes = sum(map(_count_of, appended)), sum(map(_size_of, appended))
            counts = Counter(map(_queue_of, drafts))
            if count > len(drafts):  # a `DraftBatch` holds several messages
                for draft, one in zip(drafts, appended, strict=True):
                    counts[_queue_of(draft)] += one.count - 1
        self.appends.add(count)
        self.totals.numbers[PUT] += count
        self.totals.numbers[PUT_BYTES] += size_bytes
        self.stats.stored(counts, size_bytes)
        self.stats.add(BROKER_PUT_NUMS, self.cluster, count)

    def put(self, took_ns: int) -> None:
        """Count how long it took to put a batch into the log."""
        if took_ns < 1_000_000:  # nearly always
            self.puts.counts[0] += 1
            return
        took_ms = took_ns // 1_000_000
        self.puts.add(took_ms)
        self.put_ms_max = max(self.put_ms_max, took_ms)

    def received(
        self,
        drafts: Sequence[Draft | DraftBatch],
        appended: Sequence[AppendResult],
        *,
        ordered: bool = True,
    ) -> None:
        """Count stored messages that came from a producer.

        Args:
            ordered: whether the protocol has messages that must be consumed in order.
        """
        known = self._normal.get(drafts[0].topic)
        # No Python code runs per message.
        if (
            known is not None
            and (len(drafts) == 1 or len(set(map(_topic_of, drafts))) == 1)
            and not (ordered and _may_be_fifo(drafts))
        ):
            _count_sizes(known, appended)
            return
        for draft, one in zip(drafts, appended, strict=True):
            topic, kind = self._kind_of(draft)
            sizes = self.incoming.get((topic, kind))
            if sizes is None:
                sizes = self.incoming[topic, kind] = Distribution(SIZES)
                if kind == NORMAL and not topic.startswith(DLQ_PREFIX):
                    self._normal[topic] = sizes
            messages = messages_in(_text_of(draft)) if kind == TRANSACTION else 1
            if messages > 1:
                sizes.add(one.size_bytes / messages, messages)
            else:
                _count_sizes(sizes, [one])

    def counting(
        self, drafts: Sequence[Draft | DraftBatch]
    ) -> Callable[[Sequence[AppendResult] | CohererError, int], None]:
        """Make a callback for the appender that counts a producer's messages as stored."""

        def done(outcome: Sequence[AppendResult] | CohererError, _: int) -> None:
            if not isinstance(outcome, CohererError):
                self.received(drafts, outcome)

        return done

    def sent_back(self, group: str, topic: str, *, is_dead: bool = False) -> None:
        """Count a message that a consumer has sent back, as a dead letter or for another try."""
        if is_dead:
            self.dead[topic, group] += 1
        self.stats.add(SEND_BACK_NUMS, f"{topic}@{group}", 1)

    def ended(self, topic: str, born_ms: int, *, is_commit: bool, messages: int = 1) -> None:
        """Count messages whose transaction has ended; their half message was born at `born_ms`."""
        self.finished[topic, is_commit] += messages
        if is_commit:
            took = self.commits.setdefault(topic, Distribution(COMMIT_S))
            took.add(max(0, self._wall_ms() - born_ms) // 1000, messages)

    def forget_topic(self, topic: str) -> None:
        """Delete the counters of a topic."""
        self.stats.forget_topic(topic)
        self._normal.pop(topic, None)
        self.incoming = {key: of for key, of in self.incoming.items() if key[0] != topic}
        for of_group in [key for key in self.dead if key[0] == topic]:
            del self.dead[of_group]
        for committed in (False, True):
            self.finished.pop((topic, committed), None)
        self.commits.pop(topic, None)
        self.read_to = {key: to for key, to in self.read_to.items() if key[1] != topic}

    def forget_groups(self, groups: Collection[str]) -> None:
        """Delete the counters of groups."""
        self.stats.forget_groups(groups)
        for of_group in [key for key in self.dead if key[1] in groups]:
            del self.dead[of_group]
        self.read_to = {key: to for key, to in self.read_to.items() if key[0] not in groups}

    def keep_groups(self, groups: Collection[str]) -> None:
        """Delete the counters of all groups but these."""
        counted = {key.rpartition("@")[2] for key, _ in self.stats.values(GROUP_GET_NUMS)}
        gone = counted.difference(groups)
        if gone:
            self.forget_groups(gone)

    def keep_reads(self, groups: Collection[tuple[str, str]]) -> None:
        """Forget all reads except those of the given pairs of group and topic."""
        self.read_to = {key: to for key, to in self.read_to.items() if key[:2] in groups}

    def tick(self, now_ms: int) -> None:
        """Take snapshots of the counters when due; call it about once a second."""
        self.stats.tick(now_ms)
        self.totals.tick(now_ms, self._day_offset_ms(now_ms))

    def _kind_of(self, draft: Draft | DraftBatch) -> tuple[str, str]:
        """Return the topic that the producer named, and the message type; count dead letters."""
        topic, text = draft.topic, _text_of(draft)
        waiting = _WAITING.get(topic)
        if waiting is not None:
            return decode(text).get(REAL_TOPIC, topic), waiting
        if topic.startswith(DLQ_PREFIX):
            origin = decode(text).get(RETRY_TOPIC, topic)
            self.dead[origin, topic.removeprefix(DLQ_PREFIX)] += 1
        return topic, FIFO if _SHARDING_MARK in text else NORMAL

    def _day_offset_ms(self, now_ms: int) -> int:
        wall_ms = self._wall_ms()
        # Read each time: daylight saving time begins and ends while a node runs.
        return time.localtime(wall_ms // 1000).tm_gmtoff * 1000 + wall_ms - now_ms


def _may_be_fifo(drafts: Sequence[Draft | DraftBatch]) -> bool:
    """Whether one of the messages may have a sharding key."""
    try:
        return _SHARDING_MARK in b"\x02".join(map(_properties_of, drafts))
    except TypeError:  # the properties of a batch are a list
        return True


def _text_of(draft: Draft | DraftBatch) -> bytes:
    """Return the property text of a message, or of the first message of a batch."""
    return draft.properties if isinstance(draft, Draft) else draft.properties[0]


def _count_sizes(sizes: Distribution, appended: Sequence[AppendResult]) -> None:
    """Count messages by size; those of a `DraftBatch` by their average size."""
    if len(appended) == 1:
        (one,) = appended
        if one.count == 1:
            sizes.add(one.size_bytes)
            return
    found, count = list(map(_size_of, appended)), sum(map(_count_of, appended))
    place = bisect_left(SIZES, max(found))
    # Usually all messages are within the same limits. Then no Python code runs per message.
    if not place or (count == len(found) and bisect_left(SIZES, min(found)) == place):
        sizes.counts[place] += count
        sizes.sum += sum(found)
        return
    for size, one in zip(found, appended, strict=True):
        sizes.add(size / one.count, one.count)
