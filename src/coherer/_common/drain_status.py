"""The progress of a drain, as a node reports it over HTTP; `coherer drain` shows it."""

from __future__ import annotations

from typing import Final, Literal

import msgspec

PATH: Final = "/node/drain"

State = Literal["serving", "leaving", "draining", "drained", "timed out"]


class Behind(msgspec.Struct, frozen=True):
    """A connected group with messages to read.

    Args:
        group: its name.
        lag: how many messages it has not acknowledged; None if it has not committed yet.
    """

    group: str
    topic: str
    lag: int | None


class DrainStatus(msgspec.Struct, frozen=True):
    """The progress of a drain.

    Args:
        state: the current step.
        lag: the messages that connected groups have not acknowledged, as far as it is known.
        groups: the connected groups with messages to read, those with the most first; at most 100.
        senders: whether producers still try to send to this node.
        elapsed_s: how long it has been draining.
        timeout_s: the time after which the node stops in any case.
    """

    state: State
    lag: int
    groups: list[Behind]
    senders: bool
    elapsed_s: float
    timeout_s: float
