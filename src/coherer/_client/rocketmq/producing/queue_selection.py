"""Selecting the queue of the next message (docs/protocol/rocketmq.md, section 8.4).

* Queues are used round-robin, from a random start. While any broker is connected, only queues of
  connected brokers are used.
* A retried message goes to another broker if there is one.
* With `BrokerFaults`, slow and failing brokers are skipped. If all brokers are to be avoided, a
  queue of one of the better half is used.
* Messages with the same key go to the same queue while the number of queues does not change: the
  index is the key's hash modulo the number of queues, as in Java's hash selector. If an
  administrator fixed the queues of a topic, the index does not change while a master is away:
  sends with its keys fail until it is back.

No I/O and no clock: the caller passes the time.
"""

from __future__ import annotations

import random
import secrets
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import TYPE_CHECKING, Final

import msgspec

from coherer._record.properties import java_hash
from coherer._wire.rocketmq.names import Queue

if TYPE_CHECKING:
    from coherer._client.rocketmq.producing.broker_sender import TargetQueue

Key = str | int
"""Messages with the same key are stored in order."""

FAILURE_LATENCY_MS: Final = 30_000
"""A failed request counts as one that took this long."""


def hash_of(key: Key) -> int:
    """The hash of a key, as Java computes it for strings and longs.

    >>> hash_of("order-17") % 8, hash_of(17), hash_of(2**32 + 1)
    (5, 17, 0)
    """
    if isinstance(key, str):
        return abs(java_hash(key))
    folded = (key ^ (key >> 32)) & 0xFFFF_FFFF if key.bit_length() > 31 else key
    return abs(folded - 2**32 if folded >= 2**31 else folded)


class QueueSelector:
    """Selects among the queues of one topic.

    Args:
        targets: the queues that accept messages, sorted.
        faults: knows which brokers to avoid; None to avoid none.
        counter: where to start; random when None.
        queues: the queues that keys are spread over; those of `targets` when None.

    Attributes:
        targets: the queues that accept messages.
        queues: the queues that keys are spread over, whether they accept messages now or not.
        stale: set it when a connection was opened or lost.
    """

    __slots__ = ("_by_queue", "_connected", "_counter", "_faults", "queues", "stale", "targets")

    def __init__(
        self,
        targets: Iterable[TargetQueue],
        faults: BrokerFaults | None = None,
        counter: int | None = None,
        queues: Sequence[Queue] | None = None,
    ) -> None:
        self._faults = faults
        self._counter = secrets.randbits(31) if counter is None else counter
        self.update(targets, queues)
        self._connected: Sequence[TargetQueue] = self.targets

    def update(self, targets: Iterable[TargetQueue], queues: Sequence[Queue] | None = None) -> None:
        """Replace the queues."""
        self.targets: Sequence[TargetQueue] = list(targets)
        self._by_queue = {target.queue: target for target in self.targets}
        self.queues: Sequence[Queue] = list(self._by_queue) if queues is None else queues
        self.stale = True

    def next(self, now_ms: int = 0) -> TargetQueue:
        """The queue for the next message. The topic must have a queue."""
        if self.stale:
            self._find_connected()
        if self._faults is not None:
            return self._next_without_fault(self._faults, now_ms)
        self._counter = counter = self._counter + 1
        return self._connected[counter % len(self._connected)]

    def avoiding(self, broker: str, now_ms: int = 0) -> TargetQueue:
        """The queue for a message that this broker did not accept."""
        if self.stale:
            self._find_connected()
        for targets in (self._connected, self.targets):
            for _ in targets:
                self._counter += 1
                target = targets[self._counter % len(targets)]
                if target.queue.broker != broker:
                    return target
        return self.next(now_ms)

    def queue_of_key(self, key: Key) -> Queue:
        """The queue for messages with a key. The topic must have a queue."""
        return self.queues[hash_of(key) % len(self.queues)]

    def target_of(self, queue: Queue) -> TargetQueue | None:
        """The target for a queue; None while it does not accept messages."""
        return self._by_queue.get(queue)

    def _find_connected(self) -> None:
        self.stale = False
        connected = [target for target in self.targets if target.connected]
        self._connected = connected or self.targets

    def _next_without_fault(self, faults: BrokerFaults, now_ms: int) -> TargetQueue:
        self._counter += 1
        for step in range(len(self._connected)):
            target = self._connected[(self._counter + step) % len(self._connected)]
            if faults.is_available(target.queue.broker, now_ms):
                return target
        broker = faults.least_bad(now_ms, self._counter, random.shuffle)
        of_broker = [target for target in self._connected if target.queue.broker == broker]
        targets = of_broker or self._connected
        return targets[self._counter % len(targets)]


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
    """The last latency of a broker, and until when to avoid it."""

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
        """Whether a broker need not be avoided."""
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
