"""A TubeMQ cluster as Spark needs it.

On a Coherer node offsets count the messages of a partition, so every range is exact. On Java's
broker an offset is a position in an index that partitions share, a read returns whole batches, and
the last batch of a range may extend past its end. A second read that starts at the end returns the
ids of those messages, and they are removed from the batch. So a row is in exactly one range on
Java's broker too.
"""

from __future__ import annotations

from collections.abc import Collection, Generator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from types import TracebackType
from typing import Self

import pyarrow as pa
import pyarrow.compute as pc

from coherer._common.places import place_of
from coherer._record.bad_record import BadRecord
from coherer._record.batches import PackedMessages
from coherer._wire.tubemq.delivery import MessageBatch
from coherer._wire.tubemq.names import Partition
from coherer.blocking._packed import send_packed
from coherer.blocking._ranges import Begun, open_readers
from coherer.blocking.tubemq import Client, Producer, Reader
from coherer.blocking.tubemq import connect as connect_tubemq
from coherer.errors import CohererError, UnavailableError
from coherer.message import Receipt
from coherer.spark.away import Away
from coherer.spark.offsets import Offsets, flatten
from coherer.spark.options import Access
from coherer.spark.planning import Range
from coherer.spark.queue import Batch
from coherer.tubemq import Client as AsyncClient
from coherer.tubemq import Reader as AsyncReader


class TubeMQQueue:
    """A `Queue` on a blocking client."""

    def __init__(self, access: Access) -> None:
        self._client = _connected(access)
        self._admin_token = access.admin_token
        self._partitions: dict[str, dict[tuple[str, int], Partition]] = {}
        self._producer: Producer | None = None
        self._away = Away(self._client)

    def topics(self) -> Sequence[str]:
        """All topics, from the master's HTTP interface."""
        return [topic.name for topic in self._client.admin(self._admin_token).topics.list()]

    def bounds(
        self, topic: str, *, partial: bool = False, known: Collection[str] | None = ()
    ) -> Mapping[tuple[str, int], tuple[int, int]]:
        """The first offset and the end offset, by (broker, partition)."""
        return self._away.bounds(topic, partial=partial, known=known)

    def offsets_since(
        self, topic: str, time: datetime, partitions: Collection[tuple[str, int]] | None = None
    ) -> Mapping[tuple[str, int], int]:
        """The offset of the first message at a time or later, by (broker, partition)."""
        wanted = None
        if partitions is not None:
            wanted = [one for one in self._client.partitions(topic) if place_of(one) in partitions]
        found = self._client.offsets_since(topic, time, partitions=wanted)
        return {place_of(one): offset for one, offset in found.items()}

    def missing_brokers(self, topic: str) -> Sequence[str]:
        """The brokers that the master lists for the topic and that cannot be read now."""
        return [str(broker.id) for broker in self._client.unreadable_brokers(topic)]

    def reader(self, one: Range, columns: Sequence[str]) -> ExactReader:
        """A reader for a range."""
        del columns  # batches decode only requested columns
        return ExactReader(self._client, self._partition(one), one)

    @contextmanager
    def readers(
        self, ranges: Sequence[Range], columns: Sequence[str]
    ) -> Generator[Sequence[ExactReader]]:
        """Open readers for some ranges."""
        del columns
        partitions = [self._partition(one) for one in ranges]
        pairs = list(zip(ranges, partitions, strict=True))

        def make(client: AsyncClient) -> list[AsyncReader]:
            return [
                client.reader(partition, one.start, end=one.end, columns=True)
                for one, partition in pairs
            ]

        with open_readers(self._client, Reader, make) as opened:
            yield [
                ExactReader(self._client, partition, one, begun)
                for (one, partition), begun in zip(pairs, opened, strict=True)
            ]

    def places(self, topic: str) -> Sequence[tuple[str, int]]:
        """Broker and number of all partitions."""
        return [place_of(one) for one in self._client.partitions(topic)]

    def send_packed(
        self, batches: Sequence[PackedMessages], window: int
    ) -> Sequence[Receipt | CohererError]:
        """Send batches; returns the outcome of each."""
        return send_packed(self._sender(window), batches)

    def _sender(self, window: int) -> Producer:
        if self._producer is None or self._producer.window != window:
            producer = self._client.producer(window=window)
            producer.start()
            self._producer = producer
        return self._producer

    def commit(self, group: str, offsets: Offsets) -> None:
        """Set the offsets of a group."""
        keys = {
            f"{broker}:{topic}:{partition}": offset
            for topic, key, offset in flatten(offsets)
            for broker, _, partition in [key.rpartition(":")]
        }
        self._client.admin(self._admin_token).groups.set_offsets(group, keys)

    def close(self) -> None:
        """Close all connections."""
        self._client.close()

    def _partition(self, one: Range) -> Partition:
        key = (one.broker, one.partition)
        if key not in self._partitions.get(one.topic, {}):
            self._partitions[one.topic] = {
                place_of(found): found for found in self._client.partitions(one.topic)
            }
        if key not in self._partitions[one.topic]:
            raise UnavailableError(
                f"No broker has partition {one.broker}:{one.partition} now.",
                topic=one.topic,
                hint="Is the broker up? `coherer topics describe` shows the partitions.",
            )
        return self._partitions[one.topic][key]


