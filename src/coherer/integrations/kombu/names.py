"""The names that kombu's queues and exchanges have in RocketMQ.

A queue or exchange of kombu is a topic of the same name (`integrations._names`), and a queue is a
group of this name, too.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import sha256
from typing import Final

QUEUE_TAG: Final = "queue"
"""The tag of messages that were sent to a queue itself, not to an exchange."""


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
