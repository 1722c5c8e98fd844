"""A Spark that serves Spark Connect, until its standard input ends; for `test_jobs_elsewhere`.

The argument is a directory for everything that it writes. Prints the port.
"""

from __future__ import annotations

import sys
from pathlib import Path

from pyspark.sql import SparkSession

from coherer.spark import configure


def main(home: Path) -> None:
    (home / "events").mkdir(parents=True)
    # A server of an operator: `configure` finds Java, and what hides secrets is left out.
    builder = configure(
        SparkSession.builder.master("local[2]"),
        java_options="-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    )
    for name, value in {
        "spark.plugins": "org.apache.spark.sql.connect.SparkConnectPlugin",
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.connect.grpc.binding.port": "0",
        "spark.sql.redaction.string.regex": "",
        "spark.eventLog.enabled": "true",
        "spark.eventLog.compress": "false",
        "spark.eventLog.dir": (home / "events").as_uri(),
        "spark.ui.enabled": "false",
        "spark.driver.memory": "1g",
        "spark.sql.shuffle.partitions": "2",
        "spark.local.dir": str(home / "local"),
        "spark.sql.warehouse.dir": str(home / "warehouse"),
    }.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    java = vars(type(spark.sparkContext))["_jvm"]
    service = getattr(java.org.apache.spark.sql.connect.service, "SparkConnectService$")
    print(int(getattr(service, "MODULE$").localPort()), flush=True)
    sys.stdin.read()
    spark.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
