"""Moves a group back in a topic, so that messages are delivered to it again."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing

import msgspec

from coherer._common.urls import is_rocketmq
from coherer.cli import jobs
from coherer.cli.groups import check_no_members, committed_offsets, group_states
from coherer.cli.output import print_json, print_table
from coherer.cli.target import AdminTarget


class Move(msgspec.Struct, frozen=True):
    """The move of a group in a partition from its `committed` offset back to `offset`."""

    topic: str
    broker: str
    partition: int
    committed: int
    offset: int

    @property
    def messages(self) -> int:
        """The number of messages to deliver again (with Java's TubeMQ broker: index bytes).

        >>> Move("t", "a", 0, 9, 5).messages
        4
        """
        return self.committed - self.offset


def moves_of(source: jobs.Source, target: AdminTarget, group: str) -> list[Move]:
    """The partitions in which a group has consumed messages of the source.

    Raises:
        UsageError: the group has no offsets in the topic, or consumes over RocketMQ now.
    """
    states = group_states(target, group)
    if is_rocketmq(target.url):
        check_no_members(states, group, "they overwrite the offsets with their own")
    committed = committed_offsets(states, group, source.topic)
    moves = [
        Move(part.topic, part.broker, part.partition, at, part.begin)
        for part in source.preview()
        if (at := committed.get((part.broker, part.partition))) is not None
    ]
    return [move for move in moves if move.messages > 0]


def print_moves(moves: Sequence[Move], group: str, *, dry_run: bool, as_json: bool) -> None:
    """Print the moves, and the messages that are delivered again."""
    if as_json:
        print_json(
            {
                "dry_run": dry_run,
                "group": group,
                "messages": sum(move.messages for move in moves),
                "partitions": moves,
            }
        )
        return
    print_table(
        ("topic", "broker", "partition", "committed", "new offset", "messages"),
        [(*msgspec.structs.astuple(move), move.messages) for move in moves],
        empty=f"Group {group} has not consumed any of these messages.",
    )


def set_offsets(
    source: jobs.Source, target: AdminTarget, group: str, moves: Sequence[Move]
) -> None:
    """Set the new offsets."""
    # Spark is an extra.
    from coherer.spark.connections import OPENERS
    from coherer.spark.options import read_options

    options = source.options()
    if source.format == "tubemq":
        given = {"admin": target.admin, "adminToken": target.token}
        options |= {name: text for name, text in given.items() if text is not None}
    offsets: dict[str, dict[str, int]] = {}
    for move in moves:
        offsets.setdefault(move.topic, {})[f"{move.broker}:{move.partition}"] = move.offset
    access = read_options(options, source.format).access
    with closing(OPENERS[source.format](access)) as queue:
        queue.commit(group, offsets)
