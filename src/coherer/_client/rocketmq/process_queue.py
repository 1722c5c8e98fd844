"""What has been pulled of one queue and is not dealt with yet (8.11).

A package is what one pull brought, or a part of it. Packages are taken in order; when they are
dealt with out of order, the offset to commit stays at the first message that is not: delivery is at
least once, message by message. Pure: told the time, no IO.

| state of a package | it is |
|---|---|
| waiting | to be taken |
| in hand | with the application |
| done | forgotten as soon as everything before it is done as well |

An orderly queue gives one package at a time: the next can be taken when the one in hand is done.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from typing import Final, Generic, Protocol, Self, TypeVar

import msgspec

MIB: Final = 1024 * 1024
HELD_BACK: Final = -1
"""`Package.taken_ms` of one that is neither waiting nor in hand."""


class Pulled(Protocol):
    """The messages of a package."""

    @property
    def offset(self) -> int:
        """Where the pull began; nothing before it is in the package."""
        ...

    @property
    def next_offset(self) -> int:
        """Where the next pull begins."""
        ...

    @property
    def size_bytes(self) -> int:
        """What it takes in memory."""
        ...

    @property
    def count(self) -> int:
        """How many messages, as far as that is known without looking at them."""
        ...

    def __len__(self) -> int: ...

    def offsets(self) -> Sequence[int]:
        """The offset of each message, rising."""
        ...

    def pick(self, numbers: Sequence[int]) -> Self:
        """Some of the messages, by their places."""
        ...


P = TypeVar("P", bound=Pulled)


class Thresholds(msgspec.Struct, frozen=True, kw_only=True):
    """When a queue is not pulled from because enough of it waits here.

    Args:
        messages: so many messages.
        size_bytes: so many bytes.
        span: the last offset is so far behind the first. One stubborn message may hold the offset
            to commit back; this bounds what comes again when we die. 0 for no bound (orderly).
    """

    messages: int = 1000
    size_bytes: int = 100 * MIB
    span: int = 2000


class Package(Generic[P]):
    """Some messages of one queue, and which of them are dealt with.

    Args:
        batch: the messages.

    Attributes:
        batch: the messages.
        taken_ms: when the application took it; 0 while it waits, `HELD_BACK` while it rests.
        done: whether all of it is dealt with.
    """

    __slots__ = ("_beyond", "_first", "_offsets", "batch", "done", "taken_ms")

    def __init__(self, batch: P) -> None:
        self.batch = batch
        self.taken_ms = 0
        self.done = False
        self._first = 0  # how many messages at its beginning are dealt with
        self._beyond: set[int] = set()  # numbers of those behind a gap
        self._offsets: Sequence[int] | None = None

    def __repr__(self) -> str:
        state = "done" if self.done else "in hand" if self.taken_ms else "waiting"
        return f"<Package from {self.position} to {self.batch.next_offset}, {state}>"

    @property
    def position(self) -> int:
        """The offset of the first message that is not dealt with; behind the last when all are."""
        if self.done:
            return self.batch.next_offset
        if not self._first:
            return self.batch.offset
        return self._all()[self._first]

    @property
    def open_numbers(self) -> list[int]:
        """The numbers (places in the package) of the messages that are not dealt with."""
        if self.done:
            return []
        every = range(self._first, len(self.batch))
        return [number for number in every if number not in self._beyond]

    def passed(self, count: int) -> None:
        """The first `count` messages are dealt with; never fewer than before."""
        if count > self._first:
            self._first = count
            self._close_gap()

    def acknowledge(self, number: int) -> bool:
        """The message of this place is dealt with; whether it was open until now."""
        if self.done or number < self._first or number in self._beyond:
            return False
        self._beyond.add(number)
        self._close_gap()
        return True

    def reopen(self) -> None:
        """Make it wait again, without the messages that are dealt with."""
        self.taken_ms = 0
        # Another object in any case: whoever still has the old one must not mix up the two.
        self.batch = self.batch.pick(self.open_numbers)
        self._first, self._beyond, self._offsets = 0, set(), None

    def _all(self) -> Sequence[int]:
        if self._offsets is None:
            self._offsets = self.batch.offsets()
        return self._offsets

    def _close_gap(self) -> None:
        first, beyond = self._first, self._beyond
        while first in beyond:
            beyond.discard(first)
            first += 1
        self._first = first
        if first >= len(self.batch):
            self.done = True


class ProcessQueue(Generic[P]):
    """The packages of one queue that are here.

    Args:
        offset: where pulling begins.
        orderly: one package at a time.

    Attributes:
        next_offset: where the next pull begins.
        messages: how many messages are here.
        size_bytes: and how many bytes.
        orderly: as given.
        dropped: the queue is not ours any more; what happens to its packages has no effect.
        pulled_ms, taken_ms: when it was last pulled and taken from, ms since 1970.
    """

    __slots__ = (
        "_aside",
        "_packages",
        "_waiting",
        "dropped",
        "messages",
        "next_offset",
        "orderly",
        "pulled_ms",
        "size_bytes",
        "taken_ms",
    )

    def __init__(self, offset: int, *, orderly: bool = False) -> None:
        self.next_offset = offset
        self.messages = 0
        self.size_bytes = 0
        self.orderly = orderly
        self.dropped = False
        self.pulled_ms = 0
        self.taken_ms = 0
        self._packages: deque[Package[P]] = deque()
        self._aside: list[Package[P]] = []
        self._waiting: deque[Package[P]] = deque()

    def __repr__(self) -> str:
        state = "dropped" if self.dropped else f"{self.messages} messages"
        return f"<ProcessQueue from {self.commit_offset} to {self.next_offset}, {state}>"

    def __iter__(self) -> Iterator[Package[P]]:
        """The packages that are not done, or stand behind one that is not, in order."""
        return iter(self._packages)

    @property
    def commit_offset(self) -> int:
        """Everything before this offset is dealt with."""
        first = self._packages[0].position if self._packages else self.next_offset
        return min([first, *(aside.position for aside in self._aside)]) if self._aside else first

    @property
    def empty(self) -> bool:
        """Whether nothing is here."""
        return not self._packages and not self._aside

    @property
    def in_hand(self) -> bool:
        """Whether the application has something of it."""
        return any(one.taken_ms > 0 and not one.done for one in self._packages)

    @property
    def can_take(self) -> bool:
        """Whether `take` gives something."""
        if not self._waiting or self.dropped:
            return False
        return not self.orderly or self._packages[0] is self._waiting[0]

    @property
    def span(self) -> int:
        """How far the last offset here is behind the first that is not dealt with."""
        return 0 if self.empty else self.next_offset - 1 - self.commit_offset

    def full(self, thresholds: Thresholds) -> bool:
        """Whether pulling should wait."""
        if self.messages >= thresholds.messages or self.size_bytes >= thresholds.size_bytes:
            return True
        return 0 < thresholds.span < self.span

    def put(self, batch: P, *parts: P) -> None:
        """Add what a pull brought, as one package or in parts."""
        for part in (batch, *parts):
            package = Package(part)
            self._packages.append(package)
            self._waiting.append(package)
            self.messages += part.count
            self.size_bytes += part.size_bytes
            self.next_offset = part.next_offset

    def skip(self, next_offset: int) -> None:
        """A pull brought nothing; the next begins here."""
        self.next_offset = next_offset

    def take(self, now_ms: int) -> Package[P] | None:
        """The first waiting package."""
        if not self.can_take:
            return None
        package = self._waiting.popleft()
        package.taken_ms = self.taken_ms = now_ms
        return package

    def hold_back(self, package: Package[P]) -> None:
        """Take a package out of the application's hands; it waits for `give_back`."""
        package.taken_ms = HELD_BACK

    def set_aside(self, package: Package[P], number: int) -> Package[P] | None:
        """Make one open message of a package a package of its own, which waits for `give_back`."""
        if not package.acknowledge(number):
            return None
        aside = Package(package.batch.pick([number]))
        aside.taken_ms = HELD_BACK
        self._aside.append(aside)
        self._count(aside, 1)
        return aside

    def give_back(self, package: Package[P]) -> None:
        """Let what is open of a package in hand be taken again, before what is behind it."""
        if package.done or not package.taken_ms:
            return
        self._count(package, -1)
        package.reopen()
        self._count(package, 1)
        position = package.batch.offset
        place = 0
        for waiting in self._waiting:
            if waiting.batch.offset > position:
                break
            place += 1
        self._waiting.insert(place, package)

    def finish(self, package: Package[P]) -> None:
        """All of the package is dealt with."""
        package.done = True
        self.settle()

    def settle(self) -> None:
        """Forget the packages at the beginning that are done."""
        packages = self._packages
        while packages and packages[0].done:
            self._count(packages.popleft(), -1)
        if self._aside:
            for aside in [one for one in self._aside if one.done]:
                self._aside.remove(aside)
                self._count(aside, -1)

    def _count(self, package: Package[P], sign: int) -> None:
        self.messages += sign * package.batch.count
        self.size_bytes += sign * package.batch.size_bytes

    def overdue(self, before_ms: int) -> list[Package[P]]:
        """The packages that the application took before `before_ms` and has not dealt with."""
        every = (*self._packages, *self._aside)
        return [one for one in every if not one.done and 0 < one.taken_ms < before_ms]
