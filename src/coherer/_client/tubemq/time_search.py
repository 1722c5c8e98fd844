"""Finds the offset of a time in a partition.

Coherer's broker searches by the time when it stored the messages, and returns the offset with the
registration of a partition (field 1011).

Java's broker has no such request, and its messages have only the time that their producer set
(`$msgTime$`, in minutes). So this module bisects the index: each step reads one package and its
message times. The number of steps is the logarithm of the number of messages in the store, and a
step reads up to 512 KiB. If message times do not increase, the result is an offset between them.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Final

from coherer._client.tubemq.reader import Reader
from coherer._client.tubemq.topics import TopicCatalog
from coherer._common.moments import floor_ms
from coherer._wire.tubemq.names import Partition
from coherer.errors import UsageError

INDEX_STEP: Final = 28
"""The distance between two messages in a store of Java's broker, by section 8.1 of
docs/protocol/tubemq.md."""


async def first_since(
    catalog: TopicCatalog, partition: Partition, time: datetime, timeout_ms: int
) -> int:
    """The offset of the first message at a time or later.

    Args:
        catalog: registers the partition at its broker.
        time: the time; without a zone it is local. With Java's broker only its minute counts.
        timeout_ms: the timeout of a read.

    Returns:
        The offset; the end of the partition if all messages are older.

    Raises:
        UsageError: the messages of a Java broker have no time.
        CohererError: the broker refused a read, or does not answer.
    """
    start = await catalog.look(partition, since_ms=floor_ms(time))
    if start.since is not None:
        return start.since
    minute = time.astimezone(UTC).replace(second=0, microsecond=0, tzinfo=None)
    low = start.offset
    high = end_of_all = max(start.max_offset, start.offset)
    matched = False
    while low < high:
        middle = low + (high - low) // INDEX_STEP // 2 * INDEX_STEP
        found = await _times(Reader(catalog, partition, middle, high, timeout_ms))
        if found is None:
            high = middle
            continue
        first, last, end = found
        matched |= last >= minute
        if first >= minute:
            high = middle
        else:
            low = end if last < minute else middle + INDEX_STEP
    # Positions after the last message of this partition may belong to others.
    return min(low, end_of_all) if matched else end_of_all


async def _times(reader: Reader) -> tuple[datetime, datetime, int] | None:
    """Return the times of the first and last message of a read, and the offset after it."""
    async with reader:
        batch = await reader.read()
        if batch is None:
            return None
        times = [message.time for message in batch if message.time is not None]
        if not times:
            raise UsageError(
                "The messages have no message time, and Java's broker does not know another time.",
                topic=reader.partition.topic,
                partition=reader.partition.id,
                hint="Start from offsets, or have the producers set the message time.",
            )
        return times[0], times[-1], reader.position