class ExactReader:
    """Reads a range of a partition, and nothing after its end.

    `begun` is an open reader of the range; without it, use a `with` block.
    """

    def __init__(
        self,
        client: Client,
        partition: Partition,
        one: Range,
        begun: Begun[MessageBatch] | None = None,
    ) -> None:
        self._client = client
        self._partition = partition
        self._end = one.end
        self._reader: Reader | Begun[MessageBatch] = begun or client.reader(
            partition, one.start, end=one.end, columns=True
        )

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

    @property
    def gaps(self) -> Sequence[range]:
        """Offsets that a power cut left empty."""
        return self._reader.gaps

    def read(self) -> Batch | None:
        """The next messages; None at the end."""
        batch = self._reader.read()
        if batch is None or self.exact or self.position <= self._end:
            return batch
        after_end = self._client.reader(self._partition, self._end, columns=True)
        return _Trimmed(batch, after_end)

    def __enter__(self) -> Self:
        if not isinstance(self._reader, Begun):
            self._reader.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if not isinstance(self._reader, Begun):
            self._reader.close()


class _Trimmed:
    """A batch without the messages after the end of a range, where `after_end` starts."""

    def __init__(self, batch: Batch, after_end: Reader) -> None:
        self._batch = batch
        self._after_end = after_end
        self._after: set[str] | None = None

    @property
    def offset(self) -> int:
        """The offset at which the read started."""
        return self._batch.offset

    def to_arrow(self, columns: Sequence[str]) -> pa.RecordBatch:
        """The columns of the messages before the end."""
        rows = self._batch.to_arrow([*columns, *({"id"} - set(columns))])
        after = pa.array(map(int, self._ids_after()), pa.int64())
        rows = rows.filter(pc.invert(pc.is_in(rows.column("id"), value_set=after)))
        return rows.select([name for name in columns if name in rows.schema.names])

    def bad_records(self) -> Sequence[BadRecord]:
        """The bad records before the end."""
        after = self._ids_after()
        return [one for one in self._batch.bad_records() if one.id not in after]

    def _ids_after(self) -> set[str]:
        """The ids of the messages at the end or after it."""
        if self._after is None:
            mine, found = self._ids(self._batch), set[str]()
            with self._after_end:
                for batch in self._after_end:
                    found |= self._ids(batch)
                    if not mine.issuperset(found):
                        break
            self._after = found
        return self._after

    @staticmethod
    def _ids(batch: Batch) -> set[str]:
        good = batch.to_arrow(["id"]).column("id").to_pylist()
        return {*map(str, good), *(one.id for one in batch.bad_records())}


def _connected(access: Access) -> Client:
    return connect_tubemq(
        access.url,
        user=access.user,
        password=access.secret(),
        tls=access.tls_options(),
        timeout_ms=access.timeout_ms,
        admin=access.admin,
        on_disk=access.on_disk,
    )
