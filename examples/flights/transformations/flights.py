"""Flights from a topic: as they came, then decoded and checked; what fails goes to another topic.

topic flights -> bronze -> checked -> silver -> delays_by_carrier, delays_by_hour (gold.sql)
                              |          `----> topic flights_alerts
                              `---------------> topic flights_dead, with the reason
"""

import os

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

URL = os.environ.get("FLIGHTS_URL", "tubemq://127.0.0.1:8715")
FORMAT = URL.partition("://")[0]
ROWS_PER_BATCH = os.environ.get("FLIGHTS_ROWS_PER_BATCH", "60000")
AIRPORTS = ("EWR", "JFK", "LGA")
VERY_LATE_MINUTES = 360

FLIGHT = """
    year int, month int, day int, dep_time int, sched_dep_time int, dep_delay double, arr_time int,
    sched_arr_time int, arr_delay double, carrier string, flight int, tailnum string,
    origin string, dest string, air_time double, distance double, hour int, minute int,
    time_hour timestamp
"""

spark = SparkSession.active()


@dp.table(comment="Every message as it came, with its place in the topic.")
def bronze() -> DataFrame:
    return (
        spark.readStream.format(FORMAT)
        .option("url", URL)
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", ROWS_PER_BATCH)
        .load("flights")
    )


def checked() -> DataFrame:
    """Decodes the messages; `reason` says what is wrong with one, or is null."""
    options = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": "malformed"}
    schema = f"{FLIGHT}, malformed string"
    flight = F.from_json(F.col("value").cast("string"), schema, options)
    rows = spark.readStream.table("bronze").withColumn("flight", flight)
    known = F.coalesce(F.col("flight.origin").isin(*AIRPORTS), F.lit(False))
    reason = (
        F.when(F.col("flight.malformed").isNotNull(), "not the JSON of a flight")
        .when(F.col("flight.carrier").isNull(), "no carrier")
        .when(~known, F.format_string("origin %s", "flight.origin"))
        .when(F.col("flight.distance") <= 0, F.format_string("distance %s", "flight.distance"))
    )
    return rows.withColumn("reason", reason)


@dp.table(comment="Flights that passed all checks.")
def silver() -> DataFrame:
    good = checked().where("reason is null")
    columns = [f"flight.{column.split()[0]}" for column in FLIGHT.split(",")]
    return good.select("broker", "partition", "offset", *columns)


dp.create_sink("dead_letters", FORMAT, {"url": URL, "topic": "flights_dead"})


@dp.append_flow(target="dead_letters")
def failed() -> DataFrame:
    """The message unchanged, with the reason and its place in the topic as properties."""
    bad = checked().where("reason is not null")
    place = F.concat_ws(":", "broker", "partition", "offset")
    return bad.select(
        "value",
        "tag",
        F.create_map(F.lit("reason"), "reason", F.lit("of"), place).alias("properties"),
    )


dp.create_sink("alerts", FORMAT, {"url": URL, "topic": "flights_alerts"})


@dp.append_flow(target="alerts")
def very_late() -> DataFrame:
    late = spark.readStream.table("silver").where(F.col("dep_delay") >= VERY_LATE_MINUTES)
    alert = F.to_json(F.struct("time_hour", "carrier", "flight", "origin", "dest", "dep_delay"))
    return late.select(alert.cast("binary").alias("value"), F.col("carrier").alias("tag"))
