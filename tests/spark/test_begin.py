"""A stream with its default start on a topic that is being written to, on both formats.

"Latest" differs each time that Spark asks for it. The first answer counts: no message after it is
skipped and none is read twice, whenever the stream is killed.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from coherer.blocking.rocketmq import Client as RocketClient
from coherer.blocking.tubemq import Client
from coherer.spark.offsets import from_json
from tests.spark.beginning import check_unbroken, forget_commits, land, landed
from tests.spark.landing import WAIT_S, feed

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from coherer.testing import EmbeddedNode
    from tests.spark.queues import Endpoint

pytestmark = pytest.mark.spark

ROOT = Path(__file__).parents[2]
JOB = ["-m", "tests.spark.begin_job"]
PARTITIONS = 3


@pytest.fixture
def client(endpoint: Endpoint) -> Iterator[Client | RocketClient]:
    with endpoint.connect() as client:
        yield client


@pytest.fixture
def topic(coherer_node: EmbeddedNode, coherer_topic: str) -> str:
    name = f"{coherer_topic}_b"
    coherer_node.create_topic(name, PARTITIONS)
    return name


def end_of(home: Path, batch: int) -> dict[int, int]:
    """The end of a batch in a checkpoint, by partition."""
    text = (home / "checkpoint" / "offsets" / str(batch)).read_text().splitlines()[2]
    ((_, partitions),) = from_json(text, "the checkpoint").items()
    return {int(key.rpartition(":")[2]): offset for key, offset in partitions.items()}


def test_a_stream_starts_while_messages_arrive(
    spark: SparkSession,
    endpoint: Endpoint,
    client: Client | RocketClient,
    topic: str,
    tmp_path: Path,
) -> None:
    def some_batches(query: StreamingQuery) -> bool:
        deadline = time.monotonic() + WAIT_S
        while sum(one["numInputRows"] > 0 for one in query.recentProgress) < 3:
            assert time.monotonic() < deadline
            query.awaitTermination(0.05)  # raises what ended it
        query.stop()
        return True

    with feed(client, topic):
        land(spark, endpoint.format, endpoint.url, topic, tmp_path, some_batches)
        land(spark, endpoint.format, endpoint.url, topic, tmp_path)
        found = landed(spark, tmp_path)
    assert sorted(found) == list(range(PARTITIONS))
    check_unbroken(found)


def test_an_uncommitted_first_batch_keeps_its_start(
    spark: SparkSession,
    endpoint: Endpoint,
    client: Client | RocketClient,
    topic: str,
    tmp_path: Path,
) -> None:
    with feed(client, topic):
        for _ in range(2):
            land(spark, endpoint.format, endpoint.url, topic, tmp_path)
            forget_commits(tmp_path)
        land(spark, endpoint.format, endpoint.url, topic, tmp_path)
        land(spark, endpoint.format, endpoint.url, topic, tmp_path)
    check_unbroken(landed(spark, tmp_path))


@pytest.mark.slow
def test_killed_at_each_step_of_the_first_batch(
    spark: SparkSession,
    endpoint: Endpoint,
    client: Client | RocketClient,
    topic: str,
    tmp_path: Path,
) -> None:
    checkpoint, seen = tmp_path / "checkpoint", tmp_path / "seen"
    with feed(client, topic):
        kill_when(endpoint, topic, tmp_path, (checkpoint / "metadata").exists)  # nothing is planned
        assert not (checkpoint / "offsets" / "0").exists()
        kill_when(endpoint, topic, tmp_path, (checkpoint / "offsets" / "0").exists)
        end = end_of(tmp_path, 0)
        seen.unlink(missing_ok=True)
        kill_when(endpoint, topic, tmp_path, seen.exists)  # tasks read; nothing is written
        read = {tuple(map(int, line.split())) for line in seen.read_text().splitlines()}
        (tmp_path / "go").touch()
        commits = checkpoint / "commits" / "0"
        kill_when(endpoint, topic, tmp_path, commits.exists)
        forget_commits(tmp_path)  # files are written, Spark does not know
        land(spark, endpoint.format, endpoint.url, topic, tmp_path)
        land(spark, endpoint.format, endpoint.url, topic, tmp_path)
    found = landed(spark, tmp_path)
    check_unbroken(found)
    assert read, "tasks had rows of batch 0"
    for partition, offset in read:
        assert offset in found[partition]
    assert end_of(tmp_path, 0) == end, "batch 0 was planned once"
    assert any(found[partition][0] < end[partition] for partition in end)


def kill_when(endpoint: Endpoint, topic: str, home: Path, reached: Callable[[], bool]) -> None:
    """Runs the job until a step is reached, and kills all its processes."""
    with (home / "errors").open("ab") as errors:
        job = subprocess.Popen(
            [sys.executable, *JOB, endpoint.format, endpoint.url, topic, str(home)],
            stdout=errors,
            stderr=errors,
            start_new_session=True,
            cwd=ROOT,
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
