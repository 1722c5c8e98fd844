"""Reads the ranges of a task, as Arrow batches of about a megabyte with the columns of a queue.

See docs/protocol/spark.md, section 2.1.


The columns are the same for both protocols:

| column | type | TubeMQ | RocketMQ |
|---|---|---|---|
| `topic` | string | | |
| `broker` | string | the broker's id, as text | the broker's name |
| `partition` | int | partition id | queue id |
| `offset` | bigint | see below | queue offset |
| `id` | string | the broker's message id | offset message id |
| `key` | string | null | `KEYS`: words separated by spaces |
| `tag` | string | `$msgType$` | `TAGS` |
| `timestamp` | timestamp | `$msgTime$` as UTC; null if absent | the same; if absent, born time |
| `value` | binary | the body | the body |
| `properties` | map | the other attributes | the other properties |

`includeHeaders=true` adds `properties`. On a Coherer node `offset` counts the messages of a
partition. On Java's TubeMQ broker it is a position in an index that partitions share, and a row has
the offset at which its read started.

Nothing is prefetched here: the client's own thread does that while Spark takes a batch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import pairwise
from typing import Final, cast

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from coherer._record.columns import INSTANT, instants
from coherer.spark.planning import DataLossError, Range
from coherer.spark.queue import Queue, RangeReader

BATCH_BYTES: Final = 1_000_000
"""Target size of a RecordBatch. From 10 MB on throughput halves (section 2.1)."""

ENOUGH_BYTES: Final = 400_000
"""Smaller batches are joined. A read from a busy broker returns 512 KiB: joining two of those would
copy every body once more, which costs more than it saves."""

BATCH_ROWS: Final = 10_000
"""Row limit of a RecordBatch."""

_COLUMNS: Final = {
    "topic": ("string", pa.string()),
    "broker": ("string", pa.string()),
    "partition": ("int", pa.int32()),
    "offset": ("bigint", pa.int64()),
    "id": ("string", pa.string()),
    "key": ("string", pa.string()),
    "tag": ("string", pa.string()),
    "timestamp": ("timestamp", INSTANT),
    "value": ("binary", pa.binary()),
    "properties": ("map<string,string>", pa.map_(pa.string(), pa.string())),
}


def names(include_headers: bool) -> list[str]:
    """The columns, in order."""
    return [name for name in _COLUMNS if include_headers or name != "properties"]


def spark_schema(include_headers: bool) -> str:
    """The schema as Spark's DDL.

    >>> spark_schema(include_headers=False).split(", ")[:4]
    ['topic string', 'broker string', 'partition int', 'offset bigint']
    """
    return ", ".join(f"{name} {_COLUMNS[name][0]}" for name in names(include_headers))


def arrow_schema(include_headers: bool) -> pa.Schema:
    """The schema as Arrow, exactly as Spark requires it (names, order, widths, zone)."""
    return pa.schema([(name, _COLUMNS[name][1]) for name in names(include_headers)])


def to_rows(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Converts a batch of `MessageBatch.to_arrow` into rows for Spark, column by column.

    Args:
        batch: columns topic, broker, partition, offset, id, tag, time, value, properties; with
            RocketMQ also key. The time is text (TubeMQ) or an instant.
        schema: from `arrow_schema`.
    """
    columns = [
        _DERIVED[name](batch) if name in _DERIVED else batch.column(name) for name in schema.names
    ]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _id(batch: pa.RecordBatch) -> pa.Array:
    ids = batch.column("id")
    return ids if ids.type == pa.string() else ids.cast(pa.string())


def _key(batch: pa.RecordBatch) -> pa.Array:
    if "key" in batch.schema.names:
        return batch.column("key")
    return pa.nulls(batch.num_rows, pa.string())


def _timestamp(batch: pa.RecordBatch) -> pa.Array:
    times = batch.column("time")
    return times if times.type == INSTANT else instants(times)


_DERIVED: Final[dict[str, Callable[[pa.RecordBatch], pa.Array]]] = {
    "id": _id,
    "key": _key,
    "timestamp": _timestamp,
}


class ReadSettings(msgspec.Struct, frozen=True):
    """The settings of a task, the same for all of its ranges.

    Args:
        schema: the columns to yield.
        fail_on_data_loss: raise an error if rows of a range are gone; otherwise skip them.
        on_loss: called with ranges that were skipped.
    """

    schema: pa.Schema
    fail_on_data_loss: bool
    on_loss: Callable[[Range], None]


