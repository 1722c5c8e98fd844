"""Who may read a partition: one consumer of a group at a time, for as long as it shows itself.

Rules:

* A lease belongs to one consumer (`holder`); another is refused while it lives.
* It lives `timeout_ms` from the last sign: taking it, a read, a heartbeat.
* Whoever takes a partition that it already holds starts anew.
* When a lease ends, what was read under it and not confirmed is dropped, so that the next holder
  reads it again. The table says which leases ended; the caller drops (`OffsetTable.left`).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Generic, TypeVar

Key = tuple[str, str, int]
"""Group, topic, partition."""


class Lease:
    """A consumer's right to read one partition. Servers add what they need in a subclass.

    Attributes:
        holder: the consumer's id.
        group: its group.
        topic: the partition's topic.
        partition: its id.
        deadline_ms: when the lease ends unless it is renewed.
        live: whether it is in the table.
    """

    __slots__ = ("deadline_ms", "group", "holder", "live", "partition", "topic")

    def __init__(self, holder: str, group: str, topic: str, partition: int) -> None:
        self.holder = holder
        self.group = group
        self.topic = topic
        self.partition = partition
        self.deadline_ms = 0
        self.live = False

    @property
    def key(self) -> Key:
        """Group, topic, partition."""
        return self.group, self.topic, self.partition


L = TypeVar("L", bound=Lease)


class LeaseTable(Generic[L]):
    """All leases of a broker.

    >>> table = LeaseTable[Lease](timeout_ms=30_000)
    >>> mine, other = Lease("me", "g", "t", 0), Lease("you", "g", "t", 0)
    >>> table.take(mine, now_ms=0), table.take(other, now_ms=29_999) is mine
    (None, True)
    >>> [lease.holder for lease in table.expire(now_ms=30_000)]
    ['me']
    >>> table.take(other, now_ms=30_000)
    """

    def __init__(self, timeout_ms: int) -> None:
        self.timeout_ms = timeout_ms
        self._leases: dict[Key, L] = {}
        self._by_holder: dict[str, dict[Key, L]] = {}

    def __len__(self) -> int:
        return len(self._leases)

    def __iter__(self) -> Iterator[L]:
        return iter(self._leases.values())

    def find(self, group: str, topic: str, partition: int) -> L | None:
        """The lease of a partition, if a consumer of the group holds it."""
        return self._leases.get((group, topic, partition))

    def held_by(self, holder: str) -> list[L]:
        """The leases of one consumer."""
        return list(self._by_holder.get(holder, {}).values())

    def take(self, lease: L, now_ms: int) -> L | None:
        """Take a partition. Returns None, or the lease that stands in the way.

        A lease that the same holder had, or that has run out, should be ended by the caller
        before (`find`, `release`): it is replaced here without a word.
        """
        key = lease.key
        current = self._leases.get(key)
        if current is not None:
            if current.holder != lease.holder and now_ms < current.deadline_ms:
                return current
            self.release(current)
        lease.live = True
        lease.deadline_ms = now_ms + self.timeout_ms
        self._leases[key] = lease
        self._by_holder.setdefault(lease.holder, {})[key] = lease
        return None

    def renew(self, lease: L, now_ms: int) -> None:
        """The holder has shown itself."""
        lease.deadline_ms = now_ms + self.timeout_ms

    def release(self, lease: L) -> None:
        """End a lease. Nothing happens when it has ended already."""
        if not lease.live:
            return
        lease.live = False
        del self._leases[lease.key]
        held = self._by_holder[lease.holder]
        del held[lease.key]
        if not held:
            del self._by_holder[lease.holder]

    def expire(self, now_ms: int) -> list[L]:
        """End the leases whose time is over, and return them."""
        over = [lease for lease in self._leases.values() if now_ms >= lease.deadline_ms]
        for lease in over:
            self.release(lease)
        return over
