"""The columns of a queue in Spark: one schema for both protocols.

| column | type | TubeMQ | RocketMQ |
|---|---|---|---|
| `topic` | string | | |
| `broker` | string | the broker's id, as text | the broker's name |
| `partition` | int | partition id | queue id |
| `offset` | bigint | see below | queue offset |
| `id` | string | the broker's message id | offset message id |
| `key` | string | null | `KEYS` |
| `tag` | string | `$msgType$` | `TAGS` |
| `timestamp` | timestamp | `$msgTime$`: minutes, as UTC; null if absent | born time |
| `value` | binary | the body | the body |
| `properties` | map | the other attributes | the other properties |

`properties` is there with `includeHeaders=true`. On our broker `offset` counts the messages of a
partition. On Java's TubeMQ broker an offset is a place in an index that its partitions share, and a
row has the offset at which the read began that brought it.
"""

from __future__ import annotations

from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

_COLUMNS: Final = {
    "topic": ("string", pa.string()),
    "broker": ("string", pa.string()),
    "partition": ("int", pa.int32()),
    "offset": ("bigint", pa.int64()),
    "id": ("string", pa.string()),
    "key": ("string", pa.string()),
    "tag": ("string", pa.string()),
    "timestamp": ("timestamp", pa.timestamp("us", "UTC")),
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
        batch: columns topic, broker, partition, offset, id, tag, time, value, properties.
        schema: from `arrow_schema`.
    """
    made = {
        "id": lambda: batch.column("id").cast(pa.string()),
        "key": lambda: pa.nulls(batch.num_rows, pa.string()),
        "timestamp": lambda: timestamps(batch.column("time")),
    }
    columns = [made[name]() if name in made else batch.column(name) for name in schema.names]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def timestamps(texts: pa.Array) -> pa.Array:
    """TubeMQ's message times (`yyyyMMddHHmm`) as instants, read as UTC; null where malformed.

    >>> import pyarrow as pa
    >>> list(map(str, timestamps(pa.array(["201301011000", None, "soon"])).to_pylist()))
    ['2013-01-01 10:00:00+00:00', 'None', 'None']
    """
    parsed = pc.strptime(texts, format="%Y%m%d%H%M", unit="us", error_is_null=True)
    return parsed.cast(_COLUMNS["timestamp"][1])
