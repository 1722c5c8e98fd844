"""Reads the ranges of a task, as Arrow batches of about a megabyte with the columns of a queue.

See docs/protocol/spark.md, section 2.1. `columns` describes the columns.

A range may have these problems, and no message is skipped silently:

1. Messages are gone: retention deleted them, or somebody their topic. `failOnDataLoss` decides.
2. Records are bad: damaged, or in contradiction to their flags. They arrived, or the broker reports
   that it skipped them. `mode` decides: an error, a row with the reason and the raw bytes, or a
   warning.
3. On Java's TubeMQ broker offsets are positions in an index: there only the beginning and the end
   of a range show that messages are gone, and a bad record has the offset at which its read
   started.

If offsets count messages, every offset of the range must arrive. If one is missing, the reader asks
for the partition's present bounds: offsets outside of them are gone, others are bad.

A power cut may have left a gap in the offsets, which Coherer's broker reports. Nobody can get its
messages any more, and the reader may have read them before: it is skipped with a warning.

This module prefetches nothing: the client's own thread does, while Spark processes a batch.
"""

from __future__ import annotations

import logging
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from itertools import pairwise
from typing import Final, NamedTuple, cast

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from coherer._common.logs import Log
from coherer._record.bad_record import BadRecord
from coherer._record.offset_ranges import without
from coherer._wire.rocketmq.codes import TopicNotExistError
from coherer._wire.tubemq.codes import TopicNotDeployedError
from coherer.spark.columns import arrow_schema, sources, to_rows
from coherer.spark.options import DROP, FAILFAST, ReadOptions
from coherer.spark.planning import PACK_ROWS, DataLossError, Range
from coherer.spark.queue import OpenReader, Queue

log = Log(logging.getLogger(__name__))


class BatchLimits(NamedTuple):
    """The target size of a RecordBatch, and the most rows."""

    size: int
    rows: int


BATCH: Final = BatchLimits(1_000_000, 10_000)
"""Under Spark, throughput halves from 10 MB on (section 2.1)."""

ENOUGH_BYTES: Final = 400_000
"""Smaller batches are joined. A read from a busy broker returns 512 KiB: joining two of those would
copy every body once more, which costs more than it saves."""

INDEX_STEP: Final = 28
"""The distance between two messages in the index of Java's broker, which rounds offsets down."""

TOGETHER_MAX: Final = 8
"""Readers that are open at the same time. Each fetches up to 4 MiB ahead."""

MODES: Final = "mode=PERMISSIVE makes it a row with its bytes and the reason, mode=DROP skips it."
"""What to do about a bad record; commands say how they do it."""

_DELETED: Final = (TopicNotDeployedError, TopicNotExistError)


class BadRecordError(DataLossError):
    """A record cannot be read, and the option `mode` is `FAILFAST`. `ranges` holds its offset."""

    @classmethod
    def at(cls, one: Range, reason: str) -> BadRecordError:
        """The error for a record."""
        error = cls(
            f"A record is bad: {one!r}: {reason}",
            hint=MODES,
        )
        error.ranges = (one,)
        return error


def _ignore(one: Range, exact: bool) -> None:
    """Do nothing at the end of a range."""


def log_gap(one: Range) -> None:
    """Log a gap in the offsets."""
    log.warning("A power cut of the broker left these offsets empty: %r", one)


class ReadSettings(msgspec.Struct, frozen=True):
    """The settings of a task, the same for all of its ranges.

    Args:
        columns: to yield.
        fail_on_data_loss: raise an error if rows of a range are gone; otherwise skip them.
        mode: the option for bad records.
        on_loss: called with ranges that were skipped.
        on_bad: called with ranges of bad records that were skipped, and the reason of the first.
        on_end: called when a range was read to its end, and whether its offsets count messages.
        on_gap: called with gaps that a power cut left, and that were skipped.
    """

    columns: tuple[str, ...]
    fail_on_data_loss: bool
    mode: str
    on_loss: Callable[[Range], None]
    on_bad: Callable[[Range, str], None]
    on_end: Callable[[Range, bool], None] = _ignore
    on_gap: Callable[[Range], None] = log_gap


def settings_of(options: ReadOptions) -> ReadSettings:
    """The settings of a batch or stream, which logs skipped messages."""
    return ReadSettings(options.columns, options.fail_on_data_loss, options.mode, log_loss, log_bad)


def log_loss(one: Range) -> None:
    """Log messages that are skipped because they are gone."""
    log.warning("Messages are gone before they were read: %r", one)


def log_bad(one: Range, reason: str) -> None:
    """Log bad records that are skipped."""
    log.warning("Bad records are skipped: %r: %s", one, reason)


