"""The options of a TubeMQ consumer, and where it begins in a partition.

| `start` | a group without an offset begins | a group with an offset begins |
|---|---|---|
| `"latest"` | at the end: it gets what is sent from now on | at its offset |
| `"earliest"` | at the oldest message that is kept | at its offset |
| `"always-latest"` | at the end | at the end: what was sent meanwhile is skipped |
| a mapping, or `Bound` | at the given offset (bound consumption) | at the given offset |

`start` goes to the broker when the partition is registered there for the first time in this
process; later registrations (after a rebalance, or a broken connection) go on at the group's
offset. Java uses the option up with the first attempt, even if that fails; here it lasts until one
succeeds.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Final, Literal, cast
from uuid import uuid4

import msgspec

from coherer._wire.tubemq.names import Partition
from coherer.errors import UsageError

StartName = Literal["latest", "earliest", "always-latest"]
"""Start positions by name."""

READ_STATUS: Final[Mapping[str, int]] = {"earliest": 0, "latest": 1, "always-latest": 2}
"""The field `readStatus` of a registration with a broker."""

CARRY_ON: Final = 0
"""The `readStatus` of every registration but the first."""


class Bound(msgspec.Struct, frozen=True, kw_only=True):
    """Bound consumption: the members of a group begin together at exact offsets.

    The master waits until all members are there and then gives each partition to the member that
    named it. An application that keeps the offsets together with its results begins again where
    those results end: each message counts once.

    Args:
        offsets: partition key (`"brokerId:topic:partitionId"`) to the offset to begin at.
        session: a name that all members of the group give.
        members: how many members there are in the group.
        prefer: which offset counts when two members name the same partition.
        others: where partitions begin that no member named.

    >>> Bound(offsets={"1:flights:0": 120}, session="run 7").members
    1
    """

    offsets: Mapping[str, int]
    session: str = msgspec.field(default_factory=lambda: uuid4().hex)
    members: int = 1
    prefer: Literal["larger", "smaller"] = "larger"
    others: StartName = "latest"


Start = StartName | Mapping[str, int] | Bound
"""What the option `start` of a consumer takes."""


Listener = Callable[[frozenset[Partition]], Awaitable[None] | None]
"""Called with partitions that were assigned or are revoked."""

Topics = str | Iterable[str] | Mapping[str, Iterable[str]] | Mapping[str, Iterable[str] | None]
"""One topic, several, or topics with the tags that are wanted of each: several, or as one text as
RocketMQ's clients write it, `"new || paid"`; all messages with None, `"*"` or no tags."""


class ConsumerOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The options of a consumer.

    Args:
        start: where to begin, see the module.
        poll_ms: timeout of a get. Coherer's broker holds a get that finds nothing almost this long.
        empty_ms: pause after "not found" from a broker that does not hold gets.
        release_ms: how long batches may still be acknowledged when their partition is revoked.
        prefetch_bytes: nothing more is fetched while this much waits to be received.
        on_assigned: called with new partitions, before anything is fetched from them.
        on_revoked: called with partitions that are revoked, while their batches can still be
            acknowledged; after a loss, with those that are gone.
    """

    start: Start = "latest"
    poll_ms: int = 30_000
    empty_ms: int = 400
    release_ms: int = 3_000
    prefetch_bytes: int = 64 * 1024 * 1024
    on_assigned: Listener | None = None
    on_revoked: Listener | None = None

    def __post_init__(self) -> None:
        least = {"poll_ms": 1, "empty_ms": 0, "release_ms": 0, "prefetch_bytes": 1}
        for name, bound in least.items():
            if getattr(self, name) < bound:
                raise UsageError(f"{name} is {getattr(self, name)}; the minimum is {bound}.")


def topics_of(topics: Topics) -> dict[str, frozenset[str]]:
    """Topics and their filters in one form.

    Raises:
        UsageError: a filter does not consist of tags.

    >>> topics_of("a"), topics_of({"a": ["UA"]})
    ({'a': frozenset()}, {'a': frozenset({'UA'})})
    >>> topics_of({"a": "UA"}), topics_of({"a": "*", "b": None})
    ({'a': frozenset({'UA'})}, {'a': frozenset(), 'b': frozenset()})
    """
    if isinstance(topics, str):
        return {topics: frozenset()}
    if isinstance(topics, Mapping):
        wanted = cast("Mapping[str, object]", topics)
        return {topic: _tags_of(topic, filters) for topic, filters in wanted.items()}
    return {topic: frozenset() for topic in topics}


def _tags_of(topic: str, filters: object) -> frozenset[str]:
    if isinstance(filters, str):
        tags = {tag.strip() for tag in filters.split("||")} - {""}
        return frozenset() if "*" in tags else frozenset(tags)
    if filters is None:
        return frozenset()
    if not isinstance(filters, Iterable):
        raise UsageError(
            f"TubeMQ's brokers filter by tags, not by {type(filters).__name__}.", topic=topic
        )
    return frozenset(cast("Iterable[str]", filters))


class StartPositions:
    """How to register partitions with their brokers.

    >>> positions = StartPositions("latest")
    >>> positions.of("1:a:0")
    (1, None)
    >>> positions.taken("1:a:0")
    >>> positions.of("1:a:0")
    (0, None)
    """

    def __init__(self, start: Start) -> None:
        self.bound = _bound(start)
        origin = self.bound.others if self.bound is not None else start
        if not isinstance(origin, str) or origin not in READ_STATUS:
            raise UsageError(
                f"{origin!r} is not a start position.",
                hint=f"Use one of {', '.join(READ_STATUS)}, or a mapping of partition to offset.",
            )
        self._first = READ_STATUS[origin]
        self._taken: set[str] = set()
        self._exact = self.bound is not None

    def of(self, key: str) -> tuple[int, int | None]:
        """The read status and the exact offset, if any, to register partition `key` with."""
        if key in self._taken:
            return CARRY_ON, None
        if self.bound is not None and self._exact and key in self.bound.offsets:
            return CARRY_ON, self.bound.offsets[key]
        return self._first, None

    def taken(self, key: str) -> None:
        """The broker accepted the registration of partition `key`."""
        self._taken.add(key)

    def group_began(self) -> None:
        """The group is consuming: partitions that are assigned from now on were another member's.

        Exact offsets are for the first assignment of a group only; another member may have gone
        on from there since.
        """
        self._exact = False


def _bound(start: Start) -> Bound | None:
    if isinstance(start, Bound):
        bound = start
    elif isinstance(start, Mapping):
        bound = Bound(offsets=start)
    else:
        return None
    for key, offset in bound.offsets.items():
        if offset < 0 or len(key.split(":")) != 3:
            raise UsageError(
                f"{key!r}: {offset!r} is not a valid start position.",
                hint="A key is 'brokerId:topic:partitionId', an offset is not negative.",
            )
    if bound.members < 1 or not bound.session:
        raise UsageError("Bound consumption needs a session and at least one member.")
    return bound
