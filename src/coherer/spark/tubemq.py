"""A TubeMQ cluster as Spark needs it.

On our broker offsets count the messages of a partition, so a range is exact by itself. On Java's
broker an offset is a place in an index that partitions share, a read takes whole packages, and the
last package of a range may reach behind its end. What is behind the end is found by asking for it:
a second read that begins at the end gives the ids of the messages there, and they are left out of
the package. So a row is in one range only with Java's broker too.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from types import TracebackType
from typing import Self

import pyarrow as pa
import pyarrow.compute as pc

from coherer._net import TlsOptions
from coherer._wire.tubemq.names import Partition
from coherer.blocking.tubemq import Client, Producer, Reader
from coherer.blocking.tubemq import connect as connect_tubemq
from coherer.errors import UnavailableError, UsageError
from coherer.message import Message
from coherer.spark.offsets import Offsets, walk
from coherer.spark.options import Access
from coherer.spark.planning import Range
from coherer.spark.queue import Batch


class TubeMQQueue:
    """Answers Spark's questions with a blocking client.

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
        """(broker, partition) to (first offset held, offset behind the last)."""
        return self._client.offsets(topic)

    def since(self, topic: str, time: datetime) -> Mapping[tuple[str, int], int]:
        """Not to be had.

        Raises:
            UsageError: always; TubeMQ has no request for it.
        """
        raise UsageError(f"TubeMQ cannot search by time ({time}).", topic=topic)

    def away(self, topic: str) -> Sequence[str]:
        """The brokers that the master lists for the topic and that cannot be read now."""
        return [str(broker.id) for broker in self._client.away(topic)]

    def reader(self, one: Range) -> ExactReader:
        """A reader for a range."""
        return ExactReader(self._client, self._partition(one), one)

    def send(self, messages: Iterable[Message], window: int) -> int:
        """Sends messages and waits for all receipts; returns how many they were."""
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
            for topic, key, offset in walk(offsets)
            for broker, _, partition in [key.rpartition(":")]
        }
        self._client.admin(self._admin_token).set_offsets(group, keys)

    def close(self) -> None:
        """Closes all connections."""
        self._client.close()

    def _partition(self, one: Range) -> Partition:
        place = (one.broker, one.partition)
        if place not in self._partitions.get(one.topic, {}):
            self._partitions[one.topic] = {
                (str(found.broker.id), found.id): found
                for found in self._client.partitions(one.topic)
            }
        if place not in self._partitions[one.topic]:
            raise UnavailableError(
                f"No broker has partition {one.broker}:{one.partition} now.", topic=one.topic
            )
        return self._partitions[one.topic][place]


class ExactReader:
    """Reads a range of a partition, and nothing behind its end.

    Args:
        client: makes the readers.
        partition: what to read.
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
        """Where the next read begins."""
        return self._reader.position

    @property
    def left_out(self) -> int:
        """How many messages were left out up to there."""
        return self._reader.left_out

    def read(self) -> Batch | None:
        """The next messages; None at the end."""
        batch = self._reader.read()
        if batch is None or self.exact or self.position <= self._end:
            return batch
        return _Cut(batch, self._behind_end())

    def _behind_end(self) -> Reader:
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


class _Cut:
    """A package without the messages that `behind` finds.

    Args:
        batch: the package.
        behind: a reader that begins at the end of the range.
    """

    def __init__(self, batch: Batch, behind: Reader) -> None:
        self._batch = batch
        self._behind = behind

    @property
    def offset(self) -> int:
        """Where the read began."""
        return self._batch.offset

    def to_arrow(self) -> pa.RecordBatch:
        """The columns of the messages before the end."""
        rows = self._batch.to_arrow()
        ids = rows.column("id")
        mine = set(ids.to_pylist())
        found: list[object] = []
        with self._behind:
            for batch in self._behind:
                found += batch.to_arrow().column("id").to_pylist()
                if not mine.issuperset(found):
                    break
        return rows.filter(pc.invert(pc.is_in(ids, value_set=pa.array(found, pa.int64()))))


def _connected(access: Access) -> Client:
    secure = access.tls or access.url.startswith("tubemqs:")
    tls = TlsOptions(
        trust=_path(access.tls_trust),
        certificate=_path(access.tls_certificate),
        key=_path(access.tls_key),
    )
    return connect_tubemq(
        access.url,
        user=access.user,
        password=access.secret(),
        tls=tls if secure else None,
        timeout_ms=access.timeout_ms,
        admin=access.admin,
    )


def _path(text: str | None) -> Path | None:
    return None if text is None else Path(text)
