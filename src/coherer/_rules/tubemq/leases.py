"""Leases: a partition is read by one consumer of a group at a time, as long as that one is alive.

Rules:

* A lease belongs to one consumer (`holder`); other consumers are refused until it ends.
* It ends `timeout_ms` after the last sign of life: taking it, a read, or a heartbeat.
* A consumer that takes a partition again gets a new lease.
* When a lease ends, its uncommitted reads are dropped, so that the next holder reads them again.
  The table reports which leases have ended; the caller drops the reads (`OffsetTable.left`).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Generic, TypeVar

Key = tuple[str, str, int]
"""Group, topic, partition."""


class Lease:
    """A consumer's right to read one partition. Servers extend it in a subclass.

    Attributes:
        holder: the id of the consumer.
        partition: the id of the partition.
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
    """The leases of a broker.

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
        """The group's lease of a partition, or None."""
        return self._leases.get((group, topic, partition))

    def held_by(self, holder: str) -> list[L]:
        """The leases of one consumer."""
        return list(self._by_holder.get(holder, {}).values())

    def take(self, lease: L, now_ms: int) -> L | None:
        """Take a partition. Returns None, or the live lease of another consumer.

        An existing lease of the same holder, or one that has expired, is replaced. A caller that
        has to act on its end releases it first (`find`, `release`).
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
        """Record a sign of life of the holder."""
        lease.deadline_ms = now_ms + self.timeout_ms

    def release(self, lease: L) -> None:
        """End a lease. Has no effect if it has ended already."""
        if not lease.live:
            return
        lease.live = False
        del self._leases[lease.key]
        held = self._by_holder[lease.holder]
        del held[lease.key]
        if not held:
            del self._by_holder[lease.holder]

    def expire(self, now_ms: int) -> list[L]:
        """End the leases that have expired, and return them."""
        expired = [lease for lease in self._leases.values() if now_ms >= lease.deadline_ms]
        for lease in expired:
            self.release(lease)
        return expired
