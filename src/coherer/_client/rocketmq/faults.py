"""Which brokers to avoid because they were slow or failed (docs/protocol/rocketmq.md, section 8.4).

No I/O and no clock: the caller passes the time.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Final

import msgspec

FAILURE_LATENCY_MS: Final = 30_000
"""A failed request counts as one that took this long."""


class FaultRules(msgspec.Struct, frozen=True, kw_only=True):
    """How long slow brokers are avoided; the defaults are Java's.

    Args:
        latency_ms: latency limits, ascending.
        avoid_ms: for each limit, how long to avoid a broker that took at least that long.
    """

    latency_ms: tuple[int, ...] = (50, 100, 550, 1_000, 2_000, 3_000, 15_000)
    avoid_ms: tuple[int, ...] = (0, 0, 30_000, 60_000, 120_000, 180_000, 600_000)

    def avoided_for_ms(self, latency_ms: int) -> int:
        """How long to avoid a broker after a request with this latency.

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
    """A broker's last latency, and when it may be used again."""

    __slots__ = ("latency_ms", "until_ms")

    def __init__(self, latency_ms: int, until_ms: int) -> None:
        self.latency_ms = latency_ms
        self.until_ms = until_ms


class BrokerFaults:
    """Knows which brokers to avoid because they were slow or failed, by Java's rules.

    Each request rates its broker by latency: the slower, the longer the broker is avoided. A failed
    request counts as one of 30 s. When all brokers are to be avoided, one of the better half is
    used.

    Args:
        rules: the limits.

    >>> faults = BrokerFaults()
    >>> faults.record("broker-a", 700, now_ms=0)
    >>> faults.is_available("broker-a", now_ms=29_999), faults.is_available("broker-a", 30_000)
    (False, True)
    """

    def __init__(self, rules: FaultRules | None = None) -> None:
        self._rules = rules or FaultRules()
        self._faults: dict[str, _Fault] = {}

    def record(self, broker: str, latency_ms: int, now_ms: int) -> None:
        """Record the latency of a request."""
        until_ms = now_ms + self._rules.avoided_for_ms(latency_ms)
        self._faults[broker] = _Fault(latency_ms, until_ms)

    def record_failure(self, broker: str, now_ms: int) -> None:
        """Record a failed request."""
        self.record(broker, FAILURE_LATENCY_MS, now_ms)

    def is_available(self, broker: str, now_ms: int) -> bool:
        """Whether the broker may be used now."""
        fault = self._faults.get(broker)
        return fault is None or now_ms >= fault.until_ms

    def least_bad(
        self, now_ms: int, counter: int, shuffle: Callable[[list[str]], None]
    ) -> str | None:
        """A broker of the better half; None if nothing was recorded.

        Args:
            now_ms: the time.
            counter: cycles through that half.
            shuffle: puts a list into random order, to break ties.
        """
        brokers = list(self._faults)
        if not brokers:
            return None
        shuffle(brokers)
        brokers.sort(key=lambda broker: self._rank(broker, now_ms))
        half = len(brokers) // 2
        return brokers[counter % half if half else 0]

    def keep_only(self, brokers: Collection[str]) -> None:
        """Forget all other brokers."""
        for broker in self._faults.keys() - set(brokers):
            del self._faults[broker]

    def _rank(self, broker: str, now_ms: int) -> tuple[bool, int, int]:
        fault = self._faults[broker]
        return now_ms < fault.until_ms, fault.latency_ms, fault.until_ms
