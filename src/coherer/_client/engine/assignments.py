"""The assigned partitions of a consumer, and the prefetch buffer that they share.

The buffer delivers batches of the partitions in turn, so that no partition waits until another is
empty. When it holds `limit_bytes`, fetchers that want more are recorded, and fetch again when there
is space.
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
    """Fetched batches that wait for the application.

    Args:
        limit_bytes: nothing is fetched while this many bytes are buffered.
        count_in_hand: whether a batch counts until it is acknowledged, not only until it is taken.

    Attributes:
        size_bytes: the number of buffered bytes. Paused partitions do not count, so that they do
            not block the others.
    """

    def __init__(self, limit_bytes: int, *, count_in_hand: bool) -> None:
        self.size_bytes = 0
        self._limit_bytes = limit_bytes
        self._count_in_hand = count_in_hand
        self._turn: deque[Fetcher[B]] = deque()
        self._direct: deque[B] = deque()
        self._counted: dict[Fetcher[B], int] = {}
        self._blocked: dict[Fetcher[B], None] = {}  # in order
        self._waiters = Waiters()

    def add(self, fetcher: Fetcher[B], *, first: bool = False) -> None:
        """Queue a partition that has batches; with `first`, before the others."""
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

    def has_space(self, fetcher: Fetcher[B]) -> bool:
        """Whether a partition may fetch; if not, its fetcher resumes when there is space."""
        if self.size_bytes < self._limit_bytes:
            return True
        self._blocked[fetcher] = None
        return False

    def count(self, fetcher: Fetcher[B]) -> None:
        """Update the number of bytes of a partition."""
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
            blocked, self._blocked = self._blocked, {}
            for one in blocked:
                one.fetch_more()

    def forget(self, fetcher: Fetcher[B]) -> None:
        """A partition was revoked."""
        self.count(fetcher)
        self._counted.pop(fetcher, None)
        self._blocked.pop(fetcher, None)

    def wake(self) -> None:
        """Wake all tasks that wait for a batch."""
        self._waiters.wake()

    async def changed(self) -> None:
        """Wait until there may be a batch to take."""
        await self._waiters.wait()


class Assignments(Generic[K, F]):
    """The assigned partitions of a consumer.

    Attributes:
        fetchers: by the partition's key.
        paused: keys of paused partitions, including partitions that are not assigned now.
        buffer: the consumer's prefetch buffer.
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
        """Add an assigned partition. The caller then starts its fetcher with `fetch_more`."""
        self.fetchers[key] = fetcher
        if key in self.paused:
            fetcher.state.on(Event.PAUSE)
        self._changed.wake()

    def drain(self, fetchers: Iterable[F]) -> None:
        """Stop fetching and delivering these; received batches may still be acknowledged."""
        for fetcher in fetchers:
            fetcher.state.on(Event.DRAIN)
            self.buffer.count(fetcher)

    def keep(self, key: K) -> None:
        """Undo `drain` for a partition."""
        fetcher = self.fetchers[key]
        fetcher.state.on(Event.KEEP)
        if key in self.paused:
            fetcher.state.on(Event.PAUSE)
        self._continue(fetcher)

    def remove(self, key: K) -> None:
        """Remove a partition that was given up or lost."""
        fetcher = self.fetchers.pop(key, None)
        if fetcher is not None:
            fetcher.state.on(Event.REVOKE)
            self.buffer.forget(fetcher)
            self._changed.wake()

    def pause(self, keys: frozenset[K]) -> None:
        """Pause exactly these partitions, and resume the others."""
        self.paused = keys
        for key, fetcher in self.fetchers.items():
            fetcher.state.on(Event.PAUSE if key in keys else Event.RESUME)
            self._continue(fetcher)

    def wake(self) -> None:
        """Wake all tasks that wait for a partition or for a batch: they check the consumer."""
        self._changed.wake()
        self.buffer.wake()

    async def wait_any(
        self, check: Callable[[], None], matching: Callable[[K], bool] = lambda _: True
    ) -> None:
        """Wait until a matching partition is assigned.

        Args:
            check: raises an error if none can be assigned any more; see `wake`.
            matching: chooses among the partitions.
        """
        while not any(map(matching, self.fetchers)):
            await self._changed.wait()
            check()

    def _continue(self, fetcher: F) -> None:
        self.buffer.count(fetcher)
        self.buffer.add(fetcher)
        if fetcher.state.phase is Phase.FETCHING:
            fetcher.fetch_more()
