"""The preview of a reset of a group's offsets."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Literal, TypeAlias

import msgspec

from coherer._administration.access import Cluster
from coherer._common.places import Place, place_of
from coherer.admin import Partition

Target: TypeAlias = Literal["earliest", "latest"] | datetime | int
"""An end of the partitions, a time of storing, or an offset for every partition."""


class Move(msgspec.Struct, frozen=True):
    """The move of a group's offset in a partition.

    Args:
        key: the partition.
        committed: the offset now; None if the group has none, or it is unknown.
        new: the offset afterwards; None if it is unknown.
        max_offset: the end of the partition.
    """

    key: str
    committed: int | None
    new: int | None
    max_offset: int | None

    @property
    def change(self) -> int | None:
        """Offset change; negative means that messages are delivered again."""
        return None if self.committed is None or self.new is None else self.new - self.committed


async def planned(
    cluster: Cluster,
    positions: Iterable[Partition],
    topic: str,
    partitions: Iterable[Partition],
    target: Target,
) -> list[Move]:
    """The moves of a reset; `positions` are those of the group, `partitions` those of the topic."""
    committed = {one.key: one.committed for one in positions}
    since: Mapping[Place, int] = {}
    if isinstance(target, datetime):
        found = await cluster.client.offsets_since(topic, target)
        since = {place_of(partition): offset for partition, offset in found.items()}
    moves: list[Move] = []
    for one in partitions:
        low, high = one.min_offset, one.max_offset
        if isinstance(target, datetime):
            new = since.get((one.broker, one.partition))
        elif isinstance(target, int):
            new = None if low is None or high is None else min(max(target, low), high)
        else:
            new = low if target == "earliest" else high
        moves.append(Move(one.key, committed.get(one.key), new, high))
    return moves
