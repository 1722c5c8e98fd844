"""Which brokers a producer avoids because they were slow or failed (rocketmq 8.4). Java's rules.

After each try the broker is judged by how long it took: the longer, the longer it is avoided. A try
that ended with an exception counts as one of 30 s. When every broker is to be avoided, one of the
better half is taken.

Pure: the caller tells the time.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Final

import msgspec

ISOLATION_MS: Final = 30_000
"""What a try that failed counts as."""


class FaultRules(msgspec.Struct, frozen=True, kw_only=True):
    """The numbers of the rules; the defaults are Java's.

    Args:
        latency_ms: limits of latency, ascending.
        avoid_ms: for each limit, how long a broker is avoided that took so long or longer.
    """

    latency_ms: tuple[int, ...] = (50, 100, 550, 1_000, 2_000, 3_000, 15_000)
    avoid_ms: tuple[int, ...] = (0, 0, 30_000, 60_000, 120_000, 180_000, 600_000)

    def avoided_for_ms(self, latency_ms: int) -> int:
        """How long a broker is avoided after such a try.

        >>> [FaultRules().avoided_for_ms(ms) for ms in (20, 549, 550, 30_000)]
        [0, 0, 30000, 600000]
        """
        for limit_ms, avoid_ms in zip(
            reversed(self.latency_ms), reversed(self.avoid_ms), strict=True
        ):
            if latency_ms >= limit_ms:
                return avoid_ms
        return 0


class _Fault:
    """What is known of a broker."""

    __slots__ = ("latency_ms", "until_ms")

    def __init__(self, latency_ms: int, until_ms: int) -> None:
        self.latency_ms = latency_ms
        self.until_ms = until_ms


class Faults:
    """Knows which brokers to avoid.

    Args:
        rules: the numbers.

    >>> faults = Faults()
    >>> faults.took("broker-a", 700, now_ms=0)
    >>> faults.available("broker-a", now_ms=29_999), faults.available("broker-a", now_ms=30_000)
    (False, True)
    """

    def __init__(self, rules: FaultRules | None = None) -> None:
        self._rules = rules or FaultRules()
        self._faults: dict[str, _Fault] = {}

    def took(self, broker: str, latency_ms: int, now_ms: int) -> None:
        """A broker answered after so long."""
        until_ms = now_ms + self._rules.avoided_for_ms(latency_ms)
        self._faults[broker] = _Fault(latency_ms, until_ms)

    def failed(self, broker: str, now_ms: int) -> None:
        """A try with a broker ended with an exception."""
        self.took(broker, ISOLATION_MS, now_ms)

    def available(self, broker: str, now_ms: int) -> bool:
        """Whether there is nothing against a broker."""
        fault = self._faults.get(broker)
        return fault is None or now_ms >= fault.until_ms

    def least_bad(
        self, now_ms: int, counter: int, shuffle: Callable[[list[str]], None]
    ) -> str | None:
        """A broker of the better half of those that something is known of; None without any.

        Args:
            now_ms: the time.
            counter: walks through that half.
            shuffle: brings a list into any order, for those that are equally bad.
        """
        brokers = list(self._faults)
        if not brokers:
            return None
        shuffle(brokers)
        brokers.sort(key=lambda broker: self._rank(broker, now_ms))
        half = len(brokers) // 2
        return brokers[counter % half if half else 0]

    def forget(self, brokers: Collection[str]) -> None:
        """Drop what is known of other brokers than these."""
        for broker in self._faults.keys() - set(brokers):
            del self._faults[broker]

    def _rank(self, broker: str, now_ms: int) -> tuple[bool, int, int]:
        fault = self._faults[broker]
        return now_ms < fault.until_ms, fault.latency_ms, fault.until_ms
