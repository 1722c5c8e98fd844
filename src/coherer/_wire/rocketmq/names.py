"""Names of queues, topics and groups, and their namespaces.

>>> retry_topic("billing"), dlq_topic("billing")
('%RETRY%billing', '%DLQ%billing')
>>> with_namespace("team", "%RETRY%billing")
'%RETRY%team%billing'
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

import msgspec

from coherer._common.renamed import unpacked
from coherer._record import system_topics
from coherer.errors import UsageError
from coherer.limits import TOPIC_BYTES_MAX

RETRY_PREFIX: Final = system_topics.RETRY_PREFIX
DLQ_PREFIX: Final = system_topics.DLQ_PREFIX
SYSTEM_GROUP_PREFIX: Final = system_topics.SYSTEM_GROUP_PREFIX
REPLY_TOPIC_SUFFIX: Final = system_topics.REPLY_TOPIC_SUFFIX
AUTO_CREATE_TOPIC: Final = system_topics.AUTO_CREATE_TOPIC
SCHEDULE_TOPIC: Final = system_topics.SCHEDULE_TOPIC
FEATURES: Final = "cohererFeatures"
"""A field of the heartbeats of Coherer's clients and of its brokers' answers: the features beyond
4.9 that each supports, separated by commas."""
FEATURE_TIMERS: Final = "timers"
"""The feature of timed messages, as in 5.x."""
FEATURE_HEARTBEATS: Final = "heartbeats"
"""The feature of a request for the members of a group (203): the answer has `HEARTBEAT_AGES`."""
HEARTBEAT_AGES: Final = "cohererHeartbeatAges"
"""A field of answers to 203: JSON, client ids to the time since the last heartbeat in ms."""
FEATURE_GROUP_STATES: Final = "group-states"
"""The feature of a request for the state of all groups (317): the answer is a `GroupStates`. A
broker that has it says so in its answer to a request for the names of the groups (201)."""
AFTER: Final = "cohererAfter"
"""A field of a request for `GroupStates`: it begins after the group of this name."""
FEATURE_ENDS_ONCE: Final = "ends-once"
"""The feature of ending a transaction only once: a commit without an answer may be repeated."""
FEATURE_HALF_BATCHES: Final = "half-batches"
"""The feature of half batches: many messages as one half message (31310, 31037)."""
RETRY_REASON: Final = "cohererRetryReason"
"""A property: why a consumer retries a message, or has given up on it."""
REPLAY_OF: Final = "cohererReplayOf"
"""A property of a message that was a dead letter: the offset id of the dead letter."""
TRACE_TOPIC: Final = system_topics.TRACE_TOPIC
TOOLS_GROUP: Final = system_topics.TOOLS_GROUP
SYSTEM_GROUPS: Final = system_topics.SYSTEM_GROUPS
INNER_PRODUCER_GROUP: Final = "CLIENT_INNER_PRODUCER"

GROUP_CHARS_MAX: Final = 255
"""Longest name of a group; checked by Java's clients."""

_ALLOWED: Final = re.compile(r"[%|a-zA-Z0-9_-]+")
_ALLOWED_TEXT: Final = "^[%|a-zA-Z0-9_-]+$"
is_system_topic = system_topics.is_system_topic
_RESERVED_GROUPS: Final = ("DEFAULT_PRODUCER", "DEFAULT_CONSUMER")


class Queue(msgspec.Struct, frozen=True, order=True, gc=False):
    """A queue of a topic on one broker (Java: MessageQueue).

    Args:
        topic: the topic.
        broker: the name of the broker; a master and its slaves share it.
        id: the queue's number on the broker, from 0.

    >>> Queue("orders", "broker-a", 0) < Queue("orders", "broker-a", 1)
    True
    """

    topic: str
    broker: str = msgspec.field(name="brokerName")
    id: int = msgspec.field(name="queueId")

    @property
    def key(self) -> str:
        """`broker:topic:queue`, as administration names it."""
        return f"{self.broker}:{self.topic}:{self.id}"

    if not TYPE_CHECKING:
        __iter__ = unpacked


def retry_topic(group: str) -> str:
    """Return the topic of messages that will be redelivered to a group."""
    return RETRY_PREFIX + group


def dlq_topic(group: str) -> str:
    """Return the topic of a group's dead letters."""
    return DLQ_PREFIX + group


def topic_fault(topic: str) -> str | None:
    """Return what is wrong with a topic name, in Java's words; None if it is valid.

    >>> topic_fault("a b")
    'The specified topic contains illegal characters, allowing only ^[%|a-zA-Z0-9_-]+$'
    """
    if not topic.strip():
        return "The specified topic is blank."
    if _ALLOWED.fullmatch(topic) is None:
        return f"The specified topic contains illegal characters, allowing only {_ALLOWED_TEXT}"
    if len(topic) > TOPIC_BYTES_MAX:
        return "The specified topic is longer than topic max length."
    return None


def group_fault(group: str) -> str | None:
    """Return what is wrong with a group name; None if it is valid."""
    if not group.strip():
        return "The group name is blank."
    if len(group) > GROUP_CHARS_MAX:
        return f"The group name has {len(group)} characters; {GROUP_CHARS_MAX} are allowed."
    if _ALLOWED.fullmatch(group) is None:
        return f"The group name [{group}] contains characters outside {_ALLOWED_TEXT}."
    return None


def check_topic(topic: str) -> None:
    """Check the name of a topic before it is sent to a server.

    Raises:
        UsageError: servers do not accept it.
    """
    fault = topic_fault(topic)
    if fault is not None:
        raise UsageError(fault, topic=topic)


def check_group(group: str) -> None:
    """Check the name of a group before it is sent to a server.

    Raises:
        UsageError: servers do not accept it, or Java reserves it for "not set".
    """
    fault = group_fault(group)
    if fault is None and group in _RESERVED_GROUPS:
        fault = f"The group name {group} is reserved: choose another one."
    if fault is not None:
        raise UsageError(fault)


def with_namespace(namespace: str, name: str) -> str:
    """Return the name of a topic or group as servers know it.

    See docs/protocol/rocketmq.md, section 8.1.

    >>> with_namespace("team", "orders"), with_namespace("team", "team%orders")
    ('team%orders', 'team%orders')
    >>> with_namespace("", "orders"), with_namespace("team", "TBW102")
    ('orders', 'TBW102')
    """
    if not namespace or not name or _outside_namespaces(name):
        return name
    prefix, bare = _split(name)
    if bare.startswith(f"{namespace}%"):
        return name
    return f"{prefix}{namespace}%{bare}"


def without_namespace(namespace: str, name: str) -> str:
    """Return the name without its namespace.

    >>> without_namespace("team", "%RETRY%team%billing"), without_namespace("team", "orders")
    ('%RETRY%billing', 'orders')
    """
    if not namespace or not name or _outside_namespaces(name):
        return name
    prefix, bare = _split(name)
    return prefix + bare.removeprefix(f"{namespace}%")


def _outside_namespaces(name: str) -> bool:
    return is_system_topic(name) or name.startswith(SYSTEM_GROUP_PREFIX)


def _split(name: str) -> tuple[str, str]:
    for prefix in (RETRY_PREFIX, DLQ_PREFIX):
        if name.startswith(prefix):
            return prefix, name[len(prefix) :]
    return "", name
