"""The Spark side of the demo: the stream that lands flights in a table, and the questions to it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeAlias, cast

import msgspec

from coherer.cli.demo_flights import FLIGHT_COLUMNS, TOPIC, data_directory

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

ROWS_PER_BATCH: Final = 60_000
"""Small enough that the bar moves, large enough that the cost of a micro-batch does not show."""

JAVA_OPTIONS: Final = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""For a JVM that lives half a minute: most of its time would go into optimizing compilation."""

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
        "spark.sql.shuffle.partitions": str(cores),
        "spark.sql.adaptive.enabled": "false",  # it pays for large queries
        "spark.local.dir": str(directory / "spark"),
        "spark.sql.warehouse.dir": str(directory / "spark" / "warehouse"),
    }
    builder = configure(builder, java_options=JAVA_OPTIONS)
    for name, value in settings.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


def land(spark: SparkSession, door: str, url: str, directory: Path) -> StreamingQuery:
    """Starts the stream from the topic to the table.

    Args:
        spark: the session.
        door: the format to read by: `tubemq` or `rocketmq`.
        url: where that door of the node is.
        directory: where the table goes.
    """
    from pyspark.sql import functions as F  # noqa: N812 - the name that everybody knows

    flight = ", ".join(f"{name} {kind}" for name, kind in FLIGHT_COLUMNS.items())
    stream = (
        spark.readStream.format(door)
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
    """Counts the table; rows are told apart by a 64-bit hash of everything that was sent."""
    from pyspark.sql import functions as F  # noqa: N812

    table = spark.read.parquet(str(directory / "flights"))
    everything = F.xxhash64(*FLIGHT_COLUMNS)
    (row,) = table.agg(F.count(F.lit(1)), F.count_distinct(everything)).collect()
    return Counts(*cast("tuple[int, int]", tuple(row)))


def answers(spark: SparkSession, directory: Path) -> tuple[Answer, Answer, Answer]:
    """Joins flights, airlines and weather, and answers three questions in one pass."""
    from pyspark.sql import functions as F  # noqa: N812

    flown = spark.read.parquet(str(directory / "flights")).where(F.col("dep_delay").isNotNull())
    joined = flown.join(F.broadcast(_airlines(spark)), "carrier", "left")
    joined = joined.join(F.broadcast(_weather(spark)), ["origin", "time_hour"], "left")
    groups = {"carrier": ["carrier", "name"], "hour": ["origin", "hour"], "rain": ["rain"]}
    columns = [name for group in groups.values() for name in group]
    late = (F.col("dep_delay") >= LATE_MINUTES).cast("double")
    found = joined.groupingSets(list(groups.values()), *columns).agg(
        F.grouping_id().alias("group"),
        F.count(F.lit(1)).alias("flights"),
        F.round(F.avg("dep_delay"), 1).alias("delay"),
        F.round(F.avg(late) * 100, 1).alias("late"),
    )
    rows = found.orderBy("group", F.desc("delay"), *columns).collect()

    def of(group: str) -> list[Row]:
        # In the id of a group, the bits of the columns that are not part of it are set.
        bits = "".join("0" if name in groups[group] else "1" for name in columns)
        names = [*groups[group], "flights", "delay", "late"]
        return [
            cast("Row", tuple(row[name] for name in names))
            for row in rows
            if row["group"] == int(bits, 2)
        ]

    return _by_carrier(of("carrier")), _by_hour(of("hour")), _by_rain(of("rain"))


def _airlines(spark: SparkSession) -> DataFrame:
    return _csv(spark, "airlines.csv", "carrier string, name string")


def _weather(spark: SparkSession) -> DataFrame:
    """Airport and hour, and the class of rain: its place in `RAIN`, null where it was not told."""
    from pyspark.sql import functions as F  # noqa: N812

    columns = (
        "origin string, year int, month int, day int, hour int, temp double, dewp double, "
        "humid double, wind_dir double, wind_speed double, wind_gust double, precip double, "
        "pressure double, visib double, time_hour timestamp"
    )
    rain_mm = F.col("precip") * MM_PER_INCH
    rain = F.when(rain_mm <= 0, 0).when(rain_mm <= 1, 1).when(rain_mm <= 4, 2).when(rain_mm > 4, 3)
    return _csv(spark, "weather.csv", columns).select("origin", "time_hour", rain.alias("rain"))


def _csv(spark: SparkSession, name: str, columns: str) -> DataFrame:
    reader = spark.read.schema(columns).option("header", "true").option("nullValue", "NA")
    return reader.csv(str(data_directory() / name))


def _by_carrier(rows: list[Row]) -> Answer:
    return Answer(
        "Mean departure delay by carrier",
        ("carrier", "airline", "flights", "mean delay, min", "late, %"),
        rows,
    )


def _by_hour(rows: list[Row]) -> Answer:
    few = sum(int(row[2]) for row in rows) / FEW_SHARE
    return Answer(
        "The worst airports by hour of departure",
        ("airport", "hour", "flights", "mean delay, min", "late, %"),
        [row for row in rows if int(row[2]) >= few],
    )


def _by_rain(rows: list[Row]) -> Answer:
    told = {row[0]: row[1:] for row in rows}
    return Answer(
        "How rain changes delays",
        ("rain in the hour", "flights", "mean delay, min", "late, %"),
        [(name, *told[place]) for place, name in enumerate(RAIN) if place in told],
    )
