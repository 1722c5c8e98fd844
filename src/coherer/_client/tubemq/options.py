"""The options of a TubeMQ consumer, and where it begins in a partition.

| `start` | a group without an offset begins | a group with an offset begins |
|---|---|---|
| `"latest"` | at the end: it receives messages sent from now on | at its offset |
| `"earliest"` | at the oldest message | at its offset |
| `"always-latest"` | at the end | at the end: messages sent in between are skipped |
| a mapping, or `Bound` | at the given offset (bound consumption) | at the given offset |

`start` applies to the first registration of a partition in this process; later registrations (after
a rebalance, or a broken connection) continue at the group's offset. In Java it applies to the first
attempt only, even if that fails; here it applies until one succeeds.

A partition may come to a group that runs: the topic has got more of them, was created again, or a
broker has come. With `"latest"` a consumer receives what was sent to it since the consumer joined;
from Java's brokers only what is sent after it has registered the partition.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Final, Literal, cast

import msgspec

from coherer._common import clock, machine
from coherer._wire.tubemq.names import Partition
from coherer.errors import UsageError

READ_STATUS: Final[Mapping[str, int]] = {"earliest": 0, "latest": 1, "always-latest": 2}
"""Start positions by name, as the field `readStatus` of a registration with a broker."""

CONTINUE: Final = 0
"""The `readStatus` of every registration but the first."""


class Bound(msgspec.Struct, frozen=True, kw_only=True):
    """Bound consumption: the members of a group begin together at exact offsets.

    The master waits until all members have joined, and then assigns each partition to the member
    that named it. An application that stores the offsets together with its results continues where
    the results end, so that each message is processed once.

    Args:
        offsets: partition key (`"brokerId:topic:partitionId"`) to the offset to begin at.
        session: a name that all members of the group share.
        members: the number of members of the group.
        prefer: which offset is used if two members name the same partition.
        others: where partitions begin that no member named.

    >>> Bound(offsets={"1:flights:0": 120}, session="run 7").members
    1
    """

    offsets: Mapping[str, int]
    session: str = msgspec.field(default_factory=lambda: machine.uuid().hex)
    members: int = 1
    prefer: Literal["larger", "smaller"] = "larger"
    others: Literal["latest", "earliest", "always-latest"] = "latest"


Start = Literal["latest", "earliest", "always-latest"] | Mapping[str, int] | Bound
"""Values of a consumer's option `start`."""


Listener = Callable[[frozenset[Partition]], Awaitable[None] | None]
"""Called with partitions that were assigned or are revoked."""

Topics = str | Iterable[str] | Mapping[str, Iterable[str]] | Mapping[str, Iterable[str] | None]
"""One topic, several, or a mapping of topics to tags: several tags, or one text in RocketMQ's form,
`"new || paid"`. None, `"*"` and no tags select all messages."""


class ConsumerOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The options of a consumer.

    Args:
        start: where a group begins in a partition without an offset of the group: `"latest"`, at
            the end, or `"earliest"`, at the oldest message. `"always-latest"` begins at the end,
            and a mapping of partition keys to offsets, or a `Bound`, at these offsets, even if the
            group has an offset.
        poll_ms: timeout of a get. Coherer's broker holds a get without messages almost this long.
        empty_ms: pause after "not found" from a broker that does not hold gets.
        release_ms: how long batches may still be acknowledged when their partition is revoked.
        prefetch_bytes: nothing is fetched while this many bytes are buffered.
        on_assigned: called with newly assigned partitions, before anything is fetched from them.
        on_revoked: called with partitions that are being revoked, while their batches can still be
            acknowledged; also with lost partitions.
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
                raise UsageError(f"{name} is {bound} or more, not {getattr(self, name)}.")


def topics_of(topics: Topics) -> dict[str, frozenset[str]]:
    """The topics of a consumer, each with its accepted tags.

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
    """Decides where to begin in each partition.

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
                f"{origin!r} is not a valid start position.",
                hint=f"Use one of {', '.join(READ_STATUS)}, or a mapping of partition to offset.",
            )
        self._first = READ_STATUS[origin]
        self._taken: set[str] = set()
        self._began = False
        self._joined_ms = clock.now_ms()

    def of(self, key: str) -> tuple[int, int | None]:
        """The read status, and the exact offset if any, for registering the partition `key`."""
        if key in self._taken:
            return CONTINUE, None
        if self.bound is not None and not self._began and key in self.bound.offsets:
            return CONTINUE, self.bound.offsets[key]
        return self._first, None

    def age_ms(self, key: str) -> int | None:
        """How old the messages may be that `key` begins with, instead of at its end; or None."""
        from_end = self.of(key) == (READ_STATUS["latest"], None)
        return clock.now_ms() - self._joined_ms if from_end and self._began else None

    def joining(self) -> None:
        """The consumer joins its group now."""
        self._joined_ms = clock.now_ms()

    def taken(self, key: str) -> None:
        """The broker accepted the registration of partition `key`."""
        self._taken.add(key)

    def group_began(self) -> None:
        """The group has begun: later partitions come from other members, or are new.

        Exact offsets apply to the first assignment of a group only; another member may have
        continued from there.
        """
        self._began = True


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
