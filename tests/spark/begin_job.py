"""A stream with its default start that lands a topic in a table; run by `test_begin`.

Its tasks record the rows that they have seen, and continue when the file `go` exists.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812

from coherer.spark import configure
from tests.spark.landing import run

if __name__ == "__main__":
    format_, url, topic, home = *sys.argv[1:4], Path(sys.argv[4])

    def seen(position: str) -> str:
        with (home / "seen").open("a") as file:
            file.write(f"{position}\n")
        while not (home / "go").exists():
            time.sleep(0.01)
        return position

    builder = configure(
        SparkSession.builder.master("local[2]"),
        java_options="-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    )
    builder = builder.config("spark.ui.enabled", "false").config("spark.driver.memory", "512m")
    spark = builder.config("spark.local.dir", str(home / "local")).getOrCreate()
    to_table = (
        spark.readStream.format(format_)
        .option("url", url)
        .load(topic)
        .selectExpr("partition || ' ' || offset position")
        .select(F.udf(seen, "string", useArrow=False)("position").alias("position"))
        .writeStream.format("parquet")
        .option("path", str(home / "table"))
        .option("checkpointLocation", str(home / "checkpoint"))
    )
    run(to_table.start, lambda query: query.awaitTermination())
