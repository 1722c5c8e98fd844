"""The statistics of a broker: per topic and group, over the last minute, hour and day.

See docs/protocol/rocketmq.md, section 2.12.

A counter only grows. Snapshots of its value are kept: every ten seconds for a minute, every ten
minutes for an hour, and every hour for a day. A sum is the difference between the last and the
first snapshot, and a rate is the sum divided by the time between them. So a counter costs an
addition per batch, and a snapshot every ten seconds.

A node with thousands of topics has a hundred thousand counters, and most of them rest. So a counter
has a snapshot only where it has changed, as numbers in one tuple, which the garbage collector does
not visit; the table keeps the times of the snapshots.

The names of the counters are Java's: `TOPIC_PUT_NUMS` and `TOPIC_PUT_SIZE` by topic,
`GROUP_GET_NUMS`, `GROUP_GET_SIZE` and `SNDBCK_PUT_NUMS` by topic@group, `QUEUE_PUT_NUMS` and
`QUEUE_PUT_SIZE` by topic@queue, `QUEUE_GET_NUMS` and `QUEUE_GET_SIZE` by topic@queue@group,
`BROKER_PUT_NUMS` and `BROKER_GET_NUMS` by cluster.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from itertools import starmap
from typing import Final, NamedTuple

from coherer._common.clock import IntervalTimer

TOPIC_PUT_NUMS: Final = "TOPIC_PUT_NUMS"
TOPIC_PUT_SIZE: Final = "TOPIC_PUT_SIZE"
QUEUE_PUT_NUMS: Final = "QUEUE_PUT_NUMS"
QUEUE_PUT_SIZE: Final = "QUEUE_PUT_SIZE"
GROUP_GET_NUMS: Final = "GROUP_GET_NUMS"
GROUP_GET_SIZE: Final = "GROUP_GET_SIZE"
QUEUE_GET_NUMS: Final = "QUEUE_GET_NUMS"
QUEUE_GET_SIZE: Final = "QUEUE_GET_SIZE"
SEND_BACK_NUMS: Final = "SNDBCK_PUT_NUMS"
BROKER_PUT_NUMS: Final = "BROKER_PUT_NUMS"
BROKER_GET_NUMS: Final = "BROKER_GET_NUMS"

MINUTE, HOUR, DAY = range(3)
_EVERY_MS: Final = (10_000, 600_000, 3_600_000)
_SNAPSHOTS: Final = (7, 7, 25)
_RATES_S: Final = (10, 60, 600)
"""The spans of the rates of `Totals`."""
_DAY_MS: Final = 86_400_000


class Sum(NamedTuple):
    """The count in a span of time.

    Args:
        sum: the count.
        per_s: the count per second.
        per_time: the count per call of `add`.
    """

    sum: int = 0
    per_s: float = 0.0
    per_time: float = 0.0


class _Counter:
    """A counter.

    Attributes:
        snapshots: of each kind: time, value and times in turn.
    """

    __slots__ = ("snapshots", "times", "value")

    def __init__(self, now_ms: int) -> None:
        self.value = self.times = 0
        # Start with a zero, so that counts before the first regular snapshot are included.
        self.snapshots: list[tuple[int, ...]] = [(now_ms, 0, 0)] * len(_SNAPSHOTS)


class StatsTable:
    """The counters of a broker, by name and key.

    >>> stats = StatsTable(now_ms=0)
    >>> stats.add("TOPIC_PUT_NUMS", "flights", 50)
    >>> stats.tick(10_000)
    >>> stats.view("TOPIC_PUT_NUMS", "flights")[MINUTE]
    Sum(sum=50, per_s=5.0, per_time=50.0)
    >>> stats.view("TOPIC_PUT_NUMS", "trains") is None
    True
    """

    def __init__(self, now_ms: int) -> None:
        self._now_ms = now_ms
        self._counters: dict[str, dict[str, _Counter]] = {}
        self._of_queues: dict[tuple[str, int], tuple[_Counter, ...]] = {}
        self._timers = [IntervalTimer(every_ms, now_ms) for every_ms in _EVERY_MS]
        self._moments = [deque([now_ms], maxlen=size) for size in _SNAPSHOTS]

    def add(self, name: str, key: str, count: int) -> None:
        """Add to a counter."""
        try:
            counter = self._counters[name][key]
        except KeyError:
            counter = self._counter(name, key)
        counter.value += count
        counter.times += 1

    def stored(self, counts: Mapping[tuple[str, int], int], batch_bytes: int) -> None:
        """Count a stored batch.

        Args:
            counts: the number of messages by topic and queue.
            batch_bytes: the size of the batch. It is distributed in proportion to the counts,
                because measuring each message would take too long.
        """
        total = sum(counts.values())
        for queue, count in counts.items():
            numbers = self._of_queues.get(queue) or self._counters_of(*queue)
            topic_nums, topic_size, queue_nums, queue_size = numbers
            size_bytes = batch_bytes * count // total
            # Inlined `add`: a batch may go to as many queues as it has messages.
            topic_nums.value += count
            topic_nums.times += 1
            topic_size.value += size_bytes
            topic_size.times += 1
            queue_nums.value += count
            queue_nums.times += 1
            queue_size.value += size_bytes
            queue_size.times += 1

    def read(self, group: str, topic: str, queue_id: int, count: int, size_bytes: int) -> None:
        """Count messages delivered to a group."""
        of_group = f"{topic}@{group}"
        of_queue = f"{topic}@{queue_id}@{group}"
        self.add(GROUP_GET_NUMS, of_group, count)
        self.add(GROUP_GET_SIZE, of_group, size_bytes)
        self.add(QUEUE_GET_NUMS, of_queue, count)
        self.add(QUEUE_GET_SIZE, of_queue, size_bytes)

    def tick(self, now_ms: int) -> None:
        """Take snapshots when due; call it every second or so."""
        self._now_ms = now_ms
        for kind, timer in enumerate(self._timers):
            if timer.is_due(now_ms):
                moments = self._moments[kind]
                moments.append(now_ms)
                for counters in self._counters.values():
                    for one in counters.values():
                        snapshots = one.snapshots[kind]
                        if snapshots[-1] != one.times:
                            first = _first(snapshots, moments[0])
                            new = *snapshots[first:], now_ms, one.value, one.times
                            one.snapshots[kind] = new

    def view(self, name: str, key: str) -> tuple[Sum, Sum, Sum] | None:
        """The last minute, hour and day of a counter; None if it does not exist."""
        counter = self._counters.get(name, {}).get(key)
        if counter is None:
            return None
        minute, hour, day = map(_sum, counter.snapshots, self._moments)
        return minute, hour, day

    def values(self, name: str) -> list[tuple[str, int]]:
        """Return key and value of all counters with a name."""
        return [(key, one.value) for key, one in self._counters.get(name, {}).items()]

    def per_s(self, name: str, key: str) -> float:
        """The rate of the last minute; 0 if the counter does not exist."""
        found = self.view(name, key)
        return 0.0 if found is None else found[MINUTE].per_s

    def forget_topic(self, topic: str) -> None:
        """Delete the counters of a topic."""
        self._forget(lambda key: key.split("@")[0] == topic)

    def forget_groups(self, groups: Collection[str]) -> None:
        """Delete the counters of groups."""
        self._forget(lambda key: "@" in key and key.rpartition("@")[2] in groups)

    def _counter(self, name: str, key: str) -> _Counter:
        counters = self._counters.setdefault(name, {})
        counter = counters.get(key)
        if counter is None:
            counter = counters[key] = _Counter(self._now_ms)
        return counter

    def _counters_of(self, topic: str, queue_id: int) -> tuple[_Counter, ...]:
        """The counters of a queue's stored messages, cached."""
        of_queue = f"{topic}@{queue_id}"
        names = (
            (TOPIC_PUT_NUMS, topic),
            (TOPIC_PUT_SIZE, topic),
            (QUEUE_PUT_NUMS, of_queue),
            (QUEUE_PUT_SIZE, of_queue),
        )
        found = self._of_queues[topic, queue_id] = tuple(starmap(self._counter, names))
        return found

    def _forget(self, gone: Callable[[str], bool]) -> None:
        for counters in self._counters.values():
            for key in [key for key in counters if gone(key)]:
                del counters[key]
        self._of_queues.clear()


