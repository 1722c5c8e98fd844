"""Ranges of offsets whose messages a reader does not get."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

_SHOWN: Final = 5


def joined(ranges: Iterable[range]) -> list[range]:
    """Sort ranges of offsets and merge those that touch.

    >>> joined([range(7, 8), range(4, 5), range(3, 4)])
    [range(3, 5), range(7, 8)]
    """
    found: list[range] = []
    for one in sorted(ranges, key=lambda one: one.start):
        if found and one.start <= found[-1].stop:
            found[-1] = range(found[-1].start, max(found[-1].stop, one.stop))
        else:
            found.append(one)
    return found


def between(first: int, end: int, offsets: Iterable[int]) -> list[range]:
    """Return the ranges from `first` to `end` without some offsets, which must be sorted.

    >>> between(3, 9, [4, 5, 8])
    [range(3, 4), range(6, 8)]
    """
    found: list[range] = []
    for offset in (*offsets, end):
        if offset > first:
            found.append(range(first, offset))
        first = max(first, offset + 1)
    return found


def without(ranges: Iterable[range], others: Iterable[range]) -> list[range]:
    """Return what is left of ranges without the offsets of other ranges.

    >>> without([range(3, 9), range(20, 22)], [range(0, 4), range(6, 7), range(9, 20)])
    [range(4, 6), range(7, 9), range(20, 22)]
    """
    found: list[range] = []
    others = joined(others)
    for one in ranges:
        first = one.start
        for other in others:
            if first < other.stop and other.start < one.stop:
                if first < other.start:
                    found.append(range(first, other.start))
                first = other.stop
        if first < one.stop:
            found.append(range(first, one.stop))
    return found


def to_runs(ranges: Iterable[range]) -> list[int]:
    """Return ranges as pairs of first offset and length."""
    return [number for one in ranges for number in (one.start, len(one))]


def from_runs(numbers: Sequence[int]) -> list[range]:
    """Return the ranges of pairs of first offset and length; invalid ones are skipped.

    >>> from_runs(to_runs([range(3, 5), range(7, 8)])), from_runs([-1, 3, 4, -7, 9])
    ([range(3, 5), range(7, 8)], [])
    """
    return joined(
        range(first, first + count)
        for first, count in zip(numbers[::2], numbers[1::2], strict=False)
        if first >= 0 and count > 0
    )


def described(ranges: Sequence[range]) -> str:
    """Describe the messages of some ranges, for a log line or an error.

    >>> described([range(3, 5), range(7, 8)]), described([range(7, 8)])
    ('3 messages (offsets 3 to 4, 7)', '1 message (offset 7)')
    """
    count = sum(map(len, ranges))
    shown = ", ".join(
        f"{one.start}" if len(one) == 1 else f"{one.start} to {one.stop - 1}"
        for one in ranges[:_SHOWN]
    )
    more = f" and {len(ranges) - _SHOWN} more ranges" if len(ranges) > _SHOWN else ""
    return f"{count} message{'s' * (count != 1)} (offset{'s' * (count != 1)} {shown}{more})"
