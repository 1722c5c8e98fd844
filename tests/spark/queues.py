"""A queue that is a list, for tests without a node; and the endpoints of a node, for the others."""

from __future__ import annotations

import math
from collections.abc import Collection, Generator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from datetime import datetime
from types import TracebackType
from typing import NamedTuple, Self

import pyarrow as pa
from pyspark.sql.types import MapType, StringType, StructType

from coherer._record.bad_record import BadRecord
from coherer._record.batches import PackedMessages, decode_batch
from coherer._record.properties import decode
from coherer.blocking import connect
from coherer.blocking.rocketmq import Client as RocketClient
from coherer.blocking.tubemq import Client
from coherer.errors import CohererError, DisconnectedError
from coherer.message import Message, Receipt
from coherer.spark.offsets import Offsets
from coherer.spark.planning import Range
from coherer.spark.rows import SingleRow
from coherer.spark.source import QueueDataSource

KINDS = {"int": "integer", "bigint": "long"}


def schema_of(data: QueueDataSource) -> StructType:
    """The schema that Spark makes of the columns of a data source."""
    schema = StructType()
    for column in data.schema().split(", "):
        name, kind = column.split(" ")
        if kind.startswith("map"):
            schema.add(name, MapType(StringType(), StringType()))
            continue
        schema.add(name, KINDS.get(kind, kind))
    return schema


class Endpoint(NamedTuple):
    """A format, and the node that serves it.

    Args:
        format: `tubemq` or `rocketmq`.
        url: of the node.
        broker: name of the node's broker in that protocol.
        admin: options for its administration.
    """

    format: str
    url: str
    broker: str
    admin: dict[str, str]

    def connect(self) -> Client | RocketClient:
        """A client."""
        return connect(self.url)

    def offsets(self, topic: str, **partitions: int) -> str:
        """Offsets as an option: `q0=10` is queue 0."""
        pairs = ", ".join(f'"{self.broker}:{key[1:]}": {at}' for key, at in partitions.items())
        return f'{{"{topic}": {{{pairs}}}}}'


class ListBatch:
    """The messages of one read: `count` from `offset` on."""

    def __init__(self, one: Range, offset: int, count: int, queue: ListQueue) -> None:
        self.offset = offset
        every = range(offset, offset + count)
        self._one = one
        self._exact = queue.exact
        self._damaged = sorted(queue.damaged.intersection(every))
        self._withheld = queue.withheld
        self._offsets = [at for at in every if at not in queue.damaged]

    def bad_records(self) -> list[BadRecord]:
        return [
            BadRecord(at if self._exact else None, f"{1000 + at}", "It is damaged.", b"bad%d" % at)
            for at in self._damaged
            if at not in self._withheld
        ]

    def to_arrow(self, columns: Sequence[str]) -> pa.RecordBatch:
        offsets, count = self._offsets, len(self._offsets)
        made = {
            "topic": pa.array([self._one.topic] * count, pa.string()),
            "broker": pa.array([self._one.broker] * count, pa.string()),
            "partition": pa.array([self._one.partition] * count, pa.int32()),
            "offset": pa.array(offsets, pa.int64()),
            "id": pa.array([1000 + offset for offset in offsets], pa.int64()),
            "tag": pa.array([None] * count, pa.string()),
            "time": pa.array(["201301011000"] * count, pa.string()),
            "value": pa.array([b"v%d" % offset for offset in offsets], pa.binary()),
            "properties": pa.array([[("a", "b")]] * count, pa.map_(pa.string(), pa.string())),
        }
        named = [name for name in columns if name in made]
        return pa.RecordBatch.from_arrays([made[name] for name in named], names=named)


