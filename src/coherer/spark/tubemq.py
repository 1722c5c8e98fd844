"""A TubeMQ cluster as Spark needs it.

On a Coherer node offsets count the messages of a partition, so every range is exact. On Java's
broker an offset is a position in an index that partitions share, a read returns whole batches, and
the last batch of a range may extend past its end. A second read that starts at the end returns the
ids of those messages, and they are removed from the batch. So a row is in exactly one range on
Java's broker too.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from types import TracebackType
from typing import Self

import pyarrow as pa
import pyarrow.compute as pc

from coherer._wire.tubemq.names import Partition
from coherer.blocking.tubemq import Client, Producer, Reader
from coherer.blocking.tubemq import connect as connect_tubemq
from coherer.errors import UnavailableError, UsageError
from coherer.message import Message
from coherer.spark.offsets import Offsets, flatten
from coherer.spark.options import Access
from coherer.spark.planning import Range
from coherer.spark.queue import Batch


class TubeMQQueue:
    """A `Queue` on a blocking client.

    Args:
        access: how to reach the cluster.
    """

    def __init__(self, access: Access) -> None:
        self._client = _connected(access)
        self._admin_token = access.admin_token
        self._partitions: dict[str, dict[tuple[str, int], Partition]] = {}
        self._producer: Producer | None = None

    def topics(self) -> Sequence[str]:
        """All topics, from the master's HTTP interface."""
        return [topic.name for topic in self._client.admin(self._admin_token).topics()]

    def bounds(self, topic: str) -> Mapping[tuple[str, int], tuple[int, int]]:
        """The first offset and the end offset, by (broker, partition)."""
        return self._client.offsets(topic)

    def offsets_since(self, topic: str, time: datetime) -> Mapping[tuple[str, int], int]:
        """Not supported.

        Raises:
            UsageError: always; TubeMQ has no such request.
        """
        raise UsageError(f"TubeMQ cannot search by time ({time}).", topic=topic)

    def missing_brokers(self, topic: str) -> Sequence[str]:
        """The brokers that the master lists for the topic and that cannot be read now."""
        return [str(broker.id) for broker in self._client.unreadable_brokers(topic)]

    def reader(self, one: Range) -> ExactReader:
        """A reader for a range."""
        return ExactReader(self._client, self._partition(one), one)

    def send(self, messages: Iterable[Message], window: int) -> int:
        """Sends messages and waits for all receipts; returns the number of messages."""
        if self._producer is None or self._producer.window != window:
            producer = self._client.producer(window=window)
            producer.start()
            self._producer = producer
        report = self._producer.send_many(messages)
        report.check()
        return report.sent

    def commit(self, group: str, offsets: Offsets) -> None:
        """Sets the offsets of a group."""
        keys = {
            f"{broker}:{topic}:{partition}": offset
            for topic, key, offset in flatten(offsets)
            for broker, _, partition in [key.rpartition(":")]
        }
        self._client.admin(self._admin_token).set_offsets(group, keys)

    def close(self) -> None:
        """Closes all connections."""
        self._client.close()

    def _partition(self, one: Range) -> Partition:
        key = (one.broker, one.partition)
        if key not in self._partitions.get(one.topic, {}):
            self._partitions[one.topic] = {
                (str(found.broker.id), found.id): found
                for found in self._client.partitions(one.topic)
            }
        if key not in self._partitions[one.topic]:
            raise UnavailableError(
                f"No broker has partition {one.broker}:{one.partition} now.", topic=one.topic
            )
        return self._partitions[one.topic][key]


class ExactReader:
    """Reads a range of a partition, and nothing after its end.

    Args:
        client: for readers.
        partition: to read.
        one: the range.
    """

    def __init__(self, client: Client, partition: Partition, one: Range) -> None:
        self._client = client
        self._partition = partition
        self._end = one.end
        self._reader = client.reader(partition, one.start, end=one.end)

    @property
    def exact(self) -> bool:
        """Whether offsets count messages."""
        return self._reader.exact

    @property
    def position(self) -> int:
        """The offset of the next read."""
        return self._reader.position

    @property
    def left_out(self) -> int:
        """The number of skipped messages."""
        return self._reader.left_out

    def read(self) -> Batch | None:
        """The next messages; None at the end."""
        batch = self._reader.read()
        if batch is None or self.exact or self.position <= self._end:
            return batch
        return _Trimmed(batch, self._after_end())

    def _after_end(self) -> Reader:
        return self._client.reader(self._partition, self._end)

    def __enter__(self) -> Self:
        self._reader.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._reader.close()


class _Trimmed:
    """A batch without the messages after the end of a range.

    Args:
        batch: as it was read.
        after_end: a reader that starts at the end of the range.
    """

    def __init__(self, batch: Batch, after_end: Reader) -> None:
        self._batch = batch
        self._after_end = after_end

    @property
    def offset(self) -> int:
        """The offset at which the read started."""
        return self._batch.offset

    def to_arrow(self) -> pa.RecordBatch:
        """The columns of the messages before the end."""
        rows = self._batch.to_arrow()
        ids = rows.column("id")
        mine = set(ids.to_pylist())
        found: list[object] = []
        with self._after_end:
            for batch in self._after_end:
                found += batch.to_arrow().column("id").to_pylist()
                if not mine.issuperset(found):
                    break
        return rows.filter(pc.invert(pc.is_in(ids, value_set=pa.array(found, pa.int64()))))


def _connected(access: Access) -> Client:
    return connect_tubemq(
        access.url,
        user=access.user,
        password=access.secret(),
        tls=access.tls_options(),
        timeout_ms=access.timeout_ms,
        admin=access.admin,
    )
