"""Selects the partition of a topic for the next message, by Java's rules.

* `Route` has the writable partitions of a topic, and selects the usable ones: their broker is not
  avoided (`quality`), and its connection is open. Otherwise it selects those with an open
  connection, and then all. (Java fails the send if all brokers are avoided; a cluster with one
  broker that was busy once would be unusable for 50 s.) The selection is computed when something
  has changed, not for each message.
* `RoundRobin` takes partitions in turn, from a random start, so that many producers spread evenly.
  It skips those that `Backoff` excludes. If all partitions are to be skipped, they are taken in
  turn anyway: the local network may be the cause.

No I/O and no clock: the caller passes the time.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, Protocol, TypeVar

from coherer._client.tubemq.quality import Backoff, Quality
from coherer._client.tubemq.sender import TargetPartition
from coherer._common import machine
from coherer._wire.tubemq.names import STORE_STRIDE

_MASK: Final = 0x7FFF_FFFF  # Java's counter is a signed int whose sign is cut off


def partition_ids(partitions: int, stores: int) -> list[int]:
    """The ids of a topic's partitions on one broker.

    Args:
        partitions: partitions in each store.
        stores: stores of the topic on that broker.

    >>> partition_ids(2, 2)
    [0, 1, 10000, 10001]
    """
    return [
        store * STORE_STRIDE + number for store in range(stores) for number in range(partitions)
    ]


class HasBackoff(Protocol):
    """A target that can be skipped."""

    @property
    def backoff(self) -> Backoff:
        """When it may be used again."""
        ...


R = TypeVar("R", bound=HasBackoff)


class RoundRobin:
    """Takes partitions in turn.

    Args:
        counter: where to start; a random number.

    >>> class TargetPartition:
    ...     def __init__(self, name: str) -> None:
    ...         self.name, self.backoff = name, Backoff()
    >>> robin, targets = RoundRobin(5), [TargetPartition("a"), TargetPartition("b")]
    >>> [robin.choose(targets, 0).name for _ in range(3)]
    ['a', 'b', 'a']
    """

    __slots__ = ("_counter", "_stepped")

    def __init__(self, counter: int) -> None:
        self._counter = counter
        self._stepped = counter

    def choose(self, targets: Sequence[R], now_ms: int) -> R:
        """The next of `targets`, which has at least one."""
        count = len(targets)
        for _ in range(count):
            self._counter += 1
            target = targets[(self._counter & _MASK) % count]
            if target.backoff.until_ms <= now_ms:
                return target
        self._stepped += 1
        return targets[(self._stepped & _MASK) % count]


class Route:
    """The partitions of one topic.

    Attributes:
        topic: the topic.
        max_bytes: maximum size of a message of the topic.
        stale: set it when a connection or the quality of a broker has changed.
        complete: whether all partitions were usable at the last selection.
    """

    def __init__(self, topic: str, max_bytes: int, targets: Iterable[TargetPartition]) -> None:
        self.topic = topic
        self.max_bytes = max_bytes
        self.stale = True
        self.complete = False
        self.targets = list(targets)
        self._usable = self.targets
        self._robin = RoundRobin(machine.secret.getrandbits(32))

    def __repr__(self) -> str:
        return f"<Route to {self.topic}: {len(self._usable)} of {len(self.targets)} partitions>"

    @property
    def open(self) -> bool:
        """Whether one of the brokers is connected."""
        return any(target.sender.open for target in self.targets)

    def renew(self, max_bytes: int, targets: Iterable[TargetPartition]) -> None:
        """Replace the partitions with the master's current list."""
        self.max_bytes = max_bytes
        self.targets = list(targets)
        self.stale = True

    def next(self, quality: Quality, now: float) -> TargetPartition:
        """The partition for the next message.

        Args:
            quality: decides which brokers to avoid.
            now: the time by the loop's clock, in seconds.
        """
        now_ms = int(now * 1000)
        if self.stale:
            self.stale = False
            self._usable = self._choose(quality, now_ms)
            self.complete = len(self._usable) == len(self.targets)
        return self._robin.choose(self._usable, now_ms)

    def _choose(self, quality: Quality, now_ms: int) -> list[TargetPartition]:
        brokers = dict.fromkeys(target.partition.broker.id for target in self.targets)
        good = set(quality.usable(brokers, now_ms))
        fit = [target for target in self.targets if target.partition.broker.id in good]
        ready = [target for target in fit if target.sender.open]
        if len(ready) < len(fit):
            for target in fit:
                target.sender.connect()  # idle connections are closed, and opened again only here
        connected = [target for target in self.targets if target.sender.open]
        return ready or connected or fit or self.targets
