"""The messages that wait in this process, by queue, and the signal that there are some.

An `Inbox` is filled by the thread of the event loop and emptied by the thread that uses kombu. It
is ordered by priority, then by the time at which the broker stored the message.
"""

from __future__ import annotations

import heapq
import selectors
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from itertools import count
from typing import Final

from coherer.integrations.kombu.payload import Payload, lifetime_ms, priority_of
from coherer.rocketmq import Queue, ReceivedMessage, StoredMessage

KEPT_MAX: Final = 10_000
"""The most messages that an inbox without a group keeps: nobody may ever read them."""


class Delivery:
    """A message on its way to kombu.

    Args:
        queue: kombu's name of the queue.
        payload: the message.
        received: what to acknowledge; None for a transient queue, which acknowledges nothing.
        stored: its form in RocketMQ.
        source: the queue of RocketMQ that it comes from.
        ttl_ms: how long messages of the queue may wait; None for no limit.

    Attributes:
        inbox: where it waits, or has waited.
    """

    __slots__ = (
        "body",
        "expires_ms",
        "inbox",
        "order",
        "payload",
        "priority",
        "queue",
        "received",
        "source",
    )

    def __init__(
        self,
        queue: str,
        payload: Payload,
        received: ReceivedMessage | None,
        stored: StoredMessage,
        source: Queue,
        ttl_ms: int | None,
    ) -> None:
        self.inbox: Inbox
        self.queue = queue
        self.payload = payload
        self.received = received
        self.body = stored.body
        self.source = source
        self.order = (stored.stored_ms, stored.broker, stored.physical_offset)
        self.priority = priority_of(payload)
        limits_ms = [ms for ms in (lifetime_ms(payload), ttl_ms) if ms is not None]
        self.expires_ms = stored.born_ms + min(limits_ms) if limits_ms else None

    @property
    def expired(self) -> bool:
        """Whether it has waited longer than it may."""
        return self.expires_ms is not None and time.time_ns() // 1_000_000 >= self.expires_ms


class Signal:
    """A socket that is readable while messages may wait; for `select` and event loops."""

    def __init__(self) -> None:
        self._reader, self._writer = socket.socketpair()
        self._reader.setblocking(False)
        self._writer.setblocking(False)
        self._raised = False
        self._lock = threading.Lock()

    def fileno(self) -> int:
        """The file descriptor to wait for."""
        return self._reader.fileno()

    def set(self) -> None:
        """Make it readable; any thread may call this."""
        with self._lock, suppress(OSError):  # closed
            if not self._raised:
                self._writer.send(b"\0")
                self._raised = True

    def clear(self) -> None:
        """Make it unreadable, before looking for messages."""
        with self._lock, suppress(OSError):
            self._reader.recv(64)
            self._raised = False

    def wait(self, timeout_s: float | None) -> bool:
        """Wait until it is set, and clear it; False on timeout."""
        with selectors.DefaultSelector() as selector:
            selector.register(self._reader, selectors.EVENT_READ)
            found = bool(selector.select(timeout_s))
        if found:
            self.clear()
        return found

    def close(self) -> None:
        """Close the sockets."""
        with self._lock:
            self._reader.close()
            self._writer.close()


class Inbox:
    """The waiting messages of one queue.

    Args:
        signal: set whenever a message is added.

    Attributes:
        open: whether `pop` returns messages. A group's inbox opens when everything that waited at
            the start has arrived, so that priorities hold for the first message, too.
    """

    def __init__(self, signal: Signal, *, limit: int | None = None) -> None:
        self.open = limit is not None
        self._in_hand: Counter[Queue] = Counter()
        self._signal = signal
        self._limit = limit
        self._lock = threading.Lock()
        self._numbers = count()
        self._heap: list[tuple[int, tuple[int, str, int], int, Delivery]] = []

    def __len__(self) -> int:
        return len(self._heap)

    def add(self, *deliveries: Delivery) -> int:
        """Add messages; returns how many were dropped because nobody takes them."""
        with self._lock:
            for one in deliveries:
                one.inbox = self
                heapq.heappush(self._heap, (-one.priority, one.order, next(self._numbers), one))
            dropped = 0
            while self._limit is not None and len(self._heap) > self._limit:
                self._heap.remove(min(self._heap, key=lambda entry: entry[1:3]))
                heapq.heapify(self._heap)
                dropped += 1
        self._signal.set()
        return dropped

    def pop(self) -> Delivery | None:
        """The next message; None if the inbox is empty or not open."""
        with self._lock:
            if not self.open or not self._heap:
                return None
            found = heapq.heappop(self._heap)[-1]
            self._in_hand[found.source] += 1
            return found

    def give_back(self, delivery: Delivery) -> None:
        """Return a message that `pop` has returned."""
        self.settled(delivery)
        self.add(delivery)

    def settled(self, delivery: Delivery) -> None:
        """Count that kombu has settled a message."""
        with self._lock:
            self._in_hand[delivery.source] -= 1

    @property
    def in_hand(self) -> dict[Queue, int]:
        """How many messages kombu has and has not settled, by where they come from."""
        with self._lock:
            return {queue: count for queue, count in self._in_hand.items() if count}

    def drop(self, matching: Callable[[Delivery], bool]) -> None:
        """Drop messages that this process may not deliver any more."""
        with self._lock:
            self._heap = [entry for entry in self._heap if not matching(entry[-1])]
            heapq.heapify(self._heap)
