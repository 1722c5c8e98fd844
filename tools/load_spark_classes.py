"""Make Spark load what the tests use: a topic that is written and read, a stream, tables."""

from __future__ import annotations

import tempfile
import warnings
from pathlib import Path

from pyspark.sql import SparkSession

from coherer.spark import configure
from coherer.testing import embedded_node


def load_classes(folder: Path) -> None:
    """Do what makes Spark load its classes."""
    with warnings.catch_warnings():
        spark = (
            configure(
                SparkSession.builder.master("local[2]"),
                java_options="-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
            )
            .config("spark.ui.enabled", "false")
            .config("spark.sql.warehouse.dir", str(folder / "warehouse"))
            .getOrCreate()
        )
    with embedded_node(folder / "node") as node:
        node.create_topic("flights", 2)
        topic = {"url": node.url, "startingOffsets": "earliest"}
        rows = spark.range(1_000).selectExpr("cast(id as string) as value")
        rows.write.format("tubemq").option("url", node.url).mode("append").save("flights")
        read = spark.read.format("tubemq").options(**topic).load("flights")
        read.groupBy("partition").count().orderBy("partition").collect()
        stream = spark.readStream.format("tubemq").options(**topic).load("flights").writeStream
        stream = stream.option("checkpointLocation", str(folder / "checkpoint"))
        table = str(folder / "table")
        stream.trigger(availableNow=True).format("parquet").start(table).awaitTermination()
        spark.read.parquet(table).selectExpr("cast(value as string)").write.json(f"{table}-json")
        spark.read.json(f"{table}-json").createOrReplaceTempView("landed")
        spark.sql("select count(distinct value), max(value) from landed").collect()
    spark.stop()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as given:
        load_classes(Path(given))