def _first(snapshots: Sequence[int], begin_ms: int) -> int:
    """The position of the snapshot that holds at a time: the last one up to it."""
    at = 0
    while at + 3 < len(snapshots) and snapshots[at + 3] <= begin_ms:
        at += 3
    return at


def _sum(snapshots: Sequence[int], moments: deque[int]) -> Sum:
    at = _first(snapshots, moments[0])
    span_ms = moments[-1] - max(snapshots[at], moments[0])
    total = snapshots[-2] - snapshots[at + 1]
    times = snapshots[-1] - snapshots[at + 2]
    return Sum(
        total,
        total * 1000 / span_ms if span_ms > 0 else 0.0,
        total / times if times else 0.0,
    )


class Totals:
    """A few counters of the whole broker: rates, and values at midnight.

    >>> totals = Totals(["put"], now_ms=0, offset_ms=0)
    >>> for second in range(1, 21):
    ...     totals.numbers["put"] += 3
    ...     totals.tick(second * 1000)
    >>> totals.rates("put")
    (3.0, 3.0, 3.0)

    Args:
        names: of the counters.
        now_ms: the time.
        offset_ms: the local time of day minus `now_ms`, which determines midnight.

    Attributes:
        numbers: the counters, which only grow.
    """

    def __init__(self, names: Iterable[str], now_ms: int, offset_ms: int) -> None:
        self.numbers = dict.fromkeys(names, 0)
        self._snapshots = deque([(now_ms, tuple(self.numbers.values()))], maxlen=_RATES_S[-1] + 1)
        self._beat = IntervalTimer(1000, now_ms)
        self._offset_ms = offset_ms
        self._day = self._day_of(now_ms)
        self._mornings = [dict(self.numbers), dict(self.numbers)]

    def tick(self, now_ms: int, offset_ms: int | None = None) -> None:
        """Take snapshots; call it every second or so.

        Args:
            now_ms: the time, by a monotonic clock.
            offset_ms: the local time of day minus `now_ms`; None if unchanged.
        """
        self._offset_ms = self._offset_ms if offset_ms is None else offset_ms
        if self._beat.is_due(now_ms):
            self._snapshots.append((now_ms, tuple(self.numbers.values())))
        day = self._day_of(now_ms)
        if day != self._day:
            self._day = day
            self._mornings = [self._mornings[1], dict(self.numbers)]

    def rates(self, name: str) -> tuple[float, ...]:
        """The rates over the last ten seconds, minute and ten minutes, as far as known."""
        at = list(self.numbers).index(name)
        last_ms, last = self._snapshots[-1]
        rates: list[float] = []
        for span_s in _RATES_S:
            first_ms, first = self._snapshots[max(0, len(self._snapshots) - 1 - span_s)]
            span_ms = last_ms - first_ms
            rates.append((last[at] - first[at]) * 1000 / span_ms if span_ms > 0 else 0.0)
        return tuple(rates)

    def mornings(self, name: str) -> tuple[int, int]:
        """The values at the start of yesterday and of today, as far as known."""
        return self._mornings[0][name], self._mornings[1][name]

    def _day_of(self, now_ms: int) -> int:
        return (now_ms + self._offset_ms) // _DAY_MS
