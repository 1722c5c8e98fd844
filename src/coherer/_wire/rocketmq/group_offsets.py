"""Whether a group has an offset in a queue, told from request 43's answer (rocketmq 2.7).

Request 14 of RocketMQ 4.x says 0 for a group that has no offset in a queue whose first message is
still in memory, and for one that is at 0. The table of all offsets tells the two apart. It can be
large, so it is searched instead of parsed.
"""

from __future__ import annotations

import re
from typing import Final

from coherer.errors import ProtocolError

ZERO_FIELD: Final = "setZeroIfNotFound"
"""A field of request 14. RocketMQ 5's brokers answer 22 for a group without an offset when it is
`false`. Our broker does so, too, and repeats the field in its answer. RocketMQ 4's pass over it."""

_TABLE: Final = re.compile(rb"\s*:\s*\{([^{}]*)\}")
_ENTRY: Final = re.compile(rb'"?(-?\d+)"?\s*:\s*(-?\d+)')


def offset_in(body: bytes | memoryview, group: str, topic: str, queue_id: int) -> int | None:
    """The offset of a group in a queue.

    Args:
        body: the body of the answer to 43.
        group: the group.
        topic: the queue's topic.
        queue_id: the queue's number.

    Returns:
        None when the group has none there.

    Raises:
        ProtocolError: the body is no table of offsets.

    >>> offset_in(b'{"offsetTable":{"flights@readers":{0:5,1:0}}}', "readers", "flights", 1)
    0
    >>> offset_in(b'{"offsetTable":{"flights@readers":{0:5,1:0}}}', "others", "flights", 1)
    """
    data = bytes(body)
    if b'"offsetTable"' not in data:
        raise ProtocolError("The answer holds no table of offsets.", topic=topic)
    key = f'"{topic}@{group}"'.encode()
    at = data.find(key)
    if at < 0:
        return None
    found = _TABLE.match(data, at + len(key))
    if found is None:
        raise ProtocolError("The table of offsets cannot be read.", topic=topic)
    return next(
        (
            int(offset)
            for number, offset in _ENTRY.findall(found.group(1))
            if int(number) == queue_id and int(offset) >= 0
        ),
        None,
    )
