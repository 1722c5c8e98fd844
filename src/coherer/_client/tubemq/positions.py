"""Where a consumer begins in a partition.

| `start` | a group that never confirmed anything there begins | a group that did |
|---|---|---|
| `"latest"` | at the end: only what is sent from now on | where it left off |
| `"earliest"` | at the oldest message that is kept | where it left off |
| `"always-latest"` | at the end | at the end: what was sent meanwhile is skipped |
| a mapping, or `Bound` | at the given offset (bound consumption) | at the given offset |

The wish goes to the broker when the partition is registered there for the first time in this
process; later registrations (after a rebalance, a broken connection) carry on where the group is.
Java spends the wish on the first attempt, also when that fails; here it holds until one succeeds.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Literal
from uuid import uuid4

import msgspec

from coherer.errors import UsageError

Origin = Literal["latest", "earliest", "always-latest"]
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
        session: a word that all members of the group give.
        members: how many members there are in the group.
        prefer: which offset counts when two members name the same partition.
        others: where partitions begin that nobody named.

    >>> Bound(offsets={"1:flights:0": 120}, session="run 7").members
    1
    """

    offsets: Mapping[str, int]
    session: str = msgspec.field(default_factory=lambda: uuid4().hex)
    members: int = 1
    prefer: Literal["larger", "smaller"] = "larger"
    others: Origin = "latest"


Start = Origin | Mapping[str, int] | Bound
"""What the option `start` of a consumer takes."""


class Positions:
    """Answers how to register a partition with its broker.

    >>> positions = Positions("latest")
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
                f"There is no start position {origin!r}.",
                hint=f"Take one of {', '.join(READ_STATUS)}, or a mapping of partition to offset.",
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
        """The group is at work: what comes from now on was somebody else's before.

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
                f"{key!r}: {offset!r} is no start position.",
                hint="A key is 'brokerId:topic:partitionId', an offset is not negative.",
            )
    if bound.members < 1 or not bound.session:
        raise UsageError("Bound consumption needs a session and at least one member.")
    return bound
