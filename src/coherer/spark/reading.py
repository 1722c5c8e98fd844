"""The reading half of a task: ranges in, Arrow batches of about a megabyte out."""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import closing, suppress
from itertools import pairwise
from queue import Empty
from queue import Queue as Handover
from typing import Final, TypeVar, cast

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

AHEAD: Final = 3
"""Reads that are fetched and decoded while Spark takes the one before."""

T = TypeVar("T")


class Reading(msgspec.Struct, frozen=True):
    """What does not change from range to range.

    Args:
        schema: the columns to yield.
        fail_on_data_loss: an error when rows of a range are gone, else they are left out.
        on_loss: told of ranges that were left out.
    """

    schema: pa.Schema
    fail_on_data_loss: bool
    on_loss: Callable[[Range], None]


def rows(queue: Queue, ranges: Sequence[Range], reading: Reading) -> Iterator[pa.RecordBatch]:
    """All rows of `ranges`, in order.

    Raises:
        DataLossError: rows are gone, and `fail_on_data_loss` is set.
    """

    def pieces() -> Generator[pa.RecordBatch]:
        for one in ranges:
            yield from _range_rows(queue, one, reading)

    yield from joined(ahead(pieces(), AHEAD))


def _range_rows(queue: Queue, one: Range, reading: Reading) -> Iterator[pa.RecordBatch]:
    with queue.reader(one) as reader:
        if reader.exact:
            yield from _counted_rows(reader, one, reading)
        else:
            yield from _indexed_rows(reader, one, reading)


def _counted_rows(reader: RangeReader, one: Range, reading: Reading) -> Iterator[pa.RecordBatch]:
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


def _indexed_rows(reader: RangeReader, one: Range, reading: Reading) -> Iterator[pa.RecordBatch]:
    """The rows of a broker whose offsets are places in an index: only the start can be checked."""
    if reader.position > one.start:
        _lose(one, one.start, min(reader.position, one.end), reading)
    while (batch := reader.read()) is not None:
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


def _lose(one: Range, start: int, end: int, reading: Reading) -> None:
    lost = msgspec.structs.replace(one, start=start, end=end)
    if reading.fail_on_data_loss:
        raise DataLossError.of([lost])
    reading.on_loss(lost)


class _End(msgspec.Struct):
    error: BaseException | None


def ahead(source: Generator[T], depth: int) -> Iterator[T]:
    """Runs a generator in a thread, up to `depth` items ahead of who takes them.

    An error of the source comes out here. When the taker stops early the source is closed, in its
    thread, before this returns.

    >>> list(ahead((letter for letter in "abc"), 2))
    ['a', 'b', 'c']
    """
    handed: Handover[T | _End] = Handover(maxsize=depth)
    stopped = threading.Event()
    thread = threading.Thread(
        target=_run, args=(source, handed, stopped), name="coherer-read-ahead", daemon=True
    )
    thread.start()
    try:
        while True:
            item = handed.get()
            if isinstance(item, _End):
                if item.error is not None:
                    raise item.error
                return
            yield item
    finally:
        stopped.set()
        while thread.is_alive():  # it may wait for room: make some, until it sees that we stopped
            with suppress(Empty):
                handed.get(timeout=0.01)
        thread.join()


def _run(source: Generator[T], handed: Handover[T | _End], stopped: threading.Event) -> None:
    end = _End(None)
    try:
        with closing(source):
            for item in source:
                handed.put(item)
                if stopped.is_set():
                    return
    except BaseException as error:  # noqa: BLE001 - it is raised where it is waited for
        end = _End(error)
    handed.put(end)


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
