"""Counts the messages of a topic, and compares them with its offsets, its groups and a table.

One Spark query reads the topic once. The end of each partition is fixed before, so messages that
arrive meanwhile do not count.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

import msgspec
from msgspec.structs import replace

from coherer._common.moments import moment
from coherer._record.offset_ranges import joined, without
from coherer.cli.jobs import Part
from coherer.errors import UsageError

# Spark is an extra; help and errors of options work without it.
if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, Row, SparkSession

    from coherer.spark.planning import Range

PLACE: Final = ("broker", "partition", "offset")

TIMES: Final = ("timestamp", "bornTimestamp", "storeTimestamp")

COLUMNS: Final = (*PLACE, "id", *TIMES, "value", "properties")
"""The columns that an audit reads."""

GAPS_MAX: Final = 100
"""The largest number of gaps in a report."""

GAPS_EXPLAINED_MAX: Final = 10_000
"""Of more gaps, it is not asked whether a power cut left them."""

Committed = Mapping[str, Mapping[tuple[str, int], int]]
"""The offsets of groups, by group, and by broker and partition."""


class PartitionCount(msgspec.Struct, frozen=True, kw_only=True):
    """The counts of the offsets `[begin, end)` of a partition.

    Args:
        bytes: the size of the bodies.
        missing: offsets without a message; None if offsets do not count messages (Java's TubeMQ).
        left_out: offsets that a power cut left empty; they are not missing.
        consumed: by group, the messages below its offset.
        landed: the messages that are in the table; None without one.
        doubled: the rows of the table beyond the first of each message.
    """

    broker: str
    partition: int
    begin: int
    end: int
    stored: int = 0
    bytes: int = 0
    missing: int | None = None
    left_out: int = 0
    consumed: dict[str, int] = {}
    landed: int | None = None
    doubled: int | None = None


class MinuteCount(msgspec.Struct, frozen=True, kw_only=True):
    """A minute. `sent` goes by the time of sending, the others by the time of storing.

    Latency is the time from sending to storing; None with TubeMQ, which has one time. The minute is
    None for messages without a time.
    """

    minute: datetime | None
    sent: int = 0
    stored: int = 0
    bytes: int = 0
    consumed: dict[str, int] = {}
    landed: int | None = None
    p50_ms: int | None = None
    p99_ms: int | None = None


class Gap(msgspec.Struct, frozen=True):
    """Offsets `[begin, end)` without a message."""

    broker: str
    partition: int
    begin: int
    end: int


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """The result of an audit.

    Args:
        repeated: messages with the origin and body of another one: a Spark task sent its rows
            twice.
        gaps: the first `GAPS_MAX` of them.
    """

    topic: str
    repeated: int
    p50_ms: int | None
    p99_ms: int | None
    partitions: list[PartitionCount]
    minutes: list[MinuteCount]
    gaps: list[Gap]

    def total(self, field: str) -> int | None:
        """The sum of a field over all partitions; None if it is unknown.

        >>> part = PartitionCount(broker="a", partition=0, begin=0, end=9, stored=9, landed=7)
        >>> report = Report(topic="t", repeated=0, p50_ms=None, p99_ms=None, partitions=[part],
        ...     minutes=[], gaps=[])
        >>> report.total("stored"), report.total("missing"), report.not_landed
        (9, None, 2)
        """
        found = [getattr(part, field) for part in self.partitions]
        return None if None in found else sum(found)

    @property
    def not_landed(self) -> int:
        """The number of messages that the table lacks."""
        return sum(p.stored - p.landed for p in self.partitions if p.landed is not None)

    @property
    def is_whole(self) -> bool:
        """Whether nothing is missing, repeated, or doubled."""
        return not (
            self.total("missing") or self.repeated or self.not_landed or self.total("doubled")
        )


def landed_table(spark: SparkSession, path: str, topic: str) -> DataFrame:
    """The places of the messages in a Parquet table, each with its number of rows (`copies`).

    Raises:
        UsageError: the table lacks a column.
    """
    from pyspark.sql import functions as sf

    table = spark.read.parquet(path)
    if lacking := [name for name in PLACE if name not in table.columns]:
        raise UsageError(
            f"The table {path} has no column {', '.join(lacking)}.",
            hint="An audit finds messages by broker, partition and offset: land these columns.",
        )
    if "topic" in table.columns:
        table = table.where(table["topic"] == topic)
    # Java's TubeMQ broker gives several messages one offset, but each its own id.
    places = [*PLACE, *(["id"] if "id" in table.columns else [])]
    return table.groupBy(*places).agg(sf.count(sf.lit(1)).alias("copies"))


def measure(
    rows: DataFrame,
    topic: str,
    parts: Sequence[Part],
    committed: Committed,
    landed: DataFrame | None,
    *,
    counted: bool,
    left_out: Callable[[Sequence[Range]], Sequence[Range]],
) -> Report:
    """Count the messages of a topic.

    Args:
        rows: the messages, with `COLUMNS`.
        topic: the topic.
        parts: the offsets to count.
        committed: the offsets of groups.
        landed: from `landed_table`.
        counted: whether offsets count messages; on Java's TubeMQ broker they do not.
        left_out: returns the parts of ranges that power cuts left empty.
    """
    from pyspark.sql import functions as sf

    rows = _prepared(rows, parts, committed)
    if landed is not None:
        rows = rows.join(landed, [name for name in landed.columns if name != "copies"], "left")
    rows = rows.persist()
    try:
        counts = _counts(committed, with_table=landed is not None)
        partitions = _partitions(
            rows.groupBy("broker", "partition").agg(*counts).collect(),
            parts,
            committed,
            counted=counted,
            with_table=landed is not None,
        )
        latency = sf.percentile_approx("latency_ms", [0.5, 0.99]).alias("latency")
        minutes = rows.groupBy("minute").agg(*counts, latency).collect()
        sent = rows.groupBy("sent_minute").agg(sf.count(sf.lit(1)).alias("sent")).collect()
        repeats = sf.count("origin") - sf.count_distinct("origin")
        (whole,) = rows.agg(repeats.alias("repeated"), latency).collect()
        low, high = whole["latency"] or (None, None)
        gaps = _gaps(rows, partitions) if any(one.missing for one in partitions) else []
        partitions, gaps = explained(topic, partitions, gaps, left_out)
        return Report(
            topic=topic,
            repeated=whole["repeated"],
            p50_ms=low,
            p99_ms=high,
            partitions=partitions,
            minutes=_minutes(minutes, sent, committed),
            gaps=gaps[:GAPS_MAX],
        )
    finally:
        rows.unpersist()


def _prepared(rows: DataFrame, parts: Sequence[Part], committed: Committed) -> DataFrame:
    """The rows to count; `below_0` says whether a row is below the offset of the first group."""
    from pyspark.sql import functions as sf

    below = [f"below_{number}" for number in range(len(committed))]
    limits = rows.sparkSession.createDataFrame(
        [
            (
                *(p.broker, p.partition, p.begin, p.end),
                *(at.get((p.broker, p.partition), 0) for at in committed.values()),
            )
            for p in parts
        ],
        ", ".join(
            ["broker string", "partition int", "`begin` bigint", "`end` bigint"]
            + [f"{name} bigint" for name in below]
        ),
    )
    stored = sf.coalesce("storeTimestamp", "timestamp")
    sent = sf.coalesce("bornTimestamp", "timestamp")
    origin = [sf.col("properties")[f"spark.{name}"] for name in ("query", "batch", "part", "seq")]
    inside = (sf.col("offset") >= sf.col("begin")) & (sf.col("offset") < sf.col("end"))
    return (
        rows.join(sf.broadcast(limits), ["broker", "partition"])
        .where(inside)
        .select(
            *PLACE,
            "id",
            _minute(stored).alias("minute"),
            _minute(sent).alias("sent_minute"),
            sf.length("value").cast("bigint").alias("size"),
            (sf.unix_millis("storeTimestamp") - sf.unix_millis("bornTimestamp")).alias(
                "latency_ms"
            ),
            # With the content, as `coherer.spark.deduplicate`.
            sf.when(
                origin[0].isNotNull(),
                sf.to_json(sf.array(*origin, sf.xxhash64("value").cast("string"))),
            ).alias("origin"),
            *((sf.col("offset") < sf.col(name)).cast("int").alias(name) for name in below),
        )
    )


def _minute(time: Column) -> Column:
    """Minutes since 1970; the time zone of the session does not matter."""
    from pyspark.sql import functions as sf

    return sf.floor(sf.unix_millis(time) / 60_000)


def _counts(committed: Committed, *, with_table: bool) -> list[Column]:
    """The counts of a partition or of a minute."""
    from pyspark.sql import functions as sf

    found = [sf.count(sf.lit(1)).alias("stored"), sf.sum("size").alias("bytes")]
    found += [sf.sum(name).alias(name) for name in (f"below_{n}" for n in range(len(committed)))]
    if with_table:
        found.append(sf.count("copies").alias("landed"))
        found.append(sf.coalesce(sf.sum(sf.col("copies") - 1), sf.lit(0)).alias("doubled"))
    return found


def _consumed(row: Row, committed: Committed) -> dict[str, int]:
    return {group: row[f"below_{number}"] for number, group in enumerate(committed)}


def _partitions(
    rows: Sequence[Row],
    parts: Sequence[Part],
    committed: Committed,
    *,
    counted: bool,
    with_table: bool,
) -> list[PartitionCount]:
    by_place = {(row["broker"], row["partition"]): row for row in rows}
    nothing = 0 if with_table else None
    found: list[PartitionCount] = []
    for part in parts:
        row = by_place.get((part.broker, part.partition))
        one = PartitionCount(
            broker=part.broker,
            partition=part.partition,
            begin=part.begin,
            end=part.end,
            consumed=dict.fromkeys(committed, 0),
            landed=nothing,
            doubled=nothing,
        )
        if row is not None:
            counts = _of(row, "stored", "bytes", "landed", "doubled")
            one = replace(one, consumed=_consumed(row, committed), **counts)
        found.append(replace(one, missing=part.rows - one.stored if counted else None))
    return found


def _of(row: Row, *names: str) -> dict[str, Any]:
    """The named fields, if the row has them."""
    return {name: row[name] for name in names if name in row.__fields__}


def _minutes(rows: Sequence[Row], sent: Sequence[Row], committed: Committed) -> list[MinuteCount]:
    by_minute: dict[int | None, dict[str, Any]] = {
        row["sent_minute"]: {"sent": row["sent"]} for row in sent
    }
    for row in rows:
        low, high = row["latency"] or (None, None)
        by_minute.setdefault(row["minute"], {}).update(
            _of(row, "stored", "bytes", "landed"),
            consumed=_consumed(row, committed),
            p50_ms=low,
            p99_ms=high,
        )
    return [
        MinuteCount(minute=None if number is None else moment(number * 60_000), **counts)
        for number, counts in sorted(by_minute.items(), key=lambda item: item[0] or 0)
    ]


def _gaps(rows: DataFrame, partitions: Sequence[PartitionCount]) -> list[Gap]:
    """The first offsets without a message."""
    from pyspark.sql import Window
    from pyspark.sql import functions as sf

    window = Window.partitionBy("broker", "partition").orderBy("offset")
    edges = rows.select(
        "broker",
        "partition",
        (sf.lag("offset").over(window) + 1).alias("begin"),
        sf.col("offset").alias("end"),
    )
    inner = (
        edges.where("`begin` < `end`")
        .orderBy("broker", "partition", "begin")
        .limit(GAPS_EXPLAINED_MAX)
    )
    found = [Gap(row[0], row[1], row[2], row[3]) for row in inner.collect()]
    outer = rows.groupBy("broker", "partition").agg(sf.min("offset"), sf.max("offset")).collect()
    ends = {(row[0], row[1]): (row[2], row[3] + 1) for row in outer}
    for one in partitions:
        first, last = ends.get((one.broker, one.partition), (one.end, one.end))
        found += [
            Gap(one.broker, one.partition, low, high)
            for low, high in ((one.begin, first), (last, one.end))
            if low < high
        ]
    return sorted(found, key=msgspec.structs.astuple)[:GAPS_EXPLAINED_MAX]


def explained(
    topic: str,
    partitions: Sequence[PartitionCount],
    gaps: Sequence[Gap],
    left_out: Callable[[Sequence[Range]], Sequence[Range]],
) -> tuple[list[PartitionCount], list[Gap]]:
    """Count offsets that power cuts left empty as left out, and not as missing.

    Args:
        gaps: offsets without a message.
        left_out: returns the parts of ranges that power cuts left empty.
    """
    from coherer.spark.planning import Range

    empty: dict[tuple[str, int], list[range]] = {}
    wanted = [Range(topic, gap.broker, gap.partition, gap.begin, gap.end) for gap in gaps]
    for one in left_out(wanted) if wanted else ():
        empty.setdefault((one.broker, one.partition), []).append(range(one.start, one.end))
    counts: list[PartitionCount] = []
    for part in partitions:
        count = sum(map(len, joined(empty.get((part.broker, part.partition), ()))))
        missing = None if part.missing is None else part.missing - count
        counts.append(replace(part, missing=missing, left_out=count))
    return counts, [
        replace(gap, begin=left.start, end=left.stop)
        for gap in gaps
        for left in without([range(gap.begin, gap.end)], empty.get((gap.broker, gap.partition), ()))
    ]
