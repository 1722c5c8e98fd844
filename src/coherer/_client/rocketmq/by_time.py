"""The first message of a queue that was stored at a time or later.

Brokers search by time themselves (29), but answer with the *nearest* message, and choose a file by
its time of change, which a copied directory has lost (rocketmq 6.3). Who reads from a time on must
not miss a message, so it is searched for here: by halves, one message at a time.
"""

from __future__ import annotations

from coherer._client.rocketmq.broker_rpc import Door
from coherer._client.rocketmq.reader import Reader
from coherer._wire.rocketmq.names import Queue


async def first_since(door: Door, queue: Queue, low: int, high: int, time_ms: int) -> int:
    """The offset of the first message that was stored at a time or later.

    Brokers give messages of a queue times that do not go back, unless their clock does.

    Args:
        door: the way to brokers.
        queue: where.
        low: the first offset held.
        high: the offset behind the last.
        time_ms: since 1970.

    Returns:
        The offset; `high` when all messages are older.

    Raises:
        CohererError: the broker does not let us read, or does not answer.
    """
    while low < high:
        middle = (low + high) // 2
        async with Reader(door, queue, middle, middle + 1, max_messages=1) as reader:
            batch = await reader.read()
        # None: deleted since; what is behind it may still be there.
        if batch is None or next(iter(batch)).stored_ms < time_ms:
            low = middle + 1
        else:
            high = middle
    return low
