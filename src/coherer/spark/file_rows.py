"""Reads the rows of a section of a store's log, as Arrow batches.

The entries of the consume queues have the place, the offset and the tag code of each record
(`_store.gathering`). The records of a batch are decoded together, without an object per record
(`_record.scan`), and only the fields that the wanted columns need.

A record is bad if its lengths do not fit, if its checksum is wrong, or if another one is in its
place. Entries whose record retention has deleted since the plan was made are lost. A gap that a
power cut has left in the offsets is neither.
"""

from __future__ import annotations

import platform
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from coherer._record.bad_record import BadRecord
from coherer._record.layout import MAGIC
from coherer._record.offset_ranges import between
from coherer._record.properties import tag_code
from coherer._record.record_columns import columns as record_columns
from coherer._record.scan import Mask, RecordScan, scan_at
from coherer._store.gathering import Entries, LogFiles, Numbers, QueueRange, entries_of
from coherer._store.snapshot import StoreSnapshot, is_store
from coherer._wire.rocketmq.bad_records import bad_records
from coherer.errors import UnavailableError
from coherer.spark.columns import arrow_schema, sources, to_rows
from coherer.spark.options import DROP, FAILFAST
from coherer.spark.planning import DataLossError, Range
from coherer.spark.reading import (
    BATCH,
    BadRecordError,
    BatchLimits,
    bad_rows,
    joined,
    log_bad,
    log_gap,
    log_loss,
)

_NAMES: Final = (("topic", pa.string()), ("broker", pa.string()), ("partition", pa.int32()))
_FROM_ENTRIES: Final = frozenset({"offset", *(name for name, _ in _NAMES)})


class Section(msgspec.Struct, frozen=True):
    """Ranges of queues of one store, whose records lie next to each other in the log.

    Args:
        directory: that of the store.
        ranges: those of different queues.
        size_bytes: the size of the records, estimated from samples.
    """

    directory: str
    ranges: tuple[Range, ...]
    size_bytes: int

    @property
    def rows(self) -> int:
        """The number of rows."""
        return sum(one.rows for one in self.ranges)


def rows_of(
    section: Section,
    columns: tuple[str, ...],
    losses: Losses,
    tags: frozenset[str] | None,
    limits: BatchLimits = BATCH,
) -> Iterator[pa.RecordBatch]:
    """All rows of a section of the log with one of some tags. The rows of a queue are in order.

    Raises:
        UnavailableError: this machine does not have the store.
        BadRecordError: a record is bad, and `mode` is `FAILFAST`.
        DataLossError: rows are gone, and `failOnDataLoss` is set.
    """
    try:
        yield from joined(SectionRows(section, columns, losses, tags, limits), limits)
    except OSError as error:
        raise _unreadable(section, str(error)) from error


def gaps_in(section: Section) -> list[Range]:
    """The parts of the ranges of a section that power cuts left empty.

    Raises:
        UnavailableError: the store cannot be read.
    """
    ranges = [QueueRange(one.topic, one.partition, one.start, one.end) for one in section.ranges]
    try:
        _, gaps = entries_of(Path(section.directory), ranges)
    except OSError as error:
        raise _unreadable(section, str(error)) from error
    return [
        gap
        for number, one in enumerate(section.ranges)
        for gap in _runs(one, gaps.offsets[gaps.sources == number])
    ]


def _runs(one: Range, offsets: Numbers) -> list[Range]:
    """The parts of a range that some of its offsets, in ascending order, make up."""
    return [
        msgspec.structs.replace(one, start=int(run[0]), end=int(run[-1]) + 1)
        for run in np.split(offsets, np.flatnonzero(np.diff(offsets) > 1) + 1)
        if len(run)
    ]


def _unreadable(section: Section, reason: str) -> UnavailableError:
    return UnavailableError(
        f"{platform.node()} cannot read the store {section.directory}: {reason}",
        hint="Mount the directory there; with Spark, on every worker at the same path.",
    )


