"""Lands the demo's flights and reads with a password, by a Spark of its own; for `test_cluster`.

The arguments are the kind of Spark (`local-cluster` or `connect`) and a directory, which then holds
everything that Spark writes: events, logs of driver and executors, plans, tables, checkpoints.
Prints what was found as JSON.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pyspark
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from coherer.blocking import connect
from coherer.cli.demo import dataset
from coherer.spark import configure
from coherer.testing import EmbeddedNode, embedded_node
from tests.private import write_private
from tests.spark.landing import run

ROWS: Final = 1_000
SECRET: Final = "geheim-und-lang"
VARIABLE: Final = "QUEUE_PASSWORD"
ACCOUNTS: Final = f"""\
accounts:
- accessKey: operator
  secretKey: {SECRET}
  admin: true
"""
LOGS: Final = """\
rootLogger.level = info
rootLogger.appenderRef.file.ref = file
appender.file.type = File
appender.file.name = file
appender.file.fileName = {file}
appender.file.layout.type = PatternLayout
appender.file.layout.pattern = %p %c %m%n%ex
"""


def main(kind: str, home: Path) -> dict[str, object]:
    """Runs the streams on a Spark of this kind."""
    (home / "guarded" / "conf").mkdir(parents=True)
    write_private(home / "guarded" / "conf" / "plain_acl.yml", ACCOUNTS)
    with (
        embedded_node(home / "node") as node,
        embedded_node(home / "guarded", rocketmq_access=True) as guarded,
        connect(node.url) as client,
        client.producer(dataset.TOPIC) as producer,
        session(kind, home) as spark,
    ):
        for chunk in dataset.messages(dataset.flights(ROWS)):
            producer.send_many(chunk).check()
        return {**land(spark, node, home), **read_with_passwords(spark, guarded, home)}


@contextlib.contextmanager
def session(kind: str, home: Path) -> Iterator[SparkSession]:
    """A session whose logs and events are below a directory."""
    for name in ("events", "spark"):
        (home / name).mkdir()
    for item in Path(pyspark.__file__).parent.iterdir():
        (home / "spark" / item.name).symlink_to(item)
    os.environ["SPARK_HOME"] = str(home / "spark")  # a local cluster's logs are in work/ there
    settings = home / "log4j2.properties"
    settings.write_text(LOGS.format(file=home / "driver.log"))
    builder = SparkSession.builder
    if kind == "connect":
        os.environ["SPARK_TESTING"] = "1"  # any free port, not 15002
        builder = builder.remote("local[2]")
    else:
        builder = builder.master("local-cluster[2,1,1024]")
    options = f"-Dlog4j2.configurationFile=file:{settings} -XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
    builder = configure(builder, quiet=False, java_options=options)
    for name, value in {
        "spark.ui.enabled": "false",
        "spark.driver.memory": "1g",
        "spark.executor.memory": "1g",
        "spark.eventLog.enabled": "true",
        "spark.eventLog.compress": "false",
        "spark.eventLog.dir": (home / "events").as_uri(),
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.warehouse.dir": str(home / "warehouse"),
        "spark.local.dir": str(home / "local"),
    }.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    try:
        yield spark
    finally:
        spark.stop()


def land(spark: SparkSession, node: EmbeddedNode, home: Path) -> dict[str, object]:
    """The demo's stream."""

    def until_landed(query: StreamingQuery) -> bool:
        while dataset.landed(query) < ROWS:
            query.awaitTermination(0.1)  # raises the error of the stream
        query.stop()
        return True

    run(lambda: dataset.land(spark, "tubemq", node.url, home), until_landed)
    counts = dataset.counts(spark, home)
    return {"landed": counts.landed, "distinct": counts.distinct}


def read_with_passwords(spark: SparkSession, node: EmbeddedNode, home: Path) -> dict[str, object]:
    """Batches with each way to give a password, and a stream; the plans go to a file."""
    for topic in ("secret", "copies"):
        node.create_topic(topic, 2)
    file = home / "guarded" / "password"
    file.write_text(SECRET)
    ways = {"password": SECRET, "passwordFile": str(file), "passwordEnv": VARIABLE}
    rows: dict[str, object] = {}
    with (home / "plans.txt").open("w") as plans, contextlib.redirect_stdout(plans):
        for name, value in ways.items():
            access = {"url": node.rocketmq_url, "user": "operator", name: value}
            written = spark.range(3).selectExpr("cast(id as string) value").write
            written.format("rocketmq").options(**access).mode("append").save("secret")
            table = spark.read.format("rocketmq").options(**access).load("secret")
            table.explain("extended")
            rows[name] = table.count()
        options = f"url '{node.rocketmq_url}', topic 'secret', user 'operator', password '{SECRET}'"
        spark.sql(f"CREATE TEMP VIEW seen USING rocketmq OPTIONS ({options})")
        rows["sql"] = spark.table("seen").count()
        access = {"url": node.rocketmq_url, "user": "operator", "password": SECRET}
        stream = spark.readStream.format("rocketmq").options(**access)
        copy(stream.option("startingOffsets", "earliest").load("secret"), access, home / "copy")
    return rows


def copy(stream: DataFrame, access: dict[str, str], checkpoint: Path) -> None:
    """Copies a topic into another one."""
    stream.explain("extended")
    writer = stream.select("value").writeStream.format("rocketmq").options(**access)
    writer = writer.option("topic", "copies").option("checkpointLocation", str(checkpoint))

    def to_the_end(query: StreamingQuery) -> bool:
        query.awaitTermination()
        query.explain(extended=True)
        return True

    run(writer.trigger(availableNow=True).start, to_the_end)


if __name__ == "__main__":
    print(json.dumps(main(sys.argv[1], Path(sys.argv[2]))))
