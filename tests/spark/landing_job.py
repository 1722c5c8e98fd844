"""A stream that lands a topic in a table until it is killed; run by `test_kill`.

Prints `started`, and the number of rows landed whenever it changes.
"""

from __future__ import annotations

import sys
from pathlib import Path

from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from coherer.spark import configure
from coherer.spark.offsets import from_json, total
from tests.spark.landing import run


def follow(query: StreamingQuery) -> bool:
    print("started", flush=True)
    before = -1
    while not query.awaitTermination(0.01):
        progress = query.lastProgress
        if progress is not None:
            landed = total(from_json(str(progress["sources"][0]["endOffset"]), "endOffset"))
            if landed != before:
                print(landed, flush=True)
                before = landed
    return True


if __name__ == "__main__":
    format_, url, topic, home = *sys.argv[1:4], Path(sys.argv[4])
    builder = configure(
        SparkSession.builder.master("local[2]"),
        java_options="-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    )
    builder = builder.config("spark.ui.enabled", "false").config("spark.driver.memory", "512m")
    spark = builder.config("spark.local.dir", str(home / "local")).getOrCreate()
    to_table = (
        spark.readStream.format(format_)
        .option("url", url)
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", "250")
        .load(topic)
        .selectExpr("cast(value as string) number", "broker", "partition", "offset")
        .writeStream.format("parquet")
        .option("path", str(home / "table"))
        .option("checkpointLocation", str(home / "checkpoint"))
    )
    run(to_table.start, follow)
