"""A batch in the application's hands, and what can be said of it.

What is done to a message whose queue is not ours any more has no effect: it is delivered again, to
whoever has the queue.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from datetime import timedelta
from itertools import pairwise
from typing import Protocol, Self

from msgspec.structs import replace

from coherer._record.schedule import DELAY_LEVELS_MS
from coherer._wire.rocketmq.delivery import MessageBatch
from coherer._wire.rocketmq.messages import StoredMessage
from coherer._wire.rocketmq.names import Queue, without_namespace
from coherer.errors import UsageError

Later = timedelta | int | None
"""When a message is wanted again: after a time, at a delay level of the broker, or by its count."""

DEAD = -1
"""The delay level that means: never again (8.13)."""


Watch = Callable[[Collection[int]], None]
"""Told when a batch has been dealt with, and the offsets that were wanted again."""


class Claim(Protocol):
    """A batch in the application's hands. When it is `over`, nothing here has an effect."""

    watch: Watch | None

    over: bool
    """Whether the batch is not in the application's hands any more."""

    seen: int
    """How many messages from its beginning are dealt with; a loop counts here."""

    def acknowledge(self, number: int) -> None:
        """The message of this place is dealt with."""
        ...

    def finish(self) -> None:
        """All of it is dealt with."""
        ...

    def put_back(self) -> None:
        """What is open of it is to be received again."""
        ...

    async def retry(self, number: int, later: Later) -> None:
        """The message of this place is wanted again."""
        ...

    async def reject(self) -> None:
        """All that is open of it is wanted again."""
        ...


class ClaimedBatch(MessageBatch):
    """Messages of one queue, in the application's hands; in what form is for the kinds to say."""

    __slots__ = ("_made", "claim", "count", "filtered", "namespace", "tries")

    def __init__(
        self,
        body: bytes | bytearray | memoryview,
        queue: Queue,
        *,
        tags: frozenset[str] | None = None,
        offset: int | None = None,
        next_offset: int = 0,
        min_offset: int = 0,
        max_offset: int = 0,
        filtered: bool = False,
        namespace: str = "",
    ) -> None:
        super().__init__(
            body,
            queue,
            tags=tags,
            offset=offset,
            next_offset=next_offset,
            min_offset=min_offset,
            max_offset=max_offset,
        )
        # Looking at the messages here would be most of the work of receiving them.
        self.count = len(self) if filtered else next_offset - self.offset
        self.filtered = filtered
        self.namespace = namespace
        self.claim: Claim | None = None
        self._made: dict[int, StoredMessage] = {}
        self.tries = 0  # beyond those that the messages know of

    @property
    def left_out(self) -> list[range]:
        """See `MessageBatch.left_out`; nothing where the broker has filtered."""
        return [] if self.filtered else super().left_out

    def acknowledge(self, number: int) -> None:
        """See `received.ConsumedMessage.ack`."""
        if self.claim is not None:
            self.claim.acknowledge(number)

    async def retry(self, number: int, later: Later) -> None:
        """See `received.ConsumedMessage.retry`."""
        if self.claim is not None:
            await self.claim.retry(number, later)

    def message(self, number: int) -> StoredMessage:
        """The message of a place."""
        made = self._made.get(number)
        if made is None:
            [made] = super().pick((number,)).messages(StoredMessage)
            if self.tries or self.namespace:
                topic = without_namespace(self.namespace, made.topic)
                made = replace(made, topic=topic, attempt=made.attempt + self.tries)
            self._made[number] = made
        return made

    def pick(self, numbers: Sequence[int]) -> Self:
        """Some of the messages, by their places; there is one at least."""
        part = super().pick(numbers)
        part.count = len(numbers)
        part._made = {}
        return part

    def parts(self, size: int) -> list[Self]:
        """The batch in parts of so many messages; they follow each other without a gap."""
        total = len(self)
        if size < 1 or total <= size:
            return [self]
        cuts = [self.pick(range(at, min(at + size, total))) for at in range(0, total, size)]
        cuts[0].offset = self.offset
        for part, following in pairwise(cuts):
            part.next_offset = following.offset
        return cuts


def delay_level(later: Later) -> int:
    """The delay level of a wish: 0 lets the broker count, -1 is never.

    Raises:
        UsageError: there is no such level.

    >>> delay_level(timedelta(minutes=1)), delay_level(None), delay_level(timedelta(days=1))
    (5, 0, 18)
    """
    if later is None:
        return 0
    if isinstance(later, timedelta):
        wanted_ms = later.total_seconds() * 1000
        levels = enumerate(DELAY_LEVELS_MS, 1)
        return next((level for level, ms in levels if ms >= wanted_ms), len(DELAY_LEVELS_MS))
    if not DEAD <= later <= 0x7FFFFFFF:
        raise UsageError(f"{later} is no delay level.", hint="Levels are 1, 2, and so on.")
    return later
