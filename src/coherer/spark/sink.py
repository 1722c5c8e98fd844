"""Sends rows to a topic: `df.write.format(…).mode("append")` and `df.writeStream`.

| column | type | |
|---|---|---|
| `value` | binary or string | the body; required, not null, not empty |
| `topic` | string | the topic of the row; either this column or the option `topic` |
| `tag` | string | |
| `timestamp` | timestamp | the message's time; TubeMQ keeps minutes |
| `properties` | map | |
| `key` | string or array of strings | RocketMQ only: null with TubeMQ; no key has a space |

Other columns are refused by name, so that no data is dropped silently. This includes `broker`,
`partition`, `offset` and `id` of rows that were read: brokers assign new ones.

Delivery is at least once. A task waits for all receipts before it reports success, and a task that
Spark runs again sends its rows again. To detect duplicates, every message carries its origin in the
properties `spark.query`, `spark.batch`, `spark.part` and `spark.seq`: two messages with the same
four are the same row, provided that the query returns its rows in the same order when it runs
again.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import datetime
from typing import Final, cast

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from coherer.errors import UsageError
from coherer.message import Message
from coherer.spark.options import WriteOptions
from coherer.spark.queue import shared_queue

COLUMNS: Final[Mapping[str, tuple[str, ...]]] = {
    "value": ("binary", "string"),
    "topic": ("string",),
    "tag": ("string",),
    "timestamp": ("timestamp", "timestamp_ntz"),
    "properties": ("map<string,string>",),
    "key": ("string", "array<string>"),
}
"""The columns that a sink accepts, and their types."""

BROKER_COLUMNS: Final = ("broker", "partition", "offset", "id")
"""Columns of rows that were read, which brokers assign."""


class TaskCommit(WriterCommitMessage):
    """The result of a task: the number of messages that were acknowledged."""

    def __init__(self, count: int) -> None:
        self.count = count


def check_columns(schema: StructType, options: WriteOptions) -> None:
    """Checks that rows can be sent, before a task starts.

    Raises:
        UsageError: a column is unknown, missing, or has the wrong type.
    """
    given = {field.name: field.dataType.simpleString() for field in schema.fields}
    if read := [name for name in BROKER_COLUMNS if name in given]:
        names = ", ".join(f'"{name}"' for name in read)
        raise UsageError(
            f"The sink cannot set {', '.join(read)}: brokers assign them.", hint=f".drop({names})"
        )
    for name, kind in given.items():
        if name not in COLUMNS:
            raise UsageError(
                f"The sink has no column {name!r}.", hint=f"Its columns are: {', '.join(COLUMNS)}."
            )
        if kind not in COLUMNS[name]:
            wanted = " or ".join(COLUMNS[name])
            raise UsageError(f"Column {name} is {kind}.", hint=f"Cast it to {wanted}.")
    if "value" not in given:
        raise UsageError("Column value is missing.", hint="It is the body of the messages.")
    if "topic" not in given and options.topic is None:
        raise UsageError("The topic is missing.", hint="Give option topic, or a column topic.")
    if "topic" in given and options.topic is not None:
        raise UsageError(
            f"Option topic is {options.topic}, but column topic gives each row its own.",
            hint='Use one of them: .drop("topic"), or no option.',
        )


def messages(
    batch: pa.RecordBatch,
    topic: str | None,
    origin: Callable[[int], Mapping[str, str]],
    first: int,
    *,
    keys: bool = False,
) -> Iterator[Message]:
    """The messages of a batch of rows.

    Args:
        batch: rows with columns of `COLUMNS`.
        topic: for rows without one.
        origin: properties to add to row number n.
        first: the number of the first row.
        keys: whether messages have keys.

    Raises:
        UsageError: a row has no value or no topic, a key where messages have none, or one with a
            space.
    """
    names = batch.schema.names

    def column(name: str) -> Iterable[object]:
        return batch.column(name).to_pylist() if name in names else [None] * batch.num_rows

    table = zip(
        *map(column, ("value", "topic", "tag", "timestamp", "properties", "key")), strict=True
    )
    for number, (value, where, tag, time, properties, key) in enumerate(table, first):
        if key is not None and not keys:
            raise UsageError("TubeMQ has no keys.", hint="Put the key among the properties.")
        if where is None and topic is None:
            raise UsageError("A row has no topic.", hint="Give option topic, or fill the column.")
        if not value:
            raise UsageError("A row has no value.", hint="Filter such rows out.")
        yield Message(
            cast("str", where or topic),
            value.encode() if isinstance(value, str) else cast("bytes", value),
            tag=cast("str | None", tag),
            time=cast("datetime | None", time),
            keys=() if key is None else _keys(cast("str | list[str]", key)),
            properties=dict(cast("list[tuple[str, str]]", properties or [])) | dict(origin(number)),
        )


def _keys(key: str | list[str]) -> tuple[str, ...]:
    if not isinstance(key, str):
        return tuple(key)
    if " " in key:
        raise UsageError(
            f"Key {key!r} holds a space, which separates keys.",
            hint="Give several keys as an array: .withColumn('key', split('key', ' ')).",
        )
    return (key,)


def _origin(query: str, wanted: bool) -> Callable[[int], Mapping[str, str]]:
    if not wanted:
        return lambda _number: {}
    context = TaskContext.get()
    fixed = {
        "spark.query": _local(context, "sql.streaming.queryId") or query,
        "spark.batch": _local(context, "streaming.sql.batchId") or "0",
        "spark.part": str(context.partitionId() if context else 0),
    }
    return lambda number: {**fixed, "spark.seq": str(number)}


def _local(context: TaskContext | None, name: str) -> str | None:
    return context.getLocalProperty(name) if context else None


def send(rows: Iterable[pa.RecordBatch], options: WriteOptions, query: str) -> TaskCommit:
    """Sends all rows and waits for all receipts."""
    count = 0
    origin = _origin(query, options.include_origin)
    keys = options.access.protocol == "rocketmq"
    with shared_queue(options.access) as queue:
        for batch in rows:
            found = messages(batch, options.topic, origin, count, keys=keys)
            count += queue.send(found, options.window)
    return TaskCommit(count)


class BatchSink(DataSourceArrowWriter):
    """`df.write`."""

    def __init__(self, options: WriteOptions, schema: StructType, overwrite: bool) -> None:
        if overwrite:
            raise UsageError("A topic cannot be overwritten.", hint='Use .mode("append").')
        check_columns(schema, options)
        self._options = options
        self._query = str(uuid.uuid4())

    # Spark's own Arrow writers narrow the argument in the same way.
    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:  # type: ignore[override]
        """Sends the rows of a task."""
        return send(iterator, self._options, self._query)


class StreamSink(DataSourceStreamArrowWriter):
    """`df.writeStream`."""

    def __init__(self, options: WriteOptions, schema: StructType, overwrite: bool) -> None:
        if overwrite:
            raise UsageError("A topic cannot be overwritten.", hint='Use .outputMode("append").')
        check_columns(schema, options)
        self._options = options

    # Spark's own Arrow writers narrow the argument in the same way.
    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:  # type: ignore[override]
        """Sends the rows of a task."""
        return send(iterator, self._options, "")
