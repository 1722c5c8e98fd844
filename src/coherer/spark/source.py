"""`format("tubemq")` and `format("rocketmq")`: the data sources that Spark calls.

The classes are thin: `options` checks options, `cursor` chooses offsets, `planning` splits ranges,
`reading` reads rows, and `sink` sends them.

Spark creates and pickles these objects in several processes (docs/protocol/spark.md, section 1):
one long-lived process holds the stream's driver side, another plans once, and workers read. So
`read` shares no state with `partitions`; the ranges carry everything.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

import pyarrow as pa
from msgspec import structs
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    Filter,
    InputPartition,
)
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from coherer._common.logs import Log
from coherer.errors import CohererError, UsageError
from coherer.spark.columns import spark_schema
from coherer.spark.connections import end_quietly, shared_queue
from coherer.spark.cursor import Cursor, batch_ends
from coherer.spark.gaps import Reporter, source_of
from coherer.spark.offsets import (
    LATEST,
    MS_MAX,
    Bounds,
    Offsets,
    check_form,
    split_start,
    with_start,
)
from coherer.spark.options import (
    ReadOptions,
    check_batch,
    check_stream,
    read_options,
    write_options,
)
from coherer.spark.pickling import SentToWorkers
from coherer.spark.planning import (
    DataLossError,
    Range,
    Wanted,
    between,
    clamped,
    shares_for_cores,
    shares_of,
)
from coherer.spark.pushdown import is_enabled, wanted
from coherer.spark.queue import Queue
from coherer.spark.rates import Scale, Scales, measure
from coherer.spark.reading import log_loss, rows, settings_of
from coherer.spark.topics import Topics, monotonic_ms

# Files and sinks load where they are used, see `QueueDataSource`.
if TYPE_CHECKING:
    from coherer.spark.sink import BatchSink, StreamSink

log = Log(logging.getLogger(__name__))

POLL_MS: Final = (5, 10, 20, 40, 75, 100)
"""Pauses of a stream without new messages between its questions to the brokers, before it answers
Spark, which would otherwise ask every 10 ms. They start short, since messages often come soon after
others."""


class Share(InputPartition):
    """The ranges that one task reads, and those that it only reports as lost."""

    def __init__(self, ranges: tuple[Range, ...], lost: tuple[Range, ...] = ()) -> None:
        super().__init__(ranges)
        self.ranges = ranges
        self.lost = lost


class QueueDataSource(SentToWorkers, DataSource):
    """The data source of both protocols, which differ in their name only.

    Spark starts a process for each stream, so modules that only files or sinks need are imported
    where they are used: half a second of every start was importing.
    """

    def schema(self) -> str:
        """The columns. Check the options, too, so that `load()` raises their errors."""
        given = self._given()
        if names_files(given):
            from coherer.spark.files import file_options

            return spark_schema(file_options(given, self.name()).read.columns)
        return spark_schema(read_options(given, self.name()).columns)

    def reader(self, schema: StructType) -> DataSourceReader:
        """Read a batch."""
        given = self._given()
        if names_files(given):
            from coherer.spark.file_reader import file_reader
            from coherer.spark.files import file_options

            files = file_options(given, self.name())
            _check_schema(schema, files.read)
            return file_reader(files)
        options = self._read_options(schema)
        if options.pushdown and is_enabled():
            return FilteredBatchReader(options)
        return BatchReader(options)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """Read a stream."""
        if names_files(self._given()):
            raise UsageError(
                "Files are a batch: they cannot be read as a stream.",
                hint="Use spark.read, or give the url of the broker and .load(topic).",
            )
        return StreamReader(self._read_options(schema))

    def writer(self, schema: StructType, overwrite: bool) -> BatchSink:
        """Send a batch."""
        options = write_options(self._given(), self.name())
        if options.transactional:
            from coherer.spark.transactional import TransactionalBatchSink

            return TransactionalBatchSink(options, schema, overwrite)
        from coherer.spark.sink import BatchSink

        return BatchSink(options, schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> StreamSink:
        """Send a stream."""
        options = write_options(self._given(), self.name())
        if options.transactional:
            from coherer.spark.transactional import TransactionalStreamSink

            return TransactionalStreamSink(options, schema, overwrite)
        from coherer.spark.sink import StreamSink

        return StreamSink(options, schema, overwrite)

    def _given(self) -> Mapping[str, str]:
        end_quietly()
        return dict(self.options)

    def _read_options(self, schema: StructType) -> ReadOptions:
        options = read_options(self._given(), self.name())
        _check_schema(schema, options)
        return options


def _check_schema(schema: StructType, options: ReadOptions) -> None:
    given = ", ".join(f"{one.name} {one.dataType.simpleString()}" for one in schema.fields)
    if given != spark_schema(options.columns):
        raise UsageError(
            "The columns are fixed.", hint="Use option columns or .select(), not .schema()."
        )


def names_files(options: Mapping[str, str]) -> bool:
    """Whether the path of `load` names files rather than a topic.

    >>> names_files({"path": "file:/data/store"}), names_files({"path": "flights"})
    (True, False)
    """
    given = {name.lower(): text for name, text in options.items()}
    path = given.get("path", "").strip()
    return "paths" in given or path.startswith(("/", "file:")) or "://" in path


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


def _planned(
    options: ReadOptions,
    start: Offsets,
    end: Offsets,
    bounds: Bounds,
    wanted: Wanted | None = None,
) -> list[Share]:
    ranges, lost = between(start, end, bounds)
    if wanted is not None:
        ranges = wanted.limit(ranges)
    if lost and options.fail_on_data_loss:
        raise DataLossError.of(lost)
    for one in lost:
        log_loss(one)
    fewest = options.min_partitions
    if options.max_partitions is None:
        fewest = max(fewest, shares_for_cores(ranges, os.cpu_count() or 1))
    shares = shares_of(
        ranges,
        min_shares=fewest,
        max_shares=options.max_partitions,
        max_rows=options.max_records_per_partition,
    )
    if lost:
        return [Share(shares[0] if shares else (), tuple(lost)), *map(Share, shares[1:])]
    return [Share(share) for share in shares]


def _read(
    options: ReadOptions, share: InputPartition, reporter: Reporter | None = None
) -> Iterator[pa.RecordBatch]:
    # Spark converts an empty list of partitions to one InputPartition(None).
    if isinstance(share, Share) and share.ranges:
        settings = settings_of(options)
        if reporter is not None:
            settings = reporter.watching(settings)
        with shared_queue(options.access) as queue:
            yield from rows(queue, share.ranges, settings)


class BatchReader(SentToWorkers, DataSourceReader):
    """`spark.read`: reads the messages that the topics hold when the query starts."""

    def __init__(self, options: ReadOptions) -> None:
        self._options = options
        self._wanted = Wanted()

    def partitions(self) -> Sequence[InputPartition]:
        """Ask the brokers once, and split the ranges into tasks."""
        check_batch(self._options)
        with shared_queue(self._options.access) as queue:
            topics = Topics(self._options, monotonic_ms)
            if self._options.fail_on_data_loss:
                topics.check_whole(queue)
            options = topics.with_offsets(queue, self._options)
            bounds = topics.bounds(queue)
            start, end = batch_ends(options, bounds)
            start, end = self._stored_between(start, end, topics, queue)
        return _planned(options, start, end, bounds, self._wanted)

    def _stored_between(
        self, start: Offsets, end: Offsets, topics: Topics, queue: Queue
    ) -> tuple[Offsets, Offsets]:
        """Start and end, moved together by a filter on `storeTimestamp`."""
        since_ms, until_ms = self._wanted.stored_ms
        if self._options.access.protocol == "rocketmq":  # TubeMQ has no such column
            if since_ms is not None:
                start = _furthest(start, topics.offsets_since(queue, _time(since_ms)), max)
                start = clamped(start, end)
            if until_ms is not None:
                end = _furthest(end, topics.offsets_since(queue, _time(until_ms)), min)
                end = _furthest(end, start, max)
        return start, end

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield Arrow batches of about a megabyte."""
        return _read(self._options, partition)


