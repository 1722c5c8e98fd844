"""The assigned partitions of a consumer, and the prefetch buffer that they share.

The buffer hands out batches partition by partition in turn, so that no partition waits until
another is empty. When `limit_bytes` are in it, fetchers that want more are noted, and kicked when
there is room again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Iterable, Iterator
from typing import Any, Generic, TypeVar

from coherer._client.engine.assigned import Event, Fetched, Fetcher, Phase
from coherer._client.engine.tasks import Waiters

B = TypeVar("B", bound=Fetched)
F = TypeVar("F", bound=Fetcher[Any])
K = TypeVar("K", bound=Hashable)


class PrefetchBuffer(Generic[B]):
    """Fetched batches that wait for the application, at most `limit_bytes` of them.

    Args:
        limit_bytes: nothing more is fetched while this much is here.
        count_in_hand: whether batches count until they are acknowledged, or until they are taken.

    Attributes:
        size_bytes: how much is here. Partitions that are paused do not count, so that they do not
            keep the others from being fetched.
    """

    def __init__(self, limit_bytes: int, *, count_in_hand: bool) -> None:
        self.size_bytes = 0
        self._limit_bytes = limit_bytes
        self._count_in_hand = count_in_hand
        self._turn: deque[Fetcher[B]] = deque()
        self._direct: deque[B] = deque()
        self._counted: dict[Fetcher[B], int] = {}
        self._blocked: set[Fetcher[B]] = set()
        self._waiters = Waiters()

    def add(self, fetcher: Fetcher[B], *, first: bool = False) -> None:
        """A partition has batches; it gets its turn, at once with `first`."""
        if fetcher.listed or not fetcher.can_take:
            return
        fetcher.listed = True
        if first:
            self._turn.appendleft(fetcher)
        else:
            self._turn.append(fetcher)
        self._waiters.wake()

    def insert(self, batch: B) -> None:
        """Add a batch that belongs to no partition; it is the next to be taken."""
        self._direct.append(batch)
        self._waiters.wake()

    def withdraw(self, batch: B) -> None:
        """Undo `insert`, unless the batch was taken."""
        if batch in self._direct:
            self._direct.remove(batch)

    def take(self) -> B | None:
        """The next batch."""
        if self._direct:
            return self._direct.popleft()
        while self._turn:
            fetcher = self._turn.popleft()
            fetcher.listed = False
            batch = fetcher.take()
            if batch is not None:
                self.add(fetcher)
                return batch
        return None

    def has_room(self, fetcher: Fetcher[B]) -> bool:
        """Whether a partition may fetch; if not, its fetcher is kicked when it may."""
        if self.size_bytes < self._limit_bytes:
            return True
        self._blocked.add(fetcher)
        return False

    def count(self, fetcher: Fetcher[B]) -> None:
        """A partition has more or fewer bytes here than before."""
        state = fetcher.state
        size_bytes = 0
        if state.phase is Phase.FETCHING:
            size_bytes = state.size_bytes if self._count_in_hand else state.waiting_bytes
        change = size_bytes - self._counted.get(fetcher, 0)
        if not change:
            return
        self._counted[fetcher] = size_bytes
        self.size_bytes += change
        if self._blocked and self.size_bytes < self._limit_bytes:
            blocked, self._blocked = self._blocked, set()
            for one in blocked:
                one.kick()

    def forget(self, fetcher: Fetcher[B]) -> None:
        """A partition was revoked."""
        self.count(fetcher)
        self._counted.pop(fetcher, None)
        self._blocked.discard(fetcher)

    def wake(self) -> None:
        """Let everyone who waits look again."""
        self._waiters.wake()

    async def changed(self) -> None:
        """Wait until there may be something to take."""
        await self._waiters.wait()


class Assignments(Generic[K, F]):
    """The assigned partitions of a consumer.

    Args:
        buffer: the consumer's prefetch buffer.

    Attributes:
        fetchers: by the partition's key.
        paused: keys of partitions that stay paused, also while they are not assigned.
        buffer: as given.
    """

    def __init__(self, buffer: PrefetchBuffer[Any]) -> None:
        self.fetchers: dict[K, F] = {}
        self.paused: frozenset[K] = frozenset()
        self.buffer = buffer
        self._changed = Waiters()

    def __len__(self) -> int:
        return len(self.fetchers)

    def __iter__(self) -> Iterator[F]:
        return iter(list(self.fetchers.values()))

    def add(self, key: K, fetcher: F) -> None:
        """A partition is assigned. Its fetcher is kicked by the caller, when it may begin."""
        self.fetchers[key] = fetcher
        if key in self.paused:
            fetcher.state.on(Event.PAUSE)
        self._changed.wake()

    def drain(self, fetchers: Iterable[F]) -> None:
        """Fetch and hand out nothing more of these; what is in hand may still be acknowledged."""
        for fetcher in fetchers:
            fetcher.state.on(Event.DRAIN)
            self.buffer.count(fetcher)

    def keep(self, key: K) -> None:
        """Undo `drain` for a partition."""
        fetcher = self.fetchers[key]
        fetcher.state.on(Event.KEEP)
        if key in self.paused:
            fetcher.state.on(Event.PAUSE)
        self._go_on(fetcher)

    def remove(self, key: K) -> None:
        """A partition was given up, or lost."""
        fetcher = self.fetchers.pop(key, None)
        if fetcher is not None:
            fetcher.state.on(Event.REVOKE)
            self.buffer.forget(fetcher)
            self._changed.wake()

    def pause(self, keys: frozenset[K]) -> None:
        """Fetch and hand out nothing of these partitions, and of no others."""
        self.paused = keys
        for key, fetcher in self.fetchers.items():
            fetcher.state.on(Event.PAUSE if key in keys else Event.RESUME)
            self._go_on(fetcher)

    async def wait_any(self, matching: Callable[[K], bool] = lambda _: True) -> None:
        """Wait until a partition is assigned."""
        while not any(map(matching, self.fetchers)):
            await self._changed.wait()

    def _go_on(self, fetcher: F) -> None:
        self.buffer.count(fetcher)
        self.buffer.add(fetcher)
        if fetcher.state.phase is Phase.FETCHING:
            fetcher.kick()
