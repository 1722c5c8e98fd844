"""A stream whose processes are killed loses nothing and repeats nothing, by either door."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from coherer import Message
from coherer.blocking import Client
from coherer.blocking.rocketmq import RocketClient

if TYPE_CHECKING:
    from conftest import Door
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamWriter

    from coherer.testing import EmbeddedNode

pytestmark = pytest.mark.spark

WAIT_S = 120
JOB = Path(__file__).with_name("landing_job.py")


@pytest.fixture
def client(door: Door) -> Iterator[Client | RocketClient]:
    with door.connect() as client:
        yield client


@pytest.fixture
def topic(coherer_node: EmbeddedNode, coherer_topic: str) -> str:
    name = f"{coherer_topic}_k"
    coherer_node.create_topic(name, 4)
    return name


def send(client: Client | RocketClient, topic: str, numbers: range) -> None:
    with client.producer(topic) as producer:
        producer.send_many(Message(topic, b"%d" % number) for number in numbers).check()


def finish(spark: SparkSession, door: Door, topic: str, home: Path) -> Counter[int]:
    """Lands the rest, and counts what is in the table."""
    rows = spark.readStream.format(door.format).option("url", door.url).load(topic)
    found = rows.selectExpr("cast(value as string) number", "broker", "partition", "offset")
    run_to_the_end(found.writeStream, home)
    return landed(spark, home)


def run_to_the_end(writer: DataStreamWriter, home: Path) -> None:
    query = (
        writer.format("parquet")
        .option("path", str(home / "table"))
        .option("checkpointLocation", str(home / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(WAIT_S)


def landed(spark: SparkSession, home: Path) -> Counter[int]:
    rows = spark.read.parquet(str(home / "table")).select("number").toArrow()
    return Counter(int(number) for number in rows["number"].to_pylist())


def land_and_kill(door: Door, topic: str, home: Path, rows: int) -> int:
    """Runs the job, kills all its processes when `rows` have landed; how many it said had."""
    with (home / "errors").open("ab") as errors:
        job = subprocess.Popen(
            [sys.executable, str(JOB), door.format, door.url, topic, str(home)],
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            start_new_session=True,
        )
    watchdog = threading.Timer(WAIT_S, os.killpg, (job.pid, signal.SIGKILL))
    watchdog.start()
    said = 0
    try:
        assert job.stdout is not None
        for line in job.stdout:
            said = int(line) if line.strip().isdecimal() else said
            if said >= rows:
                break
    finally:
        watchdog.cancel()
        os.killpg(job.pid, signal.SIGKILL)
        job.communicate()
    assert said >= rows, (home / "errors").read_text()
    return said


@pytest.mark.slow
def test_a_driver_killed_in_the_middle(
    spark: SparkSession, door: Door, client: Client | RocketClient, topic: str, tmp_path: Path
) -> None:
    send(client, topic, range(10_000))
    assert land_and_kill(door, topic, tmp_path, 500) < 10_000
    send(client, topic, range(10_000, 11_000))
    assert land_and_kill(door, topic, tmp_path, 1_500) < 11_000
    assert finish(spark, door, topic, tmp_path) == Counter(range(11_000))


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="finds processes in /proc")
def test_workers_killed_in_the_middle(
    spark: SparkSession, door: Door, client: Client | RocketClient, topic: str, tmp_path: Path
) -> None:
    from pyspark.sql import functions as F  # noqa: N812

    send(client, topic, range(5_000))
    struck = tmp_path / "struck"

    def strike(number: str) -> str:
        """Kills all workers of the daemon, this one last, at the first sight of some rows."""
        mark = Path(f"{struck}-{number}")
        if int(number) % 1_000 == 999 and not mark.exists():
            mark.touch()
            daemon = os.getppid()
            for entry in Path("/proc").iterdir():
                if entry.name.isdigit() and int(entry.name) != os.getpid():
                    try:
                        parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
                    except OSError:
                        continue
                    if parent == daemon:
                        os.kill(int(entry.name), signal.SIGKILL)
            os.kill(os.getpid(), signal.SIGKILL)
        return number

    rows = (
        spark.readStream.format(door.format)
        .option("url", door.url)
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", "900")
        .load(topic)
        .select(F.col("value").cast("string").alias("number"), "partition", "offset")
    )
    struck_rows = rows.withColumn("number", F.udf(strike, "string", useArrow=False)("number"))
    run_to_the_end(struck_rows.writeStream, tmp_path)
    assert len(list(tmp_path.glob("struck-*"))) == 5
    assert landed(spark, tmp_path) == Counter(range(5_000))
