"""`format("tubemq")` and `format("rocketmq")`: the data sources that Spark calls.

The classes are thin: `options` checks options, `cursor` chooses offsets, `planning` splits ranges,
`reading` reads rows, and `sink` sends them.

Spark creates and pickles these objects in several processes (docs/protocol/spark.md, section 1):
one long-lived process holds the stream's driver side, another plans once, and workers read. So
`read` shares no state with `partitions`; the ranges carry everything.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    InputPartition,
)
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from coherer._common.logs import Log
from coherer.errors import CohererError, UsageError
from coherer.spark.cursor import Cursor, Topics, batch_ends
from coherer.spark.offsets import LATEST, Bounds, Offsets, split_start, with_start
from coherer.spark.options import ReadOptions, read_options, write_options
from coherer.spark.planning import DataLossError, Range, between, clamped, shares_of
from coherer.spark.queue import end_quietly, shared_queue
from coherer.spark.reading import ReadSettings, arrow_schema, rows, spark_schema
from coherer.spark.sink import BatchSink, StreamSink

log = Log(logging.getLogger(__name__))

POLL_MS: Final = (5, 10, 20, 40, 75, 100)
"""Pauses after which a stream without new messages asks again before it answers Spark, which would
otherwise ask every 10 ms. They start short, since messages often come soon after others."""


STREAM_ONLY: Final = {
    "commitOffsets": "commit_offsets",
    "maxOffsetsPerTrigger": "max_offsets_per_trigger",
    "minOffsetsPerTrigger": "min_offsets_per_trigger",
}
"""Options that have no effect on a batch, and their fields."""


class Share(InputPartition):
    """The ranges that one task reads."""

    def __init__(self, ranges: tuple[Range, ...]) -> None:
        super().__init__(ranges)
        self.ranges = ranges


class QueueDataSource(DataSource):
    """The data source of both protocols, which differ in their name only."""

    def schema(self) -> str:
        """The columns. Checks the options too, so that `load()` raises their errors."""
        return spark_schema(read_options(self._given(), self.name()).include_headers)

    def reader(self, schema: StructType) -> DataSourceReader:
        """Reads a batch."""
        return BatchReader(self._read_options(schema))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """Reads a stream."""
        return StreamReader(self._read_options(schema))

    def writer(self, schema: StructType, overwrite: bool) -> BatchSink:
        """Sends a batch."""
        return BatchSink(write_options(self._given(), self.name()), schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> StreamSink:
        """Sends a stream."""
        return StreamSink(write_options(self._given(), self.name()), schema, overwrite)

    def _given(self) -> Mapping[str, str]:
        end_quietly()
        return dict(self.options)

    def _read_options(self, schema: StructType) -> ReadOptions:
        options = read_options(self._given(), self.name())
        given = ", ".join(f"{one.name} {one.dataType.simpleString()}" for one in schema.fields)
        if given != spark_schema(options.include_headers):
            raise UsageError("The columns are fixed.", hint="Use .select(...), not .schema(...).")
        return options


class TubeMQDataSource(QueueDataSource):
    """The data source that `spark.read.format("tubemq")` finds, through `pyspark_tubemq`."""

    @classmethod
    def name(cls) -> str:
        """The name of the format."""
        end_quietly()
        return "tubemq"


class RocketMQDataSource(QueueDataSource):
    """The data source that `spark.read.format("rocketmq")` finds, through `pyspark_rocketmq`."""

    @classmethod
    def name(cls) -> str:
        """The name of the format."""
        end_quietly()
        return "rocketmq"


def _planned(options: ReadOptions, start: Offsets, end: Offsets, bounds: Bounds) -> list[Share]:
    ranges, lost = between(start, end, bounds)
    if lost and options.fail_on_data_loss:
        raise DataLossError.of(lost)
    for one in lost:
        _log_loss(one)
    shares = shares_of(
        ranges,
        min_shares=options.min_partitions,
        max_shares=options.max_partitions,
        max_rows=options.max_records_per_partition,
    )
    return [Share(share) for share in shares]


def _log_loss(one: Range) -> None:
    log.warning("Messages are gone before they were read: %r", one)


def _read(options: ReadOptions, share: InputPartition) -> Iterator[pa.RecordBatch]:
    settings = ReadSettings(
        arrow_schema(options.include_headers), options.fail_on_data_loss, _log_loss
    )
    # Spark converts an empty list of partitions to one InputPartition(None).
    if isinstance(share, Share):
        with shared_queue(options.access) as queue:
            yield from rows(queue, share.ranges, settings)


class BatchReader(DataSourceReader):
    """`spark.read`: reads the messages that the topics hold when the query starts."""

    def __init__(self, options: ReadOptions) -> None:
        self._options = options

    def partitions(self) -> Sequence[InputPartition]:
        """Asks the brokers once, and splits the ranges into tasks."""
        for name, field in STREAM_ONLY.items():
            if getattr(self._options, field):
                raise UsageError(f"Option {name} is for streams only.")
        with shared_queue(self._options.access) as queue:
            topics = Topics(self._options, _now_ms)
            if self._options.fail_on_data_loss:
                topics.check_whole(queue)
            options = topics.with_offsets(queue, self._options)
            bounds = topics.bounds(queue)
        return _planned(options, *batch_ends(options, bounds), bounds)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yields Arrow batches of about a megabyte."""
        return _read(self._options, partition)


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """`spark.readStream`.

    The start of a stream is decided once. Spark asks for it before it plans batch 0, again before
    it runs that batch, and after a restart if batch 0 was planned but not finished. The process
    keeps its first answer. Across a restart the end of batch 0 carries it, the only data of the
    source that Spark has written by then (Python sources do not learn where the checkpoint is).
    """

    def __init__(self, options: ReadOptions) -> None:
        self._options = options
        self._cursor: Cursor | None = None
        self._committed: Offsets | None = None
        self._initial: Offsets | None = None

    def initialOffset(self) -> Offsets:
        """The start of a stream without a checkpoint; the same at every call."""
        if self._initial is None:
            self._initial = self._first()
        return self._initial

    def _first(self) -> Offsets:
        cursor = self._cursor_or_new()
        topics = Topics(self._options, _now_ms)
        with shared_queue(self._options.access) as queue:
            if self._options.fail_on_data_loss:
                topics.check_whole(queue)
            options = topics.with_offsets(queue, self._options)
        return cursor.initial(options.starting_offsets or LATEST)

    def prepareForTriggerAvailableNow(self) -> None:
        """Reads nothing after the present ends."""
        self._cursor_or_new().fix_target()

    def getDefaultReadLimit(self) -> ReadLimit:
        """`maxOffsetsPerTrigger`."""
        limit = self._options.max_offsets_per_trigger
        return ReadAllAvailable() if limit is None else ReadMaxRows(limit)

    def latestOffset(self, start: Offsets, limit: ReadLimit) -> Offsets:
        """The end of the next micro-batch; waits briefly if there are no messages."""
        cursor = self._cursor_or_new()
        at, _ = split_start(start)
        self._commit_progress(at)
        most = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        end = cursor.next_end(at, most)
        for pause_ms in () if cursor.has_target else POLL_MS:
            if end != at:
                break
            time.sleep(pause_ms / 1000)
            end = cursor.next_end(at, most)
        if start == self._initial:
            return with_start(end, start)
        return start if end == at else end

    def reportLatestOffset(self) -> Offsets | None:
        """The `latestOffset` in Spark's progress; see `coherer.spark.lag`."""
        return self._cursor_or_new().newest()

    def partitions(self, start: Offsets, end: Offsets) -> Sequence[InputPartition]:
        """Compares with the brokers' bounds, and splits the ranges into tasks."""
        end, begun = split_start(end)
        if begun is not None:
            begin = begun
        elif start == self._initial:
            # Only checkpoints of older versions have a batch 0 that does not hold its start.
            begin = clamped(start, end)
            if begin != start:
                log.warning("The checkpoint lacks the start of batch 0: this batch reads nothing.")
        else:
            begin, _ = split_start(start)
        return _planned(self._options, begin, end, self._cursor_or_new().bounds_for(begin))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yields Arrow batches of about a megabyte."""
        return _read(self._options, partition)

    def _cursor_or_new(self) -> Cursor:
        # Created on first use: Spark pickles a new reader for the workers, which need no cursor,
        # and garbles exceptions from constructors.
        if self._cursor is None:
            if self._options.ending_offsets or self._options.ending_time:
                raise UsageError("endingOffsets and endingTimestamp are for batches only.")
            topics = Topics(self._options, _now_ms)

            def ask() -> Bounds:
                with shared_queue(self._options.access) as queue:
                    return topics.bounds(queue)

            self._cursor = Cursor(self._options, ask, _now_ms)
        return self._cursor

    def _commit_progress(self, done: Offsets) -> None:
        # Spark calls `commit` later, and never after the last batch.
        group = self._options.group
        if group is None or not self._options.commit_offsets or done == self._committed:
            return
        with shared_queue(self._options.access) as queue:
            try:
                queue.commit(group, done)
            except CohererError as error:
                # People watch the group's lag; the stream does not depend on it.
                log.warning("Cannot commit the progress of group %s: %s", group, error)
        self._committed = done


def _now_ms() -> int:
    return time.monotonic_ns() // 1_000_000
