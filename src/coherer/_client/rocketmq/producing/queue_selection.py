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

from collections.abc import Iterable, Sequence

from coherer._client.rocketmq.faults import BrokerFaults
from coherer._client.rocketmq.producing.broker_sender import TargetQueue
from coherer._common import machine
from coherer._record.properties import java_hash
from coherer._wire.rocketmq.names import Queue

Key = str | int
"""Messages with the same key are stored in order."""


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
        self._counter = machine.secret.getrandbits(31) if counter is None else counter
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
        broker = faults.least_bad(now_ms, self._counter, machine.random.shuffle)
        of_broker = [target for target in self._connected if target.queue.broker == broker]
        targets = of_broker or self._connected
        return targets[self._counter % len(targets)]
