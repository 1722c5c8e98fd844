"""Which brokers and partitions a producer avoids, by the outcomes of earlier sends (Java's rules).

* `Backoff` belongs to a partition: after more than `FAILURES_MAX` failed sends in a row it is
  skipped for `BACKOFF_MS`; a successful send resets the count.
* `Quality` knows all brokers of a producer, and avoids some of them:

| reason | cause | duration |
|---|---|---|
| unavailable | an answer with code 503 | `unavailable_ms` |
| unreachable | too many failed connects within `connect_window_ms` | `unreachable_ms` |
| slow | more than `outstanding_max` sends without an answer | until there are fewer |
| poor | far fewer successes than its peers within `poor_check_ms` | `poor_check_ms` |

So that the other brokers can carry the load, at most `unreachable_share` of the brokers are avoided
as unreachable, and at most `poor_share` as poor. A cluster of fewer than four brokers has no poor
brokers.

No I/O and no clock: the caller passes the time.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import msgspec

FAILURES_MAX: Final = 3
"""After more failures in a row than this, a partition is skipped."""

BACKOFF_MS: Final = 3000
"""How long it is skipped."""


class Backoff:
    """Counts failed sends to a partition, and decides how long it is skipped."""

    __slots__ = ("failures", "until_ms")

    def __init__(self) -> None:
        self.failures = 0
        self.until_ms = 0

    def succeeded(self) -> None:
        """A send succeeded."""
        self.failures = 0
        self.until_ms = 0

    def failed(self, now_ms: int) -> None:
        """A send got no answer: the connection broke, or it took too long."""
        self.failures += 1
        if self.failures > FAILURES_MAX:
            self.failures = 0
            self.until_ms = now_ms + BACKOFF_MS


UNREACHABLE_COUNT_MAX: Final = 30
"""At most this many brokers are unreachable at a time."""


class QualityRules(msgspec.Struct, frozen=True, kw_only=True):
    """The numbers of the rules; the defaults are Java's.

    Args:
        unavailable_ms: how long a broker that answered 503 is avoided.
        connect_window_ms: the period in which failed connects are counted.
        connect_failures_max: how many failed connects are tolerated.
        unreachable_ms: how long a broker with more failures is avoided.
        unreachable_share: the maximum share of unreachable brokers.
        outstanding_max: with more unanswered sends than this, a broker is avoided.
        poor_check_ms: interval of comparing brokers, and how long a poor one is avoided.
        poor_share: the maximum share of poor brokers.
    """

    unavailable_ms: int = 50_000
    connect_window_ms: int = 60_000
    connect_failures_max: int = 5
    unreachable_ms: int = 1_800_000
    unreachable_share: float = 0.3
    outstanding_max: int = 50_000
    poor_check_ms: int = 30_000
    poor_share: float = 0.15


class Tally:
    """Counts the sends to one broker since the start."""

    __slots__ = ("finished", "sent", "sent_before", "succeeded", "succeeded_before")

    def __init__(self) -> None:
        self.sent = 0
        self.finished = 0  # answered or failed
        self.succeeded = 0
        self.sent_before = 0  # at the last comparison
        self.succeeded_before = 0

    @property
    def outstanding(self) -> int:
        """Sends without an answer."""
        return self.sent - self.finished


class Quality:
    """Decides which brokers to avoid.

    >>> quality = Quality()
    >>> quality.refused_service(1, now_ms=0)
    >>> quality.usable([1, 2], now_ms=10)
    [2]
    >>> quality.usable([1, 2], now_ms=50_000)
    [1, 2]
    """

    def __init__(self, rules: QualityRules | None = None) -> None:
        self._rules = rules or QualityRules()
        self._tallies: dict[int, Tally] = {}
        self._unavailable: dict[int, int] = {}  # broker -> when it may be used again
        self._poor: dict[int, int] = {}  # broker -> since when it is avoided
        self._failures: dict[int, tuple[int, int]] = {}  # broker -> (window's start, failures)
        self._unreachable: dict[int, int] = {}  # broker -> when it may be used again
        self._known: frozenset[int] | None = None
        self._checked_ms: int | None = None

    def tally(self, broker: int) -> Tally:
        """The counters of a broker; senders keep them up to date."""
        tally = self._tallies.get(broker)
        if tally is None:
            tally = self._tallies[broker] = Tally()
        return tally

    def forget(self, known: Iterable[int]) -> None:
        """Forget all brokers that are not in `known`.

        Their counters stay, because sends to them may be in flight.
        """
        self._known = frozenset(known)
        for table in (self._unavailable, self._poor, self._failures, self._unreachable):
            for broker in table.keys() - self._known:
                del table[broker]

    def refused_service(self, broker: int, now_ms: int) -> None:
        """A broker answered 503."""
        self._unavailable[broker] = now_ms + self._rules.unavailable_ms

    def connected(self, broker: int) -> None:
        """A connection to the broker was opened."""
        self._failures.pop(broker, None)
        self._unreachable.pop(broker, None)

    def connect_failed(self, broker: int, now_ms: int) -> None:
        """A connection to the broker could not be opened."""
        since_ms, failures = self._failures.get(broker, (now_ms, 0))
        if now_ms - since_ms > self._rules.connect_window_ms:
            since_ms, failures = now_ms, 0
        self._failures[broker] = (since_ms, failures + 1)
        if failures + 1 <= self._rules.connect_failures_max or broker in self._unreachable:
            return
        allowed = round(len(self._tallies) * self._rules.unreachable_share)
        if len(self._unreachable) < min(allowed, UNREACHABLE_COUNT_MAX):
            self._unreachable[broker] = now_ms + self._rules.unreachable_ms

    def usable(self, brokers: Iterable[int], now_ms: int) -> list[int]:
        """The brokers of `brokers` that are not avoided, in the same order."""
        _expire(self._unavailable, now_ms)
        _expire(self._unreachable, now_ms)
        out = self._unavailable.keys() | self._unreachable.keys() | self._poor.keys()
        limit = self._rules.outstanding_max
        return [
            broker
            for broker in brokers
            if broker not in out and self.tally(broker).outstanding <= limit
        ]

    def check(self, now_ms: int) -> None:
        """Compare the brokers, if it is due. To be called about once a second."""
        if self._checked_ms is None:
            self._checked_ms = now_ms
        if now_ms - self._checked_ms < self._rules.poor_check_ms:
            return
        self._checked_ms = now_ms
        news = [
            (tally.succeeded - tally.succeeded_before, tally.sent - tally.sent_before, broker)
            for broker, tally in self._tallies.items()
            if broker not in self._poor and (self._known is None or broker in self._known)
        ]
        for tally in self._tallies.values():
            tally.sent_before, tally.succeeded_before = tally.sent, tally.succeeded
        for broker, since_ms in list(self._poor.items()):
            if now_ms - since_ms >= self._rules.poor_check_ms:
                del self._poor[broker]
        allowed = round((len(news) + len(self._poor)) * self._rules.poor_share) - len(self._poor)
        for broker in poor(news, allowed):
            self._poor[broker] = now_ms


def poor(news: list[tuple[int, int, int]], allowed: int) -> list[int]:
    """Brokers whose failure rate is an outlier.

    Args:
        news: (successes, sends, broker) since the last comparison.
        allowed: the maximum number to return.

    >>> poor([(100, 100, 1), (99, 100, 2), (101, 101, 3), (1, 100, 4)], allowed=1)
    [4]
    """
    if allowed <= 0 or not news:
        return []
    news = sorted(news)
    threshold = _threshold([successes for successes, _, _ in news])
    chosen: list[int] = []
    for successes, sends, broker in news:
        if successes >= threshold or len(chosen) == allowed:
            break
        enough = int(sends * 0.1)
        if enough > 2 and successes < enough:
            chosen.append(broker)
    return chosen


def _threshold(successes: list[int]) -> int:
    # A fifth of the mean successes, without the extremes.
    count = len(successes)
    if count == 1:
        return 0
    if count <= 3:
        return int((sum(successes) - successes[0]) // (count - 1) * 0.2)
    middle = sum(successes) - successes[0] - successes[1] - successes[-1]
    return int(middle // (count - 3) * 0.2)


def _expire(table: dict[int, int], now_ms: int) -> None:
    for broker in [broker for broker, until_ms in table.items() if until_ms <= now_ms]:
        del table[broker]
