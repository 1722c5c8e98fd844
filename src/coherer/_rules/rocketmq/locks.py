"""Who may consume a queue in order (rocketmq 2.10, codes 41 and 42).

A consumer that consumes in order holds a lock on each of its queues and renews it while it lives.
A lock that was not renewed for a minute is free. Locks are not kept when a broker stops, and not
given back when a connection ends: the consumer may be back before its minute is over.

A consumer that is refused a lock tries again at its next rebalance, which Java's clients begin
every 20 s. So the table remembers which consumers it has refused, and names them when the queue is
free: a broker that has them rebalance then hands a queue over at once. Java's broker does not.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from typing import Final, Generic, TypeVar

Q = TypeVar("Q", bound=Hashable)

LIFE_MS = 60_000

REFUSED_MAX: Final = 64
"""So many refused consumers are remembered for a queue: one of them gets it, or a few in turn."""


class _Lock:
    """The lock of a queue.

    Attributes:
        client_id: who holds it.
        renewed_ms: when it was taken or renewed last.
        refused: the consumers that wanted it since, in their order.
    """

    __slots__ = ("client_id", "refused", "renewed_ms")

    def __init__(self, client_id: str, now_ms: int) -> None:
        self.client_id = client_id
        self.renewed_ms = now_ms
        self.refused: dict[str, None] = {}


class QueueLocks(Generic[Q]):
    """The locks of all groups.

    Args:
        life_ms: how long a lock lasts that is not renewed.

    >>> locks = QueueLocks[int]()
    >>> locks.lock("g", "a", [0, 1], now_ms=0), locks.lock("g", "b", [1, 2], now_ms=9)
    ([0, 1], [2])
    >>> locks.unlock("g", "a", [1])
    ['b']
    >>> locks.lock("g", "b", [1], now_ms=10)
    [1]
    """

    def __init__(self, life_ms: int = LIFE_MS) -> None:
        self._life_ms = life_ms
        self._groups: dict[str, dict[Q, _Lock]] = {}

    def lock(self, group: str, client_id: str, queues: Iterable[Q], now_ms: int) -> list[Q]:
        """Take or renew locks. Returns the queues that the client holds now."""
        held = self._groups.setdefault(group, {})
        granted: list[Q] = []
        for queue in dict.fromkeys(queues):
            lock = held.get(queue)
            if lock is None:
                held[queue] = _Lock(client_id, now_ms)
            elif lock.client_id == client_id or self._is_over(lock, now_ms):
                lock.client_id, lock.renewed_ms = client_id, now_ms
                lock.refused.pop(client_id, None)
            else:
                if len(lock.refused) < REFUSED_MAX:
                    lock.refused[client_id] = None
                continue
            granted.append(queue)
        return granted

    def unlock(self, group: str, client_id: str, queues: Iterable[Q]) -> list[str]:
        """Give back what the client holds of these.

        Returns:
            The consumers that were refused one of the queues that are free now.
        """
        held = self._groups.get(group, {})
        refused: dict[str, None] = {}
        for queue in queues:
            lock = held.get(queue)
            if lock is not None and lock.client_id == client_id:
                del held[queue]
                refused.update(lock.refused)
        if not held:
            self._groups.pop(group, None)
        return list(refused)

    def owner(self, group: str, queue: Q, now_ms: int) -> str | None:
        """Who holds a queue, or None."""
        lock = self._groups.get(group, {}).get(queue)
        return None if lock is None or self._is_over(lock, now_ms) else lock.client_id

    def forget_expired(self, now_ms: int) -> dict[str, list[str]]:
        """Drop locks that are over.

        Returns:
            By group, the consumers that were refused one of the queues that are free now.
        """
        freed: dict[str, dict[str, None]] = {}
        for group, held in list(self._groups.items()):
            for queue, lock in list(held.items()):
                if self._is_over(lock, now_ms):
                    del held[queue]
                    if lock.refused:
                        freed.setdefault(group, {}).update(lock.refused)
            if not held:
                del self._groups[group]
        return {group: list(refused) for group, refused in freed.items()}

    def _is_over(self, lock: _Lock, now_ms: int) -> bool:
        return now_ms - lock.renewed_ms > self._life_ms
