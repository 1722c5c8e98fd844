"""Topics and groups that RocketMQ and TubeMQ reserve, and delay levels.

See docs/protocol/rocketmq.md, sections 2.11, 6.6 to 6.10.

A message with the property DELAY goes to queue `level - 1` of the schedule topic. The consume
queues of that topic hold the delivery time instead of the tag code, so the store needs the delay
levels as well as the rules of delivery.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from coherer.errors import UsageError

RETRY_PREFIX: Final = "%RETRY%"
"""Prefix of a group's retry topic."""
DLQ_PREFIX: Final = "%DLQ%"
"""Prefix of a group's dead-letter topic."""

AUTO_CREATE_TOPIC: Final = "TBW102"
"""The template for topics that are created by a send."""
SCHEDULE_TOPIC: Final = "SCHEDULE_TOPIC_XXXX"
"""The topic in which delayed messages wait."""
BENCHMARK_TOPIC: Final = "BenchmarkTest"
HALF_TOPIC: Final = "RMQ_SYS_TRANS_HALF_TOPIC"
"""The topic of prepared messages that wait for the end of their transaction."""
OP_HALF_TOPIC: Final = "RMQ_SYS_TRANS_OP_HALF_TOPIC"
"""The topic that records which prepared messages are finished."""
TRACE_TOPIC: Final = "RMQ_SYS_TRACE_TOPIC"
CHECK_MAX_TIME_TOPIC: Final = "TRANS_CHECK_MAX_TIME_TOPIC"
"""The topic of prepared messages whose producer was asked too often."""
SELF_TEST_TOPIC: Final = "SELF_TEST_TOPIC"
"""A topic that Java's brokers have and do not use. From a message there, replicas learn how long a
gap in the queue offsets of their master is."""
OFFSET_MOVED_TOPIC: Final = "OFFSET_MOVED_EVENT"
TIMER_TOPIC: Final = "rmq_sys_wheel_timer"
"""The topic in which timed messages wait (5.x)."""

HISTORY_TOPIC: Final = "__offset_history__"
"""The topic to which TubeMQ's Java brokers write the offsets of groups. TubeMQ's masters put it on
every broker. RocketMQ's name servers are not told of it, because no client can use it."""

TUBEMQ_PREFIX: Final = "__"
"""Begins the names of TubeMQ's own topics."""

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
"""Topics that cannot be created or deleted, on any broker."""
SYSTEM_TOPIC_PREFIX: Final = "rmq_sys_"
REPLY_TOPIC_SUFFIX: Final = "_REPLY_TOPIC"
"""Suffix after a cluster's name: the topic of replies to requests."""

READER_GROUP_PREFIX: Final = "coherer_reader_"
"""Groups of TubeMQ with this prefix exist for one reader only: their positions do not last."""

SYSTEM_GROUP_PREFIX: Final = "CID_RMQ_SYS_"
"""Groups with this prefix are created on demand even if that is disabled."""
TOOLS_GROUP: Final = "TOOLS_CONSUMER"
"""The group for reading without a group; it exists on every broker."""
SYSTEM_GROUPS: Final = (
    TOOLS_GROUP,
    "FILTERSRV_CONSUMER",
    "SELF_TEST_C_GROUP",
    "CID_ONS-HTTP-PROXY",
    "CID_ONSAPI_PULL",
    "CID_ONSAPI_PERMISSION",
    "CID_ONSAPI_OWNER",
)
"""Groups that exist on every broker."""


def is_system_topic(topic: str) -> bool:
    """Tell whether a topic is a system topic, which cannot be created or deleted.

    >>> is_system_topic("TBW102"), is_system_topic("rmq_sys_x"), is_system_topic("orders")
    (True, True, False)
    """
    return topic in SYSTEM_TOPICS or topic.startswith(SYSTEM_TOPIC_PREFIX)


def is_internal_topic(topic: str) -> bool:
    """Tell whether a topic is not the users' own, so that lists leave it out.

    >>> [is_internal_topic(topic) for topic in ("TBW102", "%DLQ%g", "a_REPLY_TOPIC", "__x", "x")]
    [True, True, True, True, False]
    """
    return (
        is_system_topic(topic)
        or topic.startswith((RETRY_PREFIX, DLQ_PREFIX, TUBEMQ_PREFIX))
        or topic.endswith(REPLY_TOPIC_SUFFIX)
    )


DELAY_LEVELS: Final = "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h"
"""The default levels 1 to 18 (`messageDelayLevel`)."""

_UNIT_MS: Final = {"s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_LEVEL = re.compile(r"(\d+)([smhd])\Z", re.ASCII)


def parse_levels(text: str) -> tuple[int, ...]:
    """Parse the delays of the levels 1, 2, …; return them in ms.

    Raises:
        UsageError: a word is not a number with the unit s, m, h or d, or the text is empty.

    >>> parse_levels("1s 5m 2h")
    (1000, 300000, 7200000)
    """
    levels: list[int] = []
    for word in text.split():
        found = _LEVEL.match(word)
        if found is None:
            raise UsageError(
                f"{word!r} is not a valid delay: use a number with the unit s, m, h or d."
            )
        levels.append(int(found[1]) * _UNIT_MS[found[2]])
    if not levels:
        raise UsageError("There must be at least one delay level.")
    return tuple(levels)


def levels_text(levels_ms: Sequence[int]) -> str:
    """Format delays in ms as text.

    >>> levels_text((1000, 300000, 7200000)), levels_text(DELAY_LEVELS_MS) == DELAY_LEVELS
    ('1s 5m 2h', True)
    """
    words: list[str] = []
    for level_ms in levels_ms:
        unit, unit_ms = [each for each in _UNIT_MS.items() if not level_ms % each[1]][-1]
        words.append(f"{level_ms // unit_ms}{unit}")
    return " ".join(words)


DELAY_LEVELS_MS: Final = parse_levels(DELAY_LEVELS)
"""The default levels in ms."""
