"""Topics and groups that RocketMQ keeps for itself (protocol page, 2.11, 6.6 to 6.10)."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from coherer.errors import UsageError

RETRY_PREFIX: Final = "%RETRY%"
"""Before a group's name: the topic of the messages that it wants again."""
DLQ_PREFIX: Final = "%DLQ%"
"""Before a group's name: the topic of the messages that it has given up."""

AUTO_CREATE_TOPIC: Final = "TBW102"
"""The model of topics that a send makes."""
SCHEDULE_TOPIC: Final = "SCHEDULE_TOPIC_XXXX"
"""The topic in which delayed messages wait."""
BENCHMARK_TOPIC: Final = "BenchmarkTest"
HALF_TOPIC: Final = "RMQ_SYS_TRANS_HALF_TOPIC"
"""Half messages wait here for the end of their transaction."""
OP_HALF_TOPIC: Final = "RMQ_SYS_TRANS_OP_HALF_TOPIC"
"""Which half messages are done with."""
TRACE_TOPIC: Final = "RMQ_SYS_TRACE_TOPIC"
CHECK_MAX_TIME_TOPIC: Final = "TRANS_CHECK_MAX_TIME_TOPIC"
"""Half messages that were asked about too often."""
SELF_TEST_TOPIC: Final = "SELF_TEST_TOPIC"
OFFSET_MOVED_TOPIC: Final = "OFFSET_MOVED_EVENT"
TIMER_TOPIC: Final = "rmq_sys_wheel_timer"
"""The topic in which timed messages wait (5.x)."""

SYSTEM_TOPICS: Final = (
    AUTO_CREATE_TOPIC,
    SCHEDULE_TOPIC,
    BENCHMARK_TOPIC,
    HALF_TOPIC,
    TRACE_TOPIC,
    OP_HALF_TOPIC,
    CHECK_MAX_TIME_TOPIC,
    SELF_TEST_TOPIC,
    OFFSET_MOVED_TOPIC,
)
"""Topics that nobody may make or delete, on any broker."""
SYSTEM_TOPIC_PREFIX: Final = "rmq_sys_"
REPLY_TOPIC_SUFFIX: Final = "_REPLY_TOPIC"
"""Behind a cluster's name: the topic of answers to requests."""

SYSTEM_GROUP_PREFIX: Final = "CID_RMQ_SYS_"
"""Groups of such names are made on demand even where no other is."""
TOOLS_GROUP: Final = "TOOLS_CONSUMER"
"""The group for reading without a group of one's own: it exists on every broker."""
SYSTEM_GROUPS: Final = (
    TOOLS_GROUP,
    "FILTERSRV_CONSUMER",
    "SELF_TEST_C_GROUP",
    "CID_ONS-HTTP-PROXY",
    "CID_ONSAPI_PULL",
    "CID_ONSAPI_PERMISSION",
    "CID_ONSAPI_OWNER",
)
"""Groups that every broker has from the start."""


def is_system_topic(topic: str) -> bool:
    """Tells whether a topic is every broker's own, so that nobody may make or delete it.

    >>> is_system_topic("TBW102"), is_system_topic("rmq_sys_x"), is_system_topic("orders")
    (True, True, False)
    """
    return topic in SYSTEM_TOPICS or topic.startswith(SYSTEM_TOPIC_PREFIX)


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
