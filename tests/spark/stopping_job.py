"""Stops a stream in the middle of a batch, several times; run by `test_session`."""

from __future__ import annotations

import sys

from pyspark.sql import SparkSession

from coherer.spark import configure

if __name__ == "__main__":
    url, topic, home = sys.argv[1:]
    builder = configure(SparkSession.builder.master("local[2]"))
    spark = builder.config("spark.ui.enabled", "false").getOrCreate()
    rows = (
        spark.readStream.format("tubemq")
        .option("url", url)
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", "40000")
        .load(topic)
    )
    for number in range(5):
        to_nowhere = rows.writeStream.format("noop")
        query = to_nowhere.option("checkpointLocation", f"{home}/{number}").start()
        while query.isActive and not query.recentProgress:
            query.awaitTermination(0.05)
        query.awaitTermination(0.1 + 0.03 * number)
        query.stop()
        print("stopped", flush=True)
