"""A stream that lands a topic of Java's TubeMQ broker in a table; run and killed by `struck_tube`.

Runs the query again whenever it fails, as a supervisor would, with a new driver if the JVM has
died; ends with `until=end` at the end of the topic. Prints `batch`, its id and its rows for each
micro-batch, and `failed` with the reason.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from coherer.spark import configure

ROWS_A_TRIGGER = 8_000
COLUMNS = (
    "cast(cast(substring(value, 1, 9) as string) as int) number",
    "length(value) size",
    "crc32(value) sum",
    "tag",
    "broker",
    "partition",
    "offset",
)


def follow(query: StreamingQuery) -> None:
    """Reports the query's progress, to its end."""
    before = -1
    going = True
    while going:
        going = not query.awaitTermination(0.2)
        for progress in query.recentProgress:
            if progress["batchId"] > before and progress["numInputRows"]:
                before = int(progress["batchId"])
                print(f"batch {before} {progress['numInputRows']}", flush=True)


def run(url: str, topic: str, home: Path, options: dict[str, str], *, to_end: bool) -> None:
    # Four attempts for each task: a killed worker is not the end of the query.
    builder = configure(
        SparkSession.builder.master("local[2,4]"),
        java_options="-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    )
    builder = builder.config("spark.ui.enabled", "false").config("spark.driver.memory", "1g")
    spark = builder.config("spark.local.dir", str(home / "local")).getOrCreate()
    rows = (
        spark.readStream.format("tubemq")
        .option("url", url)
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", str(ROWS_A_TRIGGER))
        .options(**options)
        .load(topic)
        .selectExpr(*COLUMNS)
    )
    writer = (
        rows.writeStream.format("parquet")
        .option("path", str(home / "table"))
        .option("checkpointLocation", str(home / "checkpoint"))
    )
    if to_end:
        writer = writer.trigger(availableNow=True)
    while True:
        try:
            follow(writer.start())
        except StreamingQueryException as error:
            lines = [line for line in str(error).splitlines() if "Error" in line]
            print(f"failed {(lines or [str(error)])[-1][:300]}", flush=True)
            time.sleep(0.5)
        else:
            return


if __name__ == "__main__":
    url_, topic_, home_, until, *given = sys.argv[1:]
    pairs = dict(one.split("=", 1) for one in given)
    try:
        run(url_, topic_, Path(home_), pairs, to_end=until == "until=end")
    except (Py4JError, PySparkException, OSError) as error:
        # The JVM has died, or a process that finds the source: begin again with a new JVM.
        print(f"failed {type(error).__name__}: {str(error).splitlines()[0][:200]}", flush=True)
        time.sleep(0.5)
        os.execv(sys.executable, [sys.executable, "-m", "tests.spark.struck_job", *sys.argv[1:]])
