"""The columns of a queue in Spark: one schema for both protocols.

| column | type | TubeMQ | RocketMQ |
|---|---|---|---|
| `topic` | string | | |
| `broker` | string | the broker's id, as text | the broker's name |
| `partition` | int | partition id | queue id |
| `offset` | bigint | see below | queue offset |
| `id` | string | the broker's message id | offset message id |
| `key` | string | null | `KEYS`: words with a space between them |
| `tag` | string | `$msgType$` | `TAGS` |
| `timestamp` | timestamp | `$msgTime$` as UTC; null if absent | the same; if absent, born time |
| `value` | binary | the body | the body |
| `properties` | map | the other attributes | the other properties |

`properties` is there with `includeHeaders=true`. On our broker `offset` counts the messages of a
partition. On Java's TubeMQ broker an offset is a place in an index that its partitions share, and a
row has the offset at which the read began that brought it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import pyarrow as pa

from coherer._record.columns import INSTANT, instants

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
    """The columns in their order."""
    return [name for name in _COLUMNS if include_headers or name != "properties"]


def spark_schema(include_headers: bool) -> str:
    """The schema as Spark's DDL.

    >>> spark_schema(include_headers=False).split(", ")[:4]
    ['topic string', 'broker string', 'partition int', 'offset bigint']
    """
    return ", ".join(f"{name} {_COLUMNS[name][0]}" for name in names(include_headers))


def arrow_schema(include_headers: bool) -> pa.Schema:
    """The schema as Arrow, exactly as Spark demands it (names, order, widths, zone)."""
    return pa.schema([(name, _COLUMNS[name][1]) for name in names(include_headers)])


def to_rows(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Turns a batch from `MessageBatch.to_arrow` into rows for Spark; column by column, no loop.

    Args:
        batch: columns topic, broker, partition, offset, id, tag, time, value, properties; with
            RocketMQ also key. The time is text (TubeMQ) or an instant.
        schema: from `arrow_schema`.
    """
    columns = [_MADE[name](batch) if name in _MADE else batch.column(name) for name in schema.names]
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


_MADE: Final[dict[str, Callable[[pa.RecordBatch], pa.Array]]] = {
    "id": _id,
    "key": _key,
    "timestamp": _timestamp,
}
