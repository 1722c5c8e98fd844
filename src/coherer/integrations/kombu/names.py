"""The names that kombu's queues and exchanges have in RocketMQ.

A queue or exchange of kombu is a topic of the same name, and a queue is a group of this name, too.
RocketMQ allows letters, digits, `_`, `-`, `%` and `|`. Every other character becomes `-xHH`, its
bytes in UTF-8 as hexadecimal digits. A `-` before an `x` is escaped likewise, so that different
names stay different, and so that `-x` followed by something else is free for the suffixes below.

>>> topic_name("celery"), topic_name("celery@host.celery.pidbox")
('celery', 'celery-x40host-x2ecelery-x2epidbox')
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from hashlib import sha256
from typing import Final

NAME_CHARS_MAX: Final = 100
"""Longer names end with a hash. RocketMQ's limit is 127 for a topic, retry topics included."""

QUEUE_TAG: Final = "queue"
"""The tag of messages that were sent to a queue itself, not to an exchange."""

_ESCAPED: Final = re.compile(r"[^A-Za-z0-9_-]|-(?=x)")


def topic_name(name: str, prefix: str = "") -> str:
    """The topic of a queue or exchange.

    >>> topic_name("a-b"), topic_name("a-x2eb"), topic_name("a", "team-")
    ('a-b', 'a-x2dx2eb', 'team-a')
    """
    escaped = _ESCAPED.sub(_escape, prefix + name)
    if len(escaped) <= NAME_CHARS_MAX:
        return escaped
    return f"{escaped[:80]}-xz{sha256(escaped.encode()).hexdigest()[:16]}"


def priority_topic(topic: str, step: int) -> str:
    """The topic for messages of a priority step; the lowest step has the queue's own topic.

    >>> priority_topic("celery", 0), priority_topic("celery", 6)
    ('celery', 'celery-xp6')
    """
    return f"{topic}-xp{step}" if step else topic


def priority_step(priority: int, steps: Sequence[int]) -> int:
    """The highest step that does not exceed a priority.

    >>> priority_step(5, (0, 3, 6, 9)), priority_step(0, (3, 6))
    (3, 0)
    """
    return max((step for step in steps if step <= priority), default=0)


def broadcast_group(topic: str) -> str:
    """The broadcast group of the processes that listen to an exchange."""
    return f"{topic}-xbroadcast"


def routing_tag(routing_key: str) -> str:
    """The tag of messages with a routing key, by which brokers filter for direct exchanges.

    >>> routing_tag("media.video")
    'ka5c2884fb2eebac7'
    """
    return f"k{sha256(routing_key.encode()).hexdigest()[:16]}"


def _escape(match: re.Match[str]) -> str:
    return "".join(f"-x{byte:02x}" for byte in match[0].encode())
