"""What a broker counts: per topic and group, over the last minute, hour and day (rocketmq 2.12).

A counter only grows. Beside it lie a few looks back: its value ten seconds ago, twenty, and so on
for a minute; the same every ten minutes for an hour, and every hour for a day. A sum is the
difference of the last look and the first, and a rate is that by the time between them. So a counter
that nobody asks for costs an addition per batch, and one look in ten seconds.

Names of counters are Java's: `TOPIC_PUT_NUMS` and `TOPIC_PUT_SIZE` by topic, `GROUP_GET_NUMS`,
`GROUP_GET_SIZE` and `SNDBCK_PUT_NUMS` by topic@group, `QUEUE_PUT_NUMS` and `_SIZE` by topic@queue,
`QUEUE_GET_NUMS` and `QUEUE_GET_SIZE` by topic@queue@group, `BROKER_PUT_NUMS` and `BROKER_GET_NUMS`
by cluster.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping
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
_LOOKS: Final = (7, 7, 25)
_RATES_S: Final = (10, 60, 600)
"""How far back the rates of `Totals` look."""
_DAY_MS: Final = 86_400_000


class Sum(NamedTuple):
    """What was counted over a time.

    Args:
        sum: so many.
        per_s: so many a second.
        per_time: so many each time that something was counted.
    """

    sum: int = 0
    per_s: float = 0.0
    per_time: float = 0.0


class _Look(NamedTuple):
    at_ms: int
    value: int
    times: int


class _Counter:
    __slots__ = ("looks", "times", "value")

    def __init__(self, now_ms: int) -> None:
        self.value = self.times = 0
        # It begins with nothing: what comes before the first regular look counts, too.
        self.looks = tuple(deque([_Look(now_ms, 0, 0)], maxlen=size) for size in _LOOKS)

    def add(self, count: int) -> None:
        self.value += count
        self.times += 1


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
        self._counters: dict[tuple[str, str], _Counter] = {}
        self._of_queues: dict[tuple[str, int], tuple[_Counter, ...]] = {}
        self._beats = [IntervalTimer(every_ms, now_ms) for every_ms in _EVERY_MS]

    def add(self, name: str, key: str, count: int) -> None:
        """Count something, once."""
        self._counter(name, key).add(count)

    def stored(self, counts: Mapping[tuple[str, int], int], batch_bytes: int) -> None:
        """Count a stored batch.

        Args:
            counts: how many messages went to each topic and queue.
            batch_bytes: size of all together, which is counted in proportion: of the messages of
                one batch, none is looked at for its size.
        """
        total = sum(counts.values())
        for queue, count in counts.items():
            numbers = self._of_queues.get(queue) or self._counters_of(*queue)
            topic_nums, topic_size, queue_nums, queue_size = numbers
            size_bytes = batch_bytes * count // total
            # In place: a batch may go to as many queues as it has messages.
            topic_nums.value += count
            topic_nums.times += 1
            topic_size.value += size_bytes
            topic_size.times += 1
            queue_nums.value += count
            queue_nums.times += 1
            queue_size.value += size_bytes
            queue_size.times += 1

    def read(self, group: str, topic: str, queue_id: int, count: int, size_bytes: int) -> None:
        """Count what a group was given."""
        of_group = f"{topic}@{group}"
        of_queue = f"{topic}@{queue_id}@{group}"
        self.add(GROUP_GET_NUMS, of_group, count)
        self.add(GROUP_GET_SIZE, of_group, size_bytes)
        self.add(QUEUE_GET_NUMS, of_queue, count)
        self.add(QUEUE_GET_SIZE, of_queue, size_bytes)

    def tick(self, now_ms: int) -> None:
        """Look at the counters when it is time: call it every second or so."""
        self._now_ms = now_ms
        for kind, beat in enumerate(self._beats):
            if beat.is_due(now_ms):
                for counter in self._counters.values():
                    counter.looks[kind].append(_Look(now_ms, counter.value, counter.times))

    def view(self, name: str, key: str) -> tuple[Sum, Sum, Sum] | None:
        """What a counter did in the last minute, hour and day; None when nothing was counted."""
        counter = self._counters.get((name, key))
        if counter is None:
            return None
        minute, hour, day = counter.looks
        return _sum(minute), _sum(hour), _sum(day)

    def per_s(self, name: str, key: str) -> float:
        """The rate of the last minute; 0 for what was never counted."""
        found = self.view(name, key)
        return 0.0 if found is None else found[MINUTE].per_s

    def forget_topic(self, topic: str) -> None:
        """A topic is no more."""
        self._forget(lambda key: key.split("@")[0] == topic)

    def forget_group(self, group: str) -> None:
        """A group is no more."""
        self._forget(lambda key: "@" in key and key.split("@")[-1] == group)

    def _counter(self, name: str, key: str) -> _Counter:
        counter = self._counters.get((name, key))
        if counter is None:
            counter = self._counters[name, key] = _Counter(self._now_ms)
        return counter

    def _counters_of(self, topic: str, queue_id: int) -> tuple[_Counter, ...]:
        """Those that a message stored in a queue counts in, remembered."""
        of_queue = f"{topic}@{queue_id}"
        names = (
            (TOPIC_PUT_NUMS, topic), (TOPIC_PUT_SIZE, topic),
            (QUEUE_PUT_NUMS, of_queue), (QUEUE_PUT_SIZE, of_queue),
        )  # fmt: skip
        found = self._of_queues[topic, queue_id] = tuple(starmap(self._counter, names))
        return found

    def _forget(self, gone: Callable[[str], bool]) -> None:
        for name, key in [names for names in self._counters if gone(names[1])]:
            del self._counters[name, key]
        self._of_queues.clear()


def _sum(looks: deque[_Look]) -> Sum:
    first, last = looks[0], looks[-1]
    span_ms, times = last.at_ms - first.at_ms, last.times - first.times
    total = last.value - first.value
    return Sum(
        total,
        total * 1000 / span_ms if span_ms > 0 else 0.0,
        total / times if times else 0.0,
    )


class Totals:
    """A few numbers of the whole broker, looked at every second: rates, and what a day brought.

    >>> totals = Totals(["put"], now_ms=0, offset_ms=0)
    >>> for second in range(1, 21):
    ...     totals.numbers["put"] += 3
    ...     totals.tick(second * 1000)
    >>> totals.rates("put")
    (3.0, 3.0, 3.0)

    Args:
        names: of the numbers.
        now_ms: the time.
        offset_ms: what the local time of day is ahead of `now_ms`, which says when a day begins.

    Attributes:
        numbers: they only grow.
    """

    def __init__(self, names: Iterable[str], now_ms: int, offset_ms: int) -> None:
        self.numbers = dict.fromkeys(names, 0)
        self._looks = deque([(now_ms, tuple(self.numbers.values()))], maxlen=_RATES_S[-1] + 1)
        self._beat = IntervalTimer(1000, now_ms)
        self._offset_ms = offset_ms
        self._day = self._day_of(now_ms)
        self._mornings = [dict(self.numbers), dict(self.numbers)]

    def tick(self, now_ms: int, offset_ms: int | None = None) -> None:
        """Look at the numbers: call it every second or so.

        Args:
            now_ms: the time, by a clock that is not set.
            offset_ms: what the local time of day is ahead of that, if it is another now.
        """
        self._offset_ms = self._offset_ms if offset_ms is None else offset_ms
        if self._beat.is_due(now_ms):
            self._looks.append((now_ms, tuple(self.numbers.values())))
        day = self._day_of(now_ms)
        if day != self._day:
            self._day = day
            self._mornings = [self._mornings[1], dict(self.numbers)]

    def rates(self, name: str) -> tuple[float, ...]:
        """So many a second in the last ten seconds, minute and ten minutes, as far as it knows."""
        at = list(self.numbers).index(name)
        last_ms, last = self._looks[-1]
        rates: list[float] = []
        for span_s in _RATES_S:
            first_ms, first = self._looks[max(0, len(self._looks) - 1 - span_s)]
            span_ms = last_ms - first_ms
            rates.append((last[at] - first[at]) * 1000 / span_ms if span_ms > 0 else 0.0)
        return tuple(rates)

    def mornings(self, name: str) -> tuple[int, int]:
        """What the number was when yesterday began, and today, as far as it knows."""
        return self._mornings[0][name], self._mornings[1][name]

    def _day_of(self, now_ms: int) -> int:
        return (now_ms + self._offset_ms) // _DAY_MS
