"""Removes the copies that sinks with at-least-once delivery leave in a topic."""

from __future__ import annotations

from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sf
from pyspark.sql.types import BinaryType, StringType

from coherer.errors import UsageError

ORIGIN: Final = ("spark.query", "spark.batch", "spark.part", "spark.seq")
"""The properties that identify a row of a sink."""

PLACE: Final = ("topic", "broker", "partition", "offset", "id")
"""The columns that identify a message without an origin."""

CONTENT: Final = ("value", "key", "tag")
"""The columns that tell rows with the same origin apart: a function of `foreachBatch` that writes
to a topic twice numbers the rows of both writes alike."""

_KEY: Final = "__coherer_origin"
_READ_AT: Final = "__coherer_read_at"


def deduplicate(rows: DataFrame, *, within: str = "1 hour", on: str | None = None) -> DataFrame:
    """Remove rows whose origin and content occurred before.

    Spark's sinks deliver at least once: a task that runs again sends its rows again. Each message
    carries its origin in four properties (`ORIGIN`), and messages of a topic with equal origins and
    contents (`CONTENT`, if the rows have these columns) are the same row. Messages without an
    origin, from other producers, stay as they are.

    In a stream the state is bounded: an origin is kept for `within` after it was first read, by the
    time of reading. So no row is ever late, however old its timestamp is.

    Args:
        rows: from one of the formats, with the option `includeHeaders`, and with the columns
            `PLACE`. A batch or a stream.
        within: for a stream, the time after the first copy in which others are detected, for
            example `10 minutes`. It must be longer than a failed task or query takes to run again.
        on: for a stream that has a watermark already, the column of that watermark, which then
            bounds the state instead of `within`: Spark allows one per query. Rows that are later
            than the watermark are dropped.

    Raises:
        UsageError: a column is missing.

    ```python
    rows = spark.readStream.format("rocketmq").options(url=url, topic="copies")
    once = deduplicate(rows.option("includeHeaders", True).load())
    ```
    """
    if "properties" not in rows.columns:
        raise UsageError(
            "deduplicate needs the column properties, which has the origin of each row.",
            hint='Read with .option("includeHeaders", True).',
        )
    missing = [name for name in PLACE if name not in rows.columns]
    if missing:
        raise UsageError(
            f"deduplicate needs the columns {', '.join(missing)}.",
            hint="Call it before you drop columns.",
        )
    keyed = rows.withColumn(_KEY, _key(_content_of(rows)))
    if not rows.isStreaming:
        return keyed.dropDuplicates([_KEY]).drop(_KEY)
    if on is not None:
        return keyed.dropDuplicatesWithinWatermark([_KEY]).drop(_KEY)
    timed = keyed.withColumn(_READ_AT, sf.current_timestamp()).withWatermark(_READ_AT, within)
    return timed.dropDuplicatesWithinWatermark([_KEY]).drop(_KEY, _READ_AT)


def _content_of(rows: DataFrame) -> list[str]:
    kinds = {field.name: field.dataType for field in rows.schema.fields}
    return [name for name in CONTENT if isinstance(kinds.get(name), BinaryType | StringType)]


def _key(content: list[str]) -> Column:
    """Topic, origin and content, or the message's place if it has no origin."""
    origin = [sf.col("properties")[name] for name in ORIGIN]
    complete = origin[0].isNotNull()
    for value in origin[1:]:
        complete = complete & value.isNotNull()
    place = [sf.col(name).cast("string") for name in PLACE]
    digest = [sf.xxhash64(*content).cast("string")] if content else []
    return sf.when(complete, _joined("origin", [place[0], *origin, *digest])).otherwise(
        _joined("place", place)
    )


def _joined(kind: str, parts: list[Column]) -> Column:
    return sf.concat_ws("\x02", sf.lit(kind), *parts)