class Losses(msgspec.Struct, frozen=True):
    """Handles rows that are lost or bad.

    Args:
        fail: whether lost rows are an error (`failOnDataLoss`); otherwise they are skipped.
        mode: the option for bad records.
    """

    fail: bool
    mode: str

    def lose(self, one: Range) -> None:
        """Handle the lost rows of a range.

        Raises:
            DataLossError: see `fail`.
        """
        if self.fail:
            raise DataLossError.of([one])
        log_loss(one)

    def bad(self, one: Range, bad: BadRecord, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        """Handle a bad record; with `mode=PERMISSIVE` it becomes a row.

        Raises:
            BadRecordError: with `FAILFAST`.
        """
        if self.mode == FAILFAST:
            raise BadRecordError.at(one, bad.error)
        if self.mode == DROP:
            log_bad(one, bad.error)
            return
        yield bad_rows(one, [bad], schema)


class SectionRows:
    """The rows of a section, in batches of one chunk each; see `rows_of`."""

    def __init__(
        self,
        section: Section,
        columns: tuple[str, ...],
        losses: Losses,
        tags: frozenset[str] | None,
        limits: BatchLimits,
    ) -> None:
        self._section = section
        self._limits = limits
        self._losses = losses
        self._tags = None if tags is None else pa.array(sorted(tags), pa.string())
        self._codes = None if tags is None else [tag_code(tag) for tag in sorted(tags)]
        self._schema = arrow_schema(columns)
        self._sources = sources(columns)
        decoded = [name for name in self._sources if name not in _FROM_ENTRIES]
        if tags is not None and "tag" not in decoded:
            decoded.append("tag")
        self._decoded = decoded
        self._names = {
            name: pa.array(list(dict.fromkeys(values)) if len(set(values)) == 1 else values, kind)
            for name, kind in _NAMES
            if name in self._sources
            for values in [[getattr(one, name) for one in section.ranges]]
        }

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        directory = Path(self._section.directory)
        if not is_store(directory):
            raise _unreadable(self._section, "it has no directory commitlog.")
        ranges = [
            QueueRange(one.topic, one.partition, one.start, one.end) for one in self._section.ranges
        ]
        log = LogFiles(directory)
        entries, gaps = entries_of(directory, ranges)
        if len(gaps.places):
            self._log_gaps(gaps)
        if len(entries.places) + len(gaps.places) < self._section.rows:
            yield from self._without_entry(entries, gaps)
        if self._codes is not None:
            entries = entries.pick(np.isin(entries.codes, self._codes))
        for chunk in log.chunks(entries, *self._limits):
            if chunk.data is None:
                self._lose(chunk.entries)
            else:
                yield from self._decoded_rows(chunk.data, chunk.entries)

    def _log_gaps(self, gaps: Entries) -> None:
        for number, one in enumerate(self._section.ranges):
            for gap in _runs(one, gaps.offsets[gaps.sources == number]):
                log_gap(gap)

    def _without_entry(self, entries: Entries, gaps: Entries) -> Iterator[pa.RecordBatch]:
        """Handle offsets without an entry: those outside of the queue are lost, others are bad."""
        snapshot = StoreSnapshot(Path(self._section.directory))
        snapshot.close()
        for number, one in enumerate(self._section.ranges):
            # A topic that was deleted, and perhaps created again, ends before the plan.
            first, last = snapshot.bounds(one.topic).get(one.partition, (one.end, one.end))
            some = [each.offsets[each.sources == number] for each in (entries, gaps)]
            offsets = np.sort(np.concatenate(some)).tolist()
            for missing in between(one.start, one.end, offsets):
                low = min(max(missing.start, first), missing.stop)
                high = max(min(missing.stop, last), low)
                for start, end in ((missing.start, low), (high, missing.stop)):
                    if start < end:
                        self._losses.lose(msgspec.structs.replace(one, start=start, end=end))
                for at in range(low, high):
                    bad = BadRecord(at, "", _NO_ENTRY, b"")
                    part = msgspec.structs.replace(one, start=at, end=at + 1)
                    yield from self._losses.bad(part, bad, self._schema)

    def _lose(self, entries: Entries) -> None:
        for number, one in enumerate(self._section.ranges):
            offsets = entries.offsets[entries.sources == number]
            if len(offsets):
                first, last = int(offsets.min()), int(offsets.max())
                self._losses.lose(msgspec.structs.replace(one, start=first, end=last + 1))

    def _decoded_rows(self, data: memoryview, entries: Entries) -> Iterator[pa.RecordBatch]:
        """The rows of a chunk; its bad records are handled by `Losses`."""
        records, mine = _intact(data, entries)
        good = entries if mine is None else entries.pick(mine)
        if len(records):
            yield from self._rows(records, good)
        if mine is not None:
            for row in np.flatnonzero(~mine).tolist():
                yield from self._bad(data, entries, row)

    def _rows(self, records: RecordScan, entries: Entries) -> Iterator[pa.RecordBatch]:
        batch = record_columns(records, self._decoded)
        columns = {name: batch.column(name) for name in self._decoded}
        columns["offset"] = pa.array(entries.offsets, pa.int64())
        sources = pa.array(entries.sources, pa.int64())
        for name, values in self._names.items():
            columns[name] = (
                pa.repeat(values[0], len(sources)) if len(values) == 1 else values.take(sources)
            )
        found = pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns))
        if self._tags is not None:
            found = found.filter(pc.is_in(found.column("tag"), value_set=self._tags))
        yield to_rows(found, self._schema)

    def _bad(self, data: memoryview, entries: Entries, row: int) -> Iterator[pa.RecordBatch]:
        place, size = int(entries.places[row]), int(entries.sizes[row])
        one = self._section.ranges[int(entries.sources[row])]
        offset = int(entries.offsets[row])
        raw = bytes(data[place : place + size])
        found = bad_records(raw, one.partition, offset, offset + 1)
        bad = found[0] if found else BadRecord(offset, "", _ANOTHER, raw)
        part = msgspec.structs.replace(one, start=offset, end=offset + 1)
        yield from self._losses.bad(part, bad, self._schema)


_NO_ENTRY: Final = "The store has a blank entry for it: it was damaged before."
_ANOTHER: Final = "The record of another message is in its place."


def _intact(data: memoryview, entries: Entries) -> tuple[RecordScan, Mask | None]:
    """The intact records of entries, and a mask of them; None if all are intact."""
    count = len(entries.places)
    records = scan_at(data, entries.places)
    if len(records) == count and _matches(records, entries).all():
        intact = records.intact()
        if len(intact) == count:
            return intact, None
    mask = np.zeros(count, np.bool_)
    at = 0
    while at < count:
        records = scan_at(data, entries.places[at:])
        some = entries.pick(slice(at, at + len(records)))
        fits = records.pick(_matches(records, some))
        good = np.isin(some.places, fits.intact().starts)
        mask[at : at + len(records)] = good
        at += len(records) + 1
    return scan_at(data, entries.places[mask]).intact(), mask


def _matches(records: RecordScan, entries: Entries) -> Mask:
    found = (
        records.sizes == entries.sizes,
        records.queue_offsets == entries.offsets,
        records.numbers(">u4", 4) == MAGIC,
    )
    same: Mask = np.logical_and.reduce(found)
    return same