class ListReader:
    """Reads `step` messages at a time; may overshoot the end, as a broker does."""

    def __init__(self, queue: ListQueue, one: Range) -> None:
        self._queue = queue
        self._one = one
        self._at = one.start
        self.left_out = 0
        self.gaps = queue.gaps

    def __enter__(self) -> Self:
        self._queue.open_readers += 1
        if not self._queue.exact:  # Java's broker moves a start after its end back to it
            _, high = self._queue.held[self._one.topic][self._one.broker, self._one.partition]
            self._at = min(self._at, high)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._queue.open_readers -= 1

    @property
    def exact(self) -> bool:
        return self._queue.exact

    @property
    def position(self) -> int:
        low, _ = self._queue.held[self._one.topic][self._one.broker, self._one.partition]
        return max(self._at, low)

    def read(self) -> ListBatch | None:
        if self._queue.broken:
            raise DisconnectedError("The broker is gone.")
        low, high = self._queue.held[self._one.topic][self._one.broker, self._one.partition]
        self._at = max(self._at, low)
        if self._at >= min(high, self._one.end):
            return None
        count = min(self._queue.step, high - self._at)
        batch = ListBatch(self._one, self._at, count, self._queue)
        self.left_out += len(self._queue.damaged.intersection(range(self._at, self._at + count)))
        self._at += count
        return batch


class ListQueue:
    """Topics with `(low, high)` of each partition; a message is made when it is read."""

    def __init__(self, held: dict[str, dict[tuple[str, int], tuple[int, int]]]) -> None:
        self.held = held
        self.step = 7
        self.exact = True
        self.broken = False
        self.damaged: set[int] = set()
        self.gaps: list[range] = []
        self.withheld: set[int] = set()  # those of the damaged that do not even arrive
        self.asked: list[Sequence[str]] = []
        self.closed = False
        self.down: list[str] = []
        self.open_readers = 0
        self.sent: list[Message] = []
        self.sent_to: list[str] = []
        self.singles: list[SingleRow] = []
        self.failures: list[CohererError | None] = []
        self.committed: list[tuple[str, Offsets]] = []

    def topics(self) -> Sequence[str]:
        return list(self.held)

    def bounds(
        self, topic: str, *, partial: bool = False, known: Collection[str] | None = ()
    ) -> Mapping[tuple[str, int], tuple[int, int]]:
        return self.held[topic]

    def offsets_since(
        self, topic: str, time: datetime, partitions: Collection[tuple[str, int]] | None = None
    ) -> Mapping[tuple[str, int], int]:
        """A message is stored each second, from 1970 on."""
        second = math.ceil(time.timestamp())
        return {
            at: min(max(second, low), high)
            for at, (low, high) in self.held[topic].items()
            if partitions is None or at in partitions
        }

    def missing_brokers(self, topic: str) -> Sequence[str]:
        return self.down

    def reader(self, one: Range, columns: Sequence[str]) -> ListReader:
        self.asked.append(columns)
        return ListReader(self, one)

    @contextmanager
    def readers(
        self, ranges: Sequence[Range], columns: Sequence[str]
    ) -> Generator[Sequence[ListReader]]:
        with ExitStack() as stack:
            yield [stack.enter_context(self.reader(one, columns)) for one in ranges]

    def places(self, topic: str) -> Sequence[tuple[str, int]]:
        return sorted(self.held[topic])

    def send_packed(
        self, batches: Sequence[PackedMessages], window: int
    ) -> Sequence[Receipt | CohererError]:
        return [self._sent_packed(batch) for batch in batches]

    def _sent_packed(self, batch: PackedMessages) -> Receipt | CohererError:
        if self.failures:
            failure = self.failures.pop(0)
            if failure is not None:
                return failure
        _, bodies, texts = decode_batch(batch.body)
        place = "" if batch.broker is None else f"{batch.broker}:{batch.partition}"
        for body, text in zip(bodies, texts, strict=True):
            self.sent.append(Message(batch.topic, body, properties=decode(text)))
            self.sent_to.append(place)
        return Receipt("1", batch.topic, batch.broker or "1", batch.partition, 0, 0)

    def send_singles(
        self, rows: Sequence[SingleRow], window: int
    ) -> Sequence[tuple[SingleRow, CohererError]]:
        self.singles += rows
        return []

    def commit(self, group: str, offsets: Offsets) -> None:
        self.committed.append((group, offsets))

    def close(self) -> None:
        self.closed = True
