"""How far a consumer has come."""

from __future__ import annotations

import msgspec


class Progress(msgspec.Struct, frozen=True):
    """How far a partition or queue has been read.

    Args:
        offset: where the last package began (TubeMQ); up to where everything is dealt with
            (RocketMQ).
        max_offset: the end of the partition when last heard, -1 while unknown.
        backlog_bytes: what lies behind the last package, -1 while unknown.
        exact: whether offsets count messages, so that their difference does.
        left_out: messages that could not be delivered, since the partition was assigned: they are
            damaged, or not what they say they are.
    """

    offset: int
    max_offset: int
    backlog_bytes: int
    exact: bool
    left_out: int = 0
