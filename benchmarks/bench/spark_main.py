"""A Spark session that runs the cases of `spark_cases`; JSON lines in and out.

It runs in an environment with the Spark for which there is a Kafka source, so it imports no other
part of the benchmarks than `usage`.
"""

from __future__ import annotations

import gc
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TextIO

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import col, count, from_json, rpad, window
from pyspark.sql.streaming.query import StreamingQuery

from bench.store_files import bytes_of, forget, read_plainly
from bench.usage import cpu_of, cpu_of_workers
from coherer.spark import configure

SETTINGS = {
    "spark.driver.memory": "4g",
    "spark.ui.enabled": "false",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.streaming.numRecentProgressUpdates": "10000",
}
MASTER = "local[2]"
WARM_BATCHES = 10
FLOOR_TIMEOUT_S = 60.0
STREAM_TIMEOUT_S = 120
JSON_SCHEMA = "page STRING, user STRING, at TIMESTAMP, ms BIGINT"


class Meter:
    """CPU time of the broker, Spark's JVM, and its Python processes.

    Args:
        jvm: process of Spark's JVM; the Python processes are its descendants.
        broker: processes of the broker.
    """

    def __init__(self, jvm: int, broker: list[int]) -> None:
        self._jvm = jvm
        self._broker = broker
        self.seconds = 0.0
        self.cpu: dict[str, float] = {}

    def _now(self) -> dict[str, float]:
        return {
            "broker": sum(map(cpu_of, self._broker)),
            "jvm": cpu_of(self._jvm),
            "workers": cpu_of_workers(self._jvm),
        }

    @contextmanager
    def measure(self) -> Iterator[None]:
        """Measures the block."""
        before, begin = self._now(), time.perf_counter()
        yield
        self.seconds = time.perf_counter() - begin
        # Workers of an earlier case may end now, so that a difference is below 0.
        self.cpu = {name: max(used - before[name], 0.0) for name, used in self._now().items()}


class Runner:
    """The actions; each takes a request and a meter, and reports rows and seconds."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self._spark = spark
        self._folder = folder

    def batch(self, request: dict[str, Any], meter: Meter) -> dict[str, Any]:
        """Reads a topic and discards the rows; counts them first if asked to."""
        rows = self._load(self._spark.read, request)
        found = rows.count() if request["check"] else request["rows"]
        with meter.measure():
            rows.write.format("noop").mode("overwrite").save()
        return {"rows": found, "seconds": meter.seconds}

    def files(self, request: dict[str, Any], meter: Meter) -> dict[str, Any]:
        """Reads the rows of a topic from the store's files, which are not in the page cache."""
        store = self._copy_of(request["store"])
        reader = self._spark.read.format("rocketmq").option("topic", request["topic"])
        rows = reader.load(str(store))
        found = rows.count() if request["check"] else request["rows"]
        forget(store)
        with meter.measure():
            rows.write.format("noop").mode("overwrite").save()
        return {"rows": found, "seconds": meter.seconds}

    def plain(self, request: dict[str, Any], meter: Meter) -> dict[str, Any]:
        """Reads as many bytes of the log as the topic has, in order, and does nothing with them."""
        store = self._copy_of(request["store"])
        count = bytes_of(store, request["topic"])
        forget(store)
        with meter.measure():
            read_plainly(store, count)
        return {"rows": request["rows"], "seconds": meter.seconds}

    def _copy_of(self, store: str) -> Path:
        """A copy of the store: what the broker has mapped does not leave the page cache."""
        copy = self._folder / "store"
        if not copy.exists():
            subprocess.run(["cp", "-r", "--sparse=always", store, copy], check=True)
        return copy

    def now(self, request: dict[str, Any], meter: Meter) -> dict[str, Any]:
        """Reads a topic by a stream with the trigger AvailableNow."""
        return self._available(self._load(self._spark.readStream, request), "noop", meter)

    def json(self, request: dict[str, Any], meter: Meter) -> dict[str, Any]:
        """Counts events per page and minute into Parquet files, by such a stream."""
        rows = self._load(self._spark.readStream, request)
        event = from_json(col("value").cast("string"), JSON_SCHEMA)
        counts = (
            rows.select(event.alias("event"))
            .select("event.*")
            .withWatermark("at", "1 minute")
            .groupBy(window("at", "1 minute"), "page")
            .agg(count("*").alias("count"))
        )
        return self._available(counts, "parquet", meter)

    def exactly(self, request: dict[str, Any], meter: Meter) -> dict[str, Any]:
        """The same as `sink`, in one transaction."""
        with tempfile.TemporaryDirectory(dir=self._folder) as state:
            options = {"transactional": "true", "checkpointLocation": state}
            return self.sink({**request, "access": {**request["access"], **options}}, meter)

    def sink(self, request: dict[str, Any], meter: Meter) -> dict[str, Any]:
        """Writes generated rows to a topic."""
        number = self._spark.range(0, request["rows"], 1, request["tasks"])
        text = rpad(col("id").cast("string"), request["size"], "x")
        writer = number.select(text.cast("binary").alias("value")).write
        writer = writer.format(request["format"]).options(**request["access"])
        with meter.measure():
            writer.option("topic", request["topic"]).mode("append").save()
        return {"rows": request["rows"], "seconds": meter.seconds}

    def floor(self, request: dict[str, Any], meter: Meter) -> dict[str, Any]:
        """The median time of a micro-batch of a stream that is fed at a steady rate."""
        return self._paced(request, meter, "noop", {})

    def visible(self, request: dict[str, Any], meter: Meter) -> dict[str, Any]:
        """The same into a topic, in transactions: at its end, a micro-batch is visible."""
        options = {**request["access"], "topic": request["into"], "transactional": "true"}
        return self._paced(request, meter, request["format"], options)

    def _paced(
        self, request: dict[str, Any], meter: Meter, sink: str, options: dict[str, str]
    ) -> dict[str, Any]:
        rows = self._load(self._spark.readStream, request)
        rows = rows.select("value") if options else rows
        with self._query(rows, sink, options) as query:
            wait_for(lambda: len(batches(query)) >= WARM_BATCHES, query)
            done = len(batches(query))
            with meter.measure():
                end = time.monotonic() + request["seconds"]
                wait_for(lambda: time.monotonic() >= end, query)
            progress = batches(query)[done:]
        return {
            "rows": sum(one["numInputRows"] for one in progress),
            "seconds": meter.seconds,
            "batches": len(progress),
            "batch_ms": statistics.median(
                one["durationMs"]["triggerExecution"] for one in progress
            ),
        }

    def _available(self, rows: DataFrame, sink: str, meter: Meter) -> dict[str, Any]:
        """Runs a stream to the end of the topic; the time is that of its micro-batches."""
        with meter.measure(), self._query(rows, sink, {}, availableNow=True) as query:
            if not query.awaitTermination(STREAM_TIMEOUT_S):
                raise TimeoutError(f"the stream took more than {STREAM_TIMEOUT_S} s")
            progress = query.recentProgress
        return {
            "rows": sum(one["numInputRows"] for one in progress),
            "seconds": sum(map(execution_ms, progress)) / 1000,
        }

    @contextmanager
    def _query(
        self, rows: DataFrame, sink: str, options: dict[str, str], **trigger: Any
    ) -> Iterator[StreamingQuery]:
        folder = Path(tempfile.mkdtemp(dir=self._folder))
        writer = rows.writeStream.format(sink).option("checkpointLocation", str(folder / "state"))
        writer = writer.options(**options)
        if sink == "parquet":
            writer = writer.option("path", str(folder / "table"))
        query = (writer.trigger(**trigger) if trigger else writer).start()
        try:
            yield query
        finally:
            query.stop()
            shutil.rmtree(folder, ignore_errors=True)

    def _load(self, reader: Any, request: dict[str, Any]) -> DataFrame:
        topic = "subscribe" if request["format"] == "kafka" else "topic"
        options = {**request["access"], **request["options"], topic: request["topic"]}
        start = "latest" if request["do"] in ("floor", "visible") else "earliest"
        return reader.format(request["format"]).options(startingOffsets=start, **options).load()