def rows(queue: Queue, ranges: Sequence[Range], settings: ReadSettings) -> Iterator[pa.RecordBatch]:
    """All rows of `ranges`, in order.

    Raises:
        BadRecordError: a record is bad, and `mode` is `FAILFAST`.
        DataLossError: rows are gone, and `fail_on_data_loss` is set.
    """
    columns = sources(settings.columns)

    def pieces() -> Iterator[pa.RecordBatch]:
        for planned in together(ranges):
            with ExitStack() as stack:
                some = planned
                try:
                    readers = stack.enter_context(queue.readers(some, columns))
                except _DELETED:
                    if settings.fail_on_data_loss:
                        raise
                    some = _undeleted(queue, some, settings)
                    if not some:
                        continue
                    readers = stack.enter_context(queue.readers(some, columns))
                for one, reader in zip(some, readers, strict=True):
                    yield from RangeRows(queue, one, settings).read(reader)
                    settings.on_end(one, reader.exact)

    yield from joined(pieces())


def _undeleted(queue: Queue, some: Sequence[Range], settings: ReadSettings) -> Sequence[Range]:
    """The ranges whose topic exists. The others are lost: it was deleted after the plan.

    Raises:
        TopicAwayError: all brokers of a topic are away, so it may return with them.
    """
    kept: list[Range] = []
    for topic in dict.fromkeys(one.topic for one in some):
        parts = [one for one in some if one.topic == topic]
        try:
            queue.bounds(topic, partial=True, known={one.broker for one in parts})
        except _DELETED:
            for one in parts:
                settings.on_loss(one)
        else:
            kept += parts
    return kept


def together(ranges: Sequence[Range]) -> Iterator[Sequence[Range]]:
    """Divide ranges into those that are open at the same time.

    A range costs several round trips to its broker, much more than its rows if it is small. Large
    ranges are read one by one, since each reader fetches ahead.

    >>> ranges = [Range("t", "1", n, 0, rows) for n, rows in enumerate([10, 9_000, 20, 30])]
    >>> [[one.partition for one in some] for some in together(ranges)]
    [[0], [1], [2, 3]]
    """
    some: list[Range] = []
    for one in ranges:
        rows = sum(other.rows for other in some)
        if some and (len(some) == TOGETHER_MAX or rows + one.rows > PACK_ROWS):
            yield some
            some = []
        some.append(one)
    if some:
        yield some


class RangeRows:
    """The rows of one range."""

    def __init__(self, queue: Queue, one: Range, settings: ReadSettings) -> None:
        self._queue = queue
        self._range = one
        self._settings = settings
        self._schema = arrow_schema(settings.columns)
        self._sources = sources(settings.columns)
        self._bounds: tuple[int, int] | None = None
        self._reader: OpenReader

    def read(self, reader: OpenReader) -> Iterator[pa.RecordBatch]:
        """The rows; the reader of the range is open."""
        self._reader = reader
        yield from self._counted(reader) if reader.exact else self._indexed(reader)

    def _counted(self, reader: OpenReader) -> Iterator[pa.RecordBatch]:
        """The rows of a broker whose offsets count messages: each offset must exist."""
        at, end = self._range.start, self._range.end
        while at < end:
            batch = reader.read()
            if batch is None:
                break
            found = _before(batch.to_arrow(self._sources), end)
            stop = min(max(reader.position, at), end)
            if gaps := _gaps(found, at, stop):
                self._bounds = None
                yield from self._with_gaps(found, gaps, batch.bad_records())
            else:
                yield to_rows(found, self._schema)
            if batch.offset >= end:
                break
            at = stop
        if at < end:
            yield from self._gap(at, end, ())

    def _indexed(self, reader: OpenReader) -> Iterator[pa.RecordBatch]:
        """The rows of a broker whose offsets are positions in an index."""
        one = self._range
        if reader.position > one.start:
            self._lose(one.start, min(reader.position, one.end))
        elif reader.position <= one.start - INDEX_STEP:  # the broker has lost its end
            self._lose(reader.position, one.start)
        skipped = reader.left_out
        while (batch := reader.read()) is not None:
            found = batch.to_arrow(self._sources)
            if found.num_rows:
                yield to_rows(found, self._schema)
            if reader.left_out > skipped:
                skipped = reader.left_out
                yield from self._bad(
                    batch.offset, min(reader.position, one.end), batch.bad_records()
                )
        if reader.position < one.end:
            self._lose(reader.position, one.end)

    def _with_gaps(
        self, found: pa.RecordBatch, gaps: Sequence[tuple[int, int]], bad: Sequence[BadRecord]
    ) -> Iterator[pa.RecordBatch]:
        offsets = cast("list[int]", found.column("offset").to_pylist())
        done = 0
        for low, high in gaps:
            before = bisect_left(offsets, low)
            if before > done:
                yield to_rows(found.slice(done, before - done), self._schema)
                done = before
            yield from self._gap(low, high, bad)
        if done < found.num_rows:
            yield to_rows(found.slice(done), self._schema)

    def _gap(self, low: int, high: int, bad: Sequence[BadRecord]) -> Iterator[pa.RecordBatch]:
        """Find the messages missing from `low` to `high`, and handle them as the options say."""
        missing = without([range(low, high)], self._reader.gaps)
        for one in without([range(low, high)], missing):
            gap = msgspec.structs.replace(self._range, start=one.start, end=one.stop)
            self._settings.on_gap(gap)
        for one in missing:
            yield from self._missing(one.start, one.stop, bad)

    def _missing(self, low: int, high: int, bad: Sequence[BadRecord]) -> Iterator[pa.RecordBatch]:
        first, last = self._present(low, high)
        for begin, end in ((low, min(first, high)), (max(low, last), high)):
            if begin < end:
                self._lose(begin, end)
        low, high = max(low, first), min(high, last)
        known = {record.offset: record for record in bad}
        for begin in range(low, high, BATCH.rows):
            end = min(begin + BATCH.rows, high)
            records = [known.get(at) or BadRecord(at, "", SKIPPED, b"") for at in range(begin, end)]
            yield from self._bad(begin, end, records)

    def _present(self, low: int, high: int) -> tuple[int, int]:
        """The partition's bounds; the gap itself while its broker does not answer for it."""
        if self._bounds is None:
            one = self._range
            found = self._queue.bounds(one.topic, partial=True)
            self._bounds = found.get((one.broker, one.partition), (low, high))
        return self._bounds

    def _lose(self, start: int, end: int) -> None:
        lost = msgspec.structs.replace(self._range, start=start, end=end)
        if self._settings.fail_on_data_loss:
            raise DataLossError.of([lost])
        self._settings.on_loss(lost)

    def _bad(self, start: int, end: int, records: Sequence[BadRecord]) -> Iterator[pa.RecordBatch]:
        """Handle bad records as `mode` says; those without an offset get `start`."""
        one = msgspec.structs.replace(self._range, start=start, end=end)
        if not records:
            return
        if self._settings.mode == FAILFAST:
            raise BadRecordError.at(one, records[0].error)
        if self._settings.mode == DROP:
            self._settings.on_bad(one, records[0].error)
            return
        yield bad_rows(one, records, self._schema)


