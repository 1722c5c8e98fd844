"""The names that queues of other systems have in RocketMQ.

RocketMQ allows letters, digits, `_`, `-`, `%` and `|`. Every other character becomes `-xHH`, its
bytes in UTF-8 as hexadecimal digits. A `-` before an `x` is escaped likewise, so that different
names stay different, and so that `-x` followed by something else is free for suffixes.

>>> topic_name("celery"), topic_name("celery@host.celery.pidbox")
('celery', 'celery-x40host-x2ecelery-x2epidbox')
"""

from __future__ import annotations

import re
from hashlib import sha256
from typing import Final

NAME_CHARS_MAX: Final = 100
"""Longer names end with a hash. RocketMQ's limit is 127 for a topic, retry topics included."""

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


def _escape(match: re.Match[str]) -> str:
    return "".join(f"-x{byte:02x}" for byte in match[0].encode())