def batches(query: StreamingQuery) -> list[dict[str, Any]]:
    """The progress of the micro-batches with rows."""
    return [one for one in query.recentProgress if one["numInputRows"]]


def execution_ms(progress: dict[str, Any]) -> int:
    """The time of a micro-batch."""
    return progress["durationMs"]["triggerExecution"]


def wait_for(ready: Callable[[], bool], query: StreamingQuery) -> None:
    """Waits for a condition while a query runs."""
    end = time.monotonic() + FLOOR_TIMEOUT_S
    while not ready():
        error = query.exception()
        if error is not None or time.monotonic() > end:
            raise TimeoutError(f"the stream does not run: {error}")
        time.sleep(0.1)


def session(jars: str) -> SparkSession:
    """The session of all cases: that of `configure`."""
    builder = SparkSession.builder.master(MASTER).appName("bench")
    for name, value in {**SETTINGS, **({"spark.jars": jars} if jars else {})}.items():
        builder = builder.config(name, value)
    return configure(builder).getOrCreate()


def serve(out: TextIO, jars: str, folder: Path) -> None:
    """Answers requests until stdin ends."""
    spark = session(jars)
    assert spark._jvm is not None
    jvm = int(spark._jvm.java.lang.ProcessHandle.current().pid())
    runner = Runner(spark, folder)
    for line in sys.stdin:
        request = json.loads(line)
        gc.collect()
        usual = {name: spark.conf.get(name, None) for name in request["session"]}
        try:
            for name, value in request["session"].items():
                spark.conf.set(name, value)
            meter = Meter(jvm, request["pids"])
            found = getattr(runner, request["do"])(request, meter)
            answer: dict[str, Any] = {"ok": {**found, "cpu": meter.cpu}}
        except Exception as error:  # noqa: BLE001 - the run reports it
            answer = {"error": f"{type(error).__name__}: {error}"[:3000]}
        for name, usual_value in usual.items():
            spark.conf.set(name, usual_value) if usual_value else spark.conf.unset(name)
        out.write(json.dumps({"call": request["call"], **answer}) + "\n")
        out.flush()


if __name__ == "__main__":
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what Spark prints goes to the log
    serve(answers, sys.argv[1], Path(sys.argv[2]))
