"""A stream with its default start on a topic that is being written to, on both formats.

"Latest" is another place each time that Spark asks for it. The first answer holds: nothing behind
it is left out and nothing is read twice, whenever the stream is killed.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from landing import WAIT_S, feed, run

from coherer.blocking import Client
from coherer.blocking.rocketmq import RocketClient
from coherer.spark.offsets import from_json

if TYPE_CHECKING:
    from conftest import Door
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from coherer.testing import EmbeddedNode

pytestmark = pytest.mark.spark

JOB = Path(__file__).with_name("begin_job.py")
PARTITIONS = 3


@pytest.fixture
def client(door: Door) -> Iterator[Client | RocketClient]:
    with door.connect() as client:
        yield client


@pytest.fixture
def topic(coherer_node: EmbeddedNode, coherer_topic: str) -> str:
    name = f"{coherer_topic}_b"
    coherer_node.create_topic(name, PARTITIONS)
    return name


def land(
    spark: SparkSession,
    door: Door,
    topic: str,
    home: Path,
    wait: Callable[[StreamingQuery], bool | None] | None = None,
) -> None:
    """Lands what comes in a table until `wait` returns; without it, what is there now."""
    rows = spark.readStream.format(door.format).option("url", door.url).load(topic)
    to_table = (
        rows.selectExpr("partition || ' ' || offset place")
        .writeStream.format("parquet")
        .option("path", str(home / "table"))
        .option("checkpointLocation", str(home / "checkpoint"))
    )
    if wait is None:
        to_table = to_table.trigger(availableNow=True)
    run(to_table.start, wait or (lambda query: query.awaitTermination(WAIT_S)))


def landed(spark: SparkSession, home: Path) -> dict[int, list[int]]:
    """The offsets that are in the table, by partition."""
    found: defaultdict[int, list[int]] = defaultdict(list)
    for row in spark.read.parquet(str(home / "table")).collect():
        partition, offset = row.place.split()
        found[int(partition)].append(int(offset))
    return {partition: sorted(found[partition]) for partition in sorted(found)}


def check_unbroken(found: dict[int, list[int]]) -> None:
    """Each offset once, from the first to the last."""
    for offsets in found.values():
        assert offsets == list(range(offsets[0], offsets[-1] + 1))


def forget_commits(home: Path) -> None:
    """As after a crash between the end of the first batch and its commit."""
    for file in (home / "checkpoint" / "commits").iterdir():
        file.unlink()


def end_of(home: Path, batch: int) -> dict[int, int]:
    """Where a batch of a checkpoint ends, by partition."""
    text = (home / "checkpoint" / "offsets" / str(batch)).read_text().splitlines()[2]
    ((_, places),) = from_json(text, "the checkpoint").items()
    return {int(key.rpartition(":")[2]): offset for key, offset in places.items()}


def test_it_runs_while_messages_come(
    spark: SparkSession, door: Door, client: Client | RocketClient, topic: str, tmp_path: Path
) -> None:
    def some_batches(query: StreamingQuery) -> bool:
        deadline = time.monotonic() + WAIT_S
        while sum(one["numInputRows"] > 0 for one in query.recentProgress) < 3:
            assert time.monotonic() < deadline
            query.awaitTermination(0.05)  # raises what ended it
        query.stop()
        return True

    with feed(client, topic):
        land(spark, door, topic, tmp_path, some_batches)
        land(spark, door, topic, tmp_path)
        found = landed(spark, tmp_path)
    assert sorted(found) == list(range(PARTITIONS))
    check_unbroken(found)


def test_a_first_batch_that_was_not_committed_starts_where_it_did(
    spark: SparkSession, door: Door, client: Client | RocketClient, topic: str, tmp_path: Path
) -> None:
    with feed(client, topic):
        for _ in range(2):
            land(spark, door, topic, tmp_path)
            forget_commits(tmp_path)
        land(spark, door, topic, tmp_path)
        land(spark, door, topic, tmp_path)
    check_unbroken(landed(spark, tmp_path))


@pytest.mark.slow
def test_killed_at_each_step_of_the_first_batch(
    spark: SparkSession, door: Door, client: Client | RocketClient, topic: str, tmp_path: Path
) -> None:
    checkpoint, seen = tmp_path / "checkpoint", tmp_path / "seen"
    with feed(client, topic):
        kill_when(door, topic, tmp_path, (checkpoint / "metadata").exists)  # nothing is planned
        assert not (checkpoint / "offsets" / "0").exists()
        kill_when(door, topic, tmp_path, (checkpoint / "offsets" / "0").exists)
        end = end_of(tmp_path, 0)
        seen.unlink(missing_ok=True)
        kill_when(door, topic, tmp_path, seen.exists)  # tasks read; nothing is written
        read = {tuple(map(int, line.split())) for line in seen.read_text().splitlines()}
        (tmp_path / "go").touch()
        commits = checkpoint / "commits" / "0"
        kill_when(door, topic, tmp_path, commits.exists)
        forget_commits(tmp_path)  # files are written, Spark does not know
        land(spark, door, topic, tmp_path)
        land(spark, door, topic, tmp_path)
    found = landed(spark, tmp_path)
    check_unbroken(found)
    assert read, "tasks had rows of batch 0"
    for partition, offset in read:
        assert offset in found[partition]
    assert end_of(tmp_path, 0) == end, "batch 0 was planned once"
    assert any(found[partition][0] < end[partition] for partition in end)


def kill_when(door: Door, topic: str, home: Path, reached: Callable[[], bool]) -> None:
    """Runs the job until a step is reached, and kills all its processes."""
    with (home / "errors").open("ab") as errors:
        job = subprocess.Popen(
            [sys.executable, str(JOB), door.format, door.url, topic, str(home)],
            stdout=errors,
            stderr=errors,
            start_new_session=True,
        )
    deadline = time.monotonic() + WAIT_S
    try:
        while not reached():
            assert job.poll() is None, (home / "errors").read_text()
            assert time.monotonic() < deadline, (home / "errors").read_text()
            time.sleep(0.001)
    finally:
        os.killpg(job.pid, signal.SIGKILL)
        job.wait()