def rows(queue: Queue, ranges: Sequence[Range], settings: ReadSettings) -> Iterator[pa.RecordBatch]:
    """All rows of `ranges`, in order.

    Raises:
        DataLossError: rows are gone, and `fail_on_data_loss` is set.
    """

    def pieces() -> Iterator[pa.RecordBatch]:
        for one in ranges:
            yield from _range_rows(queue, one, settings)

    yield from joined(pieces())


def _range_rows(queue: Queue, one: Range, settings: ReadSettings) -> Iterator[pa.RecordBatch]:
    with queue.reader(one) as reader:
        if reader.exact:
            yield from _counted_rows(reader, one, settings)
        else:
            yield from _indexed_rows(reader, one, settings)


def _counted_rows(
    reader: RangeReader, one: Range, settings: ReadSettings
) -> Iterator[pa.RecordBatch]:
    """The rows of a broker whose offsets count messages: each offset must exist."""
    at = one.start
    while at < one.end:
        batch = reader.read()
        if batch is None:
            break
        found = _before(batch.to_arrow(), one.end)
        for gap in _gaps(found, at):
            _report_loss(one, *gap, settings)
        if found.num_rows:
            at = _last(found) + 1
            yield to_rows(found, settings.schema)
        elif batch.offset >= one.end:
            break
    if at < one.end:
        _report_loss(one, at, one.end, settings)


def _indexed_rows(
    reader: RangeReader, one: Range, settings: ReadSettings
) -> Iterator[pa.RecordBatch]:
    """The rows of a broker whose offsets are positions in an index.

    Missing rows are detected at the start, and where the client skipped damaged messages.
    """
    if reader.position > one.start:
        _report_loss(one, one.start, min(reader.position, one.end), settings)
    at, left_out = reader.position, reader.left_out
    while True:
        batch = reader.read()
        if reader.left_out > left_out:
            _report_loss(one, min(at, one.end), min(reader.position, one.end), settings)
        at, left_out = reader.position, reader.left_out
        if batch is None:
            break
        yield to_rows(batch.to_arrow(), settings.schema)


def _gaps(found: pa.RecordBatch, start: int) -> list[tuple[int, int]]:
    """The gaps in the offsets from `start` to the last row.

    Retention deleted these messages, or they were damaged and the client skipped them.
    """
    if not found.num_rows or found.num_rows == _last(found) + 1 - start:
        return []
    offsets = cast("list[int]", found.column("offset").to_pylist())
    return [(low + 1, high) for low, high in pairwise([start - 1, *offsets]) if low + 1 < high]


def _last(found: pa.RecordBatch) -> int:
    return cast("int", found.column("offset")[found.num_rows - 1].as_py())


def _before(found: pa.RecordBatch, end: int) -> pa.RecordBatch:
    """The rows below `end`; nearly always all, so the last one is checked first."""
    if not found.num_rows or _last(found) < end:
        return found
    return found.filter(pc.less(found.column("offset"), end))


def _report_loss(one: Range, start: int, end: int, settings: ReadSettings) -> None:
    lost = msgspec.structs.replace(one, start=start, end=end)
    if settings.fail_on_data_loss:
        raise DataLossError.of([lost])
    settings.on_loss(lost)


def joined(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Joins small batches and splits large ones, to about `BATCH_BYTES` and up to `BATCH_ROWS`."""
    pending: list[pa.RecordBatch] = []
    size = count = 0
    for batch in batches:
        pending.append(batch)
        size += batch.nbytes
        count += batch.num_rows
        if size >= ENOUGH_BYTES or count >= BATCH_ROWS:
            yield from _split(pending, size)
            pending, size, count = [], 0, 0
    if pending:
        yield from _split(pending, size)


def _split(batches: list[pa.RecordBatch], size: int) -> list[pa.RecordBatch]:
    count = sum(batch.num_rows for batch in batches)
    parts = max(1, size // (2 * BATCH_BYTES), -(-count // BATCH_ROWS))
    if len(batches) == 1 and parts == 1:
        return batches
    table = pa.Table.from_batches(batches).combine_chunks()
    return table.to_batches(max_chunksize=-(-count // parts))
