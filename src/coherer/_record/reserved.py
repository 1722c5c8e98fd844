"""Topics and groups that RocketMQ keeps for itself (protocol page, 2.11, 6.6 to 6.10)."""

from __future__ import annotations

from typing import Final

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
