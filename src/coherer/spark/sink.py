"""Sends rows to a topic: `df.write.format(…).mode("append")` and `df.writeStream`.

`coherer.spark.rows` names the columns, `coherer.spark.sending` encodes and sends them.

Delivery is at least once. A task waits for all receipts before it reports success, and a task that
Spark runs again sends its rows again. To detect duplicates, every message carries its origin in the
properties `spark.query`, `spark.batch`, `spark.part` and `spark.seq`: two messages with the same
four and the same content are the same row, provided that the query returns the same rows in the
same order when it runs again. `coherer.spark.deduplicate` removes them. The content counts because
two writes of one `foreachBatch` number their rows alike.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from coherer._record.packing import Origin
from coherer.errors import UsageError
from coherer.spark.connections import shared_queue
from coherer.spark.options import WriteOptions
from coherer.spark.pickling import SentToWorkers
from coherer.spark.rows import COLUMNS, check_columns
from coherer.spark.sending import RowSender

__all__ = ["COLUMNS", "BatchSink", "StreamSink", "TaskCommit", "check_columns", "origin_of", "send"]


class TaskCommit(WriterCommitMessage):
    """The result of a task: the number of messages that were acknowledged."""

    def __init__(self, count: int) -> None:
        self.count = count


def origin_of(query: str, wanted: bool) -> Origin:
    """The properties that tell a task's rows apart; none if they are not wanted."""
    if not wanted:
        return Origin({}, "")
    context = TaskContext.get()
    fixed = {
        "spark.query": _local(context, "sql.streaming.queryId") or query,
        "spark.batch": _local(context, "streaming.sql.batchId") or "0",
        "spark.part": str(context.partitionId() if context else 0),
    }
    return Origin(fixed, "spark.seq")


def _local(context: TaskContext | None, name: str) -> str | None:
    return context.getLocalProperty(name) if context else None


def send(rows: Iterable[pa.RecordBatch], options: WriteOptions, query: str) -> TaskCommit:
    """Send all rows and wait for all receipts."""
    with shared_queue(options.access) as queue:
        sender = RowSender(queue, options, origin_of(query, options.include_origin))
        return TaskCommit(sum(map(sender.send, rows)))


class BatchSink(SentToWorkers, DataSourceArrowWriter):
    """`df.write`."""

    def __init__(self, options: WriteOptions, schema: StructType, overwrite: bool) -> None:
        if overwrite:
            raise UsageError("A topic cannot be overwritten.", hint='Use .mode("append").')
        check_columns(schema, options)
        self._options = options
        self._query = str(uuid.uuid4())

    # Spark's own Arrow writers narrow the argument in the same way.
    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:  # type: ignore[override]
        """Send the rows of a task."""
        return send(iterator, self._options, self._query)


class StreamSink(SentToWorkers, DataSourceStreamArrowWriter):
    """`df.writeStream`."""

    def __init__(self, options: WriteOptions, schema: StructType, overwrite: bool) -> None:
        if overwrite:
            raise UsageError("A topic cannot be overwritten.", hint='Use .outputMode("append").')
        check_columns(schema, options)
        self._options = options

    # Spark's own Arrow writers narrow the argument in the same way.
    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:  # type: ignore[override]
        """Send the rows of a task."""
        return send(iterator, self._options, "")
