"""Offsets of messages that are left out of what a reader gets, as runs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

_SHOWN: Final = 5


def joined(runs: Iterable[range]) -> list[range]:
    """Give runs of offsets lowest first, those that touch as one.

    >>> joined([range(7, 8), range(4, 5), range(3, 4)])
    [range(3, 5), range(7, 8)]
    """
    found: list[range] = []
    for run in sorted(runs, key=lambda run: run.start):
        if found and run.start <= found[-1].stop:
            found[-1] = range(found[-1].start, max(found[-1].stop, run.stop))
        else:
            found.append(run)
    return found


def between(first: int, end: int, offsets: Iterable[int]) -> list[range]:
    """Give the runs from `first` to `end` that hold none of some rising offsets.

    >>> between(3, 9, [4, 5, 8])
    [range(3, 4), range(6, 8)]
    """
    found: list[range] = []
    for offset in (*offsets, end):
        if offset > first:
            found.append(range(first, offset))
        first = max(first, offset + 1)
    return found


def described(runs: Sequence[range]) -> str:
    """Say which messages runs hold, for a log or an error.

    >>> described([range(3, 5), range(7, 8)]), described([range(7, 8)])
    ('3 messages (offsets 3 to 4, 7)', '1 message (offset 7)')
    """
    count = sum(map(len, runs))
    shown = ", ".join(
        f"{run.start}" if len(run) == 1 else f"{run.start} to {run.stop - 1}"
        for run in runs[:_SHOWN]
    )
    more = f" and {len(runs) - _SHOWN} more runs" if len(runs) > _SHOWN else ""
    return f"{count} message{'s' * (count != 1)} (offset{'s' * (count != 1)} {shown}{more})"