def bad_rows(one: Range, records: Sequence[BadRecord], schema: pa.Schema) -> pa.RecordBatch:
    """The rows of bad records with `mode=PERMISSIVE`; `one.start` replaces unknown offsets."""
    count = len(records)
    columns: dict[str, Sequence[object]] = {
        "topic": [one.topic] * count,
        "broker": [one.broker] * count,
        "partition": [one.partition] * count,
        "offset": [one.start if bad.offset is None else bad.offset for bad in records],
        "id": [bad.id or None for bad in records],
        "value": [bad.data or None for bad in records],
        "error": [bad.error for bad in records],
    }
    arrays = [pa.array(columns.get(field.name, [None] * count), field.type) for field in schema]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


SKIPPED: Final = (
    "The broker skipped it: it is damaged in the broker's store, or was lost in a power cut."
)
"""The error of a record that did not arrive."""


def _gaps(found: pa.RecordBatch, start: int, stop: int) -> list[tuple[int, int]]:
    """The gaps in the offsets from `start` to `stop`."""
    if found.num_rows == stop - start and (not found.num_rows or _last(found) == stop - 1):
        return []
    offsets = cast("list[int]", found.column("offset").to_pylist())
    edges = pairwise([start - 1, *offsets, stop])
    return [(low + 1, high) for low, high in edges if low + 1 < high]


def _last(found: pa.RecordBatch) -> int:
    return cast("int", found.column("offset")[found.num_rows - 1].as_py())


def _before(found: pa.RecordBatch, end: int) -> pa.RecordBatch:
    """The rows below `end`; nearly always all, so the last one is checked first."""
    if not found.num_rows or _last(found) < end:
        return found
    return found.filter(pc.less(found.column("offset"), end))


def joined(
    batches: Iterable[pa.RecordBatch], limits: BatchLimits = BATCH
) -> Iterator[pa.RecordBatch]:
    """Join small batches and split large ones, to about the size and up to the rows of `limits`."""
    pending: list[pa.RecordBatch] = []
    size = count = 0
    for batch in batches:
        pending.append(batch)
        size += batch.nbytes
        count += batch.num_rows
        if size >= ENOUGH_BYTES or count >= limits.rows:
            yield from _split(pending, size, limits)
            pending, size, count = [], 0, 0
    if pending:
        yield from _split(pending, size, limits)


def _split(batches: list[pa.RecordBatch], size: int, limits: BatchLimits) -> list[pa.RecordBatch]:
    count = sum(batch.num_rows for batch in batches)
    parts = max(1, size // (2 * limits.size), -(-count // limits.rows))
    if len(batches) == 1 and parts == 1:
        return batches
    table = pa.Table.from_batches(batches).combine_chunks()
    return table.to_batches(max_chunksize=-(-count // parts))
