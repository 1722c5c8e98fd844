"""Who may consume a queue in order (rocketmq 2.10, codes 41 and 42).

A consumer that consumes in order holds a lock on each of its queues and renews it while it lives.
A lock that was not renewed for a minute is free. Locks are not kept when a broker stops, and not
given back when a connection ends: the consumer may be back before its minute is over.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from typing import Generic, TypeVar

Q = TypeVar("Q", bound=Hashable)

LIFE_MS = 60_000


class QueueLocks(Generic[Q]):
    """The locks of all groups.

    Args:
        life_ms: how long a lock lasts that is not renewed.

    >>> locks = QueueLocks[int]()
    >>> locks.lock("g", "a", [0, 1], now_ms=0), locks.lock("g", "b", [1, 2], now_ms=9)
    ([0, 1], [2])
    >>> locks.unlock("g", "a", [1])
    >>> locks.lock("g", "b", [1], now_ms=10)
    [1]
    """

    def __init__(self, life_ms: int = LIFE_MS) -> None:
        self._life_ms = life_ms
        self._groups: dict[str, dict[Q, tuple[str, int]]] = {}

    def lock(self, group: str, client_id: str, queues: Iterable[Q], now_ms: int) -> list[Q]:
        """Take or renew locks. Returns the queues that the client holds now."""
        held = self._groups.setdefault(group, {})
        granted: list[Q] = []
        for queue in dict.fromkeys(queues):
            owner = held.get(queue)
            if owner is None or owner[0] == client_id or self._is_over(owner, now_ms):
                held[queue] = client_id, now_ms
                granted.append(queue)
        return granted

    def unlock(self, group: str, client_id: str, queues: Iterable[Q]) -> None:
        """Give back what the client holds of these."""
        held = self._groups.get(group, {})
        for queue in queues:
            owner = held.get(queue)
            if owner is not None and owner[0] == client_id:
                del held[queue]
        if not held:
            self._groups.pop(group, None)

    def owner(self, group: str, queue: Q, now_ms: int) -> str | None:
        """Who holds a queue, or None."""
        owner = self._groups.get(group, {}).get(queue)
        return None if owner is None or self._is_over(owner, now_ms) else owner[0]

    def forget_expired(self, now_ms: int) -> None:
        """Drop locks that are over."""
        for group, held in list(self._groups.items()):
            for queue in [q for q, owner in held.items() if self._is_over(owner, now_ms)]:
                del held[queue]
            if not held:
                del self._groups[group]

    def _is_over(self, owner: tuple[str, int], now_ms: int) -> bool:
        return now_ms - owner[1] > self._life_ms
