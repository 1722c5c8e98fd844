"""The reading half of a task: ranges in, Arrow batches of about a megabyte out.

Nothing is fetched ahead here: the client's own thread does that while Spark takes a batch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import pairwise
from typing import Final, cast

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from coherer.spark.columns import to_rows
from coherer.spark.planning import DataLossError, Range
from coherer.spark.queue import Queue, RangeReader

BATCH_BYTES: Final = 1_000_000
"""The size of a RecordBatch to aim for. From 10 MB on throughput halves (spark.md, section 2.1)."""

ENOUGH_BYTES: Final = 400_000
"""Smaller batches are joined to larger ones. A read of a busy broker brings 512 KiB: joining two of
those would copy every body once more, for less than it saves."""

BATCH_ROWS: Final = 10_000
"""And for not more rows than this."""


class ReadSettings(msgspec.Struct, frozen=True):
    """What does not change from range to range.

    Args:
        schema: the columns to yield.
        fail_on_data_loss: an error when rows of a range are gone, else they are left out.
        on_loss: told of ranges that were left out.
    """

    schema: pa.Schema
    fail_on_data_loss: bool
    on_loss: Callable[[Range], None]


def rows(queue: Queue, ranges: Sequence[Range], reading: ReadSettings) -> Iterator[pa.RecordBatch]:
    """All rows of `ranges`, in order.

    Raises:
        DataLossError: rows are gone, and `fail_on_data_loss` is set.
    """

    def pieces() -> Iterator[pa.RecordBatch]:
        for one in ranges:
            yield from _range_rows(queue, one, reading)

    yield from joined(pieces())


def _range_rows(queue: Queue, one: Range, reading: ReadSettings) -> Iterator[pa.RecordBatch]:
    with queue.reader(one) as reader:
        if reader.exact:
            yield from _counted_rows(reader, one, reading)
        else:
            yield from _indexed_rows(reader, one, reading)


def _counted_rows(
    reader: RangeReader, one: Range, reading: ReadSettings
) -> Iterator[pa.RecordBatch]:
    """The rows of a broker whose offsets count messages: each offset must be there."""
    at = one.start
    while at < one.end:
        batch = reader.read()
        if batch is None:
            break
        found = _before(batch.to_arrow(), one.end)
        for gap in _gaps(found, at):
            _lose(one, *gap, reading)
        if found.num_rows:
            at = _last(found) + 1
            yield to_rows(found, reading.schema)
        elif batch.offset >= one.end:
            break
    if at < one.end:
        _lose(one, at, one.end, reading)


def _indexed_rows(
    reader: RangeReader, one: Range, reading: ReadSettings
) -> Iterator[pa.RecordBatch]:
    """The rows of a broker whose offsets are places in an index.

    Whether rows are missing shows at the start, and where the client left out what came damaged.
    """
    if reader.position > one.start:
        _lose(one, one.start, min(reader.position, one.end), reading)
    at, left_out = reader.position, reader.left_out
    while True:
        batch = reader.read()
        if reader.left_out > left_out:
            _lose(one, min(at, one.end), min(reader.position, one.end), reading)
        at, left_out = reader.position, reader.left_out
        if batch is None:
            break
        yield to_rows(batch.to_arrow(), reading.schema)


def _gaps(found: pa.RecordBatch, start: int) -> list[tuple[int, int]]:
    """The stretches of offsets, from `start` to the last row, that have no row.

    Retention took them, or they were damaged and the client left them out.
    """
    if not found.num_rows or found.num_rows == _last(found) + 1 - start:
        return []
    offsets = cast("list[int]", found.column("offset").to_pylist())
    return [(low + 1, high) for low, high in pairwise([start - 1, *offsets]) if low + 1 < high]


def _last(found: pa.RecordBatch) -> int:
    return cast("int", found.column("offset")[found.num_rows - 1].as_py())


def _before(found: pa.RecordBatch, end: int) -> pa.RecordBatch:
    """The rows below `end`; nearly always all, so it looks at the last one first."""
    if not found.num_rows or _last(found) < end:
        return found
    return found.filter(pc.less(found.column("offset"), end))


def _lose(one: Range, start: int, end: int, reading: ReadSettings) -> None:
    lost = msgspec.structs.replace(one, start=start, end=end)
    if reading.fail_on_data_loss:
        raise DataLossError.of([lost])
    reading.on_loss(lost)


def joined(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Joins small batches and cuts large ones, to about `BATCH_BYTES` and at most `BATCH_ROWS`."""
    held: list[pa.RecordBatch] = []
    size = count = 0
    for batch in batches:
        held.append(batch)
        size += batch.nbytes
        count += batch.num_rows
        if size >= ENOUGH_BYTES or count >= BATCH_ROWS:
            yield from _cut(held, size)
            held, size, count = [], 0, 0
    if held:
        yield from _cut(held, size)


def _cut(held: list[pa.RecordBatch], size: int) -> list[pa.RecordBatch]:
    count = sum(batch.num_rows for batch in held)
    parts = max(1, size // (2 * BATCH_BYTES), -(-count // BATCH_ROWS))
    if len(held) == 1 and parts == 1:
        return held
    table = pa.Table.from_batches(held).combine_chunks()
    return table.to_batches(max_chunksize=-(-count // parts))
