"""The columns of both formats: one table for schemas, reading and the documentation.

Each column names its sources, columns of `MessageBatch.to_arrow`, so that nothing else is decoded.
A column that a protocol does not have is null.

>>> spark_schema(("offset", "value"))
'offset bigint, value binary'
>>> sources(("timestamp", "value"))
('offset', 'time', 'value')
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Final

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from coherer._record.columns import INSTANT, instants

CREATED: Final = 0
NO_TIME: Final = -1
"""Values of `timestampType`, as with Kafka: the sender set the time, or the message has no time."""


class Column(msgspec.Struct, frozen=True):
    """A column.

    Args:
        name: as Spark shows it.
        sql: its type in Spark.
        arrow: its type in Arrow.
        meaning: one line for the documentation.
        source: the columns of `to_arrow` that it needs.
        make: computes it; None if it equals its source.
        on_request: whether only an option adds it.
    """

    name: str
    sql: str
    arrow: pa.DataType
    meaning: str
    source: tuple[str, ...] = ()
    make: Callable[[pa.RecordBatch], pa.Array] | None = None
    on_request: bool = False


def _text_id(batch: pa.RecordBatch) -> pa.Array:
    ids = batch.column("id")
    return ids if ids.type == pa.string() else ids.cast(pa.string())


def _timestamp(batch: pa.RecordBatch) -> pa.Array:
    times = batch.column("time")
    return times if times.type == INSTANT else instants(times)


def _timestamp_type(batch: pa.RecordBatch) -> pa.Array:
    known = _timestamp(batch).is_valid()
    return pc.if_else(known, pa.scalar(CREATED, pa.int32()), pa.scalar(NO_TIME, pa.int32()))


COLUMNS: Final = (
    Column("topic", "string", pa.string(), "the topic", ("topic",)),
    Column("broker", "string", pa.string(),
           "the broker's id (TubeMQ) or name (RocketMQ)", ("broker",)),
    Column("partition", "int", pa.int32(), "the partition's or queue's number", ("partition",)),
    Column("offset", "bigint", pa.int64(),
           "counts the messages of a partition (with Java's TubeMQ broker see below)",
           ("offset",)),
    Column("id", "string", pa.string(), "the broker's id for the message", ("id",), _text_id),
    Column("key", "string", pa.string(),
           "RocketMQ's keys, with a space between them; null with TubeMQ, which has none",
           ("key",)),
    Column("tag", "string", pa.string(), "TubeMQ's message type, RocketMQ's tag", ("tag",)),
    Column("timestamp", "timestamp", INSTANT,
           "the message time that the sender gave; otherwise see below", ("time",), _timestamp),
    Column("value", "binary", pa.binary(), "the body", ("value",)),
    Column("properties", "map<string,string>", pa.map_(pa.string(), pa.string()),
           "the other attributes or properties; with `includeHeaders=true`, or in `columns`",
           ("properties",), None, True),
    Column("timestampType", "int", pa.int32(),
           "in `columns`: 0 if `timestamp` is the sender's, as with Kafka; -1 if it is null",
           ("time",), _timestamp_type, True),
    Column("bornTimestamp", "timestamp", INSTANT,
           "in `columns`: when the client sent the message; null with TubeMQ", ("born_time",),
           None, True),
    Column("storeTimestamp", "timestamp", INSTANT,
           "in `columns`: when the broker stored the message; null with TubeMQ", ("store_time",),
           None, True),
    Column("error", "string", pa.string(),
           "with `mode=PERMISSIVE`: why the record is bad; null if it is good", (), None, True),
)  # fmt: skip
"""All columns, in the order in which they appear without `columns`."""

BY_NAME: Final[Mapping[str, Column]] = {column.name: column for column in COLUMNS}

DEFAULT: Final = tuple(column.name for column in COLUMNS if not column.on_request)
"""The columns without any option."""


def spark_schema(names: Iterable[str]) -> str:
    """The schema as Spark's DDL."""
    return ", ".join(f"{name} {BY_NAME[name].sql}" for name in names)


def arrow_schema(names: Iterable[str]) -> pa.Schema:
    """The schema as Arrow, exactly as Spark requires it (names, order, widths, zone)."""
    return pa.schema([(name, BY_NAME[name].arrow) for name in names])


def sources(names: Iterable[str]) -> tuple[str, ...]:
    """The columns of `to_arrow` to decode; always the offset, by which missing rows are found."""
    found = dict.fromkeys(source for name in names for source in BY_NAME[name].source)
    return tuple(dict.fromkeys(["offset", *found]))


def to_rows(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Convert a batch of `MessageBatch.to_arrow` into rows for Spark, column by column.

    Args:
        batch: the columns `sources`; those that the protocol does not have may be missing.
        schema: from `arrow_schema`.
    """
    present = set(batch.schema.names)

    def made(column: Column) -> pa.Array:
        if not column.source or not present.issuperset(column.source):
            return pa.nulls(batch.num_rows, column.arrow)
        return batch.column(column.source[0]) if column.make is None else column.make(batch)

    arrays = [made(BY_NAME[name]) for name in schema.names]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)
