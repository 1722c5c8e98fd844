"""Streams that land a topic in a table, and are killed: for `test_kill` and the tests with Java."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING

from coherer import Message
from coherer.errors import CohererError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter

    from coherer.blocking.rocketmq import Client as RocketClient
    from coherer.blocking.tubemq import Client

WAIT_S = 120
ATTEMPTS = 5
LATE = "Python worker failed to connect back"
ROOT = Path(__file__).parents[2]
JOB = ["-m", "tests.spark.landing_job"]


def send(client: Client | RocketClient, topic: str, numbers: range) -> None:
    """Sends numbers as messages."""
    with client.producer(topic) as producer:
        producer.send_many(Message(topic, b"%d" % number) for number in numbers).check()


@contextmanager
def feed(client: Client | RocketClient, topic: str) -> Iterator[None]:
    """Sends about a thousand messages a second, in a thread, to the end of the block."""
    done, begun = threading.Event(), threading.Event()
    failures: list[CohererError] = []

    def run() -> None:
        numbers = count()
        try:
            with client.producer(topic) as producer:
                while not done.wait(0.02):
                    some = [Message(topic, b"%d" % next(numbers)) for _ in range(20)]
                    producer.send_many(some).check()
                    begun.set()
        except CohererError as error:
            failures.append(error)
            begun.set()

    thread = threading.Thread(target=run, name="feed")
    thread.start()
    try:
        assert begun.wait(WAIT_S)
        yield
    finally:
        done.set()
        thread.join()
    for failure in failures:
        raise failure


def finish(spark: SparkSession, format_: str, url: str, topic: str, home: Path) -> Counter[int]:
    """Lands the rest, and counts what is in the table."""
    rows = spark.readStream.format(format_).option("url", url).load(topic)
    found = rows.selectExpr("cast(value as string) number", "broker", "partition", "offset")
    run_to_the_end(found.writeStream, home)
    return landed(spark, home)


def run_to_the_end(writer: DataStreamWriter, home: Path) -> None:
    to_table = (
        writer.format("parquet")
        .option("path", str(home / "table"))
        .option("checkpointLocation", str(home / "checkpoint"))
        .trigger(availableNow=True)
    )
    run(to_table.start, lambda query: query.awaitTermination(WAIT_S))


def run(start: Callable[[], StreamingQuery], wait: Callable[[StreamingQuery], bool | None]) -> None:
    """Runs a stream to its end; continues from its checkpoint if the machine was too busy.

    A Spark worker must start within ten seconds, a limit without a setting, or its stream ends.
    """
    from pyspark.errors import StreamingQueryException

    for _ in range(ATTEMPTS):
        try:
            assert wait(start())
        except StreamingQueryException as error:
            if LATE not in str(error):
                raise
        else:
            return
    raise AssertionError(f"{LATE}, {ATTEMPTS} times")


def landed(spark: SparkSession, home: Path) -> Counter[int]:
    rows = spark.read.parquet(str(home / "table")).select("number").toArrow()
    return Counter(int(number) for number in rows["number"].to_pylist())


def land_and_kill(format_: str, url: str, topic: str, home: Path, rows: int) -> int:
    """Runs the job, kills its processes once `rows` have landed; returns the reported number."""
    with (home / "errors").open("ab") as errors:
        job = subprocess.Popen(
            [sys.executable, *JOB, format_, url, topic, str(home)],
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            start_new_session=True,
            cwd=ROOT,
        )
    watchdog = threading.Timer(WAIT_S, os.killpg, (job.pid, signal.SIGKILL))
    watchdog.start()
    reported = 0
    try:
        assert job.stdout is not None
        for line in job.stdout:
            reported = int(line) if line.strip().isdecimal() else reported
            if reported >= rows:
                break
    finally:
        watchdog.cancel()
        os.killpg(job.pid, signal.SIGKILL)
        job.communicate()
    assert reported >= rows, (home / "errors").read_text()
    return reported