class FilteredBatchReader(BatchReader):
    """A batch for which Spark passes its filters; see `pushdown`.

    Only on request: Spark 4.3 keeps the plan of the last filter in the DataFrame, and all other
    queries on it read only the rows of that filter.
    """

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        """Prune the read by these filters; Spark applies all of them again."""
        self._wanted = wanted(filters)
        return filters


class StreamReader(SentToWorkers, DataSourceStreamReader, SupportsTriggerAvailableNow):
    """`spark.readStream`.

    The start of a stream is decided once. Spark asks for it before it plans batch 0, again before
    it runs that batch, and after a restart if batch 0 was planned but not finished. The process
    keeps its first answer. After a restart it is read from the end of batch 0, the only data of the
    source that Spark has written by then (Python sources do not know the checkpoint's location).
    """

    def __init__(self, options: ReadOptions) -> None:
        self._options = options
        self._cursor: Cursor | None = None
        self._committed: Offsets | None = None
        self._initial: Offsets | None = None
        self._is_checked = False

    def initialOffset(self) -> Offsets:
        """The start of a stream without a checkpoint; the same at every call."""
        if self._initial is None:
            self._initial = self._first()
        return self._initial

    def _first(self) -> Offsets:
        cursor = self._cursor_or_new()
        topics = Topics(self._options, monotonic_ms)
        with shared_queue(self._options.access) as queue:
            if self._options.fail_on_data_loss:
                topics.check_whole(queue)
            options = topics.with_offsets(queue, self._options)
            bounds = topics.bounds(queue)
        return cursor.initial(options.starting_offsets or LATEST, bounds)

    def prepareForTriggerAvailableNow(self) -> None:
        """Read nothing after the present ends."""
        self._cursor_or_new().fix_target()

    def getDefaultReadLimit(self) -> ReadLimit:
        """One of the options that limit a micro-batch; `latestOffset` keeps all of them.

        It is `ReadAllAvailable` only without such an option, so that `latestOffset` can tell what
        Spark asks for in place of it (trigger once).
        """
        options = self._options
        if options.max_offsets_per_trigger is not None:
            return ReadMaxRows(options.max_offsets_per_trigger)
        if options.max_bytes_per_trigger is not None:
            return ReadMaxBytes(options.max_bytes_per_trigger)
        if options.min_offsets_per_trigger:
            return ReadMinRows(options.min_offsets_per_trigger)
        return ReadAllAvailable()

    def latestOffset(self, start: Offsets, limit: ReadLimit) -> Offsets:
        """The end of the next micro-batch; waits briefly if there are no messages."""
        cursor = self._cursor_or_new()
        self._check_form(start)
        at, _ = split_start(start)
        rows = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        everything = isinstance(limit, ReadAllAvailable)
        size = None if everything else self._options.max_bytes_per_trigger
        wait = not everything
        end = cursor.next_end(at, rows, size, wait=wait)
        self._commit_progress(cursor.present(at))
        for pause_ms in () if cursor.has_target else POLL_MS:
            if end != at:
                break
            time.sleep(pause_ms / 1000)
            end = cursor.next_end(at, rows, size, wait=wait)
        begin = cursor.begin_of(at)
        if start == self._initial or (end != at and begin != at):
            return with_start(end, begin)
        return start if end == at else end

    def reportLatestOffset(self) -> Offsets | None:
        """The `latestOffset` in Spark's progress; see `coherer.spark.lag`."""
        return self._cursor_or_new().newest()

    def partitions(self, start: Offsets, end: Offsets) -> Sequence[InputPartition]:
        """Compare with the brokers' bounds, and split the ranges into tasks."""
        self._check_form(start, end)
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
        bounds = self._cursor_or_new().planning_bounds(begin, end)
        return _planned(self._options, begin, end, bounds)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield Arrow batches of about a megabyte; report gaps at the end."""
        lost = partition.lost if isinstance(partition, Share) else ()
        reporter = Reporter(source_of(self._options), lost)
        try:
            yield from _read(self._options, partition, reporter)
        finally:
            reporter.write()

    def worker_fields(self) -> dict[str, object]:
        """The fields that a worker needs: not the cursor."""
        return {**super().worker_fields(), "_cursor": None}

    def _check_form(self, *given: Offsets) -> None:
        """Check the first offsets, which may come from a checkpoint."""
        if not self._is_checked:
            for offsets in given:
                check_form(offsets)
            self._is_checked = True

    def _cursor_or_new(self) -> Cursor:
        # Created on first use: Spark pickles a new reader for the workers, which need no cursor,
        # and garbles exceptions from constructors.
        if self._cursor is None:
            check_stream(self._options)
            topics = Topics(self._options, monotonic_ms, running=True)

            def ask(known: Offsets | None) -> Bounds:
                with shared_queue(self._options.access) as queue:
                    return topics.bounds(queue, known)

            def look(one: Range) -> Scale:
                with shared_queue(self._options.access) as queue:
                    return measure(queue, one)

            def reach(ranges: Sequence[Range]) -> None:
                with shared_queue(self._options.access) as queue:
                    for one in ranges:
                        after = structs.replace(one, start=one.end, end=one.end + 1)
                        with queue.reader(after, ("offset",)) as reader:
                            reader.read()

            counted = self._options.access.protocol == "rocketmq"
            scales = Scales(look, monotonic_ms, counted=counted)
            self._cursor = Cursor(self._options, ask, monotonic_ms, scales, reach)
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


def _time(ms: int) -> datetime:
    return datetime.fromtimestamp(min(max(ms, 0), MS_MAX) / 1000, UTC)


def _furthest(offsets: Offsets, others: Offsets, choose: Callable[[int, int], int]) -> Offsets:
    """The first or the last of two offsets of each partition."""
    return {
        topic: {key: choose(at, others.get(topic, {}).get(key, at)) for key, at in found.items()}
        for topic, found in offsets.items()
    }
