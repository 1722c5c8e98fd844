"""Which partition the next message goes to: round robin (Java's rule).

Rules:

* Partitions are taken in turn, from a random start, so that many producers spread evenly.
* A partition whose sends fail more than `FAILURES_MAX` times in a row rests for `REST_MS`. A send
  that succeeds forgives everything.
* When every partition rests, they are taken in turn all the same: it may be the network here.

Pure: the caller tells the time.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Protocol, TypeVar

from coherer._wire.tubemq.names import STORE_STRIDE

FAILURES_MAX: Final = 3
"""Failures in a row after which a partition rests."""

REST_MS: Final = 3000
"""How long it rests."""

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


class Rest:
    """How sends to one partition went lately."""

    __slots__ = ("failures", "until_ms")

    def __init__(self) -> None:
        self.failures = 0
        self.until_ms = 0

    def succeeded(self) -> None:
        """A broker answered with success."""
        self.failures = 0
        self.until_ms = 0

    def failed(self, now_ms: int) -> None:
        """A send got no answer: the connection broke, or it took too long."""
        self.failures += 1
        if self.failures > FAILURES_MAX:
            self.failures = 0
            self.until_ms = now_ms + REST_MS


class Resting(Protocol):
    """Something that can be chosen, and rests at times."""

    @property
    def rest(self) -> Rest:
        """How sends to it went."""
        ...


R = TypeVar("R", bound=Resting)


class RoundRobin:
    """Takes partitions in turn.

    Args:
        counter: where to start; a random number.

    >>> class Place:
    ...     def __init__(self, name: str) -> None:
    ...         self.name, self.rest = name, Rest()
    >>> robin, places = RoundRobin(5), [Place("a"), Place("b")]
    >>> [robin.choose(places, 0).name for _ in range(3)]
    ['a', 'b', 'a']
    """

    __slots__ = ("_counter", "_stepped")

    def __init__(self, counter: int) -> None:
        self._counter = counter
        self._stepped = counter

    def choose(self, places: Sequence[R], now_ms: int) -> R:
        """The next of `places`, which has at least one."""
        count = len(places)
        for _ in range(count):
            self._counter += 1
            place = places[(self._counter & _MASK) % count]
            if place.rest.until_ms <= now_ms:
                return place
        self._stepped += 1
        return places[(self._stepped & _MASK) % count]
