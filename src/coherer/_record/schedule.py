"""Where delayed messages wait, and for how long: RocketMQ's delay levels (protocol page, 6.6).

A message with the property DELAY goes to queue `level - 1` of the schedule topic. What a consume
queue of that topic holds in place of the tag code is the time of delivery, so the store has to
know the levels as well as the rules of delivery.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from coherer._record import system_topics
from coherer.errors import UsageError

SCHEDULE_TOPIC: Final = system_topics.SCHEDULE_TOPIC

DELAY_LEVELS: Final = "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h"
"""The levels 1 to 18 of a broker that was told no others (`messageDelayLevel`)."""

_UNIT_MS: Final = {"s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_LEVEL = re.compile(r"(\d+)([smhd])\Z", re.ASCII)


def parse_levels(text: str) -> tuple[int, ...]:
    """Give the delays of the levels 1, 2, … in ms.

    Raises:
        UsageError: a word is no number with the unit s, m, h or d, or there is none.

    >>> parse_levels("1s 5m 2h")
    (1000, 300000, 7200000)
    """
    levels: list[int] = []
    for word in text.split():
        found = _LEVEL.match(word)
        if found is None:
            raise UsageError(f"{word!r} is no delay: numbers with s, m, h or d are.")
        levels.append(int(found[1]) * _UNIT_MS[found[2]])
    if not levels:
        raise UsageError("There must be one delay level at least.")
    return tuple(levels)


def levels_text(levels_ms: Sequence[int]) -> str:
    """Give the text for delays in ms.

    >>> levels_text((1000, 300000, 7200000)), levels_text(DELAY_LEVELS_MS) == DELAY_LEVELS
    ('1s 5m 2h', True)
    """
    words: list[str] = []
    for level_ms in levels_ms:
        unit, unit_ms = [each for each in _UNIT_MS.items() if not level_ms % each[1]][-1]
        words.append(f"{level_ms // unit_ms}{unit}")
    return " ".join(words)


DELAY_LEVELS_MS: Final = parse_levels(DELAY_LEVELS)
"""The same in ms."""
