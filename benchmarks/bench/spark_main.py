"""Reads a topic with Spark several times, and discards the rows."""

from __future__ import annotations

import json
import sys
import time

from pyspark.sql import SparkSession

from coherer import spark

if __name__ == "__main__":
    url, topic, repetitions = sys.argv[1], sys.argv[2], int(sys.argv[3])
    builder = SparkSession.builder.master("local[2]").appName("bench")
    session = spark.configure(builder).getOrCreate()
    try:
        rows = session.read.format("tubemq").option("url", url).option("topic", topic).load()
        seconds = []
        count = rows.count()
        for _ in range(repetitions):
            begin = time.perf_counter()
            rows.write.format("noop").mode("overwrite").save()
            seconds.append(time.perf_counter() - begin)
        print(json.dumps({"rows": count, "seconds": seconds}))
    finally:
        session.stop()
