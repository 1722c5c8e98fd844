"""The Spark side of the demo: the stream that lands flights in a table, and the questions to it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeAlias, cast

import msgspec

from coherer.cli.demo_data import FLIGHT_COLUMNS, TOPIC, data_directory

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

ROWS_PER_BATCH: Final = 60_000
"""Small enough that the bar moves, large enough that the cost of a micro-batch does not show."""

LATE_MINUTES: Final = 15
"""A flight is late from here on, by the rule of the US Department of Transportation."""

FEW_SHARE: Final = 1000
"""An hour in which an airport has less than this part of all flights is left out of the ranking."""

MM_PER_INCH: Final = 25.4

RAIN: Final = ("dry", "up to 1 mm", "1 to 4 mm", "over 4 mm")
"""Rain in the hour of departure."""


Row: TypeAlias = tuple[str | int | float, ...]
"""A row that is ready to show and to draw."""


class Answer(msgspec.Struct, frozen=True):
    """An answer as a small table.

    Args:
        title: the question.
        columns: names.
        rows: the values.
    """

    title: str
    columns: tuple[str, ...]
    rows: list[Row]


class Counts(msgspec.Struct, frozen=True):
    """What the table holds: all rows, and rows that differ from each other."""

    landed: int
    distinct: int


def session(directory: Path, cores: int) -> SparkSession:
    """A quiet session on this machine, with everything that it writes below `directory`."""
    from pyspark.sql import SparkSession

    from coherer.spark import configure

    builder = SparkSession.builder.master(f"local[{cores}]").appName("coherer demo")
    settings = {
        "spark.ui.enabled": "false",
        "spark.driver.memory": "1g",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": str(2 * cores),
        "spark.local.dir": str(directory / "spark"),
        "spark.sql.warehouse.dir": str(directory / "spark" / "warehouse"),
    }
    builder = configure(builder)
    for name, value in settings.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


def land(spark: SparkSession, url: str, directory: Path) -> StreamingQuery:
    """Starts the stream from the topic to the table."""
    from pyspark.sql import functions as F  # noqa: N812 - the name that everybody knows

    flight = ", ".join(f"{name} {kind}" for name, kind in FLIGHT_COLUMNS.items())
    stream = (
        spark.readStream.format("tubemq")
        .option("url", url)
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", ROWS_PER_BATCH)
        .load(TOPIC)
    )
    parsed = F.from_json(F.col("value").cast("string"), flight)
    rows = stream.select(
        "broker", "partition", "offset", "tag", "timestamp", parsed.alias("flight")
    )
    return (
        rows.select("broker", "partition", "offset", "tag", "timestamp", "flight.*")
        .writeStream.format("parquet")
        .option("path", str(directory / "flights"))
        .option("checkpointLocation", str(directory / "checkpoint"))
        .start()
    )


def landed(query: StreamingQuery) -> int:
    """How many rows the stream has written so far."""
    from coherer.spark.offsets import total

    progress = query.lastProgress
    if progress is None:
        return 0
    text = str(progress["sources"][0]["endOffset"] or "{}")
    return total(msgspec.json.decode(text, type=dict[str, dict[str, int]]))


def counts(spark: SparkSession, directory: Path) -> Counts:
    """Counts the table."""
    table = spark.read.parquet(str(directory / "flights"))
    return Counts(table.count(), table.select(*FLIGHT_COLUMNS).distinct().count())


def answers(spark: SparkSession, directory: Path) -> tuple[Answer, Answer, Answer]:
    """Joins flights, airlines and weather, and asks three questions."""
    from pyspark.sql import functions as F  # noqa: N812

    flown = spark.read.parquet(str(directory / "flights")).where(F.col("dep_delay").isNotNull())
    airlines = _csv(spark, "airlines.csv")
    weather = _csv(spark, "weather.csv").select(
        "origin",
        F.to_timestamp("time_hour").alias("time_hour"),
        (F.col("precip").cast("double") * MM_PER_INCH).alias("rain_mm"),
    )
    joined = flown.join(F.broadcast(airlines), "carrier", "left")
    joined = joined.join(F.broadcast(weather), ["origin", "time_hour"], "left").cache()
    try:
        return _by_carrier(joined), _by_hour(joined), _by_rain(joined)
    finally:
        joined.unpersist()


def _csv(spark: SparkSession, name: str) -> DataFrame:
    path = str(data_directory() / name)
    return spark.read.option("header", "true").option("nullValue", "NA").csv(path)


def _summary() -> list[Column]:
    from pyspark.sql import functions as F  # noqa: N812

    late = F.avg((F.col("dep_delay") >= LATE_MINUTES).cast("double")) * 100
    return [
        F.count(F.lit(1)).alias("flights"),
        F.round(F.avg("dep_delay"), 1).alias("delay"),
        F.round(late, 1).alias("late"),
    ]


def _rows(found: DataFrame) -> list[Row]:
    return [cast("Row", tuple(row)) for row in found.collect()]


def _by_carrier(joined: DataFrame) -> Answer:
    found = joined.groupBy("carrier", "name").agg(*_summary()).orderBy("delay", ascending=False)
    return Answer(
        "Mean departure delay by carrier",
        ("carrier", "airline", "flights", "mean delay, min", "late, %"),
        _rows(found),
    )


def _by_hour(joined: DataFrame) -> Answer:
    found = joined.groupBy("origin", "hour").agg(*_summary()).orderBy("delay", ascending=False)
    rows = _rows(found)
    few = sum(int(row[2]) for row in rows) / FEW_SHARE
    return Answer(
        "The worst airports by hour of departure",
        ("airport", "hour", "flights", "mean delay, min", "late, %"),
        [row for row in rows if int(row[2]) >= few],
    )


def _by_rain(joined: DataFrame) -> Answer:
    from pyspark.sql import functions as F  # noqa: N812

    rain = F.col("rain_mm")
    group = F.when(rain <= 0, 0).when(rain <= 1, 1).when(rain <= 4, 2).otherwise(3)
    found = joined.where(rain.isNotNull()).groupBy(group.alias("rain")).agg(*_summary())
    return Answer(
        "How rain changes delays",
        ("rain in the hour", "flights", "mean delay, min", "late, %"),
        [(RAIN[int(group)], *others) for group, *others in _rows(found.orderBy("rain"))],
    )
